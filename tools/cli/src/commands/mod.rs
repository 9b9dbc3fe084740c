//! The commands of the command line. Each command is a file that contains the arguments and the
//! `run` function of the command. The list `commands!` below contains all commands.

mod apply_template;
mod bake;
mod bench;
mod bisect;
mod chat;
mod completions;
mod constrain;
mod devices;
mod doctor;
mod embed;
mod explain;
mod export;
mod fingerprint;
mod generate;
mod man;
mod models;
mod plan;
mod prompt;
mod quality;
mod quantize;
mod random;
mod rerank;
mod serve;
mod tokenize;
mod transcribe;
mod tune;
mod verify;

use std::path::PathBuf;

use clap::{CommandFactory as _, Parser, Subcommand};

use crate::Invocation;
use crate::error::Error;
use crate::options::VARIABLES;

/// Declare a language model in Rust, lower it to StableHLO, and run it with IREE.
#[derive(Parser)]
#[command(name = "tracewright", version)]
pub struct Arguments {
    #[command(subcommand)]
    pub command: Command,
    /// Filter for the log on stderr, such as `debug` or `tracewright=trace`
    #[arg(long, global = true, env = "TRACEWRIGHT_LOG", value_name = "FILTER")]
    pub log: Option<String>,
}

/// Each command has a help text, a name, a file and the argument with the model's path. `iree` marks commands
/// that need this cargo feature.
macro_rules! commands {
    ($($(#[$about:meta])+ $command:ident: $file:ident($($model:tt)*) $($feature:ident)?;)+) => {
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

            /// Resolves the path of the command's model, and then runs the command.
            pub fn run(mut self, invocation: &Invocation) -> Result<(), Error> {
                if let Some(model) = self.model() {
                    *model = models::resolved(model, &invocation.interrupt)?;
                }
                match self {
                    $(Self::$command(arguments) => run!($($feature)? $file arguments invocation)),+
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
    /// Chat with a model
    Chat: chat(model) iree;
    /// Answer HTTP requests, with the interfaces of OpenAI and Anthropic
    Serve: serve() iree;
    /// Print a chat as text, rendered by the model's chat template
    Prompt: prompt(model) iree;
    /// Split texts into tokens with the model's tokenizer, and print the tokens
    Tokenize: tokenize(model) iree;
    /// Compute embeddings of texts
    Embed: embed(model) iree;
    /// Order texts by how well they answer a query
    Rerank: rerank(model) iree;
    /// Write the text of speech in audio files
    Transcribe: transcribe(model) iree;
    /// Write a compiled model to a directory; the compiled model runs without Python and without a compiler
    Export: export(model);
    /// Write the weights of a checkpoint into an IREE parameter archive
    Bake: bake(checkpoint);
    /// Compare the files of an archive or an export directory with the stored hashes
    Verify: verify();
    /// Run two variants of a model, and print the first operation whose outputs diverge
    Bisect: bisect(model) iree;
    /// Measure the effect of a weight format on a text: KL divergence, share of equal tokens and perplexity
    Quality: quality(model) iree;
    /// Print a hash of a model's logits for a text, to compare the bits of two machines
    Fingerprint: fingerprint(model) iree;
    /// Write a model directory with quantized weights, calibrated on a text
    Quantize: quantize(model) iree;
    /// Report the memory that a model needs, without reading the weights
    Plan: plan(model);
    /// Compare the speed of variants of a model or a kernel, and measure the memory bandwidth
    #[command(subcommand)]
    Bench: bench(model()) iree;
    /// Find the fastest kernel settings on this machine; later compilations on this machine use these
    /// settings
    Tune: tune(model) iree;
    /// Write a model with random weights for a configuration
    Random: random(config);
    /// List the models in the Hugging Face cache, or download models into this cache
    Models: models();
    /// Check the installation: compiler, processor, runtime, cache and memory
    Doctor: doctor() iree;
    /// List the devices that can run models, and explain why other devices are unavailable
    Devices: devices() iree;
    /// Explain an error: its meaning, an example, and how to fix it
    Explain: explain();
    /// Render a chat template for another process of Tracewright
    #[command(hide = true)]
    ApplyTemplate: apply_template() iree;
    /// Follow JSON schemas and grammars for another process of Tracewright
    #[command(hide = true)]
    Constrain: constrain() iree;
    /// Print a script that completes commands and options in a shell
    Completions: completions();
    /// Write manual pages: one page for the program, and one page for each command
    Man: man();
}

/// Each flag can also be set by an environment variable: `TRACEWRIGHT_TOP_P` sets `--top-p`.
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
