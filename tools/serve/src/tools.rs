//! Reads the functions that a request offers to the model, and whether the model must call a function.

use serde_json::{Value, json};

use crate::body::shown;
use crate::closed::closed;
use crate::failure::Failure;

/// The functions that a request offers to the model.
#[derive(Clone, Debug, Default)]
pub struct OfferedTools {
    /// The functions that the prompt describes, in the format of OpenAI's API.
    pub offered: Vec<Value>,
    /// Whether the answer must be a call of one of the offered functions.
    pub is_forced: bool,
    /// The functions whose `strict` is true, so that their arguments have no undeclared keys.
    strict: Vec<Value>,
}

/// Whether a request forbids, allows or requires function calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    None,
    Required,
    /// The answer must call the function with the given name.
    Named(String),
    /// The answer can call, or must call, only these functions.
    Allowed {
        names: Vec<String>,
        is_required: bool,
    },
}

impl OfferedTools {
    /// Selects the functions that `choice` allows. `param` is the name of the request's field that
    /// contains `choice`.
    pub fn new(mut offered: Vec<Value>, choice: &Choice, param: &str) -> Result<Self, Failure> {
        let mut strict = Vec::new();
        for tool in &mut offered {
            // Chat templates print the functions, and do not expect the key.
            let key = tool["function"].as_object_mut().and_then(|function| function.remove("strict"));
            strict.extend(key.filter(|key| key == true).map(|_| tool["function"]["name"].clone()));
        }
        Ok(Self { strict, ..Self::chosen(offered, choice, param)? })
    }

    fn chosen(offered: Vec<Value>, choice: &Choice, param: &str) -> Result<Self, Failure> {
        let refuse = |found: &str, expected: &str| Err(Failure::field(param, found, expected));
        match choice {
            Choice::Auto => Ok(Self { offered, ..Self::default() }),
            Choice::None => Ok(Self::default()),
            Choice::Required if offered.is_empty() => {
                refuse("`required`", "`tools` with at least one function")
            }
            Choice::Required => Ok(Self { offered, is_forced: true, ..Self::default() }),
            Choice::Named(name) => {
                let choice = Choice::Allowed { names: vec![name.clone()], is_required: true };
                Self::chosen(offered, &choice, param)
            }
            Choice::Allowed { names, is_required } => {
                let has = |name: &String| offered.iter().any(|tool| tool["function"]["name"] == **name);
                if let Some(name) = names.iter().find(|name| !has(name)) {
                    return refuse(&shown(&json!(name)), "the name of one of `tools`");
                }
                let is_allowed = |tool: &Value| names.iter().any(|name| tool["function"]["name"] == **name);
                let offered: Vec<Value> = offered.into_iter().filter(is_allowed).collect();
                if *is_required && offered.is_empty() {
                    return refuse("without functions", "at least one function of `tools`");
                }
                Ok(Self { offered, is_forced: *is_required, ..Self::default() })
            }
        }
    }

    /// Returns a JSON Schema that each function call must follow.
    pub fn schema(&self, opens: bool) -> Value {
        let call = |tool: &Value| {
            let function = &tool["function"];
            let arguments = match function.get("parameters") {
                Some(parameters) if parameters.is_object() => embedded(
                    closed(parameters, opens && !self.strict.contains(&function["name"])),
                    &format!("tool:{}", function["name"]),
                ),
                _ => json!({ "type": "object" }),
            };
            json!({
                "type": "object",
                "properties": { "name": { "const": function["name"] }, "arguments": arguments },
                "required": ["name", "arguments"],
                "additionalProperties": false,
            })
        };
        let mut calls: Vec<Value> = self.offered.iter().map(call).collect();
        match calls.len() {
            1 => calls.remove(0),
            _ => json!({ "anyOf": calls }),
        }
    }
}

/// Prepares a schema for a place inside another schema: with a name, its references `#/…` lead to
/// places inside the schema itself.
pub fn embedded(mut schema: Value, name: &str) -> Value {
    if let Value::Object(object) = &mut schema {
        object.entry("$id").or_insert_with(|| json!(name));
    }
    schema
}

/// Checks a function, and converts the function to the format of OpenAI's chat API. `function`
/// contains the name, the description and the parameters.
pub fn tool(function: &Value, at: &str) -> Result<Value, Failure> {
    let name = function.get("name").unwrap_or(&Value::Null);
    if name.as_str().is_none_or(str::is_empty) {
        return Err(Failure::field(format!("{at}.name"), shown(name), "the function's name"));
    }
    if let Some(parameters) = function.get("parameters")
        && !parameters.is_object()
        && !parameters.is_null()
    {
        return Err(Failure::field(format!("{at}.parameters"), shown(parameters), "a JSON Schema"));
    }
    let mut kept = json!({ "name": name });
    for key in ["description", "parameters", "strict"] {
        if let Some(value) = function.get(key).filter(|value| !value.is_null()) {
            kept[key] = value.clone();
        }
    }
    Ok(json!({ "type": "function", "function": kept }))
}

/// Logs a warning about an ignored tool that this server cannot run, such as a web search.
pub fn skip(kind: &Value) {
    tracing::warn!("a tool of the type {} is skipped, expected `function`", shown(kind));
}

/// Returns the functions of a chat request. A function has the form `{"type": "function", "function": {…}}`.
pub fn of_chat(given: Option<&[Value]>) -> Result<Vec<Value>, Failure> {
    let mut tools = Vec::new();
    for (i, one) in given.unwrap_or_default().iter().enumerate() {
        match (one.get("type").unwrap_or(&Value::Null), one.get("function")) {
            (kind, Some(function)) if kind == "function" || kind.is_null() => {
                tools.push(tool(function, &format!("tools[{i}].function"))?);
            }
            (kind, _) if kind.is_string() && kind != "function" => skip(kind),
            (_, found) => {
                let found = shown(found.unwrap_or(&Value::Null));
                return Err(Failure::field(format!("tools[{i}].function"), found, "an object"));
            }
        }
    }
    Ok(tools)
}

/// Reads the field `tool_choice` of OpenAI's APIs: `auto`, `none`, `required`, or an object with
/// the name of a function.
pub fn choice(given: Option<&Value>) -> Result<Choice, Failure> {
    let Some(given) = given else { return Ok(Choice::Auto) };
    let named = given.get("function").and_then(|function| function.get("name")).or(given.get("name"));
    match (given.as_str(), given.get("type").and_then(Value::as_str), named.and_then(Value::as_str)) {
        (Some("auto"), ..) => Ok(Choice::Auto),
        (Some("none"), ..) => Ok(Choice::None),
        (Some("required" | "any"), ..) => Ok(Choice::Required),
        (_, Some("function"), Some(name)) => Ok(Choice::Named(name.to_owned())),
        (_, Some("allowed_tools"), _) => allowed(given),
        _ => {
            let expected = "`auto`, `none`, `required`, or an object that names a function";
            Err(Failure::field("tool_choice", shown(given), expected))
        }
    }
}

/// Reads a choice between a few functions. OpenAI's chat interface has one more object around `mode` and `tools`.
fn allowed(given: &Value) -> Result<Choice, Failure> {
    let (inner, at) = match given.get("allowed_tools") {
        Some(inner) => (inner, "tool_choice.allowed_tools"),
        None => (given, "tool_choice"),
    };
    let is_required = match (inner.get("mode").unwrap_or(&Value::Null), inner["mode"].as_str()) {
        (Value::Null, _) | (_, Some("auto")) => false,
        (_, Some("required")) => true,
        (mode, _) => return Err(Failure::field(format!("{at}.mode"), shown(mode), "`auto` or `required`")),
    };
    let refuse = |found: &Value| Failure::field(format!("{at}.tools"), shown(found), "a list of functions");
    let list = inner.get("tools").and_then(Value::as_array).ok_or_else(|| refuse(&inner["tools"]))?;
    let name = |tool: &Value| {
        let name = tool.get("function").unwrap_or(tool).get("name").and_then(Value::as_str);
        name.map(str::to_owned).ok_or_else(|| refuse(tool))
    };
    let functions = list.iter().filter(|tool| tool.get("type").is_none_or(|kind| kind == "function"));
    Ok(Choice::Allowed { names: functions.map(name).collect::<Result<_, _>>()?, is_required })
}

/// Reads the fields `functions` and `function_call` of OpenAI's first interface for calls.
pub fn of_functions(functions: &[Value], choice: Option<&Value>) -> Result<(Vec<Value>, Choice), Failure> {
    let tools = functions.iter().enumerate().map(|(i, one)| tool(one, &format!("functions[{i}]")));
    let choice =
        match (choice, choice.and_then(Value::as_str), choice.and_then(|choice| choice["name"].as_str())) {
            (None | Some(Value::Null), ..) | (_, Some("auto"), _) => Choice::Auto,
            (_, Some("none"), _) => Choice::None,
            (.., Some(name)) => Choice::Named(name.to_owned()),
            (Some(choice), ..) => {
                let expected = "`auto`, `none`, or an object with the name of a function";
                return Err(Failure::field("function_call", shown(choice), expected));
            }
        };
    Ok((tools.collect::<Result<_, _>>()?, choice))
}
