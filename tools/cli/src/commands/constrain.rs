//! `tracewright constrain` follows JSON schemas and grammars for another process of Tracewright.
//!
//! A schema can make the library llguidance overflow the stack, exhaust the memory or run without end.
//! Then only this process ends.

use clap::Args;

#[derive(Args)]
pub struct Arguments {
    /// Cause the faults that a schema or a grammar names, for tests
    #[arg(long, hide = true)]
    pub crashes: bool,
}

#[cfg(feature = "iree")]
mod run {
    use tracewright::files::limits;
    use tracewright::generate::{allow_crashes, answer_constraints};

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::limited::limit_memory;

    impl Arguments {
        pub fn run(&self, _: &Invocation) -> Result<(), Error> {
            limit_memory(limits::GRAMMAR_MEMORY);
            if self.crashes {
                allow_crashes();
            }
            answer_constraints(std::io::stdin(), std::io::stdout()).map_err(Error::Program)
        }
    }
}
