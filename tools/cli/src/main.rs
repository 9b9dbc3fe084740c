//! The program `tracewright` supports the network families of the crate `models`.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracewright_cli::main(tracewright::models::read)
}
