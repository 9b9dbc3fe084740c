//! `tracewright bisect`

use std::path::PathBuf;

use clap::Args;
use console::ModelArguments;

use crate::arguments::{CompileArguments, DeviceArguments, TuningArguments};

#[derive(Args)]
pub struct Arguments {
    /// A Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// The token ids to read: 5,17,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// What the compiled model is compared with: the reference evaluator; itself unsimplified, without kernels, or with
    /// weights that are not rounded; or what transformers computed, as tests/oracle/activations.py writes it
    #[arg(
        long,
        value_name = "evaluator|unsimplified|no-kernels|dense|FILE.safetensors",
        default_value = "evaluator"
    )]
    pub against: Against,
    /// One JSON object on stdout instead of a report
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub device: DeviceArguments,
    #[command(flatten)]
    pub model_arguments: ModelArguments,
    #[command(flatten)]
    pub tuning: TuningArguments,
    #[command(flatten)]
    pub compile: CompileArguments,
}

/// What a compiled model is compared with.
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

    use instruments::bisect::{
        Activations, BisectReport, Bisection, CheckpointValues, CompiledForm, EvaluatedForm, Form, TokenCall,
        Tolerance,
    };
    use tracewright::Plan;
    use tracewright::lower::{Quantization, Weights};
    use tracewright::ops::WeightFormat;
    use tracewright::runtime::{Device, Runtime};
    use tracewright::simplify::Rules;
    use tracewright::targets::{Target, Tuning};

    use super::Against;
    use super::Arguments;
    use crate::Invocation;
    use crate::build;
    use crate::build::Tunings;
    use crate::checkpoint::open;
    use crate::error::Error;
    use crate::limit::Limit;
    use crate::load::check_prompt;
    use console::{print, usage};

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let &Invocation { read, ref interrupt } = invocation;
            let Arguments { model: folder, tokens, against, .. } = self;
            let model = &self.model_arguments;
            let (network, checkpoint) = open(read, folder, &model.network.allow_config_key)?;
            let context = Plan::context_for(tokens.len(), network.max_context());
            if matches!(against, Against::Activations(_)) && model.chunk.is_some() {
                let what =
                    "`--chunk` is for what reads a prompt in pieces; transformers computed these in one pass";
                return Err(usage(what).into());
            }
            let plan = model.plan(network, model.context.or(Some(context)))?;
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
                let what = "`--against dense` compares rounded weights with those of the checkpoint; round them with `--quant`";
                return Err(usage(what).into());
            }
            let (trace, checkpoint) = (plan.record(&entries)?.trace, plan.named(checkpoint));
            let values = CheckpointValues::new(&trace, &checkpoint).map_err(tracewright::PlanError::from)?;
            let compiler = build::compiler(&self.compile, interrupt)?;
            let cache = build::cache_folder(&self.compile)?;
            let (device, target) = self.device.choose(1)?;
            let target = compiler.resolve(&target)?;
            let source = self.tuning.source.as_ref();
            let tuning = Tunings::read(source, &target, (&compiler, &cache))?.of(Some(&plan))?;
            let target = Target { tuning: Tuning { chunk: None, ..tuning }, ..target };
            // Sums are those of one thread.
            let runtime = Runtime::new(match device {
                Device::LocalTask { .. } => Device::LocalSync,
                device => device,
            })?;
            let compiled = |name: &str, rules, weights| CompiledForm {
                name: name.into(),
                tools: (&compiler, &cache),
                runtime: runtime.clone(),
                checkpoint: &checkpoint,
                rules,
                weights,
                target: target.clone(),
            };
            let subject = compiled("iree", plan.rules, plan.weights.clone());
            let name = match against {
                Against::Evaluator => "evaluator",
                Against::Unsimplified => "unsimplified",
                Against::NoKernels => "no-kernels",
                Against::Dense => "dense",
                Against::Activations(_) => "transformers",
            };
            let mut watch = |call: &TokenCall| {
                say!("comparing {}", call);
                interrupt.go_on()
            };
            let mut compare = |reference: &dyn Form, products| {
                let tolerance = Tolerance::new(plan.element, products);
                let bisection = Bisection { subject: &subject, reference, values: &values, tolerance };
                bisection.compare_calls(&trace, &calls, &mut watch)
            };
            // A byte more or less, where a norm rounds otherwise.
            let rounded = quantized.then_some(ACTIVATIONS);
            let compared = match against {
                Against::Evaluator => {
                    let stored = quantized.then(|| (plan.weights.clone(), target.clone()));
                    compare(&EvaluatedForm { values: &values, stored }, rounded)?
                }
                Against::Unsimplified => compare(&compiled(name, Rules::Off, plan.weights.clone()), rounded)?,
                Against::NoKernels => compare(
                    &compiled(name, plan.rules, Weights { kernels: false, ..plan.weights.clone() }),
                    rounded,
                )?,
                Against::Dense => {
                    let dense = compiled(
                        name,
                        plan.rules,
                        Weights { quantize: Quantization::Computed, ..plan.weights.clone() },
                    );
                    compare(&dense, Some(rounding(&plan.weights.quantize)))?
                }
                Against::Activations(_) => {
                    let known = activations.iter();
                    let compared =
                        known.map(|known| known.compare(&subject, &trace, &calls[0], plan.element));
                    compared.collect::<Result<_, _>>()?
                }
            };
            let report = BisectReport { names: ["iree", name], calls: &calls, compared: &compared };
            let text = match self.json {
                true => format!("{}\n", report.json()),
                false => report.text(),
            };
            let written = print(&text);
            match report.finding() {
                None if report.nodes() == 0 => {
                    let what =
                        format!("nothing was compared: {name} has no value of a module of this network");
                    Err(usage(what).into())
                }
                None => Ok(written?),
                Some((_, finding)) => Err(Error::Differs { path: finding.node.place.path.clone() }),
            }
        }
    }

    /// What transformers computed of the same tokens.
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

    /// What products may differ by where activations are rounded to bytes.
    const ACTIVATIONS: f64 = 0.06;

    /// What products may differ by from those over weights that are not rounded.
    fn rounding(formats: &Quantization) -> f64 {
        let four_bits = [WeightFormat::Q4, WeightFormat::Q4K].map(Quantization::All);
        if four_bits.contains(formats) { 0.5 } else { 0.1 }
    }
}
