//! The binary `trace-dump`, for the networks in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    inspect::main(tracewright::models::read)
}
