//! Reads the functions that a request offers to the model, and whether the model must call a function.

use serde_json::{Map, Value, json};

use crate::body::shown;
use crate::failure::Failure;

/// The functions that a request offers to the model.
#[derive(Clone, Debug, Default)]
pub struct OfferedTools {
    /// The functions that the prompt describes, in the format of OpenAI's API.
    pub offered: Vec<Value>,
    /// Whether the answer must be a call of one of the offered functions.
    pub is_forced: bool,
}

/// Whether a request forbids, allows or requires function calls.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Choice {
    Auto,
    None,
    Required,
    /// The answer must call the function with the given name.
    Named(String),
}

impl OfferedTools {
    /// Selects the functions that `choice` allows. `param` is the name of the request's field that
    /// contains `choice`.
    pub fn new(offered: Vec<Value>, choice: &Choice, param: &str) -> Result<Self, Failure> {
        let refuse = |found: &str, expected: &str| Err(Failure::field(param, found, expected));
        match choice {
            Choice::Auto => Ok(Self { offered, is_forced: false }),
            Choice::None => Ok(Self::default()),
            Choice::Required if offered.is_empty() => {
                refuse("`required`", "`tools` with at least one function")
            }
            Choice::Required => Ok(Self { offered, is_forced: true }),
            Choice::Named(name) => {
                let offered: Vec<Value> =
                    offered.into_iter().filter(|tool| tool["function"]["name"] == **name).collect();
                if offered.is_empty() {
                    refuse(&shown(&json!(name)), "the name of one of `tools`")
                } else {
                    Ok(Self { offered, is_forced: true })
                }
            }
        }
    }

    /// Returns a JSON Schema that each function call must follow.
    pub fn schema(&self) -> Value {
        let call = |tool: &Value| {
            let function = &tool["function"];
            let arguments = match function.get("parameters") {
                Some(parameters) if parameters.is_object() => {
                    embedded(closed(parameters), &format!("tool:{}", function["name"]))
                }
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

/// Forbids properties that the JSON Schema of the arguments does not declare. If undeclared
/// properties were allowed, a model could add properties without end.
fn closed(schema: &Value) -> Value {
    const SAYS: [&str; 6] =
        ["additionalProperties", "patternProperties", "unevaluatedProperties", "allOf", "anyOf", "oneOf"];
    let Value::Object(object) = schema else { return schema.clone() };
    let within = |(key, value): (&String, &Value)| {
        let value = match (key.as_str(), value) {
            ("properties" | "$defs" | "definitions", Value::Object(named)) => {
                named.iter().map(|(name, one)| (name.clone(), closed(one))).collect()
            }
            ("anyOf" | "oneOf" | "prefixItems", Value::Array(list)) => list.iter().map(closed).collect(),
            ("items", one) => closed(one),
            (_, other) => other.clone(),
        };
        (key.clone(), value)
    };
    let mut object: Map<String, Value> = object.iter().map(within).collect();
    if object.get("properties").is_some_and(Value::is_object)
        && !SAYS.iter().any(|key| object.contains_key(*key))
    {
        object.insert("additionalProperties".to_owned(), json!(false));
    }
    object.into()
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
    for key in ["description", "parameters"] {
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
        (_, Some("allowed_tools"), _) => match given["mode"].as_str() {
            Some("required") => Ok(Choice::Required),
            _ => Ok(Choice::Auto),
        },
        _ => {
            let expected = "`auto`, `none`, `required`, or an object that names a function";
            Err(Failure::field("tool_choice", shown(given), expected))
        }
    }
}
