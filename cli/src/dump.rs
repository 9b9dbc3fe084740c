//! `trace-dump`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::output;
use clap::{Parser, Subcommand, ValueEnum};
use instruments::profile::Profile;
use report::{NetworkReport, Stage};
use tracewright::errors::escaped;
use tracewright::files::{FileKind, NewFile};
use tracewright::irpa::Checkpoint;
use tracewright::lower::{self, Weights};
use tracewright::models::Architecture;
use tracewright::models::presets::Preset;
use tracewright::output_guard::check_output;
use tracewright::simplify;
use tracewright::targets::{NamedMachine, Target};
use tracewright::trace::{Counts, NodeKind, Trace};
use tracewright::{Plan, PlanError, StagedTrace};

use crate::arguments::{Kernels, Layout, ModelArguments, NetworkArguments, kv_format, quant_or_none};
use crate::diff::diff;
use crate::error::Error;
use crate::lint::{Lint, LintTarget};
use crate::ops::ops;
use crate::source;
use crate::stats::stats;
use crate::{ReadModel, model_path, network, preset, warn_of_head};

/// Shows what a model is recorded, simplified and lowered to. Needs `config.json` only: no weight, no compiler.
#[derive(Parser)]
#[command(name = "trace-dump", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// A Hugging Face model directory, its config.json, a GGUF file, or a published size by name (`trace-dump presets` lists them)
    #[arg(required = true)]
    model: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Emit::Text)]
    emit: Emit,
    /// Write it to a file, which appears whole or not at all
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Only these entry points, with commas between
    #[arg(long, value_delimiter = ',', value_parser = ["prefill", "prefill_short", "decode", "score"])]
    entry: Vec<String>,
    /// Only the function of this layer, counted from 0; the page opens with it
    #[arg(long, value_name = "K")]
    layer: Option<usize>,
    /// How far the trace is carried (for `--emit text`, `counts`, `dot` and `svg`; the others have all stages)
    #[arg(long, value_parser = stage, value_name = "traced|simplified|expanded", default_value = "traced")]
    stage: Stage,
    #[command(flatten)]
    model_arguments: ModelArguments,
    /// Write every layer out instead of calling one function for each kind
    #[arg(long)]
    inline: bool,
    /// Print the chain of rules that made a node, as FUNCTION:NODE; its number is that of `--stage simplified` or
    /// `--stage expanded`
    #[arg(long, value_name = "FUNCTION:NODE", value_parser = function_and_node,
        conflicts_with_all = ["emit", "layer", "profile", "no_locs"])]
    explain: Option<(String, usize)>,
    /// Show on the page, or in the JSON, how long a call really took: what `tracewright bench decode --trace` wrote. Sizes that are
    /// not named here are those of the profile
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Leave out source locations in the module text
    #[arg(long)]
    no_locs: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List the operations: what each is to who lowers it, and what it computes
    Ops {
        /// As JSON, with attributes, element types, what it becomes in StableHLO, examples, and where all that is written
        #[arg(long)]
        json: bool,
    },
    /// Say in what two networks differ, or one recorded in two ways
    Diff {
        /// A model, as for `trace-dump` itself
        first: PathBuf,
        /// Another
        second: PathBuf,
        /// How far the traces are carried
        #[arg(long, value_parser = stage, value_name = "traced|simplified|expanded", default_value = "traced")]
        stage: Stage,
        #[command(flatten)]
        model_arguments: ModelArguments,
    },
    /// Say what a call of each entry point computes and moves, and how long that takes at least
    Stats {
        /// A model, as for `trace-dump` itself
        model: PathBuf,
        /// The machine whose roofline gives times: a name, or its bytes and operations in a second, as 100e9:2e12
        #[arg(long, value_name = NamedMachine::FORMS, default_value = "cpu")]
        machine: NamedMachine,
        /// One JSON object instead of a table
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        model_arguments: ModelArguments,
    },
    /// Say what a target would refuse of a network, or do slowly, and which faults of its compiler are worked around. Ends with 1 if
    /// something is refused
    Lint {
        /// A model, as for `trace-dump` itself
        model: PathBuf,
        /// A target as for `export`, or `xla`; may be repeated [default: host]
        #[arg(long, value_name = "TARGET")]
        target: Vec<LintTarget>,
        /// One JSON object instead of lines
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        model_arguments: ModelArguments,
    },
    /// List the published sizes, and whose configurations they are
    Presets {
        /// As JSON
        #[arg(long)]
        json: bool,
    },
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Emit {
    /// The trace in its text form
    Text,
    /// The StableHLO module
    Mlir,
    /// Functions, nodes, parameters, StableHLO ops
    Counts,
    /// A page that needs nothing beside it: graphs, costs, sources, weights, rules, memory, masks
    Html,
    /// All that the page shows, for programs; Google's Model Explorer opens it
    Json,
    /// One function as a picture
    Svg,
    /// One function for Graphviz
    Dot,
}

fn stage(text: &str) -> Result<Stage, String> {
    let found = Stage::ALL.into_iter().find(|stage| stage.name() == text);
    found.ok_or_else(|| "expected traced, simplified or expanded".into())
}

fn function_and_node(text: &str) -> Result<(String, usize), String> {
    let parts =
        text.rsplit_once(':').map(|(function, node)| (function, node.trim_start_matches('%').parse()));
    match parts {
        Some((function, Ok(node))) => Ok((function.trim_start_matches('@').to_owned(), node)),
        _ => Err("expected FUNCTION:NODE, as `decode:12`".into()),
    }
}

impl Arguments {
    /// What it writes, and so what it may replace.
    fn kind(&self) -> FileKind {
        match self.emit {
            _ if self.explain.is_some() => output::EXPLANATION,
            Emit::Text => output::TRACE,
            Emit::Mlir => output::MODULE,
            Emit::Counts => output::COUNTS,
            Emit::Html => output::HTML,
            Emit::Json => output::REPORT,
            Emit::Svg => output::DRAWING,
            Emit::Dot => output::GRAPH,
        }
    }
}

pub fn run(arguments: &Arguments, read: ReadModel) -> Result<(), Error> {
    let mut refusing = Vec::new();
    let text = match (&arguments.command, &arguments.model) {
        (Some(Command::Ops { json }), _) => ops(*json),
        (Some(Command::Presets { json }), _) => presets(*json),
        (Some(Command::Diff { first, second, stage, model_arguments }), _) => {
            let report = |model| Recorded::new(model, model_arguments, read)?.report();
            diff([&report(first)?, &report(second)?], *stage)
        }
        (Some(Command::Stats { model, machine, json, model_arguments }), _) => {
            let mut recorded = Recorded::new(model, model_arguments, read)?;
            recorded.plan.target.machine = machine.machine;
            stats(&recorded.report()?, *json)
        }
        (Some(Command::Lint { model, target, json, model_arguments }), _) => {
            let (network, name) = named(model, &model_arguments.network.allow_config_key, read)?;
            let plan = model_arguments.plan(network, model_arguments.context)?;
            let lint = Lint::new((model, &name), &plan, &plan.trace()?.trace, target);
            refusing = lint.refusing();
            if *json { format!("{}\n", lint.json()) } else { lint.text() }
        }
        (None, Some(model)) => dump(arguments, read, model)?,
        (None, None) => String::new(),
    };
    let written = match &arguments.out {
        Some(out) => {
            if let Some(model) = &arguments.model {
                check_output(&model_path::resolved(model)?, out)?;
            }
            NewFile::write(out, arguments.kind(), text.as_bytes())?;
            Ok(())
        }
        None => std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output),
    };
    if refusing.is_empty() { written } else { Err(Error::Refused { targets: refusing }) }
}

/// The options, and those of the profile where there are none. What does not read as one is left to the comparison.
fn as_profiled(asked: &ModelArguments, profile: &Profile) -> ModelArguments {
    let said = |name: &str| profile.variant.get(name).map_or("", String::as_str);
    let ModelArguments { network, context, chunk, kv } = asked.clone();
    let kernels = Kernels::from_str(said("kernels"), false).ok();
    ModelArguments {
        network: NetworkArguments {
            dtype: network.dtype.or_else(|| said("dtype").parse().ok()),
            simplify: network.simplify.or_else(|| said("simplify").parse().ok()),
            quant: network.quant.or_else(|| quant_or_none(said("quant")).ok()),
            kernels: network.kernels.or_else(|| kernels.filter(|_| network.layout.is_none())),
            ..network
        },
        context: context.or_else(|| said("context").parse().ok()),
        chunk: chunk.or_else(|| said("chunk").parse().ok()),
        kv: kv.or_else(|| kv_format(said("kv")).ok()),
    }
}

/// A network, the plan for it, and its trace.
struct Recorded {
    name: String,
    plan: Plan,
    trace: Trace,
}

impl Recorded {
    fn new(model: &Path, asked: &ModelArguments, read: ReadModel) -> Result<Self, Error> {
        let (network, name) = named(model, &asked.network.allow_config_key, read)?;
        let mut plan = asked.plan(network, asked.context)?;
        // Kernels differ between machines: they are shown to who asks for them. To others all machines show the same.
        let wants =
            [asked.network.kernels == Some(Kernels::On), asked.network.layout == Some(Layout::Kernels)];
        let shown = plan.weights.kernels && (wants.contains(&true) || asked.network.quant.is_some());
        if !shown {
            plan.target = Target::processor("generic");
            plan.weights = Weights { kernels: false, ..plan.weights.clone() };
        }
        let trace = plan.trace()?.trace;
        Ok(Self { name, plan, trace })
    }

    fn report(&self) -> Result<NetworkReport, Error> {
        Ok(NetworkReport::new(&self.name, &self.plan, &self.trace, &source::read)?)
    }
}

/// The network that is meant, and what it is called.
fn named(
    model: &Path,
    allowed_keys: &[String],
    read: ReadModel,
) -> Result<(Box<dyn Architecture>, String), Error> {
    let name = match preset(model) {
        Some(preset) => preset.name.to_owned(),
        // Of whatever characters.
        None => escaped(&name_of(model)),
    };
    let model = model_path::resolved(model)?;
    let mut network = network(read, &model, allowed_keys)?;
    // Other commands refuse weights that do not fit; here the configuration is enough.
    if model.is_dir()
        && let Ok(checkpoint) = Checkpoint::open(&model)
    {
        let named = network.named(checkpoint);
        warn_of_head(network.settle_head(&named));
    }
    Ok((network, name))
}

/// What a model is called: `demo` for `demo`, `demo/config.json` and `.` in it.
pub fn name_of(model: &Path) -> String {
    let whole = model.canonicalize().unwrap_or_else(|_| model.to_owned());
    let named = if whole.ends_with("config.json") { whole.parent().unwrap_or(&whole) } else { &whole };
    named.file_stem().map_or_else(|| "model".into(), |name| name.to_string_lossy().into_owned())
}

fn dump(arguments: &Arguments, read: ReadModel, model: &Path) -> Result<String, Error> {
    let profile = arguments.profile.as_deref().map(Profile::read).transpose()?;
    let of_profile = profile.as_ref().map(|profile| as_profiled(&arguments.model_arguments, profile));
    let asked = of_profile.as_ref().unwrap_or(&arguments.model_arguments);
    if profile.is_some() && !matches!(arguments.emit, Emit::Html | Emit::Json) {
        let what = "`--profile` is shown on a page; add `--emit html` or `--emit json`";
        return Err(Error::Usage { what: what.into() });
    }
    let mut recorded = Recorded::new(model, asked, read)?;
    let Recorded { plan, trace, .. } = &mut recorded;
    if let Some(missing) = arguments.entry.iter().find(|name| trace.entry(name).is_none()) {
        let all: Vec<&str> = trace.entries.iter().map(|&id| trace.function(id).name.as_str()).collect();
        let what = format!("the trace has no entry point `{missing}`, only {}", all.join(", "));
        return Err(Error::Usage { what });
    }
    if !arguments.entry.is_empty() {
        *trace = trace.with_entries(&arguments.entry.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if arguments.inline {
        *trace = trace.inlined();
    }
    let layer = arguments.layer.map(|layer| function_of(trace, layer)).transpose()?;
    if let Some((function, node)) = &arguments.explain {
        let options = plan.simplification();
        let before = match arguments.stage {
            Stage::Expanded => &lower::expand(&simplify::simplify(trace, &options).0)?,
            _ => trace,
        };
        return Ok(simplify::explain(before, &options, function, *node)?.to_string());
    }
    match (arguments.emit, layer) {
        (Emit::Mlir | Emit::Counts, Some(_)) => Err(Error::Usage {
            what: "a layer is shown as text, json, dot, svg or html; leave out `--layer`, or choose one of these".into(),
        }),
        (Emit::Text, layer) => {
            let carried = carried(plan, trace, arguments.stage)?;
            Ok(match layer {
                Some(layer) => alone(&carried, &layer).to_string(),
                None => carried.to_string(),
            })
        }
        (Emit::Mlir, None) => {
            let module = lower::lower(&plan.expand(trace)?.trace, &plan.target)?;
            Ok(if arguments.no_locs { module.text_without_locs } else { module.text })
        }
        (Emit::Counts, None) => counts(plan, trace, arguments.stage),
        (emit, layer) => {
            profile.iter().try_for_each(|profile| profile.check(&recorded.plan, &recorded.trace))?;
            let mut report = recorded.report()?;
            if let Some(profile) = profile {
                report.add_profile(profile);
            }
            shown(report, emit, arguments.stage, layer)
        }
    }
}

/// A report in one of its forms.
fn shown(
    mut report: NetworkReport,
    emit: Emit,
    stage: Stage,
    layer: Option<String>,
) -> Result<String, Error> {
    if emit == Emit::Html {
        return Ok(report.html(layer.as_deref()));
    }
    if emit == Emit::Json {
        report.graphs.retain(|graph| layer.as_ref().is_none_or(|layer| graph.function == *layer));
        return Ok(report.json());
    }
    let graph = match &layer {
        Some(layer) => report.graph(stage, layer),
        None => report.shown_first(stage),
    };
    let Some(graph) = graph else { return Ok(String::new()) };
    Ok(if emit == Emit::Svg { report.svg(graph) } else { report.dot(graph) })
}

/// The trace at a stage.
fn carried(plan: &Plan, trace: &Trace, stage: Stage) -> Result<Trace, PlanError> {
    Ok(match stage {
        Stage::Traced => trace.clone(),
        Stage::Simplified => simplify::simplify(trace, &plan.simplification()).0,
        Stage::Expanded => plan.expand(trace)?.trace,
    })
}

/// The function that computes a layer, in the last entry point that has it.
fn function_of(trace: &Trace, layer: usize) -> Result<String, Error> {
    let mut layers = BTreeSet::new();
    let mut found = None;
    for caller in &trace.functions {
        for id in caller.ids() {
            let NodeKind::Call { function, prefix } = &caller.node(id).kind else { continue };
            let Some(Ok(number)) = prefix.rsplit('.').next().map(str::parse::<usize>) else { continue };
            layers.insert(number);
            let decodes = caller.name == "decode";
            if number == layer && (decodes || found.as_ref().is_none_or(|(_, before)| !before)) {
                found = Some((trace.function(*function).name.clone(), decodes));
            }
        }
    }
    found.map(|(name, _)| name).ok_or_else(|| Error::Usage {
        what: match layers.last() {
            Some(last) => format!("there is no layer {layer}; there are 0 to {last}"),
            None => "no layer is a function of its own here; leave out `--layer`".into(),
        },
    })
}

/// One function without what calls it.
fn alone(trace: &Trace, name: &str) -> Trace {
    let functions = trace.functions.iter().filter(|function| function.name == name).cloned().collect();
    Trace { functions, entries: Vec::new() }
}

fn counts(plan: &Plan, trace: &Trace, stage: Stage) -> Result<String, Error> {
    let histogram = |trace: &Trace| Ok::<_, PlanError>(lower::lower(trace, &plan.target)?.histogram());
    let before = (trace.counts().map_err(PlanError::from)?, histogram(&lower::expand(trace)?)?);
    if stage == Stage::Traced {
        return Ok(Table::of(&before, None).text);
    }
    let StagedTrace { simplified: (simplified, composites), expanded: (expanded, primitives) } =
        plan.stages(trace)?;
    let shown = if stage == Stage::Simplified { &simplified } else { &expanded.trace };
    let after = (shown.counts().map_err(PlanError::from)?, histogram(&expanded.trace)?);
    let mut table = Table::of(&before, Some(&after));
    table.report("composites", &composites);
    table.report("primitives", &primitives);
    Ok(table.text)
}

/// Counts, before and after.
struct Table {
    text: String,
    both: bool,
}

/// What is counted of a trace, and of its module.
type Counted = (Counts, BTreeMap<String, usize>);

impl Table {
    fn of(before: &Counted, after: Option<&Counted>) -> Self {
        let mut table = Self { text: String::new(), both: after.is_some() };
        let after = after.unwrap_or(before);
        let mut line = |name: &str, of: fn(&Counts) -> usize| table.line(name, of(&before.0), of(&after.0));
        line("functions", |counts| counts.functions);
        line("nodes", |counts| counts.nodes);
        line("parameters", |counts| counts.parameters);
        line("parameter elements", |counts| counts.parameter_elements);
        line("parameter bytes", |counts| counts.parameter_bytes);
        let names: BTreeSet<&String> = before.1.keys().chain(after.1.keys()).collect();
        for op in names {
            let [before, after] = [before, after].map(|(_, counted)| counted.get(op).copied().unwrap_or(0));
            table.line(&format!("stablehlo.{op}"), before, after);
        }
        table
    }

    fn line(&mut self, name: &str, before: usize, after: usize) {
        let _ = match self.both {
            true => writeln!(self.text, "{name:<30} {before:>14} {after:>14}"),
            false => writeln!(self.text, "{name:<30} {before:>14}"),
        };
    }

    /// What one pass did: estimates for one call of each function, and how often each rule found something.
    fn report(&mut self, title: &str, report: &simplify::Report) {
        let _ = writeln!(self.text, "\n{title}: estimates for one call, without what it calls");
        for change in &report.functions {
            let [before, after] = change.cost;
            let _ = writeln!(
                self.text,
                "  {:<28} nodes {} -> {}, MB {:.2} -> {:.2}, MFLOP {:.2} -> {:.2}, ms {:.3} -> {:.3}{}",
                change.name,
                change.nodes[0],
                change.nodes[1],
                before.bytes / 1e6,
                after.bytes / 1e6,
                before.flops / 1e6,
                after.flops / 1e6,
                before.seconds * 1e3,
                after.seconds * 1e3,
                if change.limited { ", stopped at a limit" } else { "" },
            );
        }
        for (rule, count) in &report.fired {
            let _ = writeln!(self.text, "  {rule:<28} {count}");
        }
    }
}

fn presets(json: bool) -> String {
    match json {
        false => Preset::all().map(|preset| format!("{:<20} {}\n", preset.name, preset.repository)).collect(),
        true => {
            let preset =
                |preset: &Preset| serde_json::json!({ "name": preset.name, "repository": preset.repository });
            format!("{:#}\n", serde_json::Value::Array(Preset::all().map(preset).collect()))
        }
    }
}
