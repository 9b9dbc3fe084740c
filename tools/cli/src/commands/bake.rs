//! `tracewright bake` writes the weights of a checkpoint into an IREE parameter archive.

use std::path::{Path, PathBuf};

use clap::Args;
use console::{ModelArguments, patterns, usage};
use tracewright::PlanError;
use tracewright::bake::BakeOptions;
use tracewright::footprint::Footprint;
use tracewright::irpa::{Checkpoint, ConvertOptions, Gguf, convert_checkpoint};
use tracewright::numeric::{NumericOption, NumericOptions};
use tracewright::output_guard::check_output;

use crate::arguments::LoraArguments;
use crate::checkpoint::{open, report_baked};
use crate::error::Error;
use crate::{Invocation, progress};

#[derive(Args)]
pub struct Arguments {
    /// Model directory or GGUF file, whose weights `bake` stores in the layout that the compiled module
    /// reads, or a .safetensors file, whose tensors `bake` copies unchanged or converts with `--dtype`
    pub checkpoint: PathBuf,
    /// Archive file to write
    #[arg(short, long, value_name = "FILE.irpa")]
    pub out: PathBuf,
    /// Write an archive without types and hashes, like the archives of IREE's own tool
    #[arg(long)]
    pub no_metadata: bool,
    /// Print the equivalent commands of IREE's own tools on stderr
    #[arg(long)]
    pub print_commands: bool,
    #[command(flatten)]
    pub lora: LoraArguments,
    #[command(flatten)]
    pub model: ModelArguments,
}

impl Arguments {
    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let &Invocation { read, ref interrupt, .. } = invocation;
        let Arguments { checkpoint: source, out, no_metadata, print_commands, lora, model } = self;
        check_output(source, out)?;
        let bar = progress::bytes("baking", 0);
        let mut watch = progress::watch(&bar, interrupt);
        if !source.is_dir() && !Gguf::is_at(source) {
            check(model, lora)?;
            let checkpoint = Checkpoint::open(source)?;
            let options = ConvertOptions {
                float: model.network.numeric.dtype,
                metadata: !no_metadata,
                watch: Some(&mut watch),
            };
            let converted = convert_checkpoint(&checkpoint, out, options)?;
            bar.finish_and_clear();
            say!("wrote `{}`, {} tensors converted", out.display(), converted.len());
            match converted.is_empty() {
                _ if !print_commands => {}
                true => say!("{}", converts(source, out)),
                false => say!("IREE has no tool that converts element types"),
            }
            return Ok(());
        }
        let (network, checkpoint) = open(read, source, &model.network.allow_config_key, lora)?;
        let plan = model.plan(network, source, model.context)?;
        let traced = plan.trace()?;
        let expanded = plan.expand(&traced.trace)?;
        let footprint = Footprint::of(&expanded).map_err(PlanError::from)?;
        let lowered = expanded.lower(plan.model.ignorable.clone()).map_err(PlanError::from)?;
        let options = BakeOptions { metadata: !no_metadata, watch: Some(&mut watch) };
        let baked = lowered.bake(&checkpoint, out, options);
        let baked = baked.map_err(|refused| refused.declared_in(&traced.trace))?;
        bar.finish_and_clear();
        report_baked(&baked);
        let reported = |format| baked.blocks.keys().any(|blocks| blocks.to.0 == Some(format));
        for (format, stored) in footprint.mixture().into_iter().filter(|(format, _)| !reported(*format)) {
            say!("{}: {}", format.word(), patterns(stored));
        }
        if *print_commands {
            say!("IREE has no tool that converts and packs a model's weights as the module reads them");
        }
        say!(
            "wrote `{}`: {} parameters, {} bytes",
            out.display(),
            lowered.module.parameters.len(),
            baked.bytes
        );
        Ok(())
    }
}

/// Rejects options for a network if the checkpoint is a single file of tensors, which has no configuration.
fn check(model: &ModelArguments, lora: &LoraArguments) -> Result<(), Error> {
    let numeric = NumericOptions::clone(&model.network.numeric).or(&model.text);
    let mut given = NumericOption::ALL.iter().filter(|option| option.word(&numeric).is_some());
    let option = match () {
        () if model.context.is_some() => "context",
        () if model.chunk.is_some() => "chunk",
        () if !lora.lora.is_empty() => "lora",
        () => match given.find(|option| option.name != "dtype") {
            Some(option) => option.name,
            None => return Ok(()),
        },
    };
    let what = format!("`--{option}` is for a model; name its directory, not one file of its weights");
    Err(usage(what).into())
}

fn converts(checkpoint: &Path, archive: &Path) -> String {
    let words = [
        "iree-convert-parameters".to_owned(),
        format!("--parameters={}", checkpoint.display()),
        format!("--output={}", archive.display()),
    ];
    // A word with a zero byte is no argument of any program.
    shlex::try_join(words.iter().map(String::as_str)).unwrap_or_default()
}
