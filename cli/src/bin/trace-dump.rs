//! The binary `trace-dump`, for the network families in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    inspect::main(tracewright::models::read)
}
