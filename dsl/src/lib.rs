//! How a human writes a network.
