//! A command-line program for the network of `examples/parallel`. The program has the commands
//! `generate`, `export`, `bake` and `random`, with the same options as in `tracewright`.

// A link to that example's `main.rs`.
#[allow(dead_code, reason = "the program there is another one")]
mod parallel;

use parallel::{Config, Parallel};

use std::process::ExitCode;

use tracewright::dsl::{TraceError, Traced};
use tracewright::models::{Architecture, DeclaredSize, MtpError, Opened};
use tracewright::ops::ElementType;
use tracewright::{Bf16, CausalLm, EntryPoint, F16, F32};

impl Architecture for Config {
    fn trace(&self, element: ElementType, entry_points: &[EntryPoint]) -> Result<Traced, TraceError> {
        match element {
            ElementType::Bf16 => Parallel::<Bf16>::trace(self, entry_points),
            ElementType::F16 => Parallel::<F16>::trace(self, entry_points),
            _ => Parallel::<F32>::trace(self, entry_points),
        }
    }

    fn max_context(&self) -> usize {
        self.context
    }

    fn vocabulary(&self) -> usize {
        self.vocabulary
    }

    fn element(&self) -> Option<ElementType> {
        None
    }

    fn check_mtp(&self) -> Result<(), MtpError> {
        Err(MtpError::Family)
    }

    fn sizes(&self) -> Vec<DeclaredSize> {
        Vec::new()
    }
}

fn main() -> ExitCode {
    tracewright_cli::main(|model, _allowed_keys| Ok(Opened::text(Config::read(model.path())?)))
}
