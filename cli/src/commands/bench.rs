//! `tracewright bench`

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use console::{KernelUse, Quant, kv_format, quant_or_none};
use tracewright::ops::ElementType;
use tracewright::simplify::Rules;
use tracewright::trace::KvFormat;

use crate::arguments::{CompileArguments, DeviceArguments, TuningSource, batch};

#[derive(Subcommand)]
pub enum Arguments {
    /// Steps of decoding, one token for each row
    Decode(DecodeBench),
    /// Reading a prompt, up to the first new token
    Prefill(PrefillBench),
    /// A product with a weight: [M, K] and [N, K] give [M, N]
    Matmul(MatmulBench),
    /// Causal attention over keys and values
    Attention(AttentionBench),
    /// Compiling prefill and decode, with an empty cache
    Compile(ModelBench),
    /// Recording a network, simplifying and expanding it, writing its text
    Trace(ModelBench),
    /// Writing the archive of a checkpoint
    Bake(ModelBench),
    /// All of a model: prefill, decode, trace, compile, bake
    Suite(ModelBench),
}

impl Arguments {
    /// The model that is measured, if it is one.
    pub fn model(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Decode(arguments) => Some(&mut arguments.model),
            Self::Prefill(arguments) => Some(&mut arguments.model),
            Self::Compile(arguments)
            | Self::Trace(arguments)
            | Self::Bake(arguments)
            | Self::Suite(arguments) => Some(&mut arguments.model),
            Self::Matmul(_) | Self::Attention(_) => None,
        }
    }
}

#[derive(Args)]
pub struct DecodeBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    /// Tokens before the first one that is measured; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<usize>,
    /// Tokens of a round
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub tokens: usize,
    /// Measure each variant once more while another thread keeps one core busy
    #[arg(long, conflicts_with = "trace")]
    pub neighbour: bool,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct PrefillBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    /// Tokens of the prompt; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub tokens: Vec<usize>,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct ModelBench {
    /// A Hugging Face model directory, a GGUF file, or a config.json, which gets random weights
    pub model: PathBuf,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct MatmulBench {
    /// Rows; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub m: Vec<usize>,
    /// Outputs
    #[arg(long, value_name = "N")]
    pub n: usize,
    /// What is summed over
    #[arg(long, value_name = "N")]
    pub k: usize,
    /// Types to compute with: f32, f16, bf16; several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Formats of the weight: none, q8, q4, q4_k; several with commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = quant_or_none)]
    pub quant: Vec<Quant>,
    /// Who multiplies: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct AttentionBench {
    /// Queries of each head
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queries: usize,
    /// Key-value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub heads: usize,
    /// Query heads for each of them
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub groups: usize,
    /// Features of a head
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub features: usize,
    /// Slots of keys and values; several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub context: Vec<usize>,
    /// The position of the first query [default: the last one that fits]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Types to compute with: f32, f16, bf16; several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Who computes it: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

/// What becomes of the time of each dispatch.
#[derive(Args)]
pub struct ProfileArguments {
    /// Write the time of each dispatch of one variant, for Perfetto, chrome://tracing and `trace-dump --profile`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// What is measured of a model: each combination of these.
#[derive(Args)]
pub struct VariantArguments {
    /// Types of weights and activations: f32, f16, bf16; several with commas [default: the checkpoint's]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<ElementType>,
    /// Formats of the weights of products: none, q8, q4, q4_k; several with commas [default: none]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = quant_or_none)]
    pub quant: Vec<Quant>,
    /// Who multiplies: on, off, or both with a comma
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    /// Which rules simplify the network: off, exact, approximate; several with commas
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "exact")]
    pub simplify: Vec<Rules>,
    /// Who says how kernels cut their work, as for `generate`: on, off, a file; several with commas
    #[arg(long, value_name = "on|off|FILE", value_delimiter = ',', default_value = "on")]
    pub tuning: Vec<TuningSource>,
    /// How keys and values are remembered: computed, q8, or both with a comma
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = kv_format, default_value = "computed")]
    pub kv: Vec<KvFormat>,
    /// The longest sequence, at most the model's own; several with commas [default: 512, or the model's own limit]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub context: Vec<usize>,
    /// Sequences at once; several with commas
    #[arg(long, value_name = "N", value_parser = batch, value_delimiter = ',', default_value = "1")]
    pub batch: Vec<NonZeroUsize>,
    /// Tokens that one prefill takes; several with commas [default: 128]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub chunk: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Proceed although config.json has this unknown key; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

/// How it is measured.
#[derive(Args)]
pub struct BenchArguments {
    /// Rounds that count; in each, every variant runs once
    #[arg(long, value_name = "N", default_value = "7")]
    pub rounds: NonZeroUsize,
    /// Worker threads; 0 for as many as there are cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// The same seed gives the same random weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write everything that was measured, as docs/reference/json.md explains it
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw it
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::path::{Path, PathBuf};

    use console::output;
    use console::{KernelUse, Quant, name_of, print, usage, warn_of_head};
    use instruments::bench::{
        AttentionSizes, Bandwidth, BenchError, BenchReport, Case, Language, Matmul, Stages, fits, measure,
        watched, whole_chunks,
    };
    use itertools::iproduct;
    use tracewright::Plan;
    use tracewright::build::ProgramOptions;
    use tracewright::errors::WithPath as _;
    use tracewright::files::NewFile;
    use tracewright::irpa::Checkpoint;
    use tracewright::lower::Weights;
    use tracewright::models::ReadModel;
    use tracewright::output_guard::check_output;
    use tracewright::runtime::{Compiler, Device};

    use super::{
        Arguments, AttentionBench, BenchArguments, DecodeBench, MatmulBench, ModelBench, PrefillBench,
        ProfileArguments, VariantArguments,
    };
    use crate::Invocation;
    use crate::build::Tunings;
    use crate::checkpoint::fit_weights;
    use crate::error::Error;
    use crate::interrupt::Interrupt;
    use crate::{build, progress};

    impl Arguments {
        /// How it is measured.
        fn bench(&self) -> &BenchArguments {
            match self {
                Self::Decode(arguments) => &arguments.bench,
                Self::Prefill(arguments) => &arguments.bench,
                Self::Matmul(arguments) => &arguments.bench,
                Self::Attention(arguments) => &arguments.bench,
                Self::Compile(arguments)
                | Self::Trace(arguments)
                | Self::Bake(arguments)
                | Self::Suite(arguments) => &arguments.bench,
            }
        }

        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let bench = Bench::new(self.bench(), invocation.read, &invocation.interrupt)?;
            match self {
                Self::Decode(arguments) => arguments.run(&bench),
                Self::Prefill(arguments) => arguments.run(&bench),
                Self::Matmul(arguments) => arguments.run(&bench),
                Self::Attention(arguments) => arguments.run(&bench),
                Self::Trace(ModelBench { model, variants, .. }) => {
                    let stages = bench.stages(model, variants)?;
                    bench.report(stages.iter().flat_map(Stages::trace).collect())
                }
                Self::Compile(ModelBench { model, variants, .. }) => {
                    let stages = bench.stages(model, variants)?;
                    bench.report(stages.iter().map(|stages| stages.compile(&bench.compiler)).collect())
                }
                Self::Bake(ModelBench { model, variants, .. }) => {
                    let baked = bench.checkpoints(model, variants)?;
                    bench.report(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)).collect())
                }
                Self::Suite(arguments) => arguments.suite(&bench),
            }
        }
    }

    impl DecodeBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { model, variants, depth, tokens, neighbour, profile, .. } = self;
            let plans = bench.plans(model, variants)?;
            let measured = plans.len() * depth.len() * if *neighbour { 2 } else { 1 };
            let trace = bench.trace(profile, model, variants, measured)?;
            for (plan, &depth) in iproduct!(&plans, depth) {
                fits(plan.context, depth, *tokens)?;
            }
            let languages = bench.languages(model, variants, plans)?;
            let mut cases = Vec::new();
            for language in &languages {
                for &depth in depth {
                    cases.push(language.decode(depth, *tokens)?);
                    if *neighbour {
                        cases.push(language.decode(depth, *tokens)?.beside_a_neighbour());
                    }
                }
            }
            bench.profiled(cases, model, &languages, trace)
        }
    }

    impl PrefillBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { model, variants, tokens, profile, .. } = self;
            let plans = bench.plans(model, variants)?;
            let trace = bench.trace(profile, model, variants, plans.len() * tokens.len())?;
            for (plan, &tokens) in iproduct!(&plans, tokens) {
                fits(plan.context, 0, tokens)?;
            }
            if let (Some(_), [plan], [tokens]) = (&trace, &plans[..], &tokens[..]) {
                whole_chunks(*tokens, plan.chunk)?;
            }
            let languages = bench.languages(model, variants, plans)?;
            let mut cases = Vec::new();
            for language in &languages {
                for &tokens in tokens {
                    cases.push(language.prefill(tokens)?);
                }
            }
            bench.profiled(cases, model, &languages, trace)
        }
    }

    impl MatmulBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { m, n, k, dtype, quant, kernels, .. } = self;
            let mut products = Vec::new();
            for (&kernels, &quant, &element, &m) in iproduct!(kernels, formats(quant), dtype, m) {
                let product = Matmul { m, n: *n, k: *k, element };
                products.push(product.load(bench.arguments.seed, bench.options(weights(kernels, quant)))?);
            }
            bench.report(products.iter().map(|product| product.case()).collect())
        }
    }

    impl AttentionBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { queries, heads, groups, features, context, depth, dtype, kernels, .. } = self;
            let mut loaded = Vec::new();
            for (&kernels, &element, &context) in iproduct!(kernels, dtype, context) {
                let (queries, heads, groups, features) = (*queries, *heads, *groups, *features);
                let depth = depth.unwrap_or(context.saturating_sub(queries));
                if queries == 0 || depth.checked_add(queries).is_none_or(|end| end > context) {
                    return Err(BenchError::Depth { depth, tokens: queries, context }.into());
                }
                let attention = AttentionSizes { queries, heads, groups, features, context, depth, element };
                let weights = weights(kernels, Quant(None));
                loaded.push(attention.load(bench.arguments.seed, bench.options(weights))?);
            }
            bench.report(loaded.iter().map(|attention| attention.case()).collect())
        }
    }

    impl ModelBench {
        fn suite(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { model, variants, .. } = self;
            let languages = bench.languages(model, variants, bench.plans(model, variants)?)?;
            let baked = bench.checkpoints(model, variants)?;
            let mut cases = Vec::new();
            for language in &languages {
                cases.push(language.prefill(language.chunk())?);
            }
            for language in &languages {
                cases.push(language.decode(0, SUITE_TOKENS.min(language.chunk()))?);
            }
            cases.extend(baked.iter().flat_map(|(stages, _)| stages.trace()));
            cases.extend(baked.iter().map(|(stages, _)| stages.compile(&bench.compiler)));
            cases.extend(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)));
            bench.report(cases)
        }
    }

    /// Tokens that the suite decodes in a round.
    const SUITE_TOKENS: usize = 16;

    /// Each that was asked for; by default what is usual.
    fn each<T: Copy>(asked: &[T]) -> Vec<Option<T>> {
        if asked.is_empty() { vec![None] } else { asked.iter().copied().map(Some).collect() }
    }

    /// The longest sequence that is measured, unless another one is asked for.
    const CONTEXT: usize = 512;

    /// The formats that were asked for: by default weights as they are.
    fn formats(asked: &[Quant]) -> &[Quant] {
        if asked.is_empty() { &[Quant(None)] } else { asked }
    }

    fn weights(kernels: KernelUse, Quant(quantize): Quant) -> Weights {
        Weights { quantize: quantize.into(), kernels: kernels == KernelUse::On, ..Weights::default() }
    }

    /// What all benchmarks share.
    struct Bench<'a> {
        arguments: &'a BenchArguments,
        read: ReadModel,
        interrupt: &'a Interrupt,
        compiler: Compiler,
        cache: PathBuf,
    }

    impl<'a> Bench<'a> {
        fn new(
            arguments: &'a BenchArguments,
            read: ReadModel,
            interrupt: &'a Interrupt,
        ) -> Result<Self, Error> {
            let compiler = build::compiler(&arguments.compile, interrupt)?;
            let cache = build::cache_folder(&arguments.compile)?;
            std::fs::create_dir_all(&cache).with_path("create", &cache)?;
            Ok(Self { arguments, read, interrupt, compiler, cache })
        }

        fn options(&self, weights: Weights) -> ProgramOptions<'_> {
            let device = Device::LocalTask { workers: self.arguments.threads };
            ProgramOptions { device, weights, ..ProgramOptions::new(&self.compiler, &self.cache) }
        }

        /// One plan for each combination of variants.
        fn plans(&self, model: &Path, variants: &VariantArguments) -> Result<Vec<Plan>, Error> {
            for out in [&self.arguments.json, &self.arguments.plot].into_iter().flatten() {
                check_output(model, out)?;
            }
            if self.arguments.json.is_some() && self.arguments.json == self.arguments.plot {
                let what = "`--json` and `--plot` name one file; each has one of its own";
                return Err(usage(what).into());
            }
            // What was measured is read once for all plans.
            let (_, target) = variants.device.choose(self.arguments.threads)?;
            let tools = (&self.compiler, &*self.cache);
            let tunings = variants.tuning.iter().map(|source| Tunings::read(Some(source), &target, tools));
            let tunings = tunings.collect::<Result<Vec<_>, _>>()?;
            let mut plans = Vec::new();
            for (&kernels, &quant, element, context, &batch, tunings, chunk, &rules, &kv) in iproduct!(
                &variants.kernels,
                formats(&variants.quant),
                each(&variants.dtype),
                each(&variants.context),
                &variants.batch,
                &tunings,
                each(&variants.chunk),
                &variants.simplify,
                &variants.kv
            ) {
                let mut network = (self.read)(model, &variants.allow_config_key)?;
                let untied = fit_weights(&mut *network, model)?;
                if plans.is_empty() {
                    warn_of_head(untied.as_ref());
                }
                let context = context.unwrap_or_else(|| CONTEXT.min(network.max_context()));
                let plan = Plan::new(network, element, Some(context), chunk)?;
                let (weights, batch, target) = (weights(kernels, quant), batch.get(), target.clone());
                let plan = Plan { weights, rules, kv, batch, target, ..plan };
                let tuning = tunings.of(Some(&plan))?;
                plans.push(plan.tuned(tuning, chunk));
            }
            Ok(plans)
        }

        fn device(&self, variants: &VariantArguments) -> Device {
            Device::of(variants.device.name(), self.arguments.threads)
        }

        fn checkpoint(&self, model: &Path, plan: &Plan) -> Result<Checkpoint, Error> {
            build::checkpoint(model, plan, self.arguments.seed, &self.cache, self.interrupt)
        }

        fn languages(
            &self,
            model: &Path,
            variants: &VariantArguments,
            plans: Vec<Plan>,
        ) -> Result<Vec<Language>, Error> {
            let mut languages = Vec::new();
            for plan in plans {
                let checkpoint = self.checkpoint(model, &plan)?;
                let mut progress = progress::Steps::new(self.interrupt);
                let mut watch = |step| progress.watch(step);
                let mut options = self.options(plan.weights.clone());
                options.device = self.device(variants);
                options.tools.watch = Some(&mut watch);
                languages.push(Language::load(plan, &checkpoint, options)?);
            }
            Ok(languages)
        }

        fn stages(&self, model: &Path, variants: &VariantArguments) -> Result<Vec<Stages>, Error> {
            let plans = self.plans(model, variants)?;
            Ok(plans.into_iter().map(Stages::new).collect::<Result<_, _>>()?)
        }

        fn checkpoints(
            &self,
            model: &Path,
            variants: &VariantArguments,
        ) -> Result<Vec<(Stages, Checkpoint)>, Error> {
            let mut all = Vec::new();
            for plan in self.plans(model, variants)? {
                let checkpoint = self.checkpoint(model, &plan)?;
                all.push((Stages::new(plan)?, checkpoint));
            }
            Ok(all)
        }

        /// The file for the profile of what is `measured`, if there is to be one. Begun before anything is compiled.
        fn trace(
            &self,
            profile: &ProfileArguments,
            model: &Path,
            variants: &VariantArguments,
            measured: usize,
        ) -> Result<Option<NewFile>, Error> {
            let Some(path) = &profile.trace else { return Ok(None) };
            watched(self.device(variants)).ok_or(BenchError::NotWatched)?;
            check_output(model, path)?;
            if measured != 1 {
                let what = "`--trace` is of one variant; name one value of each option that takes several";
                return Err(usage(what).into());
            }
            Ok(Some(NewFile::begin(path, output::PROFILE)?))
        }

        /// Measures, says what came of it, and writes the profile of the only case into `trace`.
        fn profiled(
            &self,
            cases: Vec<Case<'_>>,
            model: &Path,
            languages: &[Language],
            trace: Option<NewFile>,
        ) -> Result<(), Error> {
            let (Some(trace), [language], [case]) = (trace, languages, &cases[..]) else {
                return self.report(cases);
            };
            language.can_profile(case)?;
            let report = self.measured(cases)?;
            if let Some(measured) = report.cases.first() {
                let profile = language.profile(&name_of(model), measured)?;
                trace.publish_as(profile.text().as_bytes())?;
            }
            shown(&report)
        }

        /// Measures, and says what came of it: last, since who reads it may have gone.
        fn report(&self, cases: Vec<Case<'_>>) -> Result<(), Error> {
            shown(&self.measured(cases)?)
        }

        /// Measures, and writes what came of it to files.
        fn measured(&self, cases: Vec<Case<'_>>) -> Result<BenchReport, Error> {
            let BenchArguments { rounds, json, plot, .. } = self.arguments;
            let rounds = rounds.get();
            // Before anything is measured: a file that cannot be written is known at once.
            let begin = |kind| move |path: &PathBuf| NewFile::begin(path, kind);
            let json = json.as_ref().map(begin(output::BENCHMARK)).transpose()?;
            let plot = plot.as_ref().map(begin(output::PLOT)).transpose()?;
            let spinner = progress::spinner("measuring");
            let mut bandwidth = Bandwidth::default();
            let report = measure(cases, rounds, &mut bandwidth, &mut |round| {
                spinner.set_message(match round {
                    0 => "warming up".to_owned(),
                    _ => format!("round {round} of {rounds}"),
                });
                self.interrupt.go_on()
            });
            spinner.finish_and_clear();
            let report = report?;
            if let Some(file) = json {
                file.publish_as(format!("{:#}\n", serde_json::json!(report)).as_bytes())?;
            }
            if let Some(file) = plot {
                file.publish_as(report.plot().as_bytes())?;
            }
            Ok(report)
        }
    }

    fn shown(report: &BenchReport) -> Result<(), Error> {
        Ok(print(&report.table())?)
    }
}
