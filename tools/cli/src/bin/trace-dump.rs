//! The program `trace-dump` supports the network families of the crate `models`.

use std::process::ExitCode;

fn main() -> ExitCode {
    inspect::main(tracewright::models::read)
}
