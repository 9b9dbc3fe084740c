//! [`Chat`] is a conversation, and [`ChatTemplate`] renders a conversation as text.

use std::collections::BTreeMap;
use std::error::Error as _;
use std::fmt;
use std::io;
use std::path::PathBuf;

use files::limits;
use jiff::Zoned;
use minijinja::{Environment, Error, Template, Value};
use serde_json::{Map, Value as Json};

use crate::budget::Budget;
use crate::source::{self, Source};
use crate::strftime::strftime;
use crate::{TemplateError, engine, invalid, json_values};

/// The keys from which templates read the reasoning in a message. The first key in the list is the
/// standard name.
const REASONING: [&str; 3] = ["reasoning_content", "thinking", "reasoning"];

/// A conversation, and additional variables for the template.
#[derive(Debug, Clone, Default)]
pub struct Chat {
    /// The messages of the conversation. Each message is an object with the keys `role` and `content`.
    pub messages: Vec<Json>,
    /// JSON schemas of the functions that the model may call.
    pub tools: Option<Vec<Json>>,
    /// Whether the rendered text ends with the header of the model's answer.
    pub add_generation_prompt: bool,
    /// Additional variables for the template, by name.
    pub variables: Map<String, Json>,
    /// The time that `strftime_now` formats. `None` selects the time of rendering.
    pub now: Option<Zoned>,
}

/// A model's chat template, and the model's special tokens.
///
/// A template is an untrusted program that comes with the model. Limits stop a template that creates huge
/// values, recurses deeply or loops forever. Tracewright limits the number of executed instructions, the
/// number of operators in a tag, the sizes of named values, and the size of the output. The limits stop all
/// known attacks with a template. The limits do not prove that rendering is safe, because minijinja itself
/// does not limit memory. For example, comparing a list that contains itself can still exhaust the stack. A
/// filter such as `sort` on a long list can take much time and memory. If you render templates from unknown
/// authors, use a separate process with limits of the operating system, as `tracewright prompt` does.
///
/// ```
/// use serde_json::{Map, json};
/// use tracewright_template::{Chat, ChatTemplate, TemplateError};
///
/// let template = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}";
/// let template = ChatTemplate::from_source(template, Map::new())?;
/// let chat = Chat { messages: vec![json!({ "role": "user", "content": "Hello" })], ..Chat::default() };
/// assert_eq!(template.render(&chat)?, "<user>Hello");
/// # Ok::<(), TemplateError>(())
/// ```
#[derive(Debug)]
pub struct ChatTemplate {
    environment: Environment<'static>,
    sources: Vec<Source>,
    special_tokens: Map<String, Json>,
}

impl ChatTemplate {
    /// The name of the default template, which applies to all conversations that have no special template.
    pub const DEFAULT: &str = source::DEFAULT;

    /// Creates the chat templates that a file contains, each with a name. The template `tool_use`
    /// applies to conversations with tools, and the template `default` applies to all other
    /// conversations. `special_tokens` maps names such as `bos_token` to texts.
    pub fn from_file(
        path: PathBuf,
        templates: Vec<(String, String)>,
        special_tokens: Map<String, Json>,
    ) -> Result<Self, TemplateError> {
        Self::new(Some(path), templates, special_tokens)
    }

    /// Creates a single template from its text.
    pub fn from_source(source: &str, special_tokens: Map<String, Json>) -> Result<Self, TemplateError> {
        Self::new(None, vec![(Self::DEFAULT.to_owned(), source.to_owned())], special_tokens)
    }

    fn new(
        file: Option<PathBuf>,
        templates: Vec<(String, String)>,
        special_tokens: Map<String, Json>,
    ) -> Result<Self, TemplateError> {
        let mut sources = Vec::new();
        let mut rewritten = Vec::new();
        let mut between = 0;
        for (name, text) in templates {
            let (source, translated) = Source::read(file.clone(), name, &text)?;
            between = between.max(translated.between);
            rewritten.push(translated.text);
            sources.push(source);
        }
        // A tag can join a text with itself once for each operator in the tag.
        let tags = sources.iter().flat_map(|source| &source.tags);
        let operators = 1 + tags.map(|tag| tag.operators).max().unwrap_or(0) as u64;
        let budget = Budget { bytes: (limits::TEMPLATE_MEMORY / operators).min(limits::PROMPT) as usize };
        // Each step can write the text between two tags.
        let steps = (limits::TEMPLATE_MEMORY / (1 + between as u64)).min(limits::TEMPLATE_STEPS as u64);
        let mut environment = engine::environment(budget, steps)
            .map_err(|error| TemplateError::Syntax { at: Box::default(), why: source::why(&error) })?;
        environment.add_function("raise_exception", raise_exception);
        for (source, rewritten) in sources.iter().zip(rewritten) {
            let added = environment.add_template_owned(source.name.clone(), rewritten);
            added.map_err(|error| source.syntax_error(&error))?;
        }
        Ok(ChatTemplate { environment, sources, special_tokens })
    }

    /// Selects the template for a conversation, which depends on whether the conversation has tools.
    fn chosen(&self, chat: &Chat) -> Result<Template<'_, '_>, TemplateError> {
        let template = match self.environment.get_template("tool_use") {
            Ok(template) if chat.tools.is_some() => Ok(template),
            _ => self.environment.get_template(Self::DEFAULT),
        };
        let names = || self.sources.iter().map(|source| &*source.name).collect::<Vec<_>>().join(", ");
        template.map_err(|_| TemplateError::NoDefault { names: source::words(&names()) })
    }

    /// Returns the names of the conversation's inputs that the template does not read: `tools`, or
    /// names of variables.
    pub fn unread<'a>(&self, chat: &'a Chat) -> Result<Vec<&'a str>, TemplateError> {
        let template = self.chosen(chat)?;
        let source = self.sources.iter().find(|source| source.name == template.name());
        let tools = chat.tools.iter().map(|_| "tools");
        let given = tools.chain(chat.variables.keys().map(String::as_str));
        Ok(given.filter(|name| source.is_some_and(|source| !source.reads(name))).collect())
    }

    /// The names of the variables that a conversation's template reads, in alphabetical order. The
    /// list contains no functions and no special tokens.
    pub fn variables(&self, chat: &Chat) -> Result<Vec<String>, TemplateError> {
        let functions: Vec<_> = self.environment.globals().map(|(name, _)| name.to_owned()).collect();
        let known = |name: &String| {
            functions.contains(name)
                || ["caller", "strftime_now"].contains(&&**name)
                || name.ends_with("_token")
        };
        let mut names: Vec<_> = self.chosen(chat)?.undeclared_variables(false).into_iter().collect();
        names.retain(|name| !known(name));
        names.sort_unstable();
        Ok(names)
    }

    /// Renders a conversation. The rendered text contains the special tokens, so encode the text
    /// with `encode_plain`.
    pub fn render(&self, chat: &Chat) -> Result<String, TemplateError> {
        let template = self.chosen(chat)?;
        if chat.messages.is_empty() {
            return Err(TemplateError::Empty);
        }
        let messages = chat.messages.iter().enumerate().map(|(i, message)| prepared(i, message));
        let messages = messages.collect::<Result<Vec<_>, _>>()?;
        let numbers = |error: Error| {
            let source = self.sources.iter().find(|source| source.name == template.name());
            let at = source.map(Source::whole).unwrap_or_default();
            TemplateError::Render { at: at.into(), why: source::why(&error) }
        };
        let values = |json: &[Json]| json.iter().map(json_values::value).collect::<Result<Value, _>>();
        let now = chat.now.clone();
        let strftime_now = move |format: &str| strftime(now.clone().unwrap_or_else(Zoned::now), format);
        // A variable of the conversation replaces a special token of the same name. A variable
        // cannot replace `messages` and the other names below.
        let tokens_and_variables = self.special_tokens.iter().chain(&chat.variables);
        let mut seen = BTreeMap::from([("documents", Value::from(()))]);
        for (name, value) in tokens_and_variables {
            seen.insert(name, json_values::value(value).map_err(numbers)?);
        }
        let messages = messages.iter().map(json_values::object).collect::<Result<Value, _>>();
        let tools = chat.tools.as_deref().map_or(Ok(Value::from(())), values);
        seen.extend([
            ("messages", messages.map_err(numbers)?),
            ("tools", tools.map_err(numbers)?),
            ("add_generation_prompt", Value::from(chat.add_generation_prompt)),
            ("strftime_now", Value::from_function(strftime_now)),
        ]);
        let mut text = Bounded(Vec::new());
        let rendered = template.render_captured_to(Value::from_pairs(seen), &mut text).map(drop);
        let text = rendered.and_then(|()| {
            let text = String::from_utf8(text.0);
            text.map_err(|_| invalid("the text is no UTF-8"))
        });
        text.map_err(|error| {
            if let Some(Raised(message)) = raised(&error) {
                return TemplateError::Raised { message: source::words(message) };
            }
            let named = error.name().unwrap_or(template.name());
            let source = self.sources.iter().find(|source| source.name == named);
            let at = source.map(|source| source.place(&error)).unwrap_or_default();
            TemplateError::Render { at: at.into(), why: source::why(&error) }
        })
    }
}

/// A buffer for a rendered text. Writing fails if the text becomes longer than the largest allowed prompt.
pub struct Bounded(pub Vec<u8>);

impl io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if (self.0.len() + bytes.len()) as u64 > limits::PROMPT {
            Err(io::Error::new(io::ErrorKind::FileTooLarge, "the text is longer than a prompt may be"))
        } else {
            self.0.write(bytes)
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Prepares a message for templates. The result contains no keys with the value null. The result
/// contains the message's reasoning under every key from which templates read the reasoning.
pub fn prepared(index: usize, message: &Json) -> Result<Map<String, Json>, TemplateError> {
    let Json::Object(message) = message else {
        return Err(TemplateError::Message { index, found: source::words(&message.to_string()) });
    };
    let kept = message.iter().filter(|(_, value)| !value.is_null());
    let kept: Map<_, _> = kept.map(|(key, value)| (key.clone(), value.clone())).collect();
    let Some(reasoning) = REASONING.iter().find_map(|name| kept.get(*name)).cloned() else { return Ok(kept) };
    let mut out = Map::from_iter([("thinking".to_string(), reasoning.clone())]);
    out.extend(kept);
    out.insert("reasoning_content".to_string(), reasoning);
    Ok(out)
}

/// The message that a template passes to `raise_exception`. minijinja returns this message as the
/// source of an error.
#[derive(Debug)]
struct Raised(String);

impl fmt::Display for Raised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Raised {}

fn raise_exception(message: Value) -> Result<Value, Error> {
    let message = message.to_string();
    Err(invalid(message.clone()).with_source(Raised(message)))
}

fn raised(error: &Error) -> Option<&Raised> {
    let mut source = error.source();
    while let Some(error) = source {
        if let Some(raised) = error.downcast_ref() {
            return Some(raised);
        }
        source = error.source();
    }
    None
}
