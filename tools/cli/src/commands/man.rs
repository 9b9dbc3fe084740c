//! `tracewright man` writes manual pages.

use std::fs;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use console::{ConsoleError, output};
use tracewright::errors::WithPath as _;
use tracewright::files::NewFile;

use crate::Invocation;
use crate::commands::command;
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// Directory to write
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
}

impl Arguments {
    pub fn run(&self, _: &Invocation) -> Result<(), Error> {
        fs::create_dir_all(&self.out).with_path("create", &self.out)?;
        let mut command = command();
        // Names its commands in full, as their pages do.
        command.build();
        let count = page(&command, &self.out)?;
        say!("wrote {count} pages to `{}`", self.out.display());
        Ok(())
    }
}

/// Such as `tracewright-bench-decode.1`, and those of subcommands. Returns the number of pages.
fn page(command: &Command, folder: &Path) -> Result<usize, Error> {
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    let mut text = Vec::new();
    Man::new(command.clone()).render(&mut text).map_err(ConsoleError::Output)?;
    NewFile::write(&folder.join(format!("{name}.1")), output::PAGE, &text)?;
    let below = command.get_subcommands();
    let below = below.filter(|command| command.get_name() != "help" && !command.is_hide_set());
    below.map(|command| page(command, folder)).try_fold(1, |sum, count| Ok(sum + count?))
}
