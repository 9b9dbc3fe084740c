//! Converts the messages of a conversation to the tokens of a prompt.

use std::borrow::Cow;

use generate::{Chat, GenerateError};
use serde_json::{Map, Value, json};
use tracewright::ModelError;
use tracewright::generate::Prompt;
use tracewright::model::{ImagePrompt, Message, MessagePart};
use tracewright::pixels::Pixels;

use crate::body::shown;
use crate::failure::{Failure, causes};
use crate::ids::id;
use crate::media;
use crate::models::Loaded;

/// The roles of messages that a client can send.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// A conversation for a chat template.
#[derive(Clone, Copy)]
pub struct Dialogue<'a> {
    pub messages: &'a [Message],
    /// The images of the messages, in the order of the parts that stand for them.
    pub images: &'a [Pixels],
    pub tools: &'a [Value],
    pub variables: &'a Map<String, Value>,
    /// Whether the prompt ends inside the last message, which the answer continues.
    pub continues: bool,
}

/// Whether the answer continues the last message: if this is an answer with text, unless the request forbids it.
pub fn continues(given: Option<bool>, messages: &[Message]) -> Result<bool, Failure> {
    let is_answer = |last: &Message| {
        last.role == "assistant" && !last.fields.contains_key("tool_calls") && !last.text().is_empty()
    };
    let can = messages.last().is_some_and(is_answer);
    if given == Some(true) && !can {
        let expected = "false, because the last message is no text of the assistant";
        return Err(Failure::field("continue_final_message", "true", expected));
    }
    Ok(given.unwrap_or(can))
}

/// A rendered conversation.
#[derive(Clone, Debug)]
pub struct Rendered {
    pub text: String,
    /// The tokens, if there are images.
    seen: Option<ImagePrompt>,
}

impl Rendered {
    /// Returns the number of tokens of the prompt.
    pub fn count(&self, loaded: &Loaded) -> Result<usize, Failure> {
        match &self.seen {
            Some(seen) => Ok(seen.tokens().len()),
            None => Ok(tokens(loaded, &self.text)?.len()),
        }
    }

    /// Returns the prompt, for which the vision tower has read the images.
    pub fn prompt(self, loaded: &Loaded) -> Result<Prompt, Failure> {
        match self.seen {
            Some(seen) => {
                check_length(loaded, seen.tokens().len())?;
                Ok(loaded.model.see(seen)?)
            }
            None => Ok(tokens(loaded, &self.text)?.into()),
        }
    }
}

/// Sorts or joins the messages of a conversation.
type Arrange = for<'a> fn(&'a [Message]) -> Cow<'a, [Message]>;

impl Dialogue<'_> {
    /// Renders the conversation with the model's chat template.
    pub fn render(&self, loaded: &Loaded) -> Result<Rendered, Failure> {
        if !self.continues {
            return self.render_all(loaded);
        }
        if !self.images.is_empty() {
            let expected = "false, because the conversation has images";
            return Err(Failure::field("continue_final_message", "true", expected));
        }
        // A text that no template changes marks the end of the last message, as in transformers.
        let end = id("continued-");
        let mut messages = self.messages.to_vec();
        if let Some(last) = messages.last_mut() {
            last.parts = vec![MessagePart::Text(last.text() + &end)];
        }
        let Rendered { text, .. } = Dialogue { messages: &messages, ..*self }.render_all(loaded)?;
        let refuse = || {
            let expected = "false, because the chat template changes the text of the last message";
            Failure::field("continue_final_message", "true", expected)
        };
        let text = text.rfind(&end).map(|at| text[..at].to_owned()).ok_or_else(refuse)?;
        Ok(Rendered { text, seen: None })
    }

    fn render_all(&self, loaded: &Loaded) -> Result<Rendered, Failure> {
        let refusal = match self.rendered(loaded, |messages| Cow::Borrowed(messages)) {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        let Some(why) = template_refusal(&refusal) else { return Err(refusal.into()) };
        // Many chat templates accept a system message only at the beginning of the conversation, or
        // reject every system message.
        let others: [Arrange; 2] =
            [|messages| systems_first(messages).into(), |messages| systems_to_user(messages).into()];
        for arrange in others {
            if let Ok(text) = self.rendered(loaded, arrange) {
                return Ok(text);
            }
        }
        Err(Failure::Template { model: loaded.name.clone(), why })
    }

    /// Calls `arrange`, and renders the result with the chat template.
    fn rendered(&self, loaded: &Loaded, arrange: Arrange) -> Result<Rendered, ModelError> {
        let uses_tools = self.messages.iter().any(|message| message.fields.contains_key("tool_calls"));
        let mut chat = Chat {
            messages: Vec::new(),
            // Some chat templates render the function calls of earlier messages only if tools are
            // defined.
            tools: (uses_tools || !self.tools.is_empty()).then(|| self.tools.to_vec()),
            variables: self.variables.clone(),
            add_generation_prompt: !self.continues,
            now: None,
        };
        let mut unread = loaded.model.unread_by_template(&chat)?;
        chat.tools = chat.tools.filter(|tools| !tools.is_empty());
        let mut messages = Cow::Borrowed(self.messages);
        loop {
            if unread.iter().any(|name| name == "tools") {
                messages = without_tools(&messages, chat.tools.take().as_deref()).into();
            }
            chat.messages = arrange(&messages).iter().map(Message::json).collect();
            match self.in_template(loaded, &chat) {
                // If a separate process renders the template, this process rejects a variable
                // without effect.
                Err(ModelError::UnreadVariable { name, .. }) if name == "tools" && chat.tools.is_some() => {
                    unread = vec![name];
                }
                Err(ModelError::UnreadVariable { name, .. }) if chat.variables.contains_key(&name) => {
                    chat.variables.remove(&name);
                    unread.clear();
                }
                result => return result,
            }
        }
    }
}

impl Dialogue<'_> {
    fn in_template(&self, loaded: &Loaded, chat: &Chat) -> Result<Rendered, ModelError> {
        if self.images.is_empty() {
            return Ok(Rendered { text: loaded.model.render(chat)?, seen: None });
        }
        let seen = loaded.model.chat_with_images(chat, self.images)?;
        Ok(Rendered { text: seen.text().to_owned(), seen: Some(seen) })
    }
}

/// Converts the messages for a chat template that does not support tools. In the converted
/// conversation, a system message describes the functions, and function calls are JSON. The results
/// of function calls become messages of the user.
fn without_tools(messages: &[Message], tools: Option<&[Value]>) -> Vec<Message> {
    let plain = |message: &Message| {
        let calls = message.fields.get("tool_calls").and_then(Value::as_array);
        let call = |call: &Value| files::exact_json(&call["function"]);
        let calls: Vec<String> = calls.into_iter().flatten().map(call).collect();
        let content = [&[message.text()], &calls[..]].concat().join("\n");
        let images = message.parts.iter().filter(|part| part.image().is_some()).cloned();
        let mut plain = match message.role.as_str() {
            "tool" => Message::new("user", format!("Result of the call: {content}")),
            role => Message::new(role, content.trim()),
        };
        plain.parts.splice(0..0, images);
        plain
    };
    let Some(tools) = tools else { return messages.iter().map(plain).collect() };
    let functions: Vec<String> = tools.iter().map(|tool| files::exact_json(&tool["function"])).collect();
    let text = format!(
        "You can call functions. To call one, write only JSON: {{\"name\": NAME, \"arguments\": {{…}}}}. The functions are:\n{}",
        functions.join("\n")
    );
    let system = Message::new("system", text);
    systems_first(&[&[system], &messages.iter().map(plain).collect::<Vec<_>>()[..]].concat())
}

/// Converts a rendered text to tokens, and checks that the tokens and one new token fit into the context.
pub fn tokens(loaded: &Loaded, text: &str) -> Result<Vec<u32>, Failure> {
    let tokens = loaded.tokenizer()?.encode_plain(text)?;
    check_length(loaded, tokens.len())?;
    Ok(tokens)
}

/// Checks that a prompt fits into the context.
pub fn check_length(loaded: &Loaded, tokens: usize) -> Result<(), Failure> {
    let context = loaded.model.info().context;
    if tokens <= context {
        Ok(())
    } else {
        Err(Failure::Context { model: loaded.name.clone(), tokens, context })
    }
}

/// Returns the reason why the chat template rejects the messages. The result is `None` if the
/// template did not reject the messages.
fn template_refusal(error: &ModelError) -> Option<String> {
    match error {
        ModelError::Generate(GenerateError::Template(error)) => Some(causes(error)),
        ModelError::Template { message, .. } => Some(message.clone()),
        _ => None,
    }
}

/// Reads the messages of a request. The role of each message becomes a role that chat templates support.
pub fn messages(given: &[Value]) -> Result<Vec<Message>, Failure> {
    if given.is_empty() {
        return Err(Failure::field("messages", "empty", "at least one message"));
    }
    given.iter().enumerate().map(|(i, given)| message(given, &format!("messages[{i}]"))).collect()
}

fn message(given: &Value, at: &str) -> Result<Message, Failure> {
    let object = given.as_object().ok_or_else(|| Failure::field(at, shown(given), "an object"))?;
    let role = object.get("role").unwrap_or(&Value::Null);
    let expected = || format!("one of {}", ROLES.map(|role| format!("`{role}`")).join(", "));
    let role = role
        .as_str()
        .filter(|role| ROLES.contains(role))
        .ok_or_else(|| Failure::field(format!("{at}.role"), shown(role), expected()))?;
    let role = match role {
        "developer" => "system",
        "function" => "tool",
        role => role,
    };
    let refusal = object.get("refusal").filter(|_| object.get("content").is_none_or(Value::is_null));
    let parts = parts(refusal.or(object.get("content")), &format!("{at}.content"))?;
    let mut fields = Map::new();
    for name in ["name", "tool_call_id", "reasoning_content"] {
        match object.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => _ = fields.insert(name.to_owned(), json!(text)),
            Some(other) => return Err(Failure::field(format!("{at}.{name}"), shown(other), "a text")),
        }
    }
    if let Some(function) = object.get("function_call").filter(|function| !function.is_null()) {
        let call = tool_call(&json!({ "function": function }), &format!("{at}.function_call"))?;
        fields.insert("tool_calls".to_owned(), json!([call]));
    }
    if let Some(calls) = object.get("tool_calls").filter(|calls| !calls.is_null()) {
        let at = format!("{at}.tool_calls");
        let calls = calls.as_array().ok_or_else(|| Failure::field(&at, shown(calls), "a list"))?;
        let calls = calls.iter().enumerate().map(|(i, call)| tool_call(call, &format!("{at}[{i}]")));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        if !calls.is_empty() {
            fields.insert("tool_calls".to_owned(), calls.into());
        }
    }
    Ok(Message { role: role.to_owned(), parts, fields })
}

/// Converts a function call of an earlier answer to the format that chat templates expect. Chat
/// templates expect the arguments as an object.
fn tool_call(given: &Value, at: &str) -> Result<Value, Failure> {
    let function = given.get("function").unwrap_or(&Value::Null);
    let name = function.get("name").and_then(Value::as_str);
    let name =
        name.ok_or_else(|| Failure::field(format!("{at}.function.name"), shown(function), "a text"))?;
    let arguments = match function.get("arguments") {
        Some(Value::String(text)) => files::parse_exact(text).unwrap_or_else(|_| json!(text)),
        None | Some(Value::Null) => json!({}),
        Some(other) => other.clone(),
    };
    let mut call = json!({ "type": "function", "function": { "name": name, "arguments": arguments } });
    if let Some(id) = given.get("id").filter(|id| id.is_string()) {
        call["id"] = id.clone();
    }
    Ok(call)
}

/// Returns the text of a content without images, which is a text, a list of parts, or null.
pub fn content(given: Option<&Value>, at: &str) -> Result<String, Failure> {
    let found = parts(given, at)?;
    match found.iter().position(|part| part.image().is_some()) {
        Some(i) => Err(Failure::field(format!("{at}[{i}]"), "an image", "a text")),
        None => Ok(MessagePart::joined(&found)),
    }
}

/// Returns the parts of a message's content, which are texts and images.
pub fn parts(given: Option<&Value>, at: &str) -> Result<Vec<MessagePart>, Failure> {
    let parts = match given {
        None | Some(Value::Null) => return Ok(Vec::new()),
        Some(Value::String(text)) => return Ok(vec![MessagePart::Text(text.clone())]),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(Failure::field(at, shown(other), "a text or a list of parts")),
    };
    let mut texts = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let at = format!("{at}[{i}]");
        if let Some(image) = media::image(part, &at) {
            texts.push(image?);
            continue;
        }
        let text = match part {
            Value::String(text) => Some(text.as_str()),
            part => ["text", "refusal"].iter().find_map(|key| part.get(key)?.as_str()),
        };
        match (text, part.get("type").unwrap_or(&Value::Null)) {
            (Some(text), _) => texts.push(MessagePart::Text(text.to_owned())),
            (None, kind) => {
                return Err(Failure::field(
                    format!("{at}.type"),
                    shown(kind),
                    "`text` with a `text`, or an image",
                ));
            }
        }
    }
    Ok(texts)
}

fn is_system(message: &Message) -> bool {
    message.role == "system"
}

/// Joins all system messages to one message at the beginning of the conversation.
fn systems_first(messages: &[Message]) -> Vec<Message> {
    let systems: Vec<String> = messages.iter().filter(|one| is_system(one)).map(Message::text).collect();
    let others = messages.iter().filter(|one| !is_system(one)).cloned();
    let system = (!systems.is_empty()).then(|| Message::new("system", systems.join("\n\n")));
    system.into_iter().chain(others).collect()
}

/// Moves the text of all system messages to the beginning of the first user message.
fn systems_to_user(messages: &[Message]) -> Vec<Message> {
    let mut merged = systems_first(messages);
    if !merged.first().is_some_and(is_system) {
        return merged;
    }
    let system = merged.remove(0).text();
    match merged.iter_mut().find(|message| message.role == "user") {
        Some(user) if user.parts.iter().any(|part| part.image().is_some()) => {
            user.parts.insert(0, MessagePart::Text(format!("{system}\n\n")));
        }
        Some(user) => user.parts = vec![MessagePart::Text(format!("{system}\n\n{}", user.text()))],
        None => merged.insert(0, Message::new("user", system)),
    }
    merged
}
