//! `tracewright completions` and `tracewright man`: the command line, as shells and `man` read it.

use std::fs;
use std::io::Write as _;
use std::path::Path;

use crate::output;
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use tracewright::errors::WithPath as _;
use tracewright::files::NewFile;

use crate::arguments;
use crate::error::Error;

/// Prints what a shell reads to complete commands and options.
pub fn completions(shell: Shell) -> Result<(), Error> {
    let mut command = arguments::command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    std::io::stdout().lock().write_all(&script).map_err(Error::Output)
}

/// Writes a page for the program and one for each of its commands, as `tracewright-bench-decode.1`.
pub fn pages(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).with_path("create", folder)?;
    let mut command = arguments::command();
    // Names its commands in full, as their pages do.
    command.build();
    let count = page(&command, folder)?;
    say!("wrote {count} pages to `{}`", folder.display());
    Ok(())
}

/// The page of a command and of those below it; how many these are.
fn page(command: &Command, folder: &Path) -> Result<usize, Error> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).map_err(Error::Output)?;
    NewFile::write(&folder.join(format!("{name}.1")), output::PAGE, &text)?;
    let below = command.get_subcommands().filter(|command| command.get_name() != "help");
    below.map(|command| page(command, folder)).try_fold(1, |sum, count| Ok(sum + count?))
}
