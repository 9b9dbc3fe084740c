//! `trace-dump diff` prints the differences between two networks, or between two recordings of one network.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::report::{FunctionGraph, NetworkReport, NodeFacts, Stage, TypeFacts};
use clap::Args;
use console::{ModelArguments, print};
use similar::TextDiff;
use tracewright::models::ReadModel;

use crate::error::InspectError;
use crate::recorded::Recorded;
use crate::stage;

#[derive(Args)]
pub struct DiffArguments {
    /// Path or name of the first model, as for `trace-dump MODEL`
    first: PathBuf,
    /// Path or name of the second model
    second: PathBuf,
    /// Compilation stage at which the traces are compared
    #[arg(long, value_parser = stage, value_name = "traced|simplified|expanded", default_value = "traced")]
    stage: Stage,
    #[command(flatten)]
    model_arguments: ModelArguments,
}

impl DiffArguments {
    pub fn run(&self, read: ReadModel) -> Result<(), InspectError> {
        let report = |model| Recorded::new(model, &self.model_arguments, read)?.report();
        Ok(print(&diff([&report(&self.first)?, &report(&self.second)?], self.stage))?)
    }
}

/// Lines of context.
const AROUND: usize = 2;

/// A table of all functions, and a diff of each pair that differs (`-` first network, `+` second). Entry
/// points are paired by name, called functions by the order of calls.
fn diff(reports: [&NetworkReport; 2], stage: Stage) -> String {
    let mut text = table(reports);
    let [first, second] = reports.map(|report| functions(report, stage));
    let places: BTreeSet<_> = first.keys().chain(second.keys()).collect();
    for place in places {
        let [before, after] = [&first, &second].map(|functions| functions.get(place));
        let [old, new] = [before, after].map(|graph| graph.map(|graph| lines(graph)).unwrap_or_default());
        let (entry, kind) = place;
        let name = |graph: Option<&&FunctionGraph>| {
            let called = graph
                .map(|graph| crate::report::spans(&graph.layers))
                .filter(|layers| *kind > 0 && !layers.is_empty());
            called.map_or_else(|| entry.clone(), |layers| format!("{entry}, {layers}"))
        };
        let differences = TextDiff::from_lines(&old, &new);
        let mut differences = differences.unified_diff();
        differences.context_radius(AROUND).header(&name(before), &name(after));
        // Writing to a string cannot fail.
        let _ = write!(text, "{}{differences}", if old == new { "" } else { "\n" });
    }
    text
}

/// An entry point, then what it calls, in order. A function belongs to its first entry point.
fn functions(report: &NetworkReport, stage: Stage) -> BTreeMap<(String, usize), &FunctionGraph> {
    let mut functions = BTreeMap::new();
    let mut seen: BTreeSet<&str> = BTreeSet::new();
    for entry in report.stage(stage).filter(|graph| graph.entry) {
        functions.insert((entry.function.clone(), 0), entry);
        let mut kind = 0;
        for callee in entry.nodes.iter().flat_map(|node| &node.subgraph_ids) {
            if seen.insert(callee)
                && let Some(callee) = report.graphs.iter().find(|graph| graph.id == *callee)
            {
                kind += 1;
                functions.insert((entry.function.clone(), kind), callee);
            }
        }
    }
    functions
}

/// One line per node, without numbers, which an added node would change.
fn lines(graph: &FunctionGraph) -> String {
    let line = |node: &NodeFacts| {
        let types: Vec<String> = node.types.iter().map(TypeFacts::named).collect();
        format!("{} : {} from {:?}\n", node.text, types.join(", "), node.path)
    };
    graph.nodes.iter().map(line).collect()
}

fn table(reports: [&NetworkReport; 2]) -> String {
    let mut text = format!("{:<18}{:>20}{:>20}\n", "", reports[0].label, reports[1].label);
    // Writing to a string cannot fail.
    let mut line = |name: &str, of: fn(&NetworkReport) -> String| {
        let [first, second] = reports.map(of);
        let mark = if first == second { "" } else { "  *" };
        let _ = writeln!(text, "{name:<18}{first:>20}{second:>20}{mark}");
    };
    line("element type", |report| report.network.element.clone());
    line("parameters", |report| report.network.parameters.to_string());
    line("parameter bytes", |report| report.network.parameter_bytes.to_string());
    line("state bytes", |report| report.memory.state.values().sum::<usize>().to_string());
    line("running bytes", |report| report.memory.running.to_string());
    text
}
