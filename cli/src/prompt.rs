//! `tracewright prompt`: the text that a chat becomes.
//!
//! A chat template is a program that came with the model. `generate` has it rendered by this command, in a process of
//! its own whose memory and time the system limits: what allocates, recurses or squares ends there.

use std::io::{self, Write as _};
use std::path::Path;
use std::process::{Command, Stdio};

use serde_json::json;
use tracewright::files::limits;
use tracewright::generate::{Chat, ChatTemplate};

use crate::arguments::PromptArguments;
use crate::error::{self, Error};

pub fn run(arguments: &PromptArguments) -> Result<(), Error> {
    limit();
    let PromptArguments { model, chat, system } = arguments;
    let text = ChatTemplate::load(model)?.render(&conversation(system.as_deref(), chat))?;
    match text.len() as u64 > limits::PROMPT {
        true => Err(Error::Template),
        false => io::stdout().write_all(text.as_bytes()).map_err(Error::Output),
    }
}

/// The text that a chat becomes, made by another process of this program.
pub fn rendered(model: &Path, chat: &str, system: Option<&str>) -> Result<String, Error> {
    let program = std::env::current_exe().map_err(Error::Program)?;
    let mut command = Command::new(program);
    // One argument each: a message may begin with a dash.
    command.arg("prompt").arg(format!("--chat={chat}"));
    command.args(system.map(|text| format!("--system={text}")));
    command.arg("--").arg(model);
    let output = command.stdin(Stdio::null()).output().map_err(Error::Program)?;
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

fn conversation(system: Option<&str>, message: &str) -> Chat {
    let messages = system.map(|text| ("system", text)).into_iter().chain([("user", message)]);
    Chat {
        messages: messages.map(|(role, text)| json!({ "role": role, "content": text })).collect(),
        add_generation_prompt: true,
        ..Chat::default()
    }
}
