//! `tracewright random`

use std::ops::ControlFlow;
use std::path::PathBuf;
use std::sync::atomic::Ordering;

use tracewright::PlanError;
use tracewright::models::ModelConfig;
use tracewright::random::write_random;

use crate::error::Error;
use crate::{Interrupt, ModelArguments, progress};

#[derive(clap::Args)]
pub struct Arguments {
    /// A config.json
    config: PathBuf,
    /// The model directory to write
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// The same seed gives the same bytes
    #[arg(long, default_value_t = 0)]
    seed: u64,
    #[command(flatten)]
    model: ModelArguments,
}

pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<(), Error> {
    let config = ModelConfig::read(&arguments.config, &arguments.model.allow_config_key)?;
    let plan = arguments.model.plan(config, arguments.model.context)?;
    let parameters = plan.trace()?.trace.parameters().map_err(PlanError::from)?;
    let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
    let bar = progress::bytes("random weights", total as u64);
    let file =
        if arguments.config.is_dir() { arguments.config.join("config.json") } else { arguments.config };
    let watch = |bytes| {
        bar.inc(bytes as u64);
        if interrupt.load(Ordering::SeqCst) { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    write_random(&file, &parameters, arguments.seed, &arguments.out, &watch)?;
    bar.finish_and_clear();
    eprintln!("wrote `{}`: {} parameters, {total} bytes", arguments.out.display(), parameters.len());
    Ok(())
}
