//! `trace-dump --emit counts` prints the numbers of functions, nodes, parameters and StableHLO operations.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use crate::report::Stage;
use tracewright::simplify::Report;
use tracewright::trace::{Counts, Trace};
use tracewright::{Plan, PlanError, StagedTrace, lower};

use crate::error::InspectError;

/// Returns a table that compares the counts after a compilation stage with the counts of the recorded trace.
pub fn counts(plan: &Plan, trace: &Trace, stage: Stage) -> Result<String, InspectError> {
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

struct Table {
    text: String,
    both: bool,
}

/// The counts of a trace, and the counts of StableHLO operations in its module.
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
        let _ = if self.both {
            writeln!(self.text, "{name:<30} {before:>14} {after:>14}")
        } else {
            writeln!(self.text, "{name:<30} {before:>14}")
        };
    }

    /// The estimated costs of each function, and the matches of each rule.
    fn report(&mut self, title: &str, report: &Report) {
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
