//! Tests of networks that a plugin of XLA runs. They are one program, because each program links Tracewright and IREE.
//! `cargo xtask test` runs each module in its own process.

mod mesh;
mod xla;
mod xla_quantized;
mod xla_state;
