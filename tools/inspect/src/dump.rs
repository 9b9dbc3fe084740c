//! `trace-dump MODEL` prints a trace, the StableHLO module of the trace, or a report about the
//! trace and the module.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use crate::report::{NetworkReport, Stage};
use clap::{Args, ValueEnum};
use console::{ModelArguments, output, print, resolved, usage};
use instruments::profile::Profile;
use tracewright::files::{FileKind, NewFile};
use tracewright::models::ReadModel;
use tracewright::numeric::{NumericOption, NumericOptions};
use tracewright::output_guard::check_output;
use tracewright::trace::{NodeKind, Trace};
use tracewright::{Plan, PlanError, lower, simplify};

use crate::counts::counts;
use crate::error::InspectError;
use crate::recorded::Recorded;
use crate::stage;

#[derive(Args)]
pub struct DumpArguments {
    /// Hugging Face model directory, config.json, GGUF file, or the name of a published model size;
    /// `trace-dump presets` lists the names
    #[arg(required = true)]
    model: Option<PathBuf>,
    /// Format of the output
    #[arg(long, value_enum, default_value_t = Emit::Text)]
    emit: Emit,
    /// File to write; an interrupted run leaves no partial file
    #[arg(short, long, value_name = "FILE")]
    out: Option<PathBuf>,
    /// Show only these entry points; separate several names with commas
    #[arg(long, value_delimiter = ',', value_parser = ["prefill", "prefill_short", "decode", "score"])]
    entry: Vec<String>,
    /// Show only the function that computes layer K, counted from 0; an HTML page contains all
    /// layers, and shows layer K first
    #[arg(long, value_name = "K")]
    layer: Option<usize>,
    /// Compilation stage of the trace, for `--emit` `text`, `counts`, `dot` and `svg`; the other formats show
    /// all stages
    #[arg(long, value_parser = stage, value_name = "traced|simplified|expanded", default_value = "traced")]
    stage: Stage,
    #[command(flatten)]
    model_arguments: ModelArguments,
    /// Write the operations of every layer, instead of one shared function for layers of the same kind
    #[arg(long)]
    inline: bool,
    /// Print the chain of rewrite rules that produced a node; `--stage simplified` and
    /// `--stage expanded` print the numbers of the nodes
    #[arg(long, value_name = "FUNCTION:NODE", value_parser = function_and_node,
        conflicts_with_all = ["emit", "layer", "profile", "no_locs"])]
    explain: Option<(String, usize)>,
    /// Show the measured times of a profile in the HTML page or in the JSON output; `tracewright bench decode
    /// --trace` writes a profile. The profile also sets the model options that you don't set
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Omit source locations from the module text
    #[arg(long)]
    no_locs: bool,
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Emit {
    /// The trace as readable text
    Text,
    /// The StableHLO module of the trace
    Mlir,
    /// Numbers of functions, nodes, parameters and StableHLO operations
    Counts,
    /// One self-contained HTML page with graphs, costs, sources, weights, rules, memory and masks
    Html,
    /// The content of the HTML page as JSON; Google's Model Explorer opens this file
    Json,
    /// One function, drawn as an SVG picture
    Svg,
    /// One function in the format of Graphviz
    Dot,
}

fn function_and_node(text: &str) -> Result<(String, usize), String> {
    let parts =
        text.rsplit_once(':').map(|(function, node)| (function, node.trim_start_matches('%').parse()));
    match parts {
        Some((function, Ok(node))) => Ok((function.trim_start_matches('@').to_owned(), node)),
        _ => Err("expected FUNCTION:NODE, as `decode:12`".into()),
    }
}

impl DumpArguments {
    pub fn run(&self, read: ReadModel) -> Result<(), InspectError> {
        let Some(model) = &self.model else { return Ok(()) };
        let text = dump(self, read, model)?;
        match &self.out {
            Some(out) => {
                check_output(&resolved(model)?, out)?;
                Ok(NewFile::write(out, self.kind(), text.as_bytes())?)
            }
            None => Ok(print(&text)?),
        }
    }

    /// Returns the kind of the output file. The output may replace only files of the same kind.
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

/// The profile sets what the user did not. Values that cannot be parsed are left to the later comparison.
fn as_profiled(asked: &ModelArguments, profile: &Profile) -> ModelArguments {
    let said = |name: &str| profile.variant.get(name).map_or("", String::as_str);
    let mut all = asked.clone();
    let mut profiled = NumericOptions::default();
    for option in NumericOption::ALL {
        // A later comparison reports a value that is no value of the option.
        let _ = option.set(&mut profiled, said(option.name));
    }
    *all.network.numeric = NumericOptions::clone(&all.network.numeric).or(&profiled);
    *all.text = NumericOptions::clone(&all.text).or(&profiled);
    let context = all.context.or_else(|| said("context").parse().ok());
    let chunk = all.chunk.or_else(|| said("chunk").parse().ok());
    ModelArguments { context, chunk, ..all }
}

fn dump(arguments: &DumpArguments, read: ReadModel, model: &Path) -> Result<String, InspectError> {
    let profile = arguments.profile.as_deref().map(Profile::read).transpose()?;
    let of_profile = profile.as_ref().map(|profile| as_profiled(&arguments.model_arguments, profile));
    let asked = of_profile.as_ref().unwrap_or(&arguments.model_arguments);
    if profile.is_some() && !matches!(arguments.emit, Emit::Html | Emit::Json) {
        return Err(usage("`--profile` is shown on a page; add `--emit html` or `--emit json`").into());
    }
    let mut recorded = Recorded::new(model, asked, read)?;
    let Recorded { plan, trace, .. } = &mut recorded;
    if let Some(missing) = arguments.entry.iter().find(|name| trace.entry(name).is_none()) {
        let all: Vec<&str> = trace.entries.iter().map(|&id| trace.function(id).name.as_str()).collect();
        let all = all.join(", ");
        return Err(usage(format!("the trace has no entry point `{missing}`, only {all}")).into());
    }
    if !arguments.entry.is_empty() {
        *trace = trace.with_entries(&arguments.entry.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if arguments.inline {
        *trace = trace.inlined();
    }
    let layer = arguments.layer.map(|layer| function_of(trace, layer)).transpose()?;
    if let Some((function, node)) = &arguments.explain {
        let options = plan.simplification(trace)?;
        let before = match arguments.stage {
            Stage::Expanded => &lower::expand(&simplify::simplify(trace, &options).0)?,
            _ => trace,
        };
        return Ok(simplify::explain(before, &options, function, *node)?.to_string());
    }
    match (arguments.emit, layer) {
        (Emit::Mlir | Emit::Counts, Some(_)) => Err(usage(
            "a layer is shown as text, json, dot, svg or html; leave out `--layer`, or choose one of these",
        )
        .into()),
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

fn shown(
    mut report: NetworkReport,
    emit: Emit,
    stage: Stage,
    layer: Option<String>,
) -> Result<String, InspectError> {
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

/// After all passes up to `stage`.
fn carried(plan: &Plan, trace: &Trace, stage: Stage) -> Result<Trace, PlanError> {
    Ok(match stage {
        Stage::Traced => trace.clone(),
        Stage::Simplified => simplify::simplify(trace, &plan.simplification(trace)?).0,
        Stage::Expanded => plan.expand(trace)?.trace,
    })
}

/// In the last entry point that contains the layer.
fn function_of(trace: &Trace, layer: usize) -> Result<String, InspectError> {
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
    found.map(|(name, _)| name).ok_or_else(|| {
        let missing = match layers.last() {
            Some(last) => usage(format!("there is no layer {layer}; there are 0 to {last}")),
            None => usage("no layer is a function of its own here; leave out `--layer`"),
        };
        missing.into()
    })
}

fn alone(trace: &Trace, name: &str) -> Trace {
    let functions = trace.functions.iter().filter(|function| function.name == name).cloned().collect();
    Trace { functions, entries: Vec::new() }
}
