//! `tracewright prompt` prints a chat as text, rendered by the model's chat template.
//!
//! A chat template is an untrusted program that comes with the model, so [`render`](super::render) runs it in
//! a second process.

use std::path::PathBuf;

use clap::Args;

use crate::arguments::TemplateArguments;

#[derive(Args)]
pub struct Arguments {
    /// Hugging Face model directory, GGUF file or export
    pub model: PathBuf,
    /// Message to answer
    #[arg(long, value_name = "TEXT", required_unless_present = "messages")]
    pub chat: Option<String>,
    /// System message of the chat
    #[arg(long, value_name = "TEXT", conflicts_with = "messages")]
    pub system: Option<String>,
    /// File with the whole chat, or `-` for stdin: a JSON list of objects with `role` and
    /// `content`, which the command `/save` of `tracewright chat` writes
    #[arg(long, value_name = "FILE", conflicts_with = "chat")]
    pub messages: Option<PathBuf>,
    #[command(flatten)]
    pub template: TemplateArguments,
}

#[cfg(feature = "iree")]
mod run {
    use std::fs;
    use std::path::Path;

    use console::{print, read_text};
    use serde_json::Value;
    use tracewright::errors::WithPath as _;
    use tracewright::files::limits;
    use tracewright::generate::TemplateSource;

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::extras::{Extras, conversation};
    use crate::load::template_program;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let Arguments { model, chat, system, messages, template } = self;
            fs::metadata(model).with_path("open", model)?;
            let extras = Extras::read(template)?;
            let messages = match (messages, chat) {
                (Some(path), _) => read_messages(path)?,
                (None, Some(chat)) => conversation(system.as_deref(), chat),
                (None, None) => Vec::new(),
            };
            let template = TemplateSource::read(&model.into())?;
            let text = template_program(invocation)?.render(&template, &extras.chat(messages))?;
            if text.len() as u64 > limits::PROMPT { Err(Error::Template) } else { Ok(print(&text)?) }
        }
    }

    fn read_messages(path: &Path) -> Result<Vec<Value>, Error> {
        let text = read_text(path)?;
        tracewright::files::parse_exact(&text)
            .map_err(|source| Error::Messages { path: path.to_owned(), source })
    }
}
