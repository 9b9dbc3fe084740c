//! `tracewright bisect` finds the first operation at which the outputs of two variants of a model diverge.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::{BuildArguments, DeviceArguments, EngineArguments, MeshArguments};

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, or a GGUF file
    pub model: PathBuf,
    /// Token ids that the model reads, such as 5,17,3
    #[arg(long, value_name = "IDS", value_delimiter = ',', required = true)]
    pub tokens: Vec<u32>,
    /// Variant that the compiled model is compared with: the reference evaluator, or the same model
    /// without simplification, without kernels or without quantization. A FILE contains activations
    /// that the library transformers computed, and that tests/oracle/activations.py wrote
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
    pub engine: EngineArguments,
    #[command(flatten)]
    pub mesh: MeshArguments,
    #[command(flatten)]
    pub build: BuildArguments,
}

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
    use std::path::{Path, PathBuf};

    use console::{print, usage};
    use instruments::bisect::{
        Activations, Baseline, BisectEngine, BisectError, BisectReport, Bisected, CheckpointValues,
        CompiledNetwork, TokenCall,
    };
    use tracewright::Plan;
    use tracewright::dsl::Traced;
    use tracewright::export::xla::{RecordedPlan, planned, record};
    use tracewright::runtime::{Device, Runtime};
    use tracewright::targets::{Target, Tuning};
    use tracewright::xla::XlaPlugin;

    use super::Against;
    use super::Arguments;
    use crate::Invocation;
    use crate::build;
    use crate::checkpoint::open;
    use crate::error::Error;
    use crate::interrupt::Interrupt;
    use crate::limit::Limit;
    use crate::load::check_prompt;
    use crate::plugins;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let &Invocation { read, ref interrupt, .. } = invocation;
            let Arguments { model: folder, tokens, against, .. } = self;
            let model = &self.build.model_arguments;
            let (network, checkpoint) =
                open(read, folder, &model.network.allow_config_key, &self.build.lora)?;
            let context = Plan::context_for(tokens.len(), network.max_context());
            if matches!(against, Against::Activations(_)) && model.chunk.is_some() {
                let what = "`--chunk` reads a prompt in pieces, and transformers computed these activations in one \
                     pass; leave it out";
                return Err(usage(what).into());
            }
            let mesh = plugins::check_mesh(&self.mesh, &self.engine, &self.device)?;
            let devices = mesh.as_ref().map_or(1, |mesh| mesh.mesh.devices());
            let start = |path: PathBuf| XlaPlugin::start(&path, devices, &plugins::flags());
            let plugin = self.plugin()?.map(start).transpose()?;
            let plan = model.plan(network, folder, model.context.or(Some(context)))?;
            let plan = match &plugin {
                Some(plugin) => plugin.plan(planned(plan), mesh.as_ref().map(|mesh| &mesh.mesh)),
                None => plan,
            };
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
            let RecordedPlan { traced: Traced { trace, .. }, mesh, .. } =
                record(&plan, &entries, mesh.as_ref())?;
            let values = CheckpointValues::new(&trace, &checkpoint).map_err(tracewright::PlanError::from)?;
            let (name, baseline) = match (against, &activations) {
                (_, Some(activations)) => ("transformers", Baseline::Activations(activations)),
                (Against::Unsimplified, _) => ("unsimplified", Baseline::Unsimplified),
                (Against::NoKernels, _) => ("no-kernels", Baseline::NoKernels),
                (Against::Dense, _) => ("dense", Baseline::Dense),
                _ => ("evaluator", Baseline::Evaluator),
            };
            let compare = |engine: BisectEngine<'_>| {
                let (plan, trace, checkpoint, values) = (&plan, &trace, &checkpoint, &values);
                let network = CompiledNetwork { plan, trace, checkpoint, values, engine };
                network.compare(&baseline, &calls, &mut |call| {
                    say!("comparing {call}");
                    interrupt.go_on()
                })
            };
            let (engine, compared) = match &plugin {
                Some(plugin) => (
                    "xla",
                    compare(BisectEngine::Xla { plugin, device: self.device.device, mesh: mesh.as_ref() })?,
                ),
                None => ("iree", self.in_iree(&plan, interrupt, compare)?),
            };
            report(&BisectReport { names: [engine, name], calls: &calls, compared: &compared }, self.json)
        }

        /// The path of XLA's plugin, or `None` if the arguments select IREE.
        fn plugin(&self) -> Result<Option<PathBuf>, Error> {
            let for_iree = [("--tuning", self.build.tuning.source.is_some())];
            let network = plugins::of_network(&self.build.model_arguments.network);
            plugins::plugin(&self.engine, &self.device, for_iree.into_iter().chain(network))
        }

        /// Prepares IREE as the engine for the network of `plan`, and calls `compare` with this engine.
        fn in_iree(
            &self,
            plan: &Plan,
            interrupt: &Interrupt,
            compare: impl FnOnce(BisectEngine<'_>) -> Result<Vec<Bisected>, BisectError>,
        ) -> Result<Vec<Bisected>, Error> {
            let compiler = build::compiler(&self.build.compile, interrupt)?;
            let cache = build::cache_folder(&self.build.compile)?;
            let (device, target) = self.device.choose(1)?;
            let target = compiler.resolve(&target)?;
            let tuning = self.build.tuning.read(&target, (&compiler, &cache))?.of(plan)?;
            let target = Target { tuning: Tuning { chunk: None, ..tuning }, ..target };
            // Sums are those of one thread.
            let runtime = Runtime::new(match device {
                Device::LocalTask { .. } => Device::LocalSync,
                device => device,
            })?;
            let tools = (&compiler, &*cache);
            Ok(compare(BisectEngine::Iree { tools, runtime: &runtime, target: &target })?)
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

    /// Computed by the library transformers; fails if they belong to other tokens.
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
