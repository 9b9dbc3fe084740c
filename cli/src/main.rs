//! `tracewright`, for the networks that the library has.

use std::process::ExitCode;

use tracewright::models::ModelConfig;

fn main() -> ExitCode {
    tracewright_cli::main(|model, allowed_keys| Ok(Box::new(ModelConfig::read(model, allowed_keys)?)))
}
