//! `tracewright fingerprint` prints a hash of a model's logits, to compare machines by one line.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::RunArguments;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// File with another text, or `-` for stdin; `fingerprint` reads at most 256 tokens of the text [default: a fixed
    /// text]
    #[arg(short, long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Print one JSON object on stdout instead of a line
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    run: RunArguments,
}

#[cfg(feature = "iree")]
mod run {
    use console::{print, read_text};
    use serde_json::json;
    use tracewright::model::FingerprintText;

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::load;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let text = self.file.as_deref().map(read_text).transpose()?;
            let mut opening = load::read(&self.model, &self.run, invocation)?;
            let text = FingerprintText::new(&mut opening, text.as_deref())?;
            let model = load::open(opening, &self.run.build.compile, &invocation.interrupt)?;
            let found = text.of(&model)?;
            Ok(print(&if self.json { format!("{}\n", json!(found)) } else { format!("{found}\n") })?)
        }
    }
}
