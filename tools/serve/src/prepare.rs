//! Converts the messages of a conversation to the tokens of a prompt.

use generate::{Chat, GenerateError};
use serde_json::{Map, Value, json};
use tracewright::ModelError;

use crate::body::shown;
use crate::failure::{Failure, causes};
use crate::models::Loaded;

/// The roles of messages that a client can send.
const ROLES: [&str; 6] = ["system", "developer", "user", "assistant", "tool", "function"];

/// A conversation, in the format that chat templates expect.
#[derive(Clone, Debug, Default)]
pub struct Dialogue {
    pub messages: Vec<Value>,
    pub tools: Option<Vec<Value>>,
    pub variables: Map<String, Value>,
}

impl Dialogue {
    /// Renders the conversation with the model's chat template.
    pub fn render(&self, loaded: &Loaded) -> Result<String, Failure> {
        let refusal = match self.rendered(loaded, <[Value]>::to_vec) {
            Ok(text) => return Ok(text),
            Err(error) => error,
        };
        let Some(why) = template_refusal(&refusal) else { return Err(refusal.into()) };
        // Many chat templates accept a system message only at the beginning of the conversation, or
        // reject every system message.
        for arrange in [systems_first, systems_to_user] {
            if let Ok(text) = self.rendered(loaded, arrange) {
                return Ok(text);
            }
        }
        Err(Failure::Template { model: loaded.name.clone(), why })
    }

    /// Calls `arrange` to sort or join the messages, and renders the result with the chat template.
    fn rendered(&self, loaded: &Loaded, arrange: fn(&[Value]) -> Vec<Value>) -> Result<String, ModelError> {
        let mut chat = Chat {
            messages: self.messages.clone(),
            tools: self.tools.clone(),
            variables: self.variables.clone(),
            add_generation_prompt: true,
            now: None,
        };
        let uses_tools = chat.messages.iter().any(|message| message.get("tool_calls").is_some());
        if uses_tools && chat.tools.is_none() {
            // Some chat templates render the function calls of earlier messages only if tools are
            // defined.
            chat.tools = Some(Vec::new());
        }
        let mut unread = loaded.model.unread_by_template(&chat)?;
        chat.tools = chat.tools.filter(|tools| !tools.is_empty());
        loop {
            if unread.iter().any(|name| name == "tools") {
                chat.messages = without_tools(&chat.messages, chat.tools.take().as_deref());
            }
            match loaded.model.render(&Chat { messages: arrange(&chat.messages), ..chat.clone() }) {
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

/// Converts the messages for a chat template that does not support tools. In the converted
/// conversation, a system message describes the functions, and function calls are JSON. The results
/// of function calls become messages of the user.
fn without_tools(messages: &[Value], tools: Option<&[Value]>) -> Vec<Value> {
    let plain = |message: &Value| {
        let calls = message["tool_calls"].as_array();
        let call = |call: &Value| files::exact_json(&call["function"]);
        let calls: Vec<String> = calls.into_iter().flatten().map(call).collect();
        let content = [&[content_of(message).to_owned()], &calls[..]].concat().join("\n");
        match message["role"].as_str() {
            Some("tool") => json!({ "role": "user", "content": format!("Result of the call: {content}") }),
            role => json!({ "role": role, "content": content.trim() }),
        }
    };
    let Some(tools) = tools else { return messages.iter().map(plain).collect() };
    let functions: Vec<String> = tools.iter().map(|tool| files::exact_json(&tool["function"])).collect();
    let text = format!(
        "You can call functions. To call one, write only JSON: {{\"name\": NAME, \"arguments\": {{…}}}}. The functions are:\n{}",
        functions.join("\n")
    );
    let system = json!({ "role": "system", "content": text });
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
    match tokens <= context {
        true => Ok(()),
        false => Err(Failure::Context { model: loaded.name.clone(), tokens, context }),
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

/// Converts the messages of a request to the format of chat templates. The content of each message
/// becomes one text, and the role of each message becomes a role that chat templates support.
pub fn messages(given: &[Value]) -> Result<Vec<Value>, Failure> {
    if given.is_empty() {
        return Err(Failure::field("messages", "empty", "at least one message"));
    }
    given.iter().enumerate().map(|(i, given)| message(given, &format!("messages[{i}]"))).collect()
}

fn message(given: &Value, at: &str) -> Result<Value, Failure> {
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
    let content = content(object.get("content"), &format!("{at}.content"))?;
    let mut message =
        Map::from_iter([("role".to_owned(), json!(role)), ("content".to_owned(), content.into())]);
    for name in ["name", "tool_call_id", "reasoning_content"] {
        match object.get(name) {
            None | Some(Value::Null) => {}
            Some(Value::String(text)) => _ = message.insert(name.to_owned(), json!(text)),
            Some(other) => return Err(Failure::field(format!("{at}.{name}"), shown(other), "a text")),
        }
    }
    if let Some(calls) = object.get("tool_calls").filter(|calls| !calls.is_null()) {
        let at = format!("{at}.tool_calls");
        let calls = calls.as_array().ok_or_else(|| Failure::field(&at, shown(calls), "a list"))?;
        let calls = calls.iter().enumerate().map(|(i, call)| tool_call(call, &format!("{at}[{i}]")));
        let calls = calls.collect::<Result<Vec<_>, _>>()?;
        if !calls.is_empty() {
            message.insert("tool_calls".to_owned(), calls.into());
        }
    }
    Ok(message.into())
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

/// Returns the text of a message's content, which is a text, a list of parts, or null.
pub fn content(given: Option<&Value>, at: &str) -> Result<String, Failure> {
    let parts = match given {
        None | Some(Value::Null) => return Ok(String::new()),
        Some(Value::String(text)) => return Ok(text.clone()),
        Some(Value::Array(parts)) => parts,
        Some(other) => return Err(Failure::field(at, shown(other), "a text or a list of parts")),
    };
    let mut texts = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let at = format!("{at}[{i}]");
        let text = match part {
            Value::String(text) => Some(text.as_str()),
            part => ["text", "refusal"].iter().find_map(|key| part.get(key)?.as_str()),
        };
        match (text, part.get("type").unwrap_or(&Value::Null)) {
            (Some(text), _) => texts.push(text),
            (None, kind) => {
                return Err(Failure::field(format!("{at}.type"), shown(kind), "`text` with a `text`"));
            }
        }
    }
    Ok(texts.join("\n"))
}

fn is_system(message: &Value) -> bool {
    message["role"] == "system"
}

fn content_of(message: &Value) -> &str {
    message["content"].as_str().unwrap_or_default()
}

/// Joins all system messages to one message at the beginning of the conversation.
fn systems_first(messages: &[Value]) -> Vec<Value> {
    let systems: Vec<&str> = messages.iter().filter(|one| is_system(one)).map(content_of).collect();
    let others = messages.iter().filter(|one| !is_system(one)).cloned();
    let system = (!systems.is_empty()).then(|| json!({ "role": "system", "content": systems.join("\n\n") }));
    system.into_iter().chain(others).collect()
}

/// Moves the text of all system messages to the beginning of the first user message.
fn systems_to_user(messages: &[Value]) -> Vec<Value> {
    let mut merged = systems_first(messages);
    if !merged.first().is_some_and(is_system) {
        return merged;
    }
    let system = content_of(&merged.remove(0)).to_owned();
    match merged.iter_mut().find(|message| message["role"] == "user") {
        Some(user) => user["content"] = format!("{system}\n\n{}", content_of(user)).into(),
        None => merged.insert(0, json!({ "role": "user", "content": system })),
    }
    merged
}
