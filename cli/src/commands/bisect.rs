//! `tracewright bisect` finds the first operation at which the outputs of two variants of a model diverge.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{BuildArguments, DeviceArguments};

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// Token ids that the model reads, such as 5,17,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// Variant to compare the compiled model with: the reference evaluator, the same model without
    /// simplification, kernels or quantization, or a file of transformers' activations by
    /// tests/oracle/activations.py
    #[arg(
        long,
        value_name = "evaluator|unsimplified|no-kernels|dense|FILE.safetensors",
        default_value = "evaluator"
    )]
    pub against: Against,
    /// Print one JSON object on stdout instead of a report
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub build: BuildArguments,
}

/// The variant of the model that a compiled model is compared with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Against {
    Evaluator,
    Unsimplified,
    NoKernels,
    Dense,
    Activations(PathBuf),
}

impl From<&str> for Against {
    fn from(text: &str) -> Self {
        match text {
            "evaluator" => Self::Evaluator,
            "unsimplified" => Self::Unsimplified,
            "no-kernels" => Self::NoKernels,
            "dense" => Self::Dense,
            path => Self::Activations(path.into()),
        }
    }
}

#[cfg(feature = "iree")]
mod run {
    use std::path::Path;

    use console::{print, usage};
    use instruments::bisect::{
        Activations, Baseline, BisectReport, CheckpointValues, CompiledNetwork, TokenCall,
    };
    use tracewright::Plan;
    use tracewright::runtime::{Device, Runtime};
    use tracewright::targets::{Target, Tuning};

    use super::Against;
    use super::Arguments;
    use crate::Invocation;
    use crate::build;
    use crate::checkpoint::open;
    use crate::error::Error;
    use crate::limit::Limit;
    use crate::load::check_prompt;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let &Invocation { read, ref interrupt } = invocation;
            let Arguments { model: folder, tokens, against, .. } = self;
            let model = &self.build.model_arguments;
            let (network, checkpoint) = open(read, folder, &model.network.allow_config_key)?;
            let context = Plan::context_for(tokens.len(), network.max_context());
            if matches!(against, Against::Activations(_)) && model.chunk.is_some() {
                let what = "`--chunk` reads a prompt in pieces, and transformers computed these activations in one \
                     pass; leave it out";
                return Err(usage(what).into());
            }
            let plan = model.plan(network, folder, model.context.or(Some(context)))?;
            check_prompt(tokens, Limit::of(&plan), plan.model.vocabulary())?;
            let activations = match against {
                Against::Activations(path) => Some(activations(path, tokens)?),
                _ => None,
            };
            // No longer than what is read: padding costs as much as tokens. What transformers computed, it did in one pass.
            let chunk = match activations {
                Some(_) => tokens.len(),
                None => plan.chunk.min(tokens.len().saturating_sub(1)).max(1),
            };
            let plan = Plan { chunk, ..plan };
            let (entries, calls) = match activations {
                Some(_) => (plan.entry_points(), vec![TokenCall::score(tokens)]),
                None => (plan.steps(), TokenCall::of(tokens, chunk)),
            };
            let quantized = plan.weights.quantize.rounds();
            if *against == Against::Dense && !quantized {
                let what = "`--against dense` compares quantized weights with those of the checkpoint; \
                    quantize them with `--quant`";
                return Err(usage(what).into());
            }
            let trace = plan.record(&entries)?.trace;
            let values = CheckpointValues::new(&trace, &checkpoint).map_err(tracewright::PlanError::from)?;
            let compiler = build::compiler(&self.build.compile, interrupt)?;
            let cache = build::cache_folder(&self.build.compile)?;
            let (device, target) = self.device.choose(1)?;
            let target = compiler.resolve(&target)?;
            let tuning = self.build.tuning.read(&target, (&compiler, &cache))?.of(&plan)?;
            let target = Target { tuning: Tuning { chunk: None, ..tuning }, ..target };
            // Sums are those of one thread.
            let runtime = Runtime::new(match device {
                Device::LocalTask { .. } => Device::LocalSync,
                device => device,
            })?;
            let name = match against {
                Against::Evaluator => "evaluator",
                Against::Unsimplified => "unsimplified",
                Against::NoKernels => "no-kernels",
                Against::Dense => "dense",
                Against::Activations(_) => "transformers",
            };
            let baseline = match (against, &activations) {
                (_, Some(activations)) => Baseline::Activations(activations),
                (Against::Unsimplified, _) => Baseline::Unsimplified,
                (Against::NoKernels, _) => Baseline::NoKernels,
                (Against::Dense, _) => Baseline::Dense,
                _ => Baseline::Evaluator,
            };
            let network = CompiledNetwork {
                plan: &plan,
                trace: &trace,
                checkpoint: &checkpoint,
                values: &values,
                tools: (&compiler, &cache),
                runtime: &runtime,
                target: &target,
            };
            let compared = network.compare(&baseline, &calls, &mut |call| {
                say!("comparing {call}");
                interrupt.go_on()
            })?;
            report(&BisectReport { names: ["iree", name], calls: &calls, compared: &compared }, self.json)
        }
    }

    /// Prints the report of `bisect`. If the outputs diverge, the command fails even if stdout is closed.
    fn report(report: &BisectReport<'_>, json: bool) -> Result<(), Error> {
        let written = print(&if json { format!("{}\n", report.json()) } else { report.text() });
        match report.finding() {
            None if report.nodes() == 0 => {
                let what = format!(
                    "nothing was compared: {} has no activation of this network's modules",
                    report.names[1]
                );
                Err(usage(what).into())
            }
            None => Ok(written?),
            Some((_, finding)) => Err(Error::Differs { path: finding.node.place.path.clone() }),
        }
    }

    /// The activations that transformers computed for the same tokens.
    fn activations(path: &Path, tokens: &[u32]) -> Result<Activations, Error> {
        let activations = Activations::open(path)?;
        match activations.tokens() {
            Some(known) if known == tokens => Ok(activations),
            known => {
                let known = known
                    .map_or("no tokens (a list of i32)".to_owned(), |known| format!("the tokens {known:?}"));
                let what = format!("`{}` has {known}, and `--tokens` says {tokens:?}", path.display());
                Err(usage(what).into())
            }
        }
    }
}
