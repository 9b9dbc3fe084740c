//! `tracewright prompt`: the text that a chat becomes.
//!
//! A chat template is a program that came with the model. It is rendered in a process of its own, this command once more,
//! whose memory and time the system limits: what allocates, recurses or squares ends there.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::{Value, json};
use tracewright::errors::WithPath as _;
use tracewright::files::{limits, read_from, read_stream};
use tracewright::generate::{Chat, ChatTemplate};

use crate::arguments::{PromptArguments, VARIABLES};
use crate::error::{self, Error};

pub fn run(arguments: &PromptArguments) -> Result<(), Error> {
    let PromptArguments { model, chat, system, messages, limited } = arguments;
    if *limited {
        limit();
    }
    let messages = match (messages, chat) {
        (Some(path), _) => read_messages(path)?,
        (None, Some(chat)) => conversation(system.as_deref(), chat),
        (None, None) => Vec::new(),
    };
    let text = match limited {
        true => {
            let chat = Chat { messages, add_generation_prompt: true, ..Chat::default() };
            ChatTemplate::load(model)?.render(&chat)?
        }
        false => rendered(model, &messages)?,
    };
    match text.len() as u64 > limits::PROMPT {
        true => Err(Error::Template),
        false => io::stdout().write_all(text.as_bytes()).map_err(Error::Output),
    }
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
pub fn rendered(model: &Path, messages: &[Value]) -> Result<String, Error> {
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
        let _ = stdin.write_all(Value::from(messages.to_vec()).to_string().as_bytes());
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
