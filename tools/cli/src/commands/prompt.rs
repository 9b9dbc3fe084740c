//! `tracewright prompt` prints a chat as text, rendered by the model's chat template.
//!
//! A chat template is an untrusted program that comes with the model. To render the template, the command
//! starts itself again as a second process. The system limits the memory and time of the second process, so a
//! hostile template cannot exceed these limits.

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
    /// Render the template in this process; the operating system ends the process if the template
    /// takes too much time or memory
    #[arg(long, hide = true)]
    pub limited: bool,
}

#[cfg(feature = "iree")]
mod run {
    use std::fs;
    use std::io;
    use std::path::Path;

    use console::{CommandError as _, print, read_text};
    use serde_json::{Value, json};
    use tracewright::errors::{WithCauses, WithPath as _};
    use tracewright::files::{limits, read_from};
    use tracewright::generate::chat_template;
    use tracewright::model::{TemplateAnswer, TemplateRequest};

    use super::Arguments;
    use crate::Invocation;
    use crate::error::Error;
    use crate::extras::{Extras, conversation};
    use crate::limited::{limit_memory, limit_time};
    use crate::load::template_program;

    impl Arguments {
        pub fn run(&self, invocation: &Invocation) -> Result<(), Error> {
            let Arguments { model, chat, system, messages, template, limited } = self;
            let text = if *limited {
                limit_memory(limits::TEMPLATE_MEMORY);
                limit_time(limits::TEMPLATE_SECONDS);
                return Ok(print(&json!(answer(render(model))).to_string())?);
            } else {
                fs::metadata(model).with_path("open", model)?;
                let extras = Extras::read(template)?;
                let messages = match (messages, chat) {
                    (Some(path), _) => read_messages(path)?,
                    (None, Some(chat)) => conversation(system.as_deref(), chat),
                    (None, None) => Vec::new(),
                };
                template_program(invocation)?.render(model, &extras.chat(messages))?
            };
            if text.len() as u64 > limits::PROMPT { Err(Error::Template) } else { Ok(print(&text)?) }
        }
    }

    fn answer(rendered: Result<String, Error>) -> TemplateAnswer {
        match rendered {
            Ok(text) => TemplateAnswer::Text(text),
            Err(Error::Unread { name, variables }) => TemplateAnswer::Unread { name, variables },
            Err(error) => TemplateAnswer::Refused {
                code: error.code().to_string(),
                message: WithCauses(&error).to_string(),
                help: error.help(),
            },
        }
    }

    /// Reads a chat from stdin, and renders the chat template.
    fn render(model: &Path) -> Result<String, Error> {
        // Messages, tools, documents and variables, each as long as any may be.
        let text = read_from(io::stdin().lock(), 4 * limits::PROMPT).with_path("read", Path::new("-"))?;
        let request = serde_json::from_str::<TemplateRequest>(&text);
        let request = request.map_err(|source| Error::Messages { path: "-".into(), source })?;
        let chat = request.chat();
        let template = chat_template(model)?;
        if let Some(name) = template.unread(&chat)?.first() {
            let variables = template.variables(&chat)?;
            return Err(Error::Unread { name: (*name).to_owned(), variables });
        }
        Ok(template.render(&chat)?)
    }

    fn read_messages(path: &Path) -> Result<Vec<Value>, Error> {
        let text = read_text(path)?;
        tracewright::files::parse_exact(&text)
            .map_err(|source| Error::Messages { path: path.to_owned(), source })
    }
}
