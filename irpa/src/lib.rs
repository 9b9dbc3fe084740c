//! IREE parameter archives, byte for byte.
