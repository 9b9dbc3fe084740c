//! `tracewright completions` prints a script that completes commands in a shell.

use std::io::{self, Write as _};

use clap::Args;
use clap_complete::Shell;
use console::ConsoleError;

use crate::Invocation;
use crate::commands::command;
use crate::error::Error;

#[derive(Args)]
pub struct Arguments {
    /// Name of the shell that will run the script
    shell: Shell,
}

impl Arguments {
    pub fn run(&self, _: &Invocation) -> Result<(), Error> {
        let mut command = command();
        let name = command.get_name().to_owned();
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut command, name, &mut script);
        Ok(io::stdout().write_all(&script).map_err(ConsoleError::Output)?)
    }
}
