//! `tracewright bake`

use std::path::PathBuf;

use tracewright::bake::{BakeOptions, bake};
use tracewright::irpa::{Checkpoint, ConvertOptions, convert_checkpoint};
use tracewright::models::ModelConfig;

use crate::error::Error;
use crate::{Interrupt, ModelArguments, progress};

#[derive(clap::Args)]
pub struct Arguments {
    /// A model directory (its parameters are checked and written as the module reads them), or a .safetensors file
    /// (written as it is)
    checkpoint: PathBuf,
    /// The archive to write
    #[arg(short, long, value_name = "FILE.irpa")]
    out: PathBuf,
    /// Write neither types nor hashes, as IREE's own tool does
    #[arg(long)]
    no_metadata: bool,
    #[command(flatten)]
    model: ModelArguments,
}

pub fn run(arguments: Arguments, interrupt: &Interrupt) -> Result<(), Error> {
    let checkpoint = Checkpoint::open(&arguments.checkpoint)?;
    let bar = progress::bytes("baking", 0);
    let mut watch = progress::watch(&bar, interrupt);
    if !arguments.checkpoint.is_dir() {
        let options = ConvertOptions {
            float: arguments.model.dtype,
            metadata: !arguments.no_metadata,
            watch: Some(&mut watch),
        };
        let converted = convert_checkpoint(&checkpoint, &arguments.out, options)?;
        bar.finish_and_clear();
        eprintln!("wrote `{}`, {} tensors converted", arguments.out.display(), converted.len());
        return Ok(());
    }
    let config = ModelConfig::read(&arguments.checkpoint, &arguments.model.allow_config_key)?;
    let plan = arguments.model.plan(config, arguments.model.context)?;
    let parameters = plan.module()?.parameters;
    let options = BakeOptions { metadata: !arguments.no_metadata, watch: Some(&mut watch) };
    let checkpoint = checkpoint.renamed(plan.model.prefixes());
    let baked = bake(&checkpoint, &parameters, &plan.ignorable(&parameters)?, &arguments.out, options)?;
    bar.finish_and_clear();
    report(&baked);
    eprintln!("wrote `{}`: {} parameters, {} bytes", arguments.out.display(), parameters.len(), baked.bytes);
    Ok(())
}

/// Says what became of the checkpoint beyond a copy.
pub fn report(baked: &tracewright::bake::Baked) {
    if let Some((_, from, to)) = baked.converted.first() {
        eprintln!("converted {} tensors from {from} to {to}", baked.converted.len());
    }
    if !baked.ignored.is_empty() {
        eprintln!("left out {}: {}", baked.ignored.len(), baked.ignored.join(", "));
    }
}
