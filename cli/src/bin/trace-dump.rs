//! Shows what a model is recorded and lowered to. Reads no weight and needs no set-up.

use std::process::ExitCode;

fn main() -> ExitCode {
    tracewright_cli::trace_dump(tracewright::models::read)
}
