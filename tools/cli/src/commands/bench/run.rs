//! Runs the benchmarks.

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
use tracewright::export::xla::planned;
use tracewright::files::NewFile;
use tracewright::irpa::{Checkpoint, ModelFiles};
use tracewright::lower::Weights;
use tracewright::models::fit::fit_beside;
use tracewright::models::{ReadModel, check_generates};
use tracewright::ops::format::ActivationBits;
use tracewright::output_guard::check_output;
use tracewright::runtime::{Compiler, Device};
use tracewright::targets::{MeshRules, Target};
use tracewright::trace::Quantization;
use tracewright::xla::{XlaPlugin, XlaTools};

use super::{
    Arguments, AttentionBench, BenchArguments, DecodeBench, EngineArguments, MatmulBench, ModelBench,
    PrefillBench, ProfileArguments, TuningOption, VariantArguments,
};
use crate::Invocation;
use crate::arguments::{Engine, MeshArguments};
use crate::error::Error;
use crate::interrupt::Interrupt;
use crate::{build, plugins, progress};

impl Arguments {
    fn bench(&self) -> &BenchArguments {
        match self {
            Self::Decode(DecodeBench { of, .. }) | Self::Prefill(PrefillBench { of, .. }) => &of.bench,
            Self::Compile(of) | Self::Trace(of) | Self::Bake(of) | Self::Suite(of) => &of.bench,
            Self::Matmul(arguments) => &arguments.bench,
            Self::Attention(arguments) => &arguments.bench,
        }
    }

    fn engine(&self) -> Engine {
        match self {
            Self::Decode(DecodeBench { engine, .. }) | Self::Prefill(PrefillBench { engine, .. }) => {
                engine.engine
            }
            _ => Engine::Iree,
        }
    }

    pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
        let bench = Bench::new(self.bench(), self.engine(), invocation.read, &invocation.interrupt)?;
        match self {
            Self::Decode(arguments) => arguments.run(&bench),
            Self::Prefill(arguments) => arguments.run(&bench),
            Self::Matmul(arguments) => arguments.run(&bench),
            Self::Attention(arguments) => arguments.run(&bench),
            Self::Trace(of) => bench.report(bench.stages(of)?.iter().flat_map(Stages::trace).collect()),
            Self::Compile(of) => {
                let stages = bench.stages(of)?;
                bench
                    .report(stages.iter().flat_map(|stages| stages.compile_phases(&bench.compiler)).collect())
            }
            Self::Bake(of) => {
                let baked = bench.checkpoints(of, bench.plans(of)?)?;
                bench.report(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)).collect())
            }
            Self::Suite(of) => suite(&bench, of),
        }
    }
}

impl DecodeBench {
    fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
        let Self { of, depth, tokens, neighbour, profile, engine, mesh } = self;
        let xla = bench.xla((engine, mesh), profile, of)?;
        let plans = bench.plans(of)?;
        let measured = plans.len() * depth.len() * if *neighbour { 2 } else { 1 };
        let trace = bench.trace(profile, of, measured)?;
        for (plan, &depth) in iproduct!(&plans, depth) {
            fits(plan.context, depth, *tokens)?;
        }
        let languages = bench.languages(of, plans, xla)?;
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
        let Self { of, tokens, profile, engine, mesh } = self;
        let xla = bench.xla((engine, mesh), profile, of)?;
        let plans = bench.plans(of)?;
        let trace = bench.trace(profile, of, plans.len() * tokens.len())?;
        for (plan, &tokens) in iproduct!(&plans, tokens) {
            fits(plan.context, 0, tokens)?;
        }
        if let (Some(_), [plan], [tokens]) = (&trace, &plans[..], &tokens[..]) {
            whole_chunks(*tokens, plan.chunk)?;
        }
        let languages = bench.languages(of, plans, xla)?;
        let cases = iproduct!(&languages, tokens).map(|(language, &tokens)| language.prefill(tokens));
        bench.profiled(cases.collect::<Result<_, _>>()?, of, &languages, trace)
    }
}

impl MatmulBench {
    fn run(&self, bench: &Bench<'_>) -> Result<(), Error> {
        let Self { m, n, k, dtype, quant, activations, kernels, .. } = self;
        let mut products = Vec::new();
        for (&kernels, quant, &bits, &element, &m) in
            iproduct!(kernels, formats(quant), activations, dtype, m)
        {
            let product = Matmul { m, n: *n, k: *k, element };
            let weights = weights(kernels, &quant.pure(), bits);
            products.push(product.load(bench.arguments.seed, bench.options(weights))?);
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
            let weights = weights(kernels, &Quantization::Computed, ActivationBits::default());
            loaded.push(attention.load(bench.arguments.seed, bench.options(weights))?);
        }
        bench.report(loaded.iter().map(|attention| attention.case()).collect())
    }
}

/// Measures prefill, decode, trace, compile and bake of a model.
fn suite(bench: &Bench<'_>, of: &ModelBench) -> Result<(), Error> {
    let plans = bench.plans(of)?;
    let languages = bench.languages(of, plans.clone(), None)?;
    let baked = bench.checkpoints(of, plans)?;
    let prefill = languages.iter().map(|language| language.prefill(language.chunk()));
    let decode = languages.iter().map(|language| language.decode(0, SUITE_TOKENS.min(language.chunk())));
    let mut cases: Vec<Case<'_>> = prefill.chain(decode).collect::<Result<_, _>>()?;
    cases.extend(baked.iter().flat_map(|(stages, _)| stages.trace()));
    cases.extend(baked.iter().map(|(stages, _)| stages.compile(&bench.compiler)));
    cases.extend(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)));
    bench.report(cases)
}

const SUITE_TOKENS: usize = 16;

/// A single `None` if the option is not set.
fn each<T: Copy>(asked: &[T]) -> Vec<Option<T>> {
    if asked.is_empty() { vec![None] } else { asked.iter().copied().map(Some).collect() }
}

const CONTEXT: usize = 512;

/// The weight formats of `--quant`, or the element type of the network if `--quant` is not set.
fn formats(asked: &[Quantization]) -> &[Quantization] {
    if asked.is_empty() { &[Quantization::Computed] } else { asked }
}

fn weights(kernels: KernelUse, quantize: &Quantization, activations: ActivationBits) -> Weights {
    Weights { quantize: quantize.clone(), kernels: kernels == KernelUse::On, activations }
}

struct XlaDevices {
    plugin: PathBuf,
    mesh: Option<MeshRules>,
}

struct Bench<'a> {
    arguments: &'a BenchArguments,
    engine: Engine,
    read: ReadModel,
    interrupt: &'a Interrupt,
    compiler: Compiler,
    cache: PathBuf,
}

impl<'a> Bench<'a> {
    fn new(
        arguments: &'a BenchArguments,
        engine: Engine,
        read: ReadModel,
        interrupt: &'a Interrupt,
    ) -> Result<Self, Error> {
        let compiler = match engine {
            Engine::Iree => build::compiler(&arguments.compile, interrupt)?,
            // XLA needs no compiler, and no program has an empty name.
            Engine::Xla => Compiler::new(""),
        };
        let cache = build::cache_folder(&arguments.compile)?;
        std::fs::create_dir_all(&cache).with_path("create", &cache)?;
        Ok(Self { arguments, engine, read, interrupt, compiler, cache })
    }

    fn options(&self, weights: Weights) -> ProgramOptions<'_> {
        let device = Device::LocalTask { workers: self.arguments.threads };
        ProgramOptions { device, weights, ..ProgramOptions::new(&self.compiler, &self.cache) }
    }

    /// XLA's plugin and the mesh, or `None` if the arguments select IREE.
    fn xla(
        &self,
        (engine, mesh): (&EngineArguments, &MeshArguments),
        profile: &ProfileArguments,
        ModelBench { variants, .. }: &ModelBench,
    ) -> Result<Option<XlaDevices>, Error> {
        let mesh = plugins::check_mesh(mesh, engine, &variants.device)?;
        let for_iree = [
            ("--threads", self.arguments.threads != 0),
            ("--tuning", variants.tuning != [TuningOption::Measured]),
            ("--activations", variants.activations != [ActivationBits::default()]),
            ("--trace", profile.trace.is_some()),
        ];
        let plugin = plugins::plugin(engine, &variants.device, for_iree)?;
        Ok(plugin.map(|plugin| XlaDevices { plugin, mesh }))
    }

    fn plans(&self, ModelBench { model, variants, .. }: &ModelBench) -> Result<Vec<Plan>, Error> {
        for out in [&self.arguments.json, &self.arguments.plot].into_iter().flatten() {
            check_output(model, out)?;
        }
        if self.arguments.json.is_some() && self.arguments.json == self.arguments.plot {
            let what = "`--json` and `--plot` name the same file; give each its own";
            return Err(usage(what).into());
        }
        let target = match self.engine {
            Engine::Iree => variants.device.choose(self.arguments.threads)?.1,
            Engine::Xla => Target::xla(),
        };
        let sources = match self.engine {
            Engine::Iree => &variants.tuning[..],
            Engine::Xla => &[TuningOption::Usual],
        };
        // What was measured is read once for all plans.
        let tools = (&self.compiler, &*self.cache);
        let tunings = sources.iter().map(|source| source.read(&target, tools));
        let tunings = tunings.collect::<Result<Vec<_>, _>>()?;
        let files = ModelFiles::at(model);
        let network = (self.read)(files.clone(), &variants.allow_config_key)?;
        check_generates(&network.kind, model)?;
        warn(&fit_beside(&network, files)?);
        let mut plans = Vec::new();
        for (&kernels, quant, &bits, element, context, &batch, tunings, chunk, &rules, &kv) in iproduct!(
            &variants.kernels,
            formats(&variants.quant),
            &variants.activations,
            each(&variants.dtype),
            each(&variants.context),
            &variants.batch,
            &tunings,
            each(&variants.chunk),
            &variants.simplify,
            &variants.kv
        ) {
            let context = context.unwrap_or_else(|| CONTEXT.min(network.max_context()));
            let plan = Plan::new(network.clone(), element, Some(context), chunk)?;
            let (weights, batch, target) = (weights(kernels, quant, bits), batch.get(), target.clone());
            let plan = Plan { weights, rules, kv, batch, target, ..plan };
            plans.push(match self.engine {
                Engine::Iree => {
                    let tuning = tunings.of(&plan)?;
                    plan.tuned(tuning, chunk)
                }
                Engine::Xla => planned(plan),
            });
        }
        Ok(plans)
    }

    fn device(&self, variants: &VariantArguments) -> Device {
        Device::of(variants.device.name(), self.arguments.threads)
    }

    fn checkpoint(&self, model: &Path, plan: &Plan) -> Result<Checkpoint, Error> {
        build::checkpoint(model, plan, self.arguments.seed, &self.cache, self.interrupt)
    }

    /// Loads the networks with XLA's plugin if `xla` is set, and otherwise with IREE.
    fn languages(
        &self,
        of: &ModelBench,
        plans: Vec<Plan>,
        xla: Option<XlaDevices>,
    ) -> Result<Vec<Language>, Error> {
        let mesh = xla.as_ref().and_then(|xla| xla.mesh.as_ref());
        let devices = mesh.map_or(1, |mesh| mesh.mesh.devices());
        let plugin = xla.as_ref();
        let plugin =
            plugin.map(|xla| XlaPlugin::start(&xla.plugin, devices, &plugins::flags())).transpose()?;
        let mut languages = Vec::new();
        for plan in plans {
            let checkpoint = self.checkpoint(&of.model, &plan)?;
            let mut progress = progress::Steps::new(self.interrupt);
            let mut watch = |step| progress.watch(step);
            if let Some(plugin) = &plugin {
                let tools = XlaTools {
                    plugin,
                    device: of.variants.device.device,
                    cache: &self.cache,
                    watch: Some(&mut watch),
                };
                let plan = plugin.plan(plan, mesh.map(|mesh| &mesh.mesh));
                languages.push(Language::load_in_xla(plan, &checkpoint, mesh, tools)?);
                continue;
            }
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

    fn checkpoints(&self, of: &ModelBench, plans: Vec<Plan>) -> Result<Vec<(Stages, Checkpoint)>, Error> {
        let with_weights = |plan| {
            let checkpoint = self.checkpoint(&of.model, &plan)?;
            Ok((Stages::new(plan)?, checkpoint))
        };
        plans.into_iter().map(with_weights).collect()
    }

    /// Created before the compilation begins; `--trace` measures one variant.
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

    /// With `trace`, also the profile of the single variant.
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

    /// Writes all files before it prints, because a write to a closed stdout fails.
    fn report(&self, cases: Vec<Case<'_>>) -> Result<(), Error> {
        shown(&self.measured(cases)?)
    }

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
