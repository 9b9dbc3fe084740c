//! The command line: generate text, export a model, bake a checkpoint, make random weights, show a trace.
//!
//! Which networks there are is said by who calls it. A network of your own gets a command line by a `main` that reads
//! its configuration:
//!
//! ```no_run
//! use std::process::ExitCode;
//!
//! use tracewright::models::ModelConfig;
//!
//! fn main() -> ExitCode {
//!     tracewright_cli::main(|model, allowed_keys| Ok(Box::new(ModelConfig::read(model, allowed_keys)?)))
//! }
//! ```
//!
//! Everything else is a library: `tracewright` itself knows no flag, prints nothing and reads no environment.

mod arguments;
mod bake;
#[cfg(feature = "iree")]
mod build;
mod dump;
mod error;
#[cfg(feature = "iree")]
mod export;
#[cfg(feature = "iree")]
mod generate;
#[cfg(feature = "iree")]
mod load;
mod progress;
mod random;

use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use arguments::{Arguments, Command};
use clap::Parser as _;
use error::Error;
use tracewright::models::Architecture;
use tracewright::models::config::ConfigError;

/// Reads the configuration of a model: a Hugging Face directory, or its `config.json`. The keys given may be there
/// although nothing reads them.
pub type ReadModel = fn(&Path, &[String]) -> Result<Box<dyn Architecture>, ConfigError>;

/// The command line `tracewright` for the networks that `read` knows.
pub fn main(read: ReadModel) -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(filter) = &arguments.log {
        let filter = tracing_subscriber::EnvFilter::new(filter);
        tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    }
    let interrupt = Interrupt::default();
    interrupt.listen();
    let result = match arguments.command {
        #[cfg(feature = "iree")]
        Command::Generate(arguments) => generate::run(arguments, read, &interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Generate(_) => Err(Error::WithoutIree { command: "generate" }),
        #[cfg(feature = "iree")]
        Command::Export(arguments) => export::run(arguments, read, &interrupt),
        #[cfg(not(feature = "iree"))]
        Command::Export(_) => Err(Error::WithoutIree { command: "export" }),
        Command::Bake(arguments) => bake::run(arguments, read, &interrupt),
        Command::Random(arguments) => random::run(arguments, read, &interrupt),
    };
    error::exit(result, &interrupt)
}

/// The command line `trace-dump` for the networks that `read` knows.
pub fn trace_dump(read: ReadModel) -> ExitCode {
    error::exit(dump::run(&dump::Arguments::parse(), read), &Interrupt::default())
}

/// Set by Ctrl-C: whatever takes long looks at it.
#[derive(Clone, Default)]
struct Interrupt(Arc<AtomicBool>);

impl Interrupt {
    /// The first Ctrl-C asks to stop; the second ends the process at once.
    fn listen(&self) {
        let flag = self.0.clone();
        let handler = ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::SeqCst) {
                std::process::exit(130);
            }
        });
        if let Err(error) = handler {
            tracing::warn!("Ctrl-C is not handled: {error}");
        }
    }

    fn is_set(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// For whoever asks whether to go on.
    fn go_on(&self) -> ControlFlow<()> {
        if self.is_set() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    }

    /// For what stops by an error.
    #[cfg(feature = "iree")]
    fn check(&self) -> Result<(), Error> {
        if self.is_set() { Err(Error::Interrupted) } else { Ok(()) }
    }
}
