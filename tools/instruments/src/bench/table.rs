//! Formats measurements as a text table.

use std::fmt::Write as _;

use super::{BenchReport, Measured};

/// In the table of the slowest functions.
const NAMED: usize = 5;

/// Formats only those settings in which the variants of the same operation differ.
pub(super) fn variant(measured: &Measured, report: &BenchReport) -> String {
    let differs = |(name, value): &(&&'static str, &String)| {
        let mut others = report.cases.iter().filter(|other| other.label.case == measured.label.case);
        others.any(|other| other.label.variant.get(**name) != Some(*value))
    };
    let differing = measured.label.variant.iter().filter(differs);
    differing.map(|(name, value)| format!("{name} {value}")).collect::<Vec<_>>().join(", ")
}

pub(super) fn table(report: &BenchReport) -> String {
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
