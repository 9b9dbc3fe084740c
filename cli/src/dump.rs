//! `trace-dump`

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::Write as _;
use std::path::{Path, PathBuf};

use clap::{Parser, Subcommand, ValueEnum};
use tracewright::lower::Weights;
use tracewright::ops::Op;
use tracewright::trace::Trace;
use tracewright::{PlanError, lower, simplify};

use crate::ReadModel;
use crate::arguments::{Kernels, Layout, ModelArguments};
use crate::error::Error;

/// Shows the trace or the StableHLO module of a model. Reads `config.json` only: no weight, no compiler.
#[derive(Parser)]
#[command(name = "trace-dump", version, args_conflicts_with_subcommands = true)]
pub struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    /// A Hugging Face model directory, or its config.json
    #[arg(required = true)]
    model: Option<PathBuf>,
    /// What to print
    #[arg(long, value_enum, default_value_t = Emit::Text)]
    emit: Emit,
    /// Only these entry points, with commas between
    #[arg(long, value_delimiter = ',', value_parser = ["prefill", "prefill_short", "decode", "score"])]
    entry: Vec<String>,
    /// How far the trace is carried (for `--emit text` and `counts`)
    #[arg(long, value_enum, default_value_t = Stage::Traced)]
    stage: Stage,
    #[command(flatten)]
    model_arguments: ModelArguments,
    /// Write every layer out instead of calling one function for each kind
    #[arg(long)]
    inline: bool,
    /// Print the chain of rules that made a node, as FUNCTION:NODE; its number is that of `--stage simplified` or
    /// `--stage expanded`
    #[arg(long, value_name = "FUNCTION:NODE", value_parser = function_and_node)]
    explain: Option<(String, usize)>,
    /// Leave out source locations in the module text
    #[arg(long)]
    no_locs: bool,
}

#[derive(Subcommand)]
enum Command {
    /// List the operations
    Ops {
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
}

#[derive(Clone, Copy, PartialEq, ValueEnum)]
enum Stage {
    /// As the declaration records it
    Traced,
    /// Simplified, with its composites
    Simplified,
    /// In primitives, simplified again
    Expanded,
}

fn function_and_node(text: &str) -> Result<(String, usize), String> {
    let parts =
        text.rsplit_once(':').map(|(function, node)| (function, node.trim_start_matches('%').parse()));
    match parts {
        Some((function, Ok(node))) => Ok((function.trim_start_matches('@').to_owned(), node)),
        _ => Err("expected FUNCTION:NODE, as `decode:12`".into()),
    }
}

pub fn run(arguments: &Arguments, read: ReadModel) -> Result<(), Error> {
    let text = match (&arguments.command, &arguments.model) {
        (Some(Command::Ops { json }), _) => ops(*json),
        (None, Some(model)) => dump(arguments, read, model)?,
        (None, None) => String::new(),
    };
    std::io::stdout().lock().write_all(text.as_bytes()).map_err(Error::Output)
}

fn dump(arguments: &Arguments, read: ReadModel, model: &Path) -> Result<String, Error> {
    let asked = &arguments.model_arguments;
    let plan = asked.plan(read(model, &asked.network.allow_config_key)?, asked.context)?;
    let mut trace: Trace = plan.trace()?.trace;
    if !arguments.entry.is_empty() {
        trace = trace.with_entries(&arguments.entry.iter().map(String::as_str).collect::<Vec<_>>());
    }
    if arguments.inline {
        trace = trace.inlined();
    }
    let options = plan.simplification();
    let (simplified, composites) = simplify::simplify(&trace, &options);
    if let Some((function, node)) = &arguments.explain {
        let before = match arguments.stage {
            Stage::Expanded => &lower::expand(&simplified)?,
            _ => &trace,
        };
        return Ok(simplify::explain(before, &options, function, *node)?.to_string());
    }
    // Kernels differ between machines: they are shown to who asks for them.
    let wants = [asked.network.kernels == Some(Kernels::On), asked.network.layout == Some(Layout::Kernels)];
    let shows = wants.contains(&true) || asked.network.quant.is_some();
    let weights = Weights { kernels: plan.weights.kernels && shows, ..plan.weights };
    let expanded = lower::expand_for(&simplified, weights, &plan.target)?;
    let (expanded, primitives) = simplify::simplify(&expanded, &options);
    if arguments.emit == Emit::Mlir {
        let module = lower::lower(&expanded, &plan.target)?;
        return Ok(if arguments.no_locs { module.text_without_locs } else { module.text });
    }
    let shown = match arguments.stage {
        Stage::Traced => &trace,
        Stage::Simplified => &simplified,
        Stage::Expanded => &expanded,
    };
    if arguments.emit == Emit::Text {
        return Ok(shown.to_string());
    }
    // What stage `traced` shows is not simplified at all.
    let unsimplified = lower::lower(&lower::expand(&trace)?, &plan.target)?.histogram();
    let traced = arguments.stage == Stage::Traced;
    let histogram =
        if traced { unsimplified.clone() } else { lower::lower(&expanded, &plan.target)?.histogram() };
    let counts = [&trace, shown].map(Trace::counts);
    let [before, after] = counts;
    let (before, after) = (before.map_err(PlanError::from)?, after.map_err(PlanError::from)?);
    let mut table = Table { text: String::new(), both: !traced };
    table.line("functions", before.functions, after.functions);
    table.line("nodes", before.nodes, after.nodes);
    table.line("parameters", before.parameters, after.parameters);
    table.line("parameter elements", before.parameter_elements, after.parameter_elements);
    table.line("parameter bytes", before.parameter_bytes, after.parameter_bytes);
    let names: BTreeSet<&String> = unsimplified.keys().chain(histogram.keys()).collect();
    for op in names {
        let count = |of: &BTreeMap<String, usize>| of.get(op).copied().unwrap_or(0);
        table.line(&format!("stablehlo.{op}"), count(&unsimplified), count(&histogram));
    }
    if !traced {
        for (title, report) in [("composites", composites), ("primitives", primitives)] {
            table.report(title, &report);
        }
    }
    Ok(table.text)
}

/// Counts, before and after.
struct Table {
    text: String,
    both: bool,
}

impl Table {
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

fn ops(json: bool) -> String {
    let examples = Op::examples();
    match json {
        false => examples.iter().map(|(name, _)| format!("{name}\n")).collect(),
        true => {
            let list = examples.iter().map(|(name, examples)| {
                let good = examples.iter().filter(|e| e.result.is_ok());
                let uses: Vec<_> = good
                    .map(|e| serde_json::json!({ "op": e.op, "operands": e.operands, "result": e.result.ok() }))
                    .collect();
                serde_json::json!({ "name": name, "examples": uses })
            });
            format!("{:#}\n", serde_json::Value::Array(list.collect()))
        }
    }
}
