//! `tracewright random` writes random weights for a configuration.

use std::path::PathBuf;

use clap::Args;
use console::usage;
use tracewright::irpa::Gguf;
use tracewright::models::check_generates;
use tracewright::ops::ElementType;
use tracewright::random::write_random;
use tracewright::{Plan, PlanError};

use crate::error::Error;
use crate::{Invocation, progress};

#[derive(Args)]
pub struct Arguments {
    /// The config.json of the model for which random weights are written
    pub config: PathBuf,
    /// Model directory to write
    #[arg(short, long, value_name = "DIR")]
    pub out: PathBuf,
    /// Seed of the weights; the same seed gives the same bytes
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Type of the weights: f32, f16, bf16 [default: the configuration's type]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let &Invocation { read, ref interrupt, .. } = invocation;
        let Arguments { config, out, allow_config_key, .. } = self;
        if Gguf::is_at(config) {
            let what = "`random` makes weights for a config.json, and a GGUF file has weights already; name a config.json";
            return Err(usage(what).into());
        }
        let network = read(config.into(), allow_config_key)?;
        check_generates(&network.kind, config)?;
        let said = network.element();
        let plan = Plan::new(network, self.dtype, None, None)?;
        let parameters = plan.trace()?.trace.parameters().map_err(PlanError::from)?;
        let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
        let bar = progress::bytes("random weights", total as u64);
        let file = if config.is_dir() { config.join("config.json") } else { config.clone() };
        write_random(&file, &parameters, self.seed, out, &progress::count(&bar, interrupt))?;
        bar.finish_and_clear();
        say!("wrote `{}`: {} parameters, {total} bytes", out.display(), parameters.len());
        if let Some(said) = said.filter(|said| *said != plan.element) {
            say!(
                "its config.json declares {said}: pass `--dtype {}` to run the model in the type of its weights",
                plan.element
            );
        }
        Ok(())
    }
}
