//! Shows what a model is recorded and lowered to. Reads no weight and needs no set-up.

use std::process::ExitCode;

use tracewright::models::ModelConfig;

fn main() -> ExitCode {
    tracewright_cli::trace_dump(|model, allowed_keys| Ok(Box::new(ModelConfig::read(model, allowed_keys)?)))
}
