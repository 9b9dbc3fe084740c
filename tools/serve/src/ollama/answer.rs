//! Implements `POST /api/chat` and `POST /api/generate`.

use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{Times, created_at, load, options, plain};
use crate::answers::{Answers, Ask};
use crate::app::App;
use crate::body::{fields, schema, shown};
use crate::collect::{Answer, collect};
use crate::constraint::{AnswerForm, FormKind};
use crate::failure::Failure;
use crate::generation::{ChatRequest, max_tokens, variables};
use crate::interface::{Interface, OF_OLLAMA};
use crate::keep_alive::KeepAlive;
use crate::media;
use crate::models::Loaded;
use crate::permit::Permit;
use crate::prepare::{check_length, continues, messages};
use crate::reader::Reading;
use crate::sampling::SamplingFields;
use crate::stream::{self, Events, Sent};
use crate::tools::{Choice, OfferedTools, of_chat};
use crate::update::{ToolCall, Update, Usage};

pub static CHAT: Interface =
    Interface::new(|| vec![schema::<ChatFields>(), schema::<CommonFields>()], &[OF_OLLAMA]);
pub static GENERATE: Interface =
    Interface::new(|| vec![schema::<GenerateFields>(), schema::<CommonFields>()], &[OF_OLLAMA]);

/// The fields of both endpoints.
#[derive(Deserialize, JsonSchema)]
pub struct CommonFields {
    /// The name of the model.
    model: String,
    /// Whether the answer comes in parts, which is the default.
    stream: Option<bool>,
    /// `json`, or a JSON Schema that the answer follows.
    format: Option<Value>,
    /// Options of the sampler, `num_predict` and `num_ctx`.
    options: Option<Map<String, Value>>,
    /// How long the model stays loaded after this request; 0 unloads it.
    keep_alive: Option<Value>,
    /// Whether the model reasons before it answers, or how much: `low`, `medium` or `high`.
    think: Option<Value>,
}

#[derive(Deserialize, JsonSchema)]
pub struct ChatFields {
    /// The messages of the conversation. Without any, the model is only loaded.
    messages: Option<Vec<Value>>,
    /// Functions that the model can call.
    tools: Option<Vec<Value>>,
}

#[derive(Deserialize, JsonSchema)]
pub struct GenerateFields {
    /// The question, for which the chat template is rendered. Without any, the model is only loaded.
    prompt: Option<String>,
    /// The system message.
    system: Option<String>,
    /// Whether the model continues the prompt as it is, without the chat template.
    raw: Option<bool>,
}

/// Answers `POST /api/chat`.
pub async fn chat(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&CHAT, &headers, body).await?;
    let given: ChatFields = fields(&body)?;
    let turns = given.messages.unwrap_or_default();
    let input = if turns.is_empty() {
        Input::Nothing
    } else {
        let turns = turns.iter().enumerate().map(|(i, turn)| in_chat(turn, i)).collect::<Result<_, _>>()?;
        Input::Messages(turns, of_chat(given.tools.as_deref())?)
    };
    respond(app, fields(&body)?, input, LineKind::Chat, permit).await
}

/// Answers `POST /api/generate`.
pub async fn generate(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&GENERATE, &headers, body).await?;
    let given: GenerateFields = fields(&body)?;
    let system = given.system.filter(|text| !text.is_empty());
    if given.raw == Some(true) && system.is_some() {
        return Err(Failure::Unsupported { param: "system".to_owned() });
    }
    let input = match (given.prompt.filter(|prompt| !prompt.is_empty()), given.raw) {
        (None, _) => Input::Nothing,
        (Some(prompt), Some(true)) => Input::Text(prompt),
        (Some(prompt), _) => {
            let system = system.map(|text| json!({ "role": "system", "content": text }));
            let user = json!({ "role": "user", "content": prompt });
            Input::Messages(system.into_iter().chain([user]).collect(), Vec::new())
        }
    };
    respond(app, fields(&body)?, input, LineKind::Generate, permit).await
}

/// What the model continues.
enum Input {
    /// The request only loads or unloads the model.
    Nothing,
    Text(String),
    /// A conversation in OpenAI's form, and the offered tools.
    Messages(Vec<Value>, Vec<Value>),
}

/// Converts a message to OpenAI's form.
fn in_chat(turn: &Value, i: usize) -> Result<Value, Failure> {
    let at = format!("messages[{i}]");
    let mut chat = turn.as_object().ok_or_else(|| Failure::field(&at, shown(turn), "an object"))?.clone();
    match chat.remove("images") {
        None | Some(Value::Null) => {}
        Some(Value::Array(images)) if images.is_empty() => {}
        Some(Value::Array(images)) => {
            let text = chat.remove("content").filter(|text| *text != json!(""));
            let text = text.map(|text| json!({ "type": "text", "text": text }));
            let parts: Vec<Value> = images.iter().map(media::of_ollama).chain(text).collect();
            chat.insert("content".to_owned(), parts.into());
        }
        Some(other) => return Err(Failure::field(format!("{at}.images"), shown(&other), "a list of images")),
    }
    for (theirs, ours) in [("thinking", "reasoning_content"), ("tool_name", "name")] {
        if let Some(text) = chat.remove(theirs) {
            chat.insert(ours.to_owned(), text);
        }
    }
    Ok(chat.into())
}

async fn respond(
    app: Arc<App>,
    common: CommonFields,
    input: Input,
    kind: LineKind,
    permit: Permit,
) -> Result<Response, Failure> {
    let start = Instant::now();
    let name = plain(&common.model);
    let keep_alive = KeepAlive::of_field(common.keep_alive.as_ref())?;
    let unloads = keep_alive == Some(KeepAlive(Some(Duration::ZERO)));
    if unloads && matches!(input, Input::Nothing) {
        app.models.unload(Some(name)).await?;
        return Ok(Json(ended(kind, &common.model, "unload")).into_response());
    }
    let loaded = load(&app, name, keep_alive).await?;
    let times = Times { start, load: start.elapsed() };
    let (model, is_streamed) = (common.model.clone(), common.stream.unwrap_or(true));
    let answers = match input {
        Input::Nothing => return Ok(Json(ended(kind, &common.model, "load")).into_response()),
        Input::Text(text) => raw(&app, &loaded, &common, text, permit).await?,
        Input::Messages(turns, tools) => {
            common.request(&loaded, &turns, tools)?.begin(&app, &loaded, permit).await?
        }
    };
    let lines = Lines { kind, model, times, calls: 0 };
    if is_streamed {
        return Ok(stream::lines(answers, lines));
    }
    let (mut answers, usage) = collect(answers).await?;
    let answer = answers.pop().ok_or_else(|| Failure::Server { why: "no answer".to_owned() })?;
    Ok(crate::body::response(&lines.whole(&answer, usage)))
}

/// The answer to a request that only loads or unloads a model.
fn ended(kind: LineKind, model: &str, reason: &str) -> Value {
    let mut line = kind.line(model, "");
    (line["done"], line["done_reason"]) = (json!(true), json!(reason));
    line
}

impl CommonFields {
    /// The fields of the sampler, in OpenAI's form.
    fn sampling(&self, context: usize) -> Result<(SamplingFields, Option<i64>), Failure> {
        let mut options = options::fields(self.options.as_ref(), context)?;
        let most = options.remove("max_tokens");
        let refuse = |most: &Value| Failure::field("options.num_predict", shown(most), "a whole number");
        let most = most.map(|most| most.as_i64().ok_or_else(|| refuse(&most))).transpose()?;
        Ok((SamplingFields::read(&options.into())?, most))
    }

    fn constraint(&self) -> Result<Option<AnswerForm>, Failure> {
        let schema = match &self.format {
            None | Some(Value::Null) => return Ok(None),
            Some(Value::String(text)) if text.is_empty() => return Ok(None),
            Some(Value::String(text)) if text == "json" => json!({ "type": "object" }),
            Some(schema @ Value::Object(_)) => schema.clone(),
            Some(other) => {
                return Err(Failure::field("format", shown(other), "`json`, or a JSON Schema as an object"));
            }
        };
        Ok(Some(AnswerForm { param: "format".to_owned(), rule: FormKind::Schema(schema) }))
    }

    /// Returns the variables of the chat template.
    fn variables(&self) -> Result<Map<String, Value>, Failure> {
        let (reasons, effort) = match &self.think {
            None | Some(Value::Null) => (None, None),
            Some(Value::Bool(reasons)) => (Some(*reasons), None),
            Some(Value::String(effort)) => (Some(true), Some(effort.as_str())),
            Some(other) => {
                let expected = "true, false, `low`, `medium` or `high`";
                return Err(Failure::field("think", shown(other), expected));
            }
        };
        let mut variables = variables(None, effort)?;
        if let Some(reasons) = reasons {
            variables.insert("enable_thinking".to_owned(), json!(reasons));
        }
        Ok(variables)
    }

    fn request(&self, loaded: &Loaded, turns: &[Value], tools: Vec<Value>) -> Result<ChatRequest, Failure> {
        let (sampling, most) = self.sampling(loaded.model.info().context)?;
        let messages = messages(turns)?;
        let images = media::paths(&json!({ "messages": turns }));
        Ok(ChatRequest {
            images: images.into_iter().map(|path| path.replace("].content[", "].images[")).collect(),
            continues: continues(None, &messages)?,
            messages,
            tools: OfferedTools::new(tools, &Choice::Auto, "tools")?,
            parallel_calls: true,
            variables: self.variables()?,
            constraint: self.constraint()?,
            max_tokens: ("options.num_predict", most),
            logprobs: None,
            sampling,
            stop: Vec::new(),
            keeps_reasoning: false,
        })
    }
}

/// Continues a text as it is.
async fn raw(
    app: &App,
    loaded: &Arc<Loaded>,
    common: &CommonFields,
    text: String,
    permit: Permit,
) -> Result<Answers, Failure> {
    loaded.check_generates()?;
    if common.variables()?.get("enable_thinking").is_some_and(|thinks| *thinks == true) {
        return Err(Failure::Unsupported { param: "think".to_owned() });
    }
    let info = loaded.model.info();
    let (sampling, most) = common.sampling(info.context)?;
    let mut options = sampling.options(&loaded.defaults(), info.vocabulary)?;
    options.max_tokens = max_tokens("options.num_predict", most, 0, info.context)?;
    options.max_length = options.max_length.filter(|_| most.is_none());
    let (followed, follow) =
        common.constraint()?.map(|constraint| constraint.follow(app.options.open_objects)).unzip();
    options.follow = follow.or(options.follow);
    let (metrics, loaded, followed) = (app.metrics.clone(), loaded.clone(), followed.unwrap_or_default());
    app.blocking(move || {
        let tokens = loaded.tokenizer()?.encode(&text)?;
        check_length(&loaded, tokens.len())?;
        let reading = Reading { is_plain: true, ..Reading::default() };
        let ask = Ask { loaded, prompts: vec![tokens.into()], options, count: 1, reading, followed };
        Answers::begin(ask, &metrics, permit)
    })
    .await
}

#[derive(Clone, Copy)]
enum LineKind {
    Chat,
    Generate,
}

impl LineKind {
    /// A line with a part of the answer's text.
    fn line(self, model: &str, text: &str) -> Value {
        let mut line = json!({ "model": model, "created_at": created_at(), "done": false });
        match self {
            Self::Chat => line["message"] = json!({ "role": "assistant", "content": text }),
            Self::Generate => line["response"] = json!(text),
        }
        line
    }

    /// The object with the reasoning and the calls of a line.
    fn part(self, line: &mut Value) -> &mut Value {
        match self {
            Self::Chat => &mut line["message"],
            Self::Generate => line,
        }
    }
}

/// Creates the lines of an answer.
struct Lines {
    kind: LineKind,
    model: String,
    times: Times,
    calls: usize,
}

impl Lines {
    fn line(&self, text: &str) -> Value {
        self.kind.line(&self.model, text)
    }

    fn whole(&self, answer: &Answer, usage: Usage) -> Value {
        let mut line = self.line(&answer.content);
        let part = self.kind.part(&mut line);
        if !answer.reasoning.is_empty() {
            part["thinking"] = json!(answer.reasoning);
        }
        if !answer.calls.is_empty() {
            part["tool_calls"] =
                answer.calls.iter().enumerate().map(|(i, call)| tool_call(i, call)).collect();
        }
        self.end(line, answer.reason.word(), usage)
    }

    fn end(&self, mut line: Value, reason: &str, usage: Usage) -> Value {
        // A call ends an answer as usual here.
        let reason = if reason == "tool_calls" { "stop" } else { reason };
        (line["done"], line["done_reason"]) = (json!(true), json!(reason));
        line["prompt_eval_count"] = json!(usage.prompt);
        line["eval_count"] = json!(usage.completion);
        self.times.add_to(&mut line, usage);
        line
    }
}

/// Formats a call, whose arguments are an object here. Text of a call that was cut stays text.
fn tool_call(index: usize, call: &ToolCall) -> Value {
    let arguments: Value = files::parse_exact(&call.arguments).unwrap_or_else(|_| json!(call.arguments));
    json!({ "function": { "index": index, "name": call.name, "arguments": arguments } })
}

impl Events for Lines {
    fn begin(&mut self) -> Vec<Sent> {
        Vec::new()
    }

    fn update(&mut self, _: usize, update: Update) -> Vec<Sent> {
        let line = match update {
            Update::Content(text) => self.line(&text),
            Update::Reasoning(text) => {
                let mut line = self.line("");
                self.kind.part(&mut line)["thinking"] = json!(text);
                line
            }
            Update::Call(call) => {
                let mut line = self.line("");
                self.kind.part(&mut line)["tool_calls"] = json!([tool_call(self.calls, &call)]);
                self.calls += 1;
                line
            }
            Update::Logprobs(_) => return Vec::new(),
            Update::End(end) => self.end(self.line(""), end.reason.word(), end.usage),
        };
        vec![Sent::Data(line)]
    }

    fn finish(&mut self) -> Vec<Sent> {
        Vec::new()
    }

    fn fail(&mut self, failure: &Failure) -> Vec<Sent> {
        vec![Sent::Data(failure.ollama())]
    }
}
