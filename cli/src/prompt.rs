//! `tracewright prompt`: the text that a chat becomes.
//!
//! A chat template is a program that came with the model. It is rendered in a process of its own, this command once more,
//! whose memory and time the system limits: what allocates, recurses or squares ends there.

use std::io::{self, Write as _};
use std::path::Path;

use serde_json::{Value, json};
use tracewright::errors::WithPath as _;
use tracewright::files::{limits, read_from, read_stream};
use tracewright::generate::chat_template;
use tracewright::model::TemplateRequest;

use crate::arguments::PromptArguments;
use crate::error::Error;
use crate::extras::Extras;
use crate::load::template_program;

pub fn run(arguments: &PromptArguments) -> Result<(), Error> {
    let PromptArguments { model, chat, system, messages, template, limited } = arguments;
    let text = match limited {
        true => {
            limit();
            render(model)?
        }
        false => {
            let extras = Extras::read(template)?;
            let messages = match (messages, chat) {
                (Some(path), _) => read_messages(path)?,
                (None, Some(chat)) => conversation(system.as_deref(), chat),
                (None, None) => Vec::new(),
            };
            template_program()?.render(model, &extras.chat(messages))?
        }
    };
    match text.len() as u64 > limits::PROMPT {
        true => Err(Error::Template),
        false => io::stdout().write_all(text.as_bytes()).map_err(Error::Output),
    }
}

/// The text of the request on stdin.
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

/// The messages in a file, or in what stdin gives.
fn read_messages(path: &Path) -> Result<Vec<Value>, Error> {
    let text = match path.as_os_str() == "-" {
        true => read_from(io::stdin().lock(), limits::PROMPT).with_path("read", path)?,
        false => read_stream(path, limits::PROMPT)?,
    };
    serde_json::from_str(&text).map_err(|source| Error::Messages { path: path.to_owned(), source })
}

/// Has the system end this process when it takes more than a template needs.
fn limit() {
    #[cfg(unix)]
    {
        use rustix::process::{Resource, Rlimit, setrlimit};
        let limits = [
            (Resource::Cpu, limits::TEMPLATE_SECONDS),
            (Resource::As, limits::TEMPLATE_MEMORY),
            (Resource::Core, 0),
        ];
        for (resource, most) in limits {
            // A lower limit that holds already is as good.
            let _ = setrlimit(resource, Rlimit { current: Some(most), maximum: Some(most) });
        }
    }
}

/// One message to answer.
pub fn conversation(system: Option<&str>, message: &str) -> Vec<Value> {
    let messages = system.map(|text| ("system", text)).into_iter().chain([("user", message)]);
    messages.map(|(role, text)| json!({ "role": role, "content": text })).collect()
}
