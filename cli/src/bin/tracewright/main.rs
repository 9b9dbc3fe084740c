//! The command line: generate text, export a model, bake a checkpoint, make random weights.

mod bake;
#[cfg(feature = "iree")]
mod build;
mod error;
#[cfg(feature = "iree")]
mod export;
mod generate;
#[cfg(feature = "iree")]
mod load;
mod progress;
mod random;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::{Args, Parser, Subcommand};
use error::Error;
use tracewright::models::ModelConfig;
use tracewright::ops::ElementType;
use tracewright::simplify::Rules;
use tracewright::{Plan, PlanError};

/// Declare a language model in Rust, lower it to StableHLO, run it through IREE.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
    /// What to log to stderr, as `debug` or `tracewright=trace`
    #[arg(long, global = true, env = "TRACEWRIGHT_LOG", value_name = "FILTER")]
    log: Option<String>,
}

#[derive(Subcommand)]
enum Command {
    /// Generate text from a model or an export directory
    Generate(generate::Arguments),
    /// Write module, archive, tokenizer and manifest to a directory that runs without Python and compiler
    Export(ExportArguments),
    /// Write the parameters of a checkpoint as an IREE parameter archive
    Bake(bake::Arguments),
    /// Write random weights for a configuration
    Random(random::Arguments),
}

/// What is built, from which model.
#[derive(Args, Clone)]
pub struct ModelArguments {
    /// Type of weights and activations: f32, f16, bf16 [default: the checkpoint's]
    #[arg(long)]
    pub dtype: Option<ElementType>,
    /// Which rules simplify the network: those that hold bit for bit, or also those that change how results are
    /// rounded [default: exact]
    #[arg(long, value_name = "off|exact|approximate")]
    pub simplify: Option<Rules>,
    /// The longest sequence, prompt and answer together [default: what the prompt needs; 2048 in an export]
    #[arg(long, value_name = "N")]
    pub context: Option<usize>,
    /// Tokens that one prefill takes [default: 128]
    #[arg(long, value_name = "N")]
    pub chunk: Option<usize>,
    /// Proceed although config.json has this unknown key; may be repeated
    #[arg(long, value_name = "KEY")]
    pub allow_config_key: Vec<String>,
}

impl ModelArguments {
    /// The plan for a configuration and a context.
    pub fn plan(&self, config: ModelConfig, context: Option<usize>) -> Result<Plan, PlanError> {
        let plan = Plan::new(config, self.dtype, context, self.chunk)?;
        Ok(plan.simplified_by(self.simplify.unwrap_or_default()))
    }
}

/// How it is compiled.
#[derive(Args, Clone)]
pub struct CompileArguments {
    /// The iree-compile to use [default: the one on PATH]
    #[arg(long, value_name = "PATH", env = "TRACEWRIGHT_IREE_COMPILE")]
    pub iree_compile: Option<PathBuf>,
    /// Give up compiling after this time
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    pub compile_timeout: u64,
    /// Where compiled modules and baked archives are kept [default: the user's cache folder]
    #[arg(long, value_name = "DIR", env = "TRACEWRIGHT_CACHE")]
    pub cache: Option<PathBuf>,
}

#[derive(Args)]
struct ExportArguments {
    /// A Hugging Face model directory
    model: PathBuf,
    /// The directory to write
    #[arg(short, long, value_name = "DIR")]
    out: PathBuf,
    /// What to compile for: `host`, a processor LLVM knows, or PLATFORM:PROCESSOR[:FEATURES], as
    /// `aarch64-linux-gnu:generic:+neon`
    #[arg(long, default_value = "host")]
    target: String,
    /// One JSON object on stdout instead of a summary on stderr
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    model_arguments: ModelArguments,
    #[command(flatten)]
    compile: CompileArguments,
}

/// Set by Ctrl-C: whatever takes long looks at it.
pub type Interrupt = Arc<AtomicBool>;

fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(filter) = &arguments.log {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let interrupt = Interrupt::default();
    let flag = interrupt.clone();
    // The second Ctrl-C ends the process at once.
    let handler = ctrlc::set_handler(move || {
        if flag.swap(true, Ordering::SeqCst) {
            std::process::exit(130);
        }
    });
    if let Err(error) = handler {
        tracing::warn!("Ctrl-C is not handled: {error}");
    }
    let result = match arguments.command {
        Command::Generate(arguments) => generate::run(arguments, &interrupt),
        #[cfg(feature = "iree")]
        Command::Export(arguments) => export::run(arguments, &interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Export(_) => Err(Error::WithoutIree { command: "export" }),
        Command::Bake(arguments) => bake::run(arguments, &interrupt),
        Command::Random(arguments) => random::run(arguments, &interrupt),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // A reader that has seen enough, as `head`, is no failure.
        Err(Error::Output(error)) if error.kind() == std::io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
        Err(Error::Interrupted) => {
            eprintln!("interrupted");
            ExitCode::from(130)
        }
        Err(error) if interrupt.load(Ordering::SeqCst) => {
            eprintln!("interrupted: {error}");
            ExitCode::from(130)
        }
        Err(error) => {
            eprintln!("error: {error}");
            let mut source = std::error::Error::source(&error);
            while let Some(cause) = source {
                eprintln!("  because: {cause}");
                source = cause.source();
            }
            match error {
                Error::Usage { .. } => ExitCode::from(2),
                _ => ExitCode::FAILURE,
            }
        }
    }
}
