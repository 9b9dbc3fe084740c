//! `tracewright`, for the networks that the library has.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracewright_cli::main(tracewright::models::read)
}
