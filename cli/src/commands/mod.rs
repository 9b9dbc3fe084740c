//! The commands. Each is a file with its arguments and its `run`, and an entry in the list below.

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
mod quantize;
mod random;
mod serve;
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
    /// Filter for the log on stderr, such as `debug` or `tracewright=trace`
    #[arg(long, global = true, env = "TRACEWRIGHT_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// Declares the list of commands: name and help, file, the argument that is a model, and whether it needs
/// IREE.
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

            /// Runs the command. The path of its model is resolved first.
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
    /// Answer requests over HTTP, as OpenAI's servers do
    Serve: serve() iree;
    /// Print the text that the model's chat template makes of a chat
    Prompt: prompt(model) iree;
    /// Print the tokens of texts, as the model reads them
    Tokenize: tokenize(model) iree;
    /// Compute embeddings of texts
    Embed: embed(model) iree;
    /// Write a directory that runs without Python and without a compiler
    Export: export(model);
    /// Write the parameters of a checkpoint as an IREE parameter archive
    Bake: bake(checkpoint);
    /// Compare an archive or an export directory with the hashes inside it
    Verify: verify();
    /// Run two forms of a model side by side, and name the first operation whose outputs diverge
    Bisect: bisect(model) iree;
    /// Compare a format with full precision on a text: KL divergence, same tokens, perplexity
    Quality: quality(model) iree;
    /// Write a model directory with quantized weights, calibrated on a text
    Quantize: quantize(model) iree;
    /// Report the memory that a model needs, without reading a weight
    Plan: plan(model);
    /// Measure the speed of variants in turn, beside the bandwidth of the memory
    #[command(subcommand)]
    Bench: bench(model()) iree;
    /// Find the fastest kernel settings on this machine; later builds here use them
    Tune: tune(model) iree;
    /// Write random weights for a configuration
    Random: random(config);
    /// List the models in the Hugging Face cache, or download models into it
    Models: models();
    /// Check the installation: compiler, processor, runtime, cache and memory
    Doctor: doctor() iree;
    /// List the devices that models can run on, and why others are unavailable
    Devices: devices() iree;
    /// Explain an error: its meaning, an example, and the remedy
    Explain: explain();
    /// Print the script with which a shell completes commands and options
    Completions: completions();
    /// Write manual pages: one for the program, and one for each command
    Man: man();
}

/// The command line. Each flag has an environment variable: `--top-p` is `TRACEWRIGHT_TOP_P`.
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

/// The prefix of environment variables.
pub const VARIABLES: &str = "TRACEWRIGHT_";
