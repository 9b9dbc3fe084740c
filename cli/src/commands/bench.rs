//! `tracewright bench` measures the speed of models and of single operations.

use std::num::NonZeroUsize;
use std::path::PathBuf;

use clap::{Args, Subcommand};
use console::{KernelUse, kv_format};
use tracewright::lower::Quantization;
use tracewright::ops::ElementType;
use tracewright::simplify::Rules;
use tracewright::trace::KvFormat;

use crate::arguments::{CompileArguments, DeviceArguments, TuningSource, batch};

#[derive(Subcommand)]
pub enum Arguments {
    /// Measure decode: calls that compute one token per sequence
    Decode(DecodeBench),
    /// Measure prefill: from the prompt to the first new token
    Prefill(PrefillBench),
    /// Measure a matmul with a weight: [M, K] times [N, K] gives [M, N]
    Matmul(MatmulBench),
    /// Measure causal attention over cached keys and values
    Attention(AttentionBench),
    /// Measure the compilation of prefill and decode, with an empty cache
    Compile(ModelBench),
    /// Measure how long Tracewright records, simplifies and expands a network and writes its module text
    Trace(ModelBench),
    /// Measure how long Tracewright writes the archive of a checkpoint
    Bake(ModelBench),
    /// Measure everything about a model: prefill, decode, trace, compile, bake
    Suite(ModelBench),
}

impl Arguments {
    /// The path of the model if the benchmark measures a model.
    pub fn model(&mut self) -> Option<&mut PathBuf> {
        match self {
            Self::Decode(DecodeBench { of, .. }) | Self::Prefill(PrefillBench { of, .. }) => {
                Some(&mut of.model)
            }
            Self::Compile(of) | Self::Trace(of) | Self::Bake(of) | Self::Suite(of) => Some(&mut of.model),
            Self::Matmul(_) | Self::Attention(_) => None,
        }
    }
}

#[derive(Args)]
pub struct DecodeBench {
    /// Number of tokens in the KV cache before the first measured token; separate several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "0")]
    pub depth: Vec<usize>,
    /// Number of tokens to decode per round
    #[arg(long, value_name = "N", default_value_t = 16)]
    pub tokens: usize,
    /// Also measure each variant while another thread keeps one core busy
    #[arg(long, conflicts_with = "trace")]
    pub neighbour: bool,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub of: ModelBench,
}

#[derive(Args)]
pub struct PrefillBench {
    /// Number of tokens in the prompt; separate several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "128")]
    pub tokens: Vec<usize>,
    #[command(flatten)]
    pub profile: ProfileArguments,
    #[command(flatten)]
    pub of: ModelBench,
}

/// A model, and the options of its measurement.
#[derive(Args)]
pub struct ModelBench {
    /// Hugging Face model directory, GGUF file, or a config.json, for which `bench` uses random weights
    pub model: PathBuf,
    #[command(flatten)]
    pub variants: VariantArguments,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct MatmulBench {
    /// Number of rows M of the input matrix; separate several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "1")]
    pub m: Vec<usize>,
    /// Number of outputs N of the weight matrix
    #[arg(long, value_name = "N")]
    pub n: usize,
    /// Number of inputs K of the weight matrix, the axis that the matmul sums over
    #[arg(long, value_name = "N")]
    pub k: usize,
    /// Types in which the matmul is computed: f32, f16, bf16; separate several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Formats of the weight matrix: none, q8, q4, q4_k; separate several with commas
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub quant: Vec<Quantization>,
    /// Compute the matmul with Tracewright's kernels (on), with code of IREE's compiler (off), or with both
    /// (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

#[derive(Args)]
pub struct AttentionBench {
    /// Number of queries per head
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub queries: usize,
    /// Number of key-value heads
    #[arg(long, value_name = "N", default_value_t = 8)]
    pub heads: usize,
    /// Number of query heads per key-value head
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub groups: usize,
    /// Number of features per head
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub features: usize,
    /// Number of positions in the KV cache; separate several with commas
    #[arg(long, value_name = "N", value_delimiter = ',', default_value = "512")]
    pub context: Vec<usize>,
    /// Position of the first query [default: the last position that leaves room for all queries]
    #[arg(long, value_name = "N")]
    pub depth: Option<usize>,
    /// Types in which attention is computed: f32, f16, bf16; separate several with commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',', default_value = "bf16")]
    pub dtype: Vec<ElementType>,
    /// Compute attention with Tracewright's kernels (on), with code of IREE's compiler (off), or with both
    /// (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    #[command(flatten)]
    pub bench: BenchArguments,
}

/// The option that writes the time of each dispatch to a file.
#[derive(Args)]
pub struct ProfileArguments {
    /// Write the time of each dispatch of one variant to a file, for Perfetto, chrome://tracing and
    /// `trace-dump --profile`
    #[arg(long, value_name = "FILE")]
    pub trace: Option<PathBuf>,
}

/// The options that define the variants of a model. The benchmark measures each combination of their values.
#[derive(Args)]
pub struct VariantArguments {
    /// Types of weights and activations: f32, f16, bf16; separate several with commas [default: the checkpoint's]
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    pub dtype: Vec<ElementType>,
    /// Formats of the weights of matmuls: none, q8, q4, q4:pure, q4_k, q4_k:pure; separate several with commas [default: none]
    #[arg(long, value_name = "FORMATS", value_delimiter = ',')]
    pub quant: Vec<Quantization>,
    /// Compute matmuls with Tracewright's kernels (on), with code of IREE's compiler (off), or with both
    /// (on,off)
    #[arg(long, value_name = "on|off", value_delimiter = ',', default_value = "on")]
    pub kernels: Vec<KernelUse>,
    /// Rewrite rules that simplify the network: off, exact, approximate; separate several with commas
    #[arg(long, value_name = "RULES", value_delimiter = ',', default_value = "exact")]
    pub simplify: Vec<Rules>,
    /// Kernel settings, as for `generate`: on, off, or the path of a file; separate several with commas
    #[arg(long, value_name = "on|off|FILE", value_delimiter = ',', default_value = "on")]
    pub tuning: Vec<TuningSource>,
    /// Formats of the KV cache: computed (the type of the activations), q8, or both (computed,q8)
    #[arg(long, value_name = "FORMATS", value_delimiter = ',', value_parser = kv_format, default_value = "computed")]
    pub kv: Vec<KvFormat>,
    /// Maximum length of a sequence in tokens; separate several with commas [default: 512, or the model's
    /// limit if that is shorter]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub context: Vec<usize>,
    /// Number of sequences in parallel; separate several with commas
    #[arg(long, value_name = "N", value_parser = batch, value_delimiter = ',', default_value = "1")]
    pub batch: Vec<NonZeroUsize>,
    /// Number of prompt tokens that the model reads per call; separate several with commas [default: 128]
    #[arg(long, value_name = "N", value_delimiter = ',')]
    pub chunk: Vec<usize>,
    #[command(flatten)]
    pub device: DeviceArguments,
    /// Ignore a key of config.json that Tracewright does not know; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

#[derive(Args)]
pub struct BenchArguments {
    /// Number of measured rounds; every variant runs once in each round
    #[arg(long, value_name = "N", default_value = "7")]
    pub rounds: NonZeroUsize,
    /// Number of worker threads; 0 uses all cores
    #[arg(long, default_value_t = 0)]
    pub threads: usize,
    /// Seed of the random weights; the same seed gives the same weights
    #[arg(long, default_value_t = 0)]
    pub seed: u64,
    /// Write all measurements as JSON to a file; docs/reference/json.md describes the format
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Draw the measurements as a picture and write this file
    #[arg(long, value_name = "FILE.svg")]
    pub plot: Option<PathBuf>,
    #[command(flatten)]
    pub compile: CompileArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::path::{Path, PathBuf};

    use console::output;
    use console::{KernelUse, name_of, print, usage, warn};
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
    use tracewright::lower::{Quantization, Weights};
    use tracewright::models::fit::fit_beside;
    use tracewright::models::{ReadModel, check_generates};
    use tracewright::output_guard::check_output;
    use tracewright::runtime::{Compiler, Device};

    use super::{
        Arguments, AttentionBench, BenchArguments, DecodeBench, MatmulBench, ModelBench, PrefillBench,
        ProfileArguments, VariantArguments,
    };
    use crate::Invocation;
    use crate::error::Error;
    use crate::interrupt::Interrupt;
    use crate::{build, progress};

    impl Arguments {
        /// The measurement options of this benchmark.
        fn bench(&self) -> &BenchArguments {
            match self {
                Self::Decode(DecodeBench { of, .. }) | Self::Prefill(PrefillBench { of, .. }) => &of.bench,
                Self::Compile(of) | Self::Trace(of) | Self::Bake(of) | Self::Suite(of) => &of.bench,
                Self::Matmul(arguments) => &arguments.bench,
                Self::Attention(arguments) => &arguments.bench,
            }
        }

        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let bench = Bench::new(self.bench(), invocation.read, &invocation.interrupt)?;
            match self {
                Self::Decode(arguments) => arguments.run(&bench),
                Self::Prefill(arguments) => arguments.run(&bench),
                Self::Matmul(arguments) => arguments.run(&bench),
                Self::Attention(arguments) => arguments.run(&bench),
                Self::Trace(of) => bench.report(bench.stages(of)?.iter().flat_map(Stages::trace).collect()),
                Self::Compile(of) => {
                    let stages = bench.stages(of)?;
                    bench.report(stages.iter().map(|stages| stages.compile(&bench.compiler)).collect())
                }
                Self::Bake(of) => {
                    let baked = bench.checkpoints(of)?;
                    bench.report(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)).collect())
                }
                Self::Suite(of) => suite(&bench, of),
            }
        }
    }

    impl DecodeBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { of, depth, tokens, neighbour, profile } = self;
            let plans = bench.plans(of)?;
            let measured = plans.len() * depth.len() * if *neighbour { 2 } else { 1 };
            let trace = bench.trace(profile, of, measured)?;
            for (plan, &depth) in iproduct!(&plans, depth) {
                fits(plan.context, depth, *tokens)?;
            }
            let languages = bench.languages(of, plans)?;
            let mut cases = Vec::new();
            for (language, &depth) in iproduct!(&languages, depth) {
                cases.push(language.decode(depth, *tokens)?);
                if *neighbour {
                    cases.push(language.decode(depth, *tokens)?.beside_a_neighbour());
                }
            }
            bench.profiled(cases, of, &languages, trace)
        }
    }

    impl PrefillBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { of, tokens, profile } = self;
            let plans = bench.plans(of)?;
            let trace = bench.trace(profile, of, plans.len() * tokens.len())?;
            for (plan, &tokens) in iproduct!(&plans, tokens) {
                fits(plan.context, 0, tokens)?;
            }
            if let (Some(_), [plan], [tokens]) = (&trace, &plans[..], &tokens[..]) {
                whole_chunks(*tokens, plan.chunk)?;
            }
            let languages = bench.languages(of, plans)?;
            let cases = iproduct!(&languages, tokens).map(|(language, &tokens)| language.prefill(tokens));
            bench.profiled(cases.collect::<Result<_, _>>()?, of, &languages, trace)
        }
    }

    impl MatmulBench {
        fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
            let Self { m, n, k, dtype, quant, kernels, .. } = self;
            let mut products = Vec::new();
            for (&kernels, quant, &element, &m) in iproduct!(kernels, formats(quant), dtype, m) {
                let product = Matmul { m, n: *n, k: *k, element };
                products.push(
                    product.load(bench.arguments.seed, bench.options(weights(kernels, &quant.pure())))?,
                );
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
                let weights = weights(kernels, &Quantization::Computed);
                loaded.push(attention.load(bench.arguments.seed, bench.options(weights))?);
            }
            bench.report(loaded.iter().map(|attention| attention.case()).collect())
        }
    }

    /// Measures all stages of a model.
    fn suite(bench: &Bench<'_>, of: &ModelBench) -> Result<(), Error> {
        let languages = bench.languages(of, bench.plans(of)?)?;
        let baked = bench.checkpoints(of)?;
        let prefill = languages.iter().map(|language| language.prefill(language.chunk()));
        let decode = languages.iter().map(|language| language.decode(0, SUITE_TOKENS.min(language.chunk())));
        let mut cases: Vec<Case<'_>> = prefill.chain(decode).collect::<Result<_, _>>()?;
        cases.extend(baked.iter().flat_map(|(stages, _)| stages.trace()));
        cases.extend(baked.iter().map(|(stages, _)| stages.compile(&bench.compiler)));
        cases.extend(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)));
        bench.report(cases)
    }

    /// Number of tokens that the suite decodes per round.
    const SUITE_TOKENS: usize = 16;

    /// The values that you set, or the default if you set none.
    fn each<T: Copy>(asked: &[T]) -> Vec<Option<T>> {
        if asked.is_empty() { vec![None] } else { asked.iter().copied().map(Some).collect() }
    }

    /// The default context, in tokens.
    const CONTEXT: usize = 512;

    /// The formats that you set, or by default the format of the checkpoint.
    fn formats(asked: &[Quantization]) -> &[Quantization] {
        if asked.is_empty() { &[Quantization::Computed] } else { asked }
    }

    fn weights(kernels: KernelUse, quantize: &Quantization) -> Weights {
        Weights { quantize: quantize.clone(), kernels: kernels == KernelUse::On, ..Weights::default() }
    }

    /// The parts that all benchmarks share.
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

        /// A plan for each combination of variants.
        fn plans(&self, ModelBench { model, variants, .. }: &ModelBench) -> Result<Vec<Plan>, Error> {
            for out in [&self.arguments.json, &self.arguments.plot].into_iter().flatten() {
                check_output(model, out)?;
            }
            if self.arguments.json.is_some() && self.arguments.json == self.arguments.plot {
                let what = "`--json` and `--plot` name the same file; give each its own";
                return Err(usage(what).into());
            }
            // What was measured is read once for all plans.
            let (_, target) = variants.device.choose(self.arguments.threads)?;
            let tools = (&self.compiler, &*self.cache);
            let tunings = variants.tuning.iter().map(|source| source.read(&target, tools));
            let tunings = tunings.collect::<Result<Vec<_>, _>>()?;
            let mut plans = Vec::new();
            for (&kernels, quant, element, context, &batch, tunings, chunk, &rules, &kv) in iproduct!(
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
                check_generates(&*network, model)?;
                let warnings = fit_beside(&mut *network, model)?;
                if plans.is_empty() {
                    warn(&warnings);
                }
                let context = context.unwrap_or_else(|| CONTEXT.min(network.max_context()));
                let plan = Plan::new(network, element, Some(context), chunk)?;
                let (weights, batch, target) = (weights(kernels, quant), batch.get(), target.clone());
                let plan = Plan { weights, rules, kv, batch, target, ..plan };
                let tuning = tunings.of(&plan)?;
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

        fn languages(&self, of: &ModelBench, plans: Vec<Plan>) -> Result<Vec<Language>, Error> {
            let mut languages = Vec::new();
            for plan in plans {
                let checkpoint = self.checkpoint(&of.model, &plan)?;
                let mut progress = progress::Steps::new(self.interrupt);
                let mut watch = |step| progress.watch(step);
                let mut options = self.options(plan.weights.clone());
                options.device = self.device(&of.variants);
                options.tools.watch = Some(&mut watch);
                languages.push(Language::load(plan, &checkpoint, options)?);
            }
            Ok(languages)
        }

        fn stages(&self, of: &ModelBench) -> Result<Vec<Stages>, Error> {
            Ok(self.plans(of)?.into_iter().map(Stages::new).collect::<Result<_, _>>()?)
        }

        fn checkpoints(&self, of: &ModelBench) -> Result<Vec<(Stages, Checkpoint)>, Error> {
            let with_weights = |plan| {
                let checkpoint = self.checkpoint(&of.model, &plan)?;
                Ok((Stages::new(plan)?, checkpoint))
            };
            self.plans(of)?.into_iter().map(with_weights).collect()
        }

        /// Creates the file of the profile before the compilation begins, if the options ask for a profile. `measured` is the number
        /// of variants to measure, which must be 1.
        fn trace(
            &self,
            profile: &ProfileArguments,
            ModelBench { model, variants, .. }: &ModelBench,
            measured: usize,
        ) -> Result<Option<NewFile>, Error> {
            let Some(path) = &profile.trace else { return Ok(None) };
            watched(self.device(variants)).ok_or(BenchError::NotWatched)?;
            check_output(model, path)?;
            if measured != 1 {
                let what = "`--trace` profiles one variant; give each option one value";
                return Err(usage(what).into());
            }
            Ok(Some(NewFile::begin(path, output::PROFILE)?))
        }

        /// Runs the measurement, reports the results, and writes the profile of the only case to `trace`.
        fn profiled(
            &self,
            cases: Vec<Case<'_>>,
            ModelBench { model, .. }: &ModelBench,
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

        /// Runs the measurement, and reports the results on stdout. The function writes files before stdout,
        /// because the reader of stdout may have closed it.
        fn report(&self, cases: Vec<Case<'_>>) -> Result<(), Error> {
            shown(&self.measured(cases)?)
        }

        /// Runs the measurement, and writes the results to files.
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
