//! Implements `POST /v1/messages`, Anthropic's API for messages.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{fields, shown};
use crate::collect::{Answer, collect};
use crate::constraint::{self, AnswerForm, ConstraintFields};
use crate::failure::Failure;
use crate::generation::{ChatRequest, variables};
use crate::ids::id;
use crate::interface::{Interface, OF_MESSAGES, OF_SERVERS, sampled};
use crate::media;
use crate::nested;
use crate::prepare::{content, continues, messages};
use crate::sampling::SamplingFields;
use crate::stream::{self, Events, Sent};
use crate::tools::{self, Choice, OfferedTools};
use crate::update::{EndReason, ToolCall, Update, Usage};

pub static MESSAGES: Interface =
    Interface::with_objects(sampled::<MessageFields>, &[OF_MESSAGES, OF_SERVERS], nested::OF_MESSAGES);

#[derive(Deserialize, JsonSchema)]
pub struct MessageFields {
    model: Option<String>,
    /// Messages with a role and a content. The content is a text, or a list of content blocks.
    messages: Vec<Value>,
    /// The system message: a text, or a list of content blocks with texts.
    system: Option<Value>,
    max_tokens: Option<i64>,
    stop_sequences: Option<Vec<String>>,
    stream: Option<bool>,
    /// Functions that the model can call, each with an `input_schema`. The server ignores tools
    /// that are not functions.
    tools: Option<Vec<Value>>,
    /// Whether the model calls a function: an object with the type `auto`, `any` or `none`, or with
    /// the type `tool` and the name of a function.
    tool_choice: Option<Value>,
    /// `{"type": "disabled"}` sets `enable_thinking` of the chat template to false.
    thinking: Option<Value>,
    /// The schema that the answer follows, as `{"format": {"type": "json_schema", "schema": …}}`. `effort` sets the
    /// variable `reasoning_effort` of the chat template.
    output_config: Option<Value>,
    /// The name of `output_config.format` in an earlier version of the interface.
    output_format: Option<Value>,
}

/// Answers `POST /v1/messages/count_tokens`.
pub async fn count(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let body = app.read_as(&MESSAGES, &headers, body).await?;
    let fields: MessageFields = fields(&body)?;
    let request = fields.request(&body)?;
    let loaded = app.models.get(fields.model.as_deref()).await?;
    let counted = move || request.render(&loaded)?.count(&loaded);
    Ok(Json(json!({ "input_tokens": app.blocking(counted).await? })))
}

/// Answers `POST /v1/messages`.
pub async fn answer(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&MESSAGES, &headers, body).await?;
    let fields: MessageFields = fields(&body)?;
    let request = fields.request(&body)?;
    let loaded = app.models.get(fields.model.as_deref()).await?;
    let answers = request.begin(&app, &loaded, permit).await?;
    let message = json!({
        "id": id("msg_"),
        "type": "message",
        "role": "assistant",
        "model": loaded.name,
        "content": [],
        "stop_reason": null,
        "stop_sequence": null,
        "usage": usage(Usage { prompt: answers.prompt_tokens(), ..Usage::default() }),
    });
    if fields.stream.unwrap_or_default() {
        return Ok(stream::respond(answers, MessageEvents::new(message)));
    }
    let (mut answers, used) = collect(answers).await?;
    let mut message = message;
    if let Some(answer) = answers.pop() {
        message["content"] = blocks(&answer).into();
        (message["stop_reason"], message["stop_sequence"]) = stop(&answer.reason);
    }
    message["usage"] = usage(used);
    Ok(crate::body::response(&message))
}

impl MessageFields {
    fn request(&self, body: &Value) -> Result<ChatRequest, Failure> {
        let mut given = Vec::new();
        if let Some(system) = self.system.as_ref().filter(|system| !system.is_null()) {
            given.push(json!({ "role": "system", "content": content(Some(system), "system")? }));
        }
        for (i, message) in self.messages.iter().enumerate() {
            in_chat(message, &format!("messages[{i}]"), &mut given)?;
        }
        let effort = self.output_config.as_ref().and_then(|config| config["effort"].as_str());
        let mut variables = variables(None, effort)?;
        match self.thinking.as_ref().map(|thinking| &thinking["type"]) {
            None => {}
            Some(Value::String(kind)) if ["enabled", "adaptive", "disabled"].contains(&kind.as_str()) => {
                variables.insert("enable_thinking".to_owned(), json!(kind != "disabled"));
            }
            Some(kind) => {
                let expected = "`enabled`, `adaptive` or `disabled`";
                return Err(Failure::field("thinking.type", shown(kind), expected));
            }
        }
        let is_single =
            self.tool_choice.as_ref().is_some_and(|choice| choice["disable_parallel_tool_use"] == true);
        let messages = messages(&given)?;
        Ok(ChatRequest {
            images: media::paths(body),
            continues: continues(None, &messages)?,
            messages,
            tools: OfferedTools::new(self.tools()?, &self.choice()?, "tool_choice")?,
            parallel_calls: !is_single,
            variables,
            constraint: self.constraint(body)?,
            max_tokens: ("max_tokens", self.max_tokens),
            logprobs: None,
            sampling: SamplingFields::read(body)?,
            stop: self.stop_sequences.clone().unwrap_or_default(),
            keeps_reasoning: false,
        })
    }

    fn constraint(&self, body: &Value) -> Result<Option<AnswerForm>, Failure> {
        let config = self.output_config.as_ref();
        let of = |param: &str, format: Option<&Value>| -> Result<Option<AnswerForm>, Failure> {
            let rule = constraint::of_format(param, format, "schema")?;
            Ok(rule.map(|rule| AnswerForm { param: param.to_owned(), rule }))
        };
        let of_config = of("output_config.format", config.and_then(|config| config.get("format")))?;
        let of_format = of("output_format", self.output_format.as_ref())?;
        constraint::only(
            [of_config, of_format, fields::<ConstraintFields>(body)?.read()?].into_iter().flatten(),
        )
    }

    /// Returns the functions that a request offers to the model. Tools that only Anthropic's
    /// servers define are ignored.
    fn tools(&self) -> Result<Vec<Value>, Failure> {
        let mut tools = Vec::new();
        for (i, one) in self.tools.iter().flatten().enumerate() {
            match one.get("type").and_then(Value::as_str) {
                None | Some("custom") => {
                    let parameters = one.get("input_schema");
                    let (name, description) = (one.get("name"), one.get("description"));
                    let function = json!({ "name": name, "description": description, "parameters": parameters, "strict": one.get("strict") });
                    tools.push(tools::tool(&function, &format!("tools[{i}]"))?);
                }
                Some(kind) => tools::skip(&json!(kind)),
            }
        }
        Ok(tools)
    }

    fn choice(&self) -> Result<Choice, Failure> {
        let Some(choice) = self.tool_choice.as_ref().filter(|choice| !choice.is_null()) else {
            return Ok(Choice::Auto);
        };
        match (choice["type"].as_str(), choice["name"].as_str()) {
            (Some("auto"), _) => Ok(Choice::Auto),
            (Some("none"), _) => Ok(Choice::None),
            (Some("any"), _) => Ok(Choice::Required),
            (Some("tool"), Some(name)) => Ok(Choice::Named(name.to_owned())),
            _ => {
                let expected = "an object with the type `auto`, `any`, `none`, or `tool` and a `name`";
                Err(Failure::field("tool_choice", shown(choice), expected))
            }
        }
    }
}

/// Converts a message to the format of chat templates. Each result of a function call becomes a
/// separate message.
fn in_chat(message: &Value, at: &str, out: &mut Vec<Value>) -> Result<(), Failure> {
    let Some(blocks) = message.get("content").and_then(Value::as_array) else {
        out.push(message.clone());
        return Ok(());
    };
    let (mut texts, mut calls, mut thoughts) = (Vec::<Value>::new(), Vec::new(), Vec::new());
    let mut sees = false;
    for (i, block) in blocks.iter().enumerate() {
        let at = format!("{at}.content[{i}]");
        match block.get("type").and_then(Value::as_str) {
            Some("tool_use") => {
                let function = json!({ "name": block["name"], "arguments": block["input"] });
                calls.push(json!({ "id": block["id"], "type": "function", "function": function }));
            }
            Some("tool_result") => {
                let content = content(block.get("content"), &format!("{at}.content"))?;
                out.push(json!({ "role": "tool", "tool_call_id": block["tool_use_id"], "content": content }));
            }
            Some("thinking") => thoughts.extend(block["thinking"].as_str()),
            Some("redacted_thinking") => {}
            Some("image") => {
                sees = true;
                texts.push(block.clone());
            }
            Some("document" | "search_result") => texts.push(document(block, &at)?.into()),
            _ => {
                let one = Value::from(vec![block.clone()]);
                texts.push(content(Some(&one), at.trim_end_matches(&format!("[{i}]")))?.into());
            }
        }
    }
    if !texts.is_empty() || !calls.is_empty() {
        let joined = || texts.iter().filter_map(Value::as_str).collect::<Vec<_>>().join("\n").into();
        let content: Value = if sees { texts.into() } else { joined() };
        let mut chat = json!({ "role": message.get("role"), "content": content });
        if !calls.is_empty() {
            chat["tool_calls"] = calls.into();
        }
        if !thoughts.is_empty() {
            chat["reasoning_content"] = json!(thoughts.join("\n"));
        }
        out.push(chat);
    }
    Ok(())
}

/// Returns the text of a document or of a search result, below its title.
fn document(block: &Value, at: &str) -> Result<String, Failure> {
    let source = &block["source"];
    let kind = source.get("type").and_then(Value::as_str);
    let text = match (block.get("type").and_then(Value::as_str), kind) {
        (Some("search_result"), _) => content(block.get("content"), &format!("{at}.content"))?,
        (_, Some("content")) => content(source.get("content"), &format!("{at}.source.content"))?,
        (_, Some("text")) => {
            let data = source.get("data").unwrap_or(&Value::Null);
            let text = data
                .as_str()
                .ok_or_else(|| Failure::field(format!("{at}.source.data"), shown(data), "a text"));
            text?.to_owned()
        }
        _ => {
            let found = shown(source.get("type").unwrap_or(&Value::Null));
            return Err(Failure::field(format!("{at}.source.type"), found, "`text` or `content`"));
        }
    };
    let above = ["title", "context"].iter().filter_map(|key| block[*key].as_str());
    Ok(above.chain([text.as_str()]).collect::<Vec<_>>().join("\n\n"))
}

/// Formats token counts in the format of Anthropic's API, in which `input_tokens` excludes tokens
/// whose state was reused.
fn usage(usage: Usage) -> Value {
    json!({
        "input_tokens": usage.prompt - usage.cached,
        "cache_read_input_tokens": usage.cached,
        "cache_creation_input_tokens": 0,
        "output_tokens": usage.completion,
    })
}

/// Returns the values of `stop_reason` and `stop_sequence` for the end of an answer.
fn stop(reason: &EndReason) -> (Value, Value) {
    match reason {
        EndReason::Stop => (json!("end_turn"), Value::Null),
        EndReason::StopString(text) => (json!("stop_sequence"), json!(text)),
        EndReason::Length => (json!("max_tokens"), Value::Null),
        EndReason::ToolCalls => (json!("tool_use"), Value::Null),
    }
}

/// Returns the content blocks of a whole answer.
fn blocks(answer: &Answer) -> Vec<Value> {
    let mut blocks = Vec::new();
    if !answer.reasoning.is_empty() {
        blocks.push(json!({ "type": "thinking", "thinking": answer.reasoning, "signature": "" }));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        blocks.push(json!({ "type": "text", "text": answer.content }));
    }
    let call = |ToolCall { id, name, arguments }: &ToolCall| {
        let input: Value = files::parse_exact(arguments).unwrap_or_else(|_| json!({}));
        json!({ "type": "tool_use", "id": id, "name": name, "input": input })
    };
    blocks.extend(answer.calls.iter().map(call));
    blocks
}

/// Creates the events of a streamed message.
struct MessageEvents {
    message: Value,
    /// The type of the content block that the server is sending.
    open: Option<&'static str>,
    /// The index of the answer's content block that the server is sending. Between two content
    /// blocks, `number` is the index of the next block.
    number: usize,
    usage: Usage,
    reason: EndReason,
}

impl MessageEvents {
    fn new(message: Value) -> Self {
        Self { message, open: None, number: 0, usage: Usage::default(), reason: EndReason::Stop }
    }

    fn event(&self, kind: &'static str, mut fields: Value) -> Sent {
        fields["type"] = json!(kind);
        Sent::Named(kind, fields)
    }

    /// Begins a content block of the given type, unless the server is already sending a block of
    /// the same type.
    fn open(&mut self, kind: &'static str, block: Value, out: &mut Vec<Sent>) {
        if self.open != Some(kind) {
            self.close(out);
            self.open = Some(kind);
            let start = json!({ "index": self.number, "content_block": block });
            out.push(self.event("content_block_start", start));
        }
    }

    fn delta(&self, delta: Value, out: &mut Vec<Sent>) {
        out.push(self.event("content_block_delta", json!({ "index": self.number, "delta": delta })));
    }

    fn close(&mut self, out: &mut Vec<Sent>) {
        if self.open.take().is_some() {
            out.push(self.event("content_block_stop", json!({ "index": self.number })));
            self.number += 1;
        }
    }
}

impl Events for MessageEvents {
    fn begin(&mut self) -> Vec<Sent> {
        vec![self.event("message_start", json!({ "message": self.message }))]
    }

    fn update(&mut self, _: usize, update: Update) -> Vec<Sent> {
        let mut out = Vec::new();
        match update {
            Update::Reasoning(text) => {
                let block = json!({ "type": "thinking", "thinking": "", "signature": "" });
                self.open("thinking", block, &mut out);
                self.delta(json!({ "type": "thinking_delta", "thinking": text }), &mut out);
            }
            Update::Content(text) => {
                self.open("text", json!({ "type": "text", "text": "" }), &mut out);
                self.delta(json!({ "type": "text_delta", "text": text }), &mut out);
            }
            Update::Call(ToolCall { id, name, arguments }) => {
                self.close(&mut out);
                self.open(
                    "tool_use",
                    json!({ "type": "tool_use", "id": id, "name": name, "input": {} }),
                    &mut out,
                );
                self.delta(json!({ "type": "input_json_delta", "partial_json": arguments }), &mut out);
                self.close(&mut out);
            }
            Update::Logprobs(_) => {}
            Update::End(end) => {
                self.usage.add(end.usage);
                self.reason = end.reason;
            }
        }
        out
    }

    fn finish(&mut self) -> Vec<Sent> {
        let mut out = Vec::new();
        if self.number == 0 {
            self.open("text", json!({ "type": "text", "text": "" }), &mut out);
        }
        self.close(&mut out);
        let (reason, sequence) = stop(&self.reason);
        let delta = json!({ "stop_reason": reason, "stop_sequence": sequence });
        out.push(self.event("message_delta", json!({ "delta": delta, "usage": usage(self.usage) })));
        out.push(self.event("message_stop", json!({})));
        out
    }

    fn fail(&mut self, failure: &Failure) -> Vec<Sent> {
        vec![Sent::Named("error", failure.anthropic())]
    }
}
