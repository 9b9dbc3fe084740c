//! Reads the inputs that a chat template receives in addition to the messages: tools, documents and
//! variables.

use std::path::Path;

use console::{read_text, usage};
use serde_json::{Map, Value, json};
use tracewright::errors::{escaped, shortened};
use tracewright::generate::Chat;

use super::arguments::{TemplateArguments, Thinking};
use super::error::Error;

/// The name of the chat template's variable that `--thinking` sets.
const THINKING: &str = "enable_thinking";

impl TemplateArguments {
    /// Returns the first option on the command line that affects the chat template, if there is any.
    pub fn first(&self) -> Option<&'static str> {
        let given = [
            ("--tools", self.tools.is_some()),
            ("--documents", self.documents.is_some()),
            ("--thinking", self.thinking.is_some()),
            ("--template-var", !self.template_var.is_empty()),
        ];
        given.into_iter().find_map(|(option, given)| given.then_some(option))
    }
}

/// The tools, documents and variables that a chat template receives.
#[derive(Clone, Default)]
pub struct Extras {
    tools: Option<Vec<Value>>,
    variables: Map<String, Value>,
}

impl Extras {
    /// Reads the tools, documents and variables from the files that the arguments name.
    pub fn read(arguments: &TemplateArguments) -> Result<Self, Error> {
        let TemplateArguments { tools, documents, thinking, template_var } = arguments;
        let mut variables = Map::new();
        if let Some(path) = documents {
            variables.insert("documents".to_owned(), self::documents(path)?.into());
        }
        if let Some(thinking) = thinking {
            variables.insert(THINKING.to_owned(), Value::Bool(*thinking == Thinking::On));
        }
        for variable in template_var {
            if variables.insert(variable.name.clone(), variable.value.clone()).is_some() {
                let name = &variable.name;
                let what = if name == THINKING && thinking.is_some() {
                    format!("`--thinking` and `--template-var` both set `{THINKING}`; leave one out")
                } else {
                    format!("`--template-var` sets `{name}` twice; leave one out")
                };
                return Err(usage(what).into());
            }
        }
        Ok(Self { tools: tools.as_deref().map(self::tools).transpose()?, variables })
    }

    /// Returns the tools for the chat template, and a map that contains the template's variables
    /// and the documents.
    pub fn into_parts(self) -> (Option<Vec<Value>>, Map<String, Value>) {
        (self.tools, self.variables)
    }

    /// Creates a chat whose rendered prompt ends where the model's answer begins.
    pub fn chat(self, messages: Vec<Value>) -> Chat {
        let Self { tools, variables } = self;
        Chat { messages, tools, variables, add_generation_prompt: true, now: None }
    }
}

/// Reads and checks the tools in a JSON file.
fn tools(path: &Path) -> Result<Vec<Value>, Error> {
    let list = list(path, "tools")?;
    for (index, tool) in list.iter().enumerate() {
        let is = |key: &str, found: Option<&Value>, expected: &'static str| {
            let place = format!("`{key}` of tool {index}");
            Error::Entry { path: path.to_owned(), what: "tools", place, found: shown(found), expected }
        };
        let kind = tool.get("type");
        if kind.and_then(Value::as_str) != Some("function") {
            return Err(is("type", kind, "`\"function\"`"));
        }
        let function = tool.get("function");
        if !function.is_some_and(Value::is_object) {
            return Err(is("function", function, "an object"));
        }
        let name = function.and_then(|function| function.get("name"));
        if name.and_then(Value::as_str).is_none_or(str::is_empty) {
            return Err(is("function.name", name, "the function's name"));
        }
    }
    Ok(list)
}

/// Reads the documents for the chat template from a JSON file.
fn documents(path: &Path) -> Result<Vec<Value>, Error> {
    list(path, "documents")
}

/// Reads a list of objects from a JSON file. The list must contain at least one object.
fn list(path: &Path, what: &'static str) -> Result<Vec<Value>, Error> {
    let text = read_text(path)?;
    let list: Vec<Value> = tracewright::files::parse_exact(&text).map_err(|source| Error::NoList {
        path: path.to_owned(),
        what,
        source,
    })?;
    let one = &what[..what.len() - 1];
    let entry = |place, found, expected| Error::Entry { path: path.to_owned(), what, place, found, expected };
    if list.is_empty() {
        return Err(entry("the list".to_owned(), "empty".to_owned(), "at least one object"));
    }
    match list.iter().enumerate().find(|(_, item)| !item.is_object()) {
        Some((index, item)) => Err(entry(format!("{one} {index}"), shown(Some(item)), "an object")),
        None => Ok(list),
    }
}

/// Formats a JSON value for an error message.
fn shown(value: Option<&Value>) -> String {
    const MOST: usize = 60;
    match value {
        Some(value) => format!("`{}`", escaped(&shortened(tracewright::files::exact_json(value), MOST))),
        None => "missing".to_owned(),
    }
}

/// Creates the messages of a chat: the system message if there is one, and one message of the user.
pub fn conversation(system: Option<&str>, message: &str) -> Vec<Value> {
    let messages = system.map(|text| ("system", text)).into_iter().chain([("user", message)]);
    messages.map(|(role, text)| json!({ "role": role, "content": text })).collect()
}
