//! Valid declarations of networks, and tests of the recorded traces.

mod arguments;
mod elsewhere;
mod keys;
mod llama;
mod parameters;
mod places;
