//! From a directory to a network that can be called: an export is loaded, a checkpoint is baked and compiled first.

use std::fs;
use std::time::{Duration, Instant};

use tracewright::Plan;
use tracewright::export::{self, Manifest};
use tracewright::generate::{Network, check_tokens};
use tracewright::irpa::Checkpoint;
use tracewright::models::ModelConfig;
use tracewright::runtime::{Runtime, Target};

use crate::error::Error;
use crate::generate::Arguments;
use crate::{Interrupt, ModelArguments, build};

/// What a model directory holds.
pub enum Source {
    /// What `export` wrote.
    Export(Manifest),
    /// A Hugging Face checkpoint.
    Checkpoint(ModelConfig),
}

/// A network and how long it took to get.
pub struct Loaded {
    pub network: Network,
    pub compile: Duration,
    pub load: Duration,
}

impl Source {
    pub fn read(arguments: &Arguments) -> Result<Self, Error> {
        let (folder, model) = (&arguments.model, &arguments.model_arguments);
        fs::read_dir(folder).map_err(|source| {
            let action = "open the model directory";
            Error::File { action, path: folder.clone(), source }
        })?;
        if let Some(manifest) = Manifest::read(folder)? {
            check_as_exported(&manifest, model)?;
            return Ok(Self::Export(manifest));
        }
        // Before its configuration: weights in another format rarely have one.
        Checkpoint::open(folder)?;
        Ok(Self::Checkpoint(ModelConfig::read(folder, &model.allow_config_key)?))
    }

    pub fn load(
        self,
        arguments: &Arguments,
        prompt: &[u32],
        runtime: &Runtime,
        interrupt: &Interrupt,
    ) -> Result<Loaded, Error> {
        let folder = &arguments.model;
        let config = match self {
            Self::Export(manifest) => {
                let start = Instant::now();
                let program = export::open(folder, &manifest, runtime)?;
                let network = Network::new(runtime, &program, &manifest.signatures(folder)?, manifest.context)?;
                return Ok(Loaded { network, compile: Duration::ZERO, load: start.elapsed() });
            }
            Self::Checkpoint(config) => config,
        };
        let model = &arguments.model_arguments;
        let needed =
            Plan::context_for(prompt.len().saturating_add(arguments.max_tokens), config.max_context());
        let plan = Plan::new(config, model.dtype, model.context.or(Some(needed)), model.chunk)?;
        // What is wrong with prompt and checkpoint is known before anything slow begins.
        check_tokens(prompt, 0, plan.context, plan.model.vocabulary())?;
        let entries: &[&str] = match arguments.all_positions {
            true => &["prefill", "decode", "score"],
            false => &["prefill", "decode"],
        };
        let module = plan.module_of(entries)?;
        let cache = build::cache_folder(&arguments.compile)?;
        let archive = build::archive(folder, &plan, &module, &cache, interrupt)?;
        let compiler = build::compiler(&arguments.compile, interrupt)?;
        let options = build::options(&compiler, Target::default(), plan.element)?;
        let compiled = build::compile(&module, &compiler, &options, &cache)?;
        let start = Instant::now();
        let program = export::load(runtime, &compiled.vmfb, &archive, &module.parameters)?;
        let network = Network::new(runtime, &program, &module.signatures, plan.context)?;
        Ok(Loaded { network, compile: compiled.wall, load: start.elapsed() })
    }
}

/// An export is what it is: asking for something else is a mistake, not a wish.
fn check_as_exported(manifest: &Manifest, asked: &ModelArguments) -> Result<(), Error> {
    let options = [
        ("dtype", asked.dtype.map(|dtype| dtype.to_string()), manifest.dtype.clone()),
        ("context", asked.context.map(|n| n.to_string()), manifest.context.to_string()),
        ("chunk", asked.chunk.map(|n| n.to_string()), manifest.chunk.to_string()),
    ];
    for (name, asked, exported) in options {
        if let Some(asked) = asked.filter(|asked| *asked != exported) {
            let what = format!(
                "`--{name}` is {asked}, but the model was exported with {exported}; leave the option out, or export again"
            );
            return Err(Error::Usage { what });
        }
    }
    Ok(())
}
