//! `tracewright random`

use tracewright::irpa::Gguf;
use tracewright::random::write_random;
use tracewright::{Plan, PlanError};

use crate::arguments::RandomArguments;
use crate::error::Error;
use crate::{Interrupt, ReadModel, progress};

pub fn run(arguments: RandomArguments, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let RandomArguments { config, out, seed, dtype, allow_config_key } = arguments;
    if Gguf::is_at(&config) {
        let what =
            "random weights are made for a config.json, and a GGUF file has weights; name a config.json";
        return Err(Error::Usage { what: what.into() });
    }
    let network = read(&config, &allow_config_key)?;
    let said = network.element();
    let plan = Plan::new(network, dtype, None, None)?;
    let parameters = plan.trace()?.trace.parameters().map_err(PlanError::from)?;
    let total: usize = parameters.iter().map(|p| p.ty.bytes()).sum();
    let bar = progress::bytes("random weights", total as u64);
    let file = if config.is_dir() { config.join("config.json") } else { config };
    let watch = |bytes| {
        bar.inc(bytes as u64);
        interrupt.go_on()
    };
    write_random(&file, &parameters, seed, &out, &watch)?;
    bar.finish_and_clear();
    say!("wrote `{}`: {} parameters, {total} bytes", out.display(), parameters.len());
    if let Some(said) = said.filter(|said| *said != plan.element) {
        say!(
            "its config.json says {said}: `--dtype {}` is needed wherever it runs in the type of its weights",
            plan.element
        );
    }
    Ok(())
}
