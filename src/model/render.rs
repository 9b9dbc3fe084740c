//! Renders chat templates in this process or in a separate process. Chat templates are untrusted programs.

use std::ffi::OsString;
use std::io::Write as _;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::{Arc, OnceLock};

use generate::{Chat, ChatTemplate, GenerateError, TemplateSource};
use irpa::ModelFiles;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use super::ModelError;
use super::room::with_room;

/// A program that renders a model's chat template. The program reads a [`TemplateRequest`] as JSON from
/// stdin, and prints a [`TemplateAnswer`] as JSON on stdout. An example of a template program is the
/// command `tracewright apply-template`, which runs under memory and time limits of the operating system.
#[derive(Clone, Debug)]
pub struct TemplateProgram {
    /// The path or the name of the program's executable.
    pub program: PathBuf,
    /// The arguments of the program.
    pub arguments: Vec<OsString>,
    /// The names of environment variables that the template program does not inherit from this process.
    pub without: Vec<OsString>,
}

/// The input of a [`TemplateProgram`].
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct TemplateRequest {
    /// The templates, so that the program opens no file of the model.
    pub template: TemplateSource,
    /// The messages of the conversation, which are JSON objects with the keys `role` and `content`.
    pub messages: Vec<Value>,
    /// Descriptions of the functions that the model may call. With `None`, the request offers no functions.
    pub tools: Option<Vec<Value>>,
    /// Additional variables for the template, by name.
    pub variables: Map<String, Value>,
    /// Whether the text ends with the last message, without the beginning of an answer.
    #[serde(default)]
    pub is_open: bool,
}

impl TemplateRequest {
    /// Splits the request into the templates and a chat.
    pub fn into_parts(self) -> (TemplateSource, Chat) {
        let Self { template, messages, tools, variables, is_open } = self;
        (template, Chat { messages, tools, variables, add_generation_prompt: !is_open, now: None })
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
pub(super) struct Renderer {
    files: ModelFiles,
    program: Option<TemplateProgram>,
    template: Arc<OnceLock<Template>>,
    /// Whether the template reads a message's content as a list of texts and images.
    reads_parts: bool,
}

/// The text is parsed only by the process that renders it.
enum Template {
    Parsed(ChatTemplate),
    Program(TemplateProgram, TemplateSource),
}

impl Renderer {
    pub fn new(files: &ModelFiles, program: Option<TemplateProgram>, reads_parts: bool) -> Self {
        Self { files: files.clone(), program, template: Arc::default(), reads_parts }
    }

    pub fn render(&self, chat: &Chat) -> Result<String, ModelError> {
        let in_parts = self.reads_parts.then(|| in_parts(chat));
        let chat = in_parts.as_ref().unwrap_or(chat);
        match self.template()? {
            Template::Program(program, source) => program.render(source, chat),
            Template::Parsed(template) => {
                Ok(with_room(|| template.render(chat).map_err(GenerateError::from))??)
            }
        }
    }

    /// Lists the inputs that the chat template does not read; empty if a separate program renders it.
    pub fn unread(&self, chat: &Chat) -> Result<Vec<String>, ModelError> {
        let Template::Parsed(template) = self.template()? else { return Ok(Vec::new()) };
        let unread = template.unread(chat).map_err(GenerateError::from)?;
        Ok(unread.into_iter().map(str::to_owned).collect())
    }

    fn template(&self) -> Result<&Template, ModelError> {
        if let Some(template) = self.template.get() {
            return Ok(template);
        }
        let source = TemplateSource::read(&self.files)?;
        let template = match &self.program {
            Some(program) => Template::Program(program.clone(), source),
            None => Template::Parsed(with_room(|| source.template())??),
        };
        Ok(self.template.get_or_init(|| template))
    }
}

/// The same conversation, in which each text is a list with one part.
fn in_parts(chat: &Chat) -> Chat {
    let message = |message: &Value| {
        let mut message = message.clone();
        if let Some(content) = message.get_mut("content").filter(|content| content.is_string()) {
            *content = json!([{ "type": "text", "text": content }]);
        }
        message
    };
    Chat { messages: chat.messages.iter().map(message).collect(), ..chat.clone() }
}

impl TemplateProgram {
    /// Renders a conversation with a model's chat template, and returns the text.
    pub fn render(&self, template: &TemplateSource, chat: &Chat) -> Result<String, ModelError> {
        let Chat { messages, tools, variables, add_generation_prompt, .. } = chat.clone();
        let (template, is_open) = (template.clone(), !add_generation_prompt);
        let request = TemplateRequest { template, messages, tools, variables, is_open };
        let request = serde_json::to_vec(&request);
        let request = request.map_err(|source| ModelError::Program(source.into()))?;
        let mut command = Command::new(&self.program);
        command.args(&self.arguments);
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
