//! `trace-dump stats` prints the number of operations, the memory traffic and the shortest possible time of a
//! call.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use crate::report::{FunctionGraph, NetworkReport, NodeClass, Stage};
use clap::Args;
use console::{ModelArguments, print};
use serde_json::{Value, json};
use tracewright::footprint::readable;
use tracewright::models::ReadModel;
use tracewright::targets::NamedMachine;

use crate::error::InspectError;
use crate::recorded::Recorded;

#[derive(Args)]
pub struct StatsArguments {
    /// Path or name of the model, as for `trace-dump MODEL`
    model: PathBuf,
    /// Machine whose roofline model gives the times: a name, or memory bytes/s and FLOP/s, such as 100e9:2e12
    #[arg(long, value_name = NamedMachine::FORMS, default_value = "cpu")]
    machine: NamedMachine,
    /// Print one JSON object instead of a table
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model_arguments: ModelArguments,
}

impl StatsArguments {
    pub fn run(&self, read: ReadModel) -> Result<(), InspectError> {
        let mut recorded = Recorded::new(&self.model, &self.model_arguments, read)?;
        recorded.plan.target.machine = self.machine.machine;
        Ok(print(&stats(&recorded.report()?, self.json))?)
    }
}

struct Call<'a> {
    graph: &'a FunctionGraph,
    /// In all sequences.
    tokens: usize,
    /// Once for each layer of a shared function.
    operations: usize,
    /// Estimates by class, such as matmuls.
    seconds: BTreeMap<&'static str, f64>,
}

impl<'a> Call<'a> {
    fn of(report: &'a NetworkReport, graph: &'a FunctionGraph) -> Self {
        let rows = graph.nodes.iter().find(|node| node.text.ends_with(" role=tokens"));
        let tokens = rows.map_or(1, |node| node.types[0].shape.iter().product());
        let mut call = Self { graph, tokens, operations: 0, seconds: BTreeMap::new() };
        call.count(report, graph);
        call
    }

    fn count(&mut self, report: &NetworkReport, graph: &FunctionGraph) {
        for node in &graph.nodes {
            match node.class {
                NodeClass::Call => {
                    let callee = report.graph(graph.stage, &node.label);
                    callee.into_iter().for_each(|callee| self.count(report, callee));
                }
                NodeClass::Input | NodeClass::Parameter | NodeClass::Result => {}
                class => {
                    self.operations += 1;
                    *self.seconds.entry(class.name()).or_default() += node.cost.seconds;
                }
            }
        }
    }

    fn per_token(&self) -> f64 {
        self.graph.cost.flops / self.tokens as f64
    }
}

fn stats(report: &NetworkReport, json: bool) -> String {
    let entries = report.stage(Stage::Expanded).filter(|graph| graph.entry);
    let calls: Vec<Call<'_>> = entries.map(|graph| Call::of(report, graph)).collect();
    if json { format!("{}\n", object(report, &calls)) } else { table(report, &calls) }
}

fn object(report: &NetworkReport, calls: &[Call<'_>]) -> Value {
    let call = |call: &Call<'_>| {
        json!({
            "entry": call.graph.function, "tokens": call.tokens, "operations": call.operations,
            "bytes": call.graph.cost.bytes, "flops": call.graph.cost.flops, "flops_per_token": call.per_token(),
            "seconds": call.graph.cost.seconds, "seconds_by_class": call.seconds,
        })
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    json!({ "label": report.label, "network": report.network, "calls": calls })
}

fn table(report: &NetworkReport, calls: &[Call<'_>]) -> String {
    let network = &report.network;
    // Writing to a string cannot fail.
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}: {} parameters, {} of {}; context {}; a machine of {}/s and {:.3e} FLOP/s",
        report.label,
        network.parameters,
        readable(network.parameter_bytes as u64),
        network.element,
        network.context,
        readable(network.bandwidth as u64),
        network.flops,
    );
    let _ = writeln!(
        text,
        "\n{:<14}{:>8}{:>12}{:>12}{:>12}{:>14}{:>12}{:>12}",
        "entry", "tokens", "operations", "moves", "GFLOP", "MFLOP/token", "at least ms", "tokens/s"
    );
    for call in calls {
        let cost = call.graph.cost;
        let _ = writeln!(
            text,
            "{:<14}{:>8}{:>12}{:>12}{:>12.3}{:>14.3}{:>12.3}{:>12.1}",
            call.graph.function,
            call.tokens,
            call.operations,
            readable(cost.bytes as u64),
            cost.flops / 1e9,
            call.per_token() / 1e6,
            cost.seconds * 1e3,
            call.tokens as f64 / cost.seconds,
        );
    }
    for call in calls {
        let mut classes: Vec<(&&str, &f64)> = call.seconds.iter().collect();
        classes.sort_by(|a, b| b.1.total_cmp(a.1));
        let share = |(class, seconds): (&&str, &f64)| {
            format!("{class} {:.1} %", 100.0 * seconds / call.graph.cost.seconds)
        };
        let shares: Vec<String> = classes.into_iter().map(share).collect();
        let _ = write!(
            text,
            "{}{:<14}{}",
            if text.ends_with("\n\n") { "" } else { "\n" },
            call.graph.function,
            shares.join(", ")
        );
    }
    text.push('\n');
    text
}
