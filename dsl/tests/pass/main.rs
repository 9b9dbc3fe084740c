//! Networks that are declared rightly, and what is recorded of them.

mod arguments;
mod elsewhere;
mod keys;
mod llama;
mod parameters;
mod places;
