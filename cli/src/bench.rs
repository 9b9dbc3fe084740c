//! `tracewright bench`

mod plot;

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::output;
use instruments::bench::{
    AttentionSizes, Bandwidth, BenchError, BenchReport, Case, Language, Matmul, Measured, Stages, fits,
    measure, watched, whole_chunks,
};
use itertools::iproduct;
use tracewright::Plan;
use tracewright::build::ProgramOptions;
use tracewright::errors::WithPath as _;
use tracewright::files::NewFile;
use tracewright::irpa::Checkpoint;
use tracewright::lower::Weights;
use tracewright::output_guard::check_output;
use tracewright::runtime::{Compiler, Device};

use crate::arguments::{
    AttentionBench, BenchArguments, BenchCommand, DecodeBench, Kernels, MatmulBench, ModelBench,
    PrefillBench, ProfileArguments, Quant, VariantArguments,
};
use crate::build::Tunings;
use crate::error::Error;
use crate::{Interrupt, ReadModel, build, dump, fit_weights, progress, warn_of_head};

/// How many of the functions that took longest the table names.
const NAMED: usize = 5;

pub fn run(command: &BenchCommand, read: ReadModel, interrupt: &Interrupt) -> Result<(), Error> {
    let bench = Bench::new(command.bench(), read, interrupt)?;
    match command {
        BenchCommand::Decode(DecodeBench { model, variants, depth, tokens, neighbour, profile, .. }) => {
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
        BenchCommand::Prefill(PrefillBench { model, variants, tokens, profile, .. }) => {
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
        BenchCommand::Matmul(MatmulBench { m, n, k, dtype, quant, kernels, .. }) => {
            let mut products = Vec::new();
            for (&kernels, &quant, &element, &m) in iproduct!(kernels, formats(quant), dtype, m) {
                let product = Matmul { m, n: *n, k: *k, element };
                products.push(product.load(bench.arguments.seed, bench.options(weights(kernels, quant)))?);
            }
            bench.report(products.iter().map(|product| product.case()).collect())
        }
        BenchCommand::Attention(AttentionBench {
            queries,
            heads,
            groups,
            features,
            context,
            depth,
            dtype,
            kernels,
            ..
        }) => {
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
        BenchCommand::Trace(ModelBench { model, variants, .. }) => {
            let stages = bench.stages(model, variants)?;
            bench.report(stages.iter().flat_map(Stages::trace).collect())
        }
        BenchCommand::Compile(ModelBench { model, variants, .. }) => {
            let stages = bench.stages(model, variants)?;
            bench.report(stages.iter().map(|stages| stages.compile(&bench.compiler)).collect())
        }
        BenchCommand::Bake(ModelBench { model, variants, .. }) => {
            let baked = bench.checkpoints(model, variants)?;
            bench.report(baked.iter().map(|(stages, from)| stages.bake(from, &bench.cache)).collect())
        }
        BenchCommand::Suite(ModelBench { model, variants, .. }) => {
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

fn weights(kernels: Kernels, Quant(quantize): Quant) -> Weights {
    Weights { quantize: quantize.into(), kernels: kernels == Kernels::On }
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
    fn new(arguments: &'a BenchArguments, read: ReadModel, interrupt: &'a Interrupt) -> Result<Self, Error> {
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
            return Err(Error::Usage { what: what.into() });
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
                warn_of_head(untied);
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
            return Err(Error::Usage { what: what.into() });
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
            let profile = language.profile(&dump::name_of(model), measured)?;
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
            file.publish_as(plot::svg(&report).as_bytes())?;
        }
        Ok(report)
    }
}

fn shown(report: &BenchReport) -> Result<(), Error> {
    std::io::stdout().lock().write_all(table(report).as_bytes()).map_err(Error::Output)
}

/// What tells a measurement apart from the others of its case.
fn variant(measured: &Measured, report: &BenchReport) -> String {
    let differs = |(name, value): &(&&'static str, &String)| {
        let mut others = report.cases.iter().filter(|other| other.label.case == measured.label.case);
        others.any(|other| other.label.variant.get(**name) != Some(*value))
    };
    let differing = measured.label.variant.iter().filter(differs);
    differing.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

fn table(report: &BenchReport) -> String {
    let mut text = String::new();
    let number = |number: Option<f64>| number.map_or_else(String::new, |number| format!("{number:.1}"));
    // Writing to a string cannot fail.
    let _ = writeln!(
        text,
        "{:<44} {:>10} {:>21} {:>10} {:>8} {:>7} {:>8} {:>7}",
        "", "median ms", "quartiles", "tokens/s", "GFLOP/s", "GB/s", "of read", "ratio"
    );
    for measured in &report.cases {
        let seconds = measured.seconds;
        let _ = writeln!(
            text,
            "{:<44} {:>10.3} {:>10.3}–{:<10.3} {:>10} {:>8} {:>7} {:>8} {:>7.3}",
            format!("{} {}", measured.label.case, variant(measured, report)).trim_end(),
            seconds.median * 1e3,
            seconds.lower_quartile * 1e3,
            seconds.upper_quartile * 1e3,
            number(measured.tokens_per_s),
            number(measured.gflop_per_s),
            number(measured.gb_per_s),
            measured.of_read_bandwidth.map_or_else(String::new, |share| format!("{:.0} %", 100.0 * share)),
            measured.ratio_to_first,
        );
        for dispatch in measured.dispatches.iter().take(NAMED) {
            let paths = match &dispatch.paths[..] {
                [] => String::new(),
                [path] => format!("  {path}"),
                [path, ..] => format!("  {path}, …"),
            };
            let (milliseconds, calls) = (dispatch.seconds * 1e3, dispatch.calls);
            let _ = writeln!(text, "    {milliseconds:>9.3} ms {calls:>6.1} × {}{paths}", dispatch.name);
        }
    }
    let [read, copy] = [report.memory.read, report.memory.copy].map(|rate| rate.median / 1e9);
    let rounds = report.rounds;
    let _ = writeln!(text, "memory: read {read:.1} GB/s, copy {copy:.1} GB/s; medians of {rounds} rounds");
    text
}
