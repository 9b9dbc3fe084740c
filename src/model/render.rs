//! Renders chat templates in this process or in a separate process. Chat templates are untrusted programs.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use generate::{Chat, ChatTemplate, GenerateError, chat_template};
use irpa::ModelFiles;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::ModelError;
use super::room::with_room;

/// A program that renders a model's chat template. The last argument of the program is the model's
/// path. The program reads a [`TemplateRequest`] as JSON from stdin, and prints a [`TemplateAnswer`]
/// as JSON on stdout. An example of a template program is the command `tracewright prompt --limited`,
/// which runs under memory and time limits of the operating system.
#[derive(Clone, Debug)]
pub struct TemplateProgram {
    /// The path or the name of the program's executable.
    pub program: PathBuf,
    /// The arguments that the program gets before the model's path.
    pub arguments: Vec<OsString>,
    /// The names of environment variables that the template program does not inherit from this process.
    pub without: Vec<OsString>,
}

/// The input of a [`TemplateProgram`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateRequest {
    /// The messages of the conversation, which are JSON objects with the keys `role` and `content`.
    pub messages: Vec<Value>,
    /// Descriptions of the functions that the model may call. With `None`, the request offers no functions.
    pub tools: Option<Vec<Value>>,
    /// Additional variables for the template, by name.
    pub variables: Map<String, Value>,
}

impl TemplateRequest {
    /// Converts the request to a chat that the model can answer.
    pub fn chat(self) -> Chat {
        let Self { messages, tools, variables } = self;
        Chat { messages, tools, variables, add_generation_prompt: true, now: None }
    }
}

/// The output of a [`TemplateProgram`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum TemplateAnswer {
    /// The rendered text.
    Text(String),
    /// The template does not read a variable of the request.
    Unread {
        /// The name of the variable, or `tools`.
        name: String,
        /// The variables that the template reads.
        variables: Vec<String>,
    },
    /// The template cannot be read, or rejects the conversation.
    Refused {
        /// The code of the error.
        code: String,
        /// The error with its causes.
        message: String,
        /// Remedies.
        help: Vec<String>,
    },
}

#[derive(Clone)]
enum TemplateFrom {
    Files(ModelFiles),
    Program(TemplateProgram, PathBuf),
}

/// Renders the chat template of one model.
#[derive(Clone)]
pub(super) struct Renderer {
    /// The model's files, or only its path if another program reads them.
    from: TemplateFrom,
    template: Arc<OnceLock<ChatTemplate>>,
}

impl Renderer {
    pub fn new(files: &ModelFiles, program: Option<TemplateProgram>) -> Self {
        let from = match program {
            Some(program) => TemplateFrom::Program(program, files.path().to_owned()),
            None => TemplateFrom::Files(files.clone()),
        };
        Self { from, template: Arc::default() }
    }

    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        match &self.from {
            TemplateFrom::Program(program, path) => program.render(path, chat),
            TemplateFrom::Files(files) => {
                let template = self.template(files)?;
                Ok(with_room(|| template.render(chat).map_err(GenerateError::from))??)
            }
        }
    }

    /// Lists the inputs that the chat template does not read; empty if a separate program renders it.
    pub fn unread(&self, chat: &Chat) -> Result<Vec<String>, ModelError> {
        let TemplateFrom::Files(files) = &self.from else { return Ok(Vec::new()) };
        let unread = self.template(files)?.unread(chat).map_err(GenerateError::from)?;
        Ok(unread.into_iter().map(str::to_owned).collect())
    }

    fn template(&self, files: &ModelFiles) -> Result<&ChatTemplate, ModelError> {
        Ok(match self.template.get() {
            Some(template) => template,
            None => {
                let template = with_room(|| chat_template(files))??;
                self.template.get_or_init(|| template)
            }
        })
    }
}

impl TemplateProgram {
    /// Renders a conversation with the chat template of `model`, and returns the text.
    pub fn render(&self, model: &Path, chat: &Chat) -> Result<String, ModelError> {
        let Chat { messages, tools, variables, .. } = chat.clone();
        let request = serde_json::to_vec(&TemplateRequest { messages, tools, variables });
        let request = request.map_err(|source| ModelError::Program(source.into()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments).arg("--").arg(model);
        for name in &self.without {
            command.env_remove(name);
        }
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut process = command.spawn().map_err(ModelError::Program)?;
        if let Some(mut stdin) = process.stdin.take() {
            // If the program ends early, the program's output explains the reason. Therefore the
            // error of the closed pipe is ignored.
            let _ = stdin.write_all(&request);
        }
        let output = process.wait_with_output().map_err(ModelError::Program)?;
        match serde_json::from_slice(&output.stdout) {
            Ok(TemplateAnswer::Text(text)) => Ok(text),
            Ok(TemplateAnswer::Unread { name, variables }) => {
                Err(ModelError::UnreadVariable { name, variables })
            }
            Ok(TemplateAnswer::Refused { code, message, help }) => {
                Err(ModelError::Template { code, message, help })
            }
            // The system ended the program before it printed the whole answer.
            Err(_) => Err(ModelError::TemplateLimit),
        }
    }
}
