//! The command line `trace-dump`: what a network is recorded, simplified and lowered to. It reads no weight and needs no
//! compiler.

mod counts;
mod diff;
mod dump;
mod error;
mod footprint;
mod lint;
mod ops;
mod partition;
mod presets;
mod recorded;
mod stats;

use std::process::ExitCode;

use clap::{CommandFactory as _, Parser, Subcommand};
pub use footprint::{FootprintReport, patterns};
pub use partition::PartitionReport;
use report::Stage;
use tracewright::models::ReadModel;

/// Shows what a model is recorded, simplified and lowered to. Needs `config.json` only: no weight, no compiler.
#[derive(Parser)]
#[command(name = "trace-dump", version, args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    dump: dump::DumpArguments,
}

#[derive(Subcommand)]
enum Command {
    /// List the operations: what each is to who lowers it, and what it computes
    Ops(ops::OpsArguments),
    /// Say in what two networks differ, or one recorded in two ways
    Diff(diff::DiffArguments),
    /// Say what a call of each entry point computes and moves, and how long that takes at least
    Stats(stats::StatsArguments),
    /// Say what a target would refuse of a network, or do slowly, and which faults of its compiler are worked around. Ends with 1 if
    /// something is refused
    Lint(lint::LintArguments),
    /// List the published sizes, and whose configurations they are
    Presets(presets::PresetsArguments),
}

/// The options and commands of `trace-dump`.
pub fn command() -> clap::Command {
    Arguments::command()
}

/// The command line `trace-dump` for the networks that `read` knows.
pub fn main(read: ReadModel) -> ExitCode {
    let Arguments { command, dump } = console::parsed(command());
    let result = match command {
        None => dump.run(read),
        Some(Command::Ops(ops)) => ops.run(),
        Some(Command::Diff(diff)) => diff.run(read),
        Some(Command::Stats(stats)) => stats.run(read),
        Some(Command::Lint(lint)) => lint.run(read),
        Some(Command::Presets(presets)) => presets.run(),
    };
    console::exit(result, false)
}

fn stage(text: &str) -> Result<Stage, String> {
    let found = Stage::ALL.into_iter().find(|stage| stage.name() == text);
    found.ok_or_else(|| "expected traced, simplified or expanded".into())
}
