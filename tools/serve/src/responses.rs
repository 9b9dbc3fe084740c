//! Implements `POST /v1/responses`, OpenAI's newer API for answers.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Path, RawQuery, State};
use axum::http::HeaderMap;
use axum::response::Response;
use errors::{escaped, shortened};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};
use tracewright::model::MessagePart;

use crate::app::App;
use crate::body::{fields, shown};
use crate::collect::collect;
use crate::constraint::{self, AnswerForm, ConstraintFields};
use crate::failure::Failure;
use crate::generation::{ChatRequest, variables};
use crate::ids::{id, now};
use crate::interface::{Interface, OF_OPENAI, OF_RESPONSES, OF_SERVERS, sampled};
use crate::media;
use crate::nested;
use crate::prepare::{content, messages, parts};
use crate::sampling::SamplingFields;
use crate::stored::{Owner, ResponseStore};
use crate::stream::{self, Events, Sent};
use crate::tools::{self, OfferedTools};
use crate::update::{EndReason, ToolCall, Update, Usage};

/// The most references to items of earlier responses in a request.
const REFERENCES: usize = 256;

pub static RESPONSES: Interface = Interface::with_objects(
    sampled::<ResponseFields>,
    &[OF_RESPONSES, OF_OPENAI, OF_SERVERS],
    nested::OF_RESPONSES,
);

#[derive(Deserialize, JsonSchema)]
pub struct ResponseFields {
    model: Option<String>,
    /// The conversation: a text, or a list of messages, function calls and results of calls.
    input: Value,
    /// A system message at the beginning of the conversation.
    instructions: Option<String>,
    stream: Option<bool>,
    max_output_tokens: Option<i64>,
    /// Functions that the model can call. The server ignores tools that are not functions.
    tools: Option<Vec<Value>>,
    tool_choice: Option<Value>,
    parallel_tool_calls: Option<bool>,
    /// The format of the answer: `{"format": {"type": "json_schema", "schema": …}}`.
    text: Option<Value>,
    /// An object with reasoning options. The field `effort` in `reasoning` sets the variable
    /// `reasoning_effort` of the chat template.
    reasoning: Option<Value>,
    /// Whether the server keeps the response in memory, so that a later request can continue or read it. The default
    /// value is true.
    store: Option<bool>,
    /// The id of a stored response, whose conversation the answer continues.
    previous_response_id: Option<String>,
    /// The server does not support the field `background`, and accepts only the value false.
    background: Option<bool>,
    /// The answer repeats this object.
    metadata: Option<Value>,
}

/// Answers `POST /v1/responses`.
pub async fn respond(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&RESPONSES, &headers, body).await?;
    let fields: ResponseFields = fields(&body)?;
    let owner = app.owner(&headers);
    let items = fields.items(&app.responses, owner)?;
    let request = fields.request(&body, &items)?;
    let loaded = app.models.get(fields.model.as_deref()).await?;
    let is_streamed = fields.stream.unwrap_or_default();
    let kept = fields.store.unwrap_or(true).then(|| (app.responses.clone(), items, owner));
    let head = Head { kept, ..Head::new(&loaded.name, fields, &body) };
    let answers = request.begin(&app, &loaded, permit).await?;
    if is_streamed {
        return Ok(stream::respond(answers, ResponseEvents::new(head)));
    }
    let (mut answers, usage) = collect(answers).await?;
    let Some(answer) = answers.pop() else {
        return Err(Failure::Server { why: "there is no answer".to_owned() });
    };
    let mut output = Vec::new();
    if !answer.reasoning.is_empty() {
        output.push(reasoning_item(&id("rs_"), &answer.reasoning));
    }
    if !answer.content.is_empty() || answer.calls.is_empty() {
        output.push(message_item(&id("msg_"), "completed", vec![text_part(&answer.content)]));
    }
    output.extend(answer.calls.iter().map(|call| call_item(&id("fc_"), "completed", call, &call.arguments)));
    Ok(crate::body::response(&head.ended(output, &answer.reason, usage)))
}

/// OpenAI's interface lets clients leave out the type of a reference.
fn is_reference(item: &Value) -> bool {
    match &item["type"] {
        Value::Null => item["role"].is_null() && item["id"].is_string(),
        kind => kind == "item_reference",
    }
}

fn not_kept(id: &str) -> Failure {
    Failure::Stored { id: shortened(escaped(id), 100) }
}

/// Answers `GET /v1/responses/{id}`.
pub async fn get(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Path(id): Path<String>,
    RawQuery(query): RawQuery,
) -> Result<Response, Failure> {
    if query.unwrap_or_default().split('&').any(|part| part == "stream=true") {
        return Err(Failure::Unsupported { param: "stream".to_owned() });
    }
    let found = app.responses.get(&id, app.owner(&headers)).ok_or_else(|| not_kept(&id))?;
    Ok(crate::body::response(&found))
}

/// Answers `DELETE /v1/responses/{id}`.
pub async fn delete(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    Path(id): Path<String>,
) -> Result<Json<Value>, Failure> {
    if app.responses.delete(&id, app.owner(&headers)) {
        Ok(Json(json!({ "id": id, "object": "response", "deleted": true })))
    } else {
        Err(not_kept(&id))
    }
}

impl ResponseFields {
    /// Returns the items of the conversation: those of an earlier response, and those of this request.
    fn items(&self, store: &ResponseStore, owner: Owner) -> Result<Vec<Value>, Failure> {
        let mut items = match &self.previous_response_id {
            None => Vec::new(),
            Some(id) => store.conversation(id, owner).ok_or_else(|| {
                let expected = "the id of a response that the server keeps";
                Failure::field("previous_response_id", shown(&json!(id)), expected)
            })?,
        };
        let given = match &self.input {
            Value::String(text) => vec![json!({ "role": "user", "content": text })],
            Value::Array(items) => items.clone(),
            other => return Err(Failure::field("input", shown(other), "a text or a list of items")),
        };
        let mut references = 0;
        for (i, one) in given.into_iter().enumerate() {
            if !is_reference(&one) {
                items.push(one);
                continue;
            }
            references += 1;
            if references > REFERENCES {
                let expected = format!("at most {REFERENCES} references");
                return Err(Failure::field(format!("input[{i}]"), "one reference more", expected));
            }
            items.push(one["id"].as_str().and_then(|id| store.item(id, owner)).ok_or_else(|| {
                let expected = "the id of an item that the server keeps";
                Failure::field(format!("input[{i}].id"), shown(&one["id"]), expected)
            })?);
        }
        Ok(items)
    }

    fn request(&self, body: &Value, items: &[Value]) -> Result<ChatRequest, Failure> {
        if self.background == Some(true) {
            return Err(Failure::Unsupported { param: "background".to_owned() });
        }
        let mut given = Vec::new();
        if let Some(instructions) = &self.instructions {
            given.push(json!({ "role": "system", "content": instructions }));
        }
        // The items of an earlier response were checked before.
        let new = self.input.as_array().map_or(1, Vec::len);
        for (i, one) in items.iter().enumerate() {
            item(one, &format!("input[{}]", (i + new).saturating_sub(items.len())), &mut given)?;
        }
        let format = self.text.as_ref().and_then(|text| text.get("format"));
        let rule = constraint::of_format("text.format", format, "schema")?;
        let of_text = rule.map(|rule| AnswerForm { param: "text.format".to_owned(), rule });
        let of_fields = fields::<ConstraintFields>(body)?.read()?;
        let effort = self.reasoning.as_ref().and_then(|reasoning| reasoning.get("effort"));
        let choice = tools::choice(self.tool_choice.as_ref())?;
        Ok(ChatRequest {
            images: media::paths(body),
            messages: messages(&given)?,
            continues: false,
            tools: OfferedTools::new(self.tools()?, &choice, "tool_choice")?,
            parallel_calls: self.parallel_tool_calls.unwrap_or(true),
            variables: variables(None, effort.and_then(Value::as_str))?,
            constraint: constraint::only(of_text.into_iter().chain(of_fields))?,
            max_tokens: ("max_output_tokens", self.max_output_tokens),
            logprobs: None,
            sampling: SamplingFields::read(body)?,
            stop: Vec::new(),
            keeps_reasoning: false,
        })
    }

    /// Returns the functions that a request offers to the model. Tools that only OpenAI's servers
    /// run are ignored.
    fn tools(&self) -> Result<Vec<Value>, Failure> {
        let mut tools = Vec::new();
        for (i, one) in self.tools.iter().flatten().enumerate() {
            match one.get("type").unwrap_or(&Value::Null) {
                kind if kind == "function" => tools.push(tools::tool(one, &format!("tools[{i}]"))?),
                kind if kind.is_string() => tools::skip(kind),
                kind => return Err(Failure::field(format!("tools[{i}].type"), shown(kind), "`function`")),
            }
        }
        Ok(tools)
    }
}

/// Converts one item of the request's input to messages for the chat template.
fn item(item: &Value, at: &str, messages: &mut Vec<Value>) -> Result<(), Failure> {
    let text = |key: &str| {
        let value = item.get(key).unwrap_or(&Value::Null);
        value.as_str().ok_or_else(|| Failure::field(format!("{at}.{key}"), shown(value), "a text"))
    };
    match item.get("type").and_then(Value::as_str) {
        None | Some("message") => {
            let given = item.get("content");
            let found = parts(given, &format!("{at}.content"))?;
            let sees = found.iter().any(|part| part.image().is_some());
            let content = if sees { json!(given) } else { json!(MessagePart::joined(&found)) };
            messages.push(json!({ "role": item.get("role"), "content": content }));
        }
        Some("function_call") => {
            let function = json!({ "name": text("name")?, "arguments": text("arguments")? });
            let call = json!({ "id": text("call_id")?, "type": "function", "function": function });
            match messages
                .last_mut()
                .and_then(|last| last.get_mut("tool_calls"))
                .and_then(Value::as_array_mut)
            {
                Some(calls) => calls.push(call),
                None => messages.push(json!({ "role": "assistant", "content": null, "tool_calls": [call] })),
            }
        }
        Some("function_call_output") => {
            let output = content(item.get("output"), &format!("{at}.output"))?;
            messages.push(json!({ "role": "tool", "tool_call_id": text("call_id")?, "content": output }));
        }
        // The server ignores earlier reasoning, because chat templates do not use it.
        Some("reasoning") => {}
        Some(kind) => {
            let expected =
                "`message`, `function_call`, `function_call_output`, `item_reference` or `reasoning`";
            return Err(Failure::field(format!("{at}.type"), shown(&json!(kind)), expected));
        }
    }
    Ok(())
}

/// The fields that are the same in all events about the whole response.
struct Head {
    fields: Map<String, Value>,
    /// The store that keeps the response, the items before it, and the response's owner.
    kept: Option<(Arc<ResponseStore>, Vec<Value>, Owner)>,
}

impl Head {
    fn new(model: &str, request: ResponseFields, body: &Value) -> Self {
        let format = request.text.as_ref().and_then(|text| text.get("format")).cloned();
        let of_body = |key: &str, usual: Value| match &body[key] {
            Value::Null => usual,
            value => value.clone(),
        };
        let fields = json!({
            "id": id("resp_"),
            "object": "response",
            "created_at": now(),
            "status": "in_progress",
            "error": null,
            "incomplete_details": null,
            "instructions": request.instructions,
            "max_output_tokens": request.max_output_tokens,
            "model": model,
            "output": [],
            "parallel_tool_calls": request.parallel_tool_calls.unwrap_or(true),
            "previous_response_id": request.previous_response_id,
            "reasoning": of_body("reasoning", json!({ "effort": null, "summary": null })),
            "store": request.store.unwrap_or(true),
            "temperature": of_body("temperature", json!(1.0)),
            "text": { "format": format.unwrap_or_else(|| json!({ "type": "text" })) },
            "tool_choice": request.tool_choice.unwrap_or_else(|| json!("auto")),
            "tools": request.tools.unwrap_or_default(),
            "top_p": of_body("top_p", json!(1.0)),
            "truncation": "disabled",
            "usage": null,
            "metadata": request.metadata.unwrap_or_else(|| json!({})),
        });
        Self { fields: fields.as_object().cloned().unwrap_or_default(), kept: None }
    }

    fn begun(&self) -> Value {
        self.fields.clone().into()
    }

    /// Formats the whole response after the answer has ended, and keeps it.
    fn ended(&self, output: Vec<Value>, reason: &EndReason, usage: Usage) -> Value {
        let mut response = self.begun();
        let is_cut = *reason == EndReason::Length;
        response["status"] = json!(if is_cut { "incomplete" } else { "completed" });
        if is_cut {
            response["incomplete_details"] = json!({ "reason": "max_output_tokens" });
        }
        response["output"] = output.into();
        response["usage"] = json!({
            "input_tokens": usage.prompt,
            "input_tokens_details": { "cached_tokens": usage.cached },
            "output_tokens": usage.completion,
            "output_tokens_details": { "reasoning_tokens": 0 },
            "total_tokens": usage.prompt + usage.completion,
        });
        if let Some((store, items, owner)) = &self.kept {
            store.keep(&response, items, *owner);
        }
        response
    }
}

fn text_part(text: &str) -> Value {
    json!({ "type": "output_text", "text": text, "annotations": [], "logprobs": [] })
}

fn message_item(id: &str, status: &str, content: Vec<Value>) -> Value {
    json!({ "id": id, "type": "message", "status": status, "role": "assistant", "content": content })
}

fn reasoning_item(id: &str, text: &str) -> Value {
    json!({ "id": id, "type": "reasoning", "summary": [], "content": [{ "type": "reasoning_text", "text": text }] })
}

fn call_item(id: &str, status: &str, call: &ToolCall, arguments: &str) -> Value {
    let ToolCall { id: call_id, name, .. } = call;
    json!({ "id": id, "type": "function_call", "status": status, "call_id": call_id, "name": name, "arguments": arguments })
}

/// The output item that the server is currently sending.
enum Open {
    Reasoning { id: String, text: String },
    Message { id: String, text: String },
}

/// Creates the events of a streamed response.
struct ResponseEvents {
    head: Head,
    /// The output items that the server has sent completely.
    output: Vec<Value>,
    open: Option<Open>,
    number: u64,
    usage: Usage,
    reason: EndReason,
}

impl ResponseEvents {
    fn new(head: Head) -> Self {
        let (usage, reason) = (Usage::default(), EndReason::Stop);
        Self { head, output: Vec::new(), open: None, number: 0, usage, reason }
    }

    fn event(&mut self, kind: &'static str, mut fields: Value) -> Sent {
        fields["type"] = json!(kind);
        fields["sequence_number"] = json!(self.number);
        self.number += 1;
        Sent::Named(kind, fields)
    }

    /// Creates an event about the current output item.
    fn of_item(&mut self, kind: &'static str, mut fields: Value) -> Sent {
        fields["output_index"] = json!(self.output.len());
        self.event(kind, fields)
    }

    fn begin_message(&mut self, out: &mut Vec<Sent>) {
        let id = id("msg_");
        let item = message_item(&id, "in_progress", Vec::new());
        out.push(self.of_item("response.output_item.added", json!({ "item": item })));
        let part = json!({ "item_id": id, "content_index": 0, "part": text_part("") });
        out.push(self.of_item("response.content_part.added", part));
        self.open = Some(Open::Message { id, text: String::new() });
    }

    fn begin_reasoning(&mut self, out: &mut Vec<Sent>) {
        let id = id("rs_");
        let item = json!({ "id": id, "type": "reasoning", "summary": [], "content": [] });
        out.push(self.of_item("response.output_item.added", json!({ "item": item })));
        self.open = Some(Open::Reasoning { id, text: String::new() });
    }

    /// Ends the current output item, and returns the events that report the end of the item.
    fn close(&mut self, out: &mut Vec<Sent>) {
        let item = match self.open.take() {
            None => return,
            Some(Open::Reasoning { id, text }) => {
                let done = json!({ "item_id": id, "content_index": 0, "text": text });
                out.push(self.of_item("response.reasoning_text.done", done));
                reasoning_item(&id, &text)
            }
            Some(Open::Message { id, text }) => {
                let done = json!({ "item_id": id, "content_index": 0, "text": text, "logprobs": [] });
                out.push(self.of_item("response.output_text.done", done));
                let done = json!({ "item_id": id, "content_index": 0, "part": text_part(&text) });
                out.push(self.of_item("response.content_part.done", done));
                message_item(&id, "completed", vec![text_part(&text)])
            }
        };
        out.push(self.of_item("response.output_item.done", json!({ "item": item })));
        self.output.push(item);
    }

    fn call(&mut self, call: &ToolCall, out: &mut Vec<Sent>) {
        let id = id("fc_");
        let item = call_item(&id, "in_progress", call, "");
        out.push(self.of_item("response.output_item.added", json!({ "item": item })));
        let delta = json!({ "item_id": id, "delta": call.arguments });
        out.push(self.of_item("response.function_call_arguments.delta", delta));
        let done = json!({ "item_id": id, "name": call.name, "arguments": call.arguments });
        out.push(self.of_item("response.function_call_arguments.done", done));
        let item = call_item(&id, "completed", call, &call.arguments);
        out.push(self.of_item("response.output_item.done", json!({ "item": item })));
        self.output.push(item);
    }
}

impl Events for ResponseEvents {
    fn begin(&mut self) -> Vec<Sent> {
        ["response.created", "response.in_progress"]
            .map(|kind| {
                let response = self.head.begun();
                self.event(kind, json!({ "response": response }))
            })
            .into()
    }

    fn update(&mut self, _: usize, update: Update) -> Vec<Sent> {
        let mut out = Vec::new();
        match update {
            Update::Reasoning(new) => {
                if !matches!(self.open, Some(Open::Reasoning { .. })) {
                    self.close(&mut out);
                    self.begin_reasoning(&mut out);
                }
                if let Some(Open::Reasoning { id, text }) = &mut self.open {
                    *text += &new;
                    let delta = json!({ "item_id": id, "content_index": 0, "delta": new });
                    out.push(self.of_item("response.reasoning_text.delta", delta));
                }
            }
            Update::Content(new) => {
                if !matches!(self.open, Some(Open::Message { .. })) {
                    self.close(&mut out);
                    self.begin_message(&mut out);
                }
                if let Some(Open::Message { id, text }) = &mut self.open {
                    *text += &new;
                    let delta = json!({ "item_id": id, "content_index": 0, "delta": new, "logprobs": [] });
                    out.push(self.of_item("response.output_text.delta", delta));
                }
            }
            Update::Call(call) => {
                self.close(&mut out);
                self.call(&call, &mut out);
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
        if self.open.is_none() && !self.output.iter().any(|item| item["type"] != "reasoning") {
            self.begin_message(&mut out);
        }
        self.close(&mut out);
        let response = self.head.ended(self.output.clone(), &self.reason, self.usage);
        let kind = match self.reason {
            EndReason::Length => "response.incomplete",
            _ => "response.completed",
        };
        out.push(self.event(kind, json!({ "response": response })));
        out
    }

    fn fail(&mut self, failure: &Failure) -> Vec<Sent> {
        let mut response = self.head.begun();
        response["status"] = json!("failed");
        response["error"] = json!({ "code": failure.code(), "message": failure.to_string() });
        vec![self.event("response.failed", json!({ "response": response }))]
    }
}
