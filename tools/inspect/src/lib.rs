//! The command line `trace-dump`, which shows how a network is recorded, simplified and lowered. `trace-dump`
//! reads no weights and needs no compiler.

mod counts;
mod diff;
mod dump;
mod error;
mod lint;
mod ops;
mod presets;
mod recorded;
pub mod report;
mod stats;

use std::ffi::OsString;
use std::process::ExitCode;

use crate::report::Stage;
use clap::{CommandFactory as _, Parser, Subcommand};
use tracewright::models::ReadModel;

/// Show how Tracewright records, simplifies and lowers a model. `trace-dump` needs the model's
/// configuration, but no weights and no compiler.
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
    /// List all operations, with the kind and the description of each operation
    Ops(ops::OpsArguments),
    /// Compare two networks, or two recordings of one network
    Diff(diff::DiffArguments),
    /// Count the operations and the bytes in a call of each entry point, and estimate the shortest
    /// possible time of the call
    Stats(stats::StatsArguments),
    /// List the operations and weights that a target rejects or computes slowly, and the compiler
    /// bugs that Tracewright works around. If a target rejects the network, the exit code is 1
    Lint(lint::LintArguments),
    /// List the names of the published model sizes, and the sources of their configurations
    Presets(presets::PresetsArguments),
}

pub fn command() -> clap::Command {
    Arguments::command()
}

/// Runs the command line `trace-dump`. The function `read` reads the configuration of a model.
pub fn main(read: ReadModel) -> ExitCode {
    run(read, std::env::args_os()).into()
}

/// Returns the exit code; `words` begins with the program's name.
pub fn run(read: ReadModel, words: impl IntoIterator<Item = OsString>) -> u8 {
    let Arguments { command, dump } = console::parsed(command(), words);
    let result = match command {
        None => dump.run(read),
        Some(Command::Ops(ops)) => ops.run(),
        Some(Command::Diff(diff)) => diff.run(read),
        Some(Command::Stats(stats)) => stats.run(read),
        Some(Command::Lint(lint)) => lint.run(read),
        Some(Command::Presets(presets)) => presets.run(),
    };
    console::exit(result, None)
}

fn stage(text: &str) -> Result<Stage, String> {
    let found = Stage::ALL.into_iter().find(|stage| stage.name() == text);
    found.ok_or_else(|| "expected traced, simplified or expanded".into())
}
