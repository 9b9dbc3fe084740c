//! The commands. Each is a file with its arguments and what it does, and a line of the list below.

mod bake;
mod bench;
mod bisect;
mod chat;
mod completions;
mod devices;
mod doctor;
mod embed;
mod explain;
mod export;
mod generate;
mod man;
mod models;
mod plan;
mod prompt;
mod quality;
mod random;
mod tokenize;
mod tune;
mod verify;

use std::path::PathBuf;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::Invocation;
use crate::error::Error;

/// Declare a language model in Rust, lower it to StableHLO, run it through IREE.
#[derive(Parser)]
#[command(name = "tracewright", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// What to log to stderr, as `debug` or `tracewright=trace`
    #[arg(long, global = true, env = "TRACEWRIGHT_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// The list of commands: what each is called and for, its file, which of its arguments is a model, and whether it needs IREE.
macro_rules! commands {
    ($($(#[$about:meta])+ $command:ident: $file:ident($($model:tt)*) $($iree:ident)?;)+) => {
        #[derive(Subcommand)]
        pub enum Command {
            $($(#[$about])+ $command($file::Arguments)),+
        }

        impl Command {
            fn model(&mut self) -> Option<&mut PathBuf> {
                match self {
                    $(Self::$command(arguments) => model!(arguments $($model)*)),+
                }
            }

            /// Runs the command, on the path to read for its model.
            pub fn run(mut self, invocation: &Invocation) -> Result<(), Error> {
                if let Some(model) = self.model() {
                    *model = models::resolved(model, &invocation.interrupt)?;
                }
                match self {
                    $(Self::$command(arguments) => run!($($iree)? $file arguments invocation)),+
                }
            }
        }
    };
}

macro_rules! model {
    ($arguments:ident) => {{
        let _ = $arguments;
        None
    }};
    ($arguments:ident $model:ident) => {
        Some(&mut $arguments.$model)
    };
    ($arguments:ident $model:ident ()) => {
        $arguments.$model()
    };
}

macro_rules! run {
    ($file:ident $arguments:ident $invocation:ident) => {
        $arguments.run($invocation)
    };
    (iree $file:ident $arguments:ident $invocation:ident) => {{
        let _ = &$arguments;
        with_iree!(stringify!($file), $arguments.run($invocation))
    }};
}

commands! {
    /// Generate text from a model or an export directory
    Generate: generate(model) iree;
    /// Talk with a model
    Chat: chat(model) iree;
    /// Print the text that a chat becomes, by the model's chat template
    Prompt: prompt(model) iree;
    /// Print the tokens of texts, as the model reads them
    Tokenize: tokenize(model) iree;
    /// Make vectors of texts
    Embed: embed(model) iree;
    /// Write module, archive, tokenizer and manifest to a directory that runs without Python and compiler
    Export: export(model);
    /// Write the parameters of a checkpoint as an IREE parameter archive
    Bake: bake(checkpoint);
    /// Compare an archive or an export directory with the hashes that it carries
    Verify: verify();
    /// Run two forms of a model side by side, and name the first operation whose numbers differ
    Bisect: bisect(model) iree;
    /// Compare a format with full precision on a text: KL divergence, same tokens, perplexity
    Quality: quality(model) iree;
    /// Say what a model will hold in memory, without reading a weight
    Plan: plan(model);
    /// Measure speed: variants in turn, beside what the memory gives
    #[command(subcommand)]
    Bench: bench(model()) iree;
    /// Find out how kernels are fastest on this machine; what builds a model here uses that from then on
    Tune: tune(model) iree;
    /// Write random weights for a configuration
    Random: random(config);
    /// List the models in the Hugging Face cache, or download models into it
    Models: models();
    /// Look at all that is needed: compiler, processor, runtime, cache, memory; say what to do about what is missing
    Doctor: doctor() iree;
    /// List the devices that models can run on, and say what others lack
    Devices: devices() iree;
    /// Say more of an error: what it means, an example, and what to do
    Explain: explain();
    /// Print what a shell reads to complete commands and options
    Completions: completions();
    /// Write manual pages: one for the program, one for each command
    Man: man();
}

/// The command line, with a variable of the environment for each flag: `--top-p` is `TRACEWRIGHT_TOP_P`.
pub fn command() -> clap::Command {
    with_variables(Arguments::command())
}

fn with_variables(command: clap::Command) -> clap::Command {
    let named = |argument: clap::Arg| match argument.get_long() {
        Some(long) if argument.get_env().is_none() => {
            let name = format!("{VARIABLES}{}", long.to_uppercase().replace('-', "_"));
            argument.env(name)
        }
        _ => argument,
    };
    command.mut_args(named).mut_subcommands(with_variables)
}

/// What the variables of the environment begin with.
pub const VARIABLES: &str = "TRACEWRIGHT_";
