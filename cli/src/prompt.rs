//! `tracewright prompt`: the text that a chat becomes.
//!
//! A chat template is a program that came with the model. It is rendered in a process of its own, this command once more,
//! whose memory and time the system limits: what allocates, recurses or squares ends there.

use std::borrow::Cow;
use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use tracewright::errors::WithPath as _;
use tracewright::files::{limits, read_from, read_stream};
use tracewright::generate::ChatTemplate;

use crate::arguments::{PromptArguments, VARIABLES};
use crate::error::{self, Error};
use crate::extras::Extras;

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
            rendered(model, messages, &extras)?
        }
    };
    match text.len() as u64 > limits::PROMPT {
        true => Err(Error::Template),
        false => io::stdout().write_all(text.as_bytes()).map_err(Error::Output),
    }
}

/// What one process asks another to render.
#[derive(Serialize, Deserialize)]
struct Request<'a> {
    messages: Vec<Value>,
    extras: Cow<'a, Extras>,
}

/// The text of the request on stdin.
fn render(model: &Path) -> Result<String, Error> {
    // Messages, tools, documents and variables, each as long as any may be.
    let text = read_from(io::stdin().lock(), 4 * limits::PROMPT).with_path("read", Path::new("-"))?;
    let request = serde_json::from_str(&text);
    let Request { messages, extras } =
        request.map_err(|source| Error::Messages { path: "-".into(), source })?;
    let chat = extras.into_owned().chat(messages);
    let template = ChatTemplate::load(model)?;
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

/// The text that a chat becomes, made by another process of this program.
pub fn rendered(model: &Path, messages: Vec<Value>, extras: &Extras) -> Result<String, Error> {
    let request = serde_json::to_vec(&Request { messages, extras: Cow::Borrowed(extras) });
    let request = request.map_err(|source| Error::Program(source.into()))?;
    let program = std::env::current_exe().map_err(Error::Program)?;
    let mut command = Command::new(program);
    command.args(["prompt", "--limited", "--messages=-", "--"]).arg(model);
    // What the environment says to this process is not meant for that one.
    let said = std::env::vars_os().map(|(name, _)| name);
    said.filter(|name| name.to_string_lossy().starts_with(VARIABLES)).for_each(|name| {
        command.env_remove(name);
    });
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().map_err(Error::Program)?;
    if let Some(mut stdin) = process.stdin.take() {
        // One that ended early says why; a closed pipe does not.
        let _ = stdin.write_all(&request);
    }
    let output = process.wait_with_output().map_err(Error::Program)?;
    let said = String::from_utf8_lossy(&output.stderr);
    match (output.status.code(), String::from_utf8(output.stdout)) {
        (Some(0), Ok(text)) => Ok(text),
        // It has said why, as this process would.
        (Some(1), _) if let Some(error) = error::said(&said) => Err(error),
        _ => Err(Error::Template),
    }
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
