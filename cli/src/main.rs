//! The binary `tracewright`, for the network families in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracewright_cli::main(tracewright::models::read)
}
