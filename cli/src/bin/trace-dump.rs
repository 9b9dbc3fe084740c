//! `trace-dump`, for the networks that the library has.

use std::process::ExitCode;

fn main() -> ExitCode {
    inspect::main(tracewright::models::read)
}
