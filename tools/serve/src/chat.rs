//! Implements `POST /v1/chat/completions`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body::fields;
use crate::collect::{Answer, collect};
use crate::constraint::ConstraintFields;
use crate::failure::Failure;
use crate::generation::{ChatRequest, variables};
use crate::ids::{id, now};
use crate::interface::{Interface, OF_CHAT, OF_OPENAI, OF_SERVERS, sampled};
use crate::logprobs;
use crate::media;
use crate::models::Loaded;
use crate::nested;
use crate::prepare::{continues, messages};
use crate::sampling::SamplingFields;
use crate::stream::{self, Events, Sent};
use crate::tools::{self, OfferedTools};
use crate::update::{EndReason, ToolCall, Update, Usage};

/// The largest number of token probabilities that an answer contains per position.
pub const TOP: u64 = 20;

pub static CHAT: Interface =
    Interface::with_objects(sampled::<ChatFields>, &[OF_CHAT, OF_OPENAI, OF_SERVERS], nested::OF_CHAT);

#[derive(Deserialize, JsonSchema)]
pub struct ChatFields {
    /// The name of the model that answers the request. The default model is the server's first model.
    model: Option<String>,
    /// Messages with a role (system, developer, user, assistant, tool) and a content. The content
    /// is a text, or a list of parts with texts and images. An image is a `data:` URL.
    messages: Vec<Value>,
    /// Whether the server streams the answer as server-sent events. The last event of a stream is `[DONE]`.
    stream: Option<bool>,
    stream_options: Option<StreamFields>,
    /// The largest number of tokens that the model generates for an answer. Without a limit, an
    /// answer can fill the model's whole context.
    max_tokens: Option<i64>,
    /// This field is OpenAI's newer name for `max_tokens`.
    max_completion_tokens: Option<i64>,
    /// Whether the answer contains the probability of each of its tokens.
    logprobs: Option<bool>,
    /// The number of most likely tokens that the answer contains for each position, with the
    /// probabilities of these tokens. The largest valid value of this field is 20.
    top_logprobs: Option<u64>,
    /// Functions that the model can call. The server ignores tools that are not functions.
    tools: Option<Vec<Value>>,
    /// Whether the model calls a function: `auto`, `none`, `required`, or an object with the name
    /// of a function to call.
    tool_choice: Option<Value>,
    /// OpenAI's first name for `tools`: a list of functions without types.
    functions: Option<Vec<Value>>,
    /// Whether the model calls one of `functions`: `auto`, `none`, or an object with a name.
    function_call: Option<Value>,
    /// Whether an answer can contain several function calls. By default, an answer can contain
    /// several function calls.
    parallel_tool_calls: Option<bool>,
    /// The variable `reasoning_effort` of the chat template.
    reasoning_effort: Option<String>,
    /// If `reasoning_format` is `none`, the content of the answer includes the reasoning.
    reasoning_format: Option<String>,
    /// Whether the answer continues the last message, by default if this is a text of the assistant.
    continue_final_message: Option<bool>,
    /// If false, the answer continues the last message; if true, it begins a new one.
    add_generation_prompt: Option<bool>,
    /// Variables of the chat template, such as `enable_thinking`.
    chat_template_kwargs: Option<Map<String, Value>>,
}

#[derive(Clone, Copy, Deserialize, JsonSchema)]
pub struct StreamFields {
    /// Whether the stream contains an event with token counts before `[DONE]`.
    pub include_usage: Option<bool>,
}

impl ChatFields {
    fn request(&self, body: &Value) -> Result<ChatRequest, Failure> {
        let tools = self.tools()?;
        let messages = messages(&self.messages)?;
        let asked = self.continue_final_message.or(self.add_generation_prompt.map(|adds| !adds));
        Ok(ChatRequest {
            images: media::paths(body),
            continues: continues(asked, &messages)?,
            messages,
            tools,
            parallel_calls: self.parallel_tool_calls.unwrap_or(!self.is_legacy()),
            variables: variables(self.chat_template_kwargs.as_ref(), self.reasoning_effort.as_deref())?,
            constraint: fields::<ConstraintFields>(body)?.read()?,
            max_tokens: match self.max_completion_tokens {
                Some(most) => ("max_completion_tokens", Some(most)),
                None => ("max_tokens", self.max_tokens),
            },
            logprobs: self.logprobs()?,
            sampling: SamplingFields::read(body)?,
            stop: Vec::new(),
            keeps_reasoning: self.reasoning_format.as_deref() == Some("none"),
        })
    }

    /// Whether the request names its tools as OpenAI's first interface does, in which an answer has one call.
    fn is_legacy(&self) -> bool {
        self.functions.is_some()
    }

    fn tools(&self) -> Result<OfferedTools, Failure> {
        let (tools, choice, param) = match (&self.functions, &self.tools) {
            (Some(_), Some(_)) => {
                return Err(Failure::field("functions", "set", "no value, because `tools` is set"));
            }
            (Some(functions), None) => {
                let (tools, choice) = tools::of_functions(functions, self.function_call.as_ref())?;
                (tools, choice, "function_call")
            }
            (None, given) => {
                (tools::of_chat(given.as_deref())?, tools::choice(self.tool_choice.as_ref())?, "tool_choice")
            }
        };
        OfferedTools::new(tools, &choice, param)
    }

    /// Returns the number of token probabilities per position that the client requests.
    fn logprobs(&self) -> Result<Option<usize>, Failure> {
        let top = self.top_logprobs.unwrap_or_default();
        match self.logprobs.unwrap_or_default() {
            _ if top > TOP => {
                Err(Failure::field("top_logprobs", top.to_string(), format!("a number from 0 to {TOP}")))
            }
            true => Ok(Some(top as usize)),
            false if top > 0 => {
                Err(Failure::field("logprobs", "false", "true, because `top_logprobs` is set"))
            }
            false => Ok(None),
        }
    }
}

/// Answers `POST /v1/chat/completions`.
pub async fn chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&CHAT, &headers, body).await?;
    let fields: ChatFields = fields(&body)?;
    let request = fields.request(&body)?;
    let with_logprobs = request.logprobs.is_some();
    let loaded = app.models.get(fields.model.as_deref()).await?;
    let is_legacy = fields.is_legacy();
    let head = Head { loaded: loaded.clone(), id: id("chatcmpl-"), created: now(), is_legacy };
    let answers = request.begin(&app, &loaded, permit).await?;
    if fields.stream.unwrap_or_default() {
        let includes_usage = fields.stream_options.is_some_and(|options| options.include_usage == Some(true));
        let choices = vec![StreamedChoice::default(); answers.len()];
        let chunks = Chunks { head, choices, with_logprobs, includes_usage, usage: Usage::default() };
        return Ok(stream::respond(answers, chunks));
    }
    let (answers, usage) = collect(answers).await?;
    let choice = |(index, answer)| head.choice(index, answer, with_logprobs);
    let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
    let mut body = head.object("chat.completion", choices);
    body["usage"] = self::usage(usage);
    Ok(Json(body).into_response())
}

/// Answers `POST /apply-template` with the prompt that the chat template renders from a conversation.
pub async fn apply_template(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let body = app.read_as(&CHAT, &headers, body).await?;
    let fields: ChatFields = fields(&body)?;
    let request = fields.request(&body)?;
    let loaded = app.models.get(fields.model.as_deref()).await?;
    let prompt = app.blocking(move || Ok(request.render(&loaded)?.text)).await?;
    Ok(Json(json!({ "prompt": prompt })))
}

/// The fields that are the same in all events of a streamed answer.
struct Head {
    loaded: Arc<Loaded>,
    id: String,
    created: u64,
    is_legacy: bool,
}

impl Head {
    fn object(&self, kind: &str, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.loaded.name,
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, answer: &Answer, with_logprobs: bool) -> Value {
        let content = if answer.content.is_empty() && !answer.calls.is_empty() {
            Value::Null
        } else {
            json!(answer.content)
        };
        let mut message = json!({ "role": "assistant", "content": content, "refusal": null });
        if !answer.reasoning.is_empty() {
            message["reasoning_content"] = json!(answer.reasoning);
        }
        match answer.calls.first() {
            None => {}
            Some(call) if self.is_legacy => message["function_call"] = tool_call(call)["function"].clone(),
            Some(_) => message["tool_calls"] = answer.calls.iter().map(tool_call).collect(),
        }
        let content = logprobs::content(&self.loaded, &answer.logprobs);
        json!({
            "index": index,
            "message": message,
            "logprobs": if with_logprobs { json!({ "content": content, "refusal": null }) } else { Value::Null },
            "finish_reason": self.finish_reason(&answer.reason),
        })
    }

    fn finish_reason(&self, reason: &EndReason) -> &'static str {
        match reason.word() {
            "tool_calls" if self.is_legacy => "function_call",
            reason => reason,
        }
    }
}

fn tool_call(call: &ToolCall) -> Value {
    let ToolCall { id, name, arguments } = call;
    json!({ "id": id, "type": "function", "function": { "name": name, "arguments": arguments } })
}

/// Formats token counts in the format of OpenAI's API.
pub fn usage(usage: Usage) -> Value {
    json!({
        "prompt_tokens": usage.prompt,
        "completion_tokens": usage.completion,
        "total_tokens": usage.prompt + usage.completion,
        "prompt_tokens_details": { "cached_tokens": usage.cached },
    })
}

/// Returns the last events of a streamed answer. If the client requested token counts, the first
/// returned event contains the counts. The very last event of a streamed answer is `[DONE]`.
pub fn last_events(chunk: Option<Value>, total: Usage) -> Vec<Sent> {
    let with_usage = chunk.map(|mut chunk| {
        chunk["usage"] = usage(total);
        Sent::Data(chunk)
    });
    with_usage.into_iter().chain([Sent::Done]).collect()
}

/// The state of one streamed answer.
#[derive(Clone, Default)]
struct StreamedChoice {
    /// Text that the server holds back until the server receives the probabilities of the text's tokens.
    held: String,
    calls: usize,
}

/// Creates the events of a streamed answer.
struct Chunks {
    head: Head,
    choices: Vec<StreamedChoice>,
    with_logprobs: bool,
    includes_usage: bool,
    usage: Usage,
}

impl Chunks {
    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object("chat.completion.chunk", choices);
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn delta(&self, index: usize, delta: Value) -> Sent {
        self.delta_with(index, delta, Value::Null, Value::Null)
    }

    fn delta_with(&self, index: usize, delta: Value, logprobs: Value, finish: Value) -> Sent {
        let choice = json!({ "index": index, "delta": delta, "logprobs": logprobs, "finish_reason": finish });
        Sent::Data(self.chunk(vec![choice]))
    }

    fn flushed(&mut self, index: usize) -> Option<Sent> {
        let held = std::mem::take(&mut self.choices[index].held);
        (!held.is_empty()).then(|| self.delta(index, json!({ "content": held })))
    }
}

impl Events for Chunks {
    fn begin(&mut self) -> Vec<Sent> {
        let role = |index| self.delta(index, json!({ "role": "assistant", "content": "" }));
        (0..self.choices.len()).map(role).collect()
    }

    fn update(&mut self, index: usize, update: Update) -> Vec<Sent> {
        match update {
            Update::Reasoning(text) => vec![self.delta(index, json!({ "reasoning_content": text }))],
            Update::Content(text) if self.with_logprobs => {
                self.choices[index].held += &text;
                Vec::new()
            }
            Update::Content(text) => vec![self.delta(index, json!({ "content": text }))],
            Update::Logprobs(new) => {
                let held = std::mem::take(&mut self.choices[index].held);
                let logprobs =
                    json!({ "content": logprobs::content(&self.head.loaded, &new), "refusal": null });
                vec![self.delta_with(index, json!({ "content": held }), logprobs, Value::Null)]
            }
            Update::Call(call) => {
                let number = self.choices[index].calls;
                self.choices[index].calls += 1;
                let mut call = tool_call(&call);
                call["index"] = json!(number);
                let delta = if self.head.is_legacy {
                    json!({ "function_call": call["function"] })
                } else {
                    json!({ "tool_calls": [call] })
                };
                let flushed = self.flushed(index);
                flushed.into_iter().chain([self.delta(index, delta)]).collect()
            }
            Update::End(end) => {
                self.usage.add(end.usage);
                let flushed = self.flushed(index);
                let finish = json!(self.head.finish_reason(&end.reason));
                let last = self.delta_with(index, json!({}), Value::Null, finish);
                flushed.into_iter().chain([last]).collect()
            }
        }
    }

    fn finish(&mut self) -> Vec<Sent> {
        last_events(self.includes_usage.then(|| self.chunk(Vec::new())), self.usage)
    }
}
