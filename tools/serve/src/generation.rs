//! [`ChatRequest`] is a conversation to answer, to which the handlers of all chat APIs convert.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tokio::sync::OwnedSemaphorePermit;
use tracewright::generate::Prompt;
use tracewright::model::Message;
use tracewright::{Follow, GenerateOptions};

use crate::answers::{Answers, Ask};
use crate::app::App;
use crate::body::shown;
use crate::failure::Failure;
use crate::models::Loaded;
use crate::prepare::{Dialogue, tokens};
use crate::reader::{REASONING, Reading};
use crate::sampling::SamplingFields;
use crate::tools::{OfferedTools, embedded};

/// A conversation that the model must answer; the request can come from any chat API.
pub struct ChatRequest {
    pub messages: Vec<Message>,
    pub tools: OfferedTools,
    /// Whether an answer can contain several function calls.
    pub parallel_calls: bool,
    pub variables: Map<String, Value>,
    /// The JSON Schema that the answer must follow.
    pub schema: Option<Value>,
    /// The name of the request's field that limits the number of new tokens, and the value of this field.
    pub max_tokens: (&'static str, Option<u64>),
    pub logprobs: Option<usize>,
    pub sampling: SamplingFields,
    /// The stop strings of the request, in addition to the server's stop strings.
    pub stop: Vec<String>,
    /// Whether the content of the answer includes the reasoning.
    pub keeps_reasoning: bool,
}

impl ChatRequest {
    /// Renders the text of the prompt with the chat template.
    pub fn render(&self, loaded: &Loaded) -> Result<String, Failure> {
        let Self { messages, tools, variables, .. } = self;
        Dialogue { messages, tools: &tools.offered, variables }.render(loaded)
    }

    /// Prepares the prompt, and starts the generation.
    pub async fn begin(
        self,
        app: &App,
        loaded: &Arc<Loaded>,
        permit: OwnedSemaphorePermit,
    ) -> Result<Answers, Failure> {
        loaded.check_generates()?;
        let (defaults, metrics, loaded) = (app.options.defaults.clone(), app.metrics.clone(), loaded.clone());
        app.blocking(move || {
            let text = self.render(&loaded)?;
            let prompt = Prompt { reuse: self.sampling.reuses(), ..tokens(&loaded, &text)?.into() };
            let schema = self.whole_schema();
            let has_schema = schema.is_some();
            let options = self.options(&defaults(loaded.model.defaults()), &loaded, schema)?;
            let reading = self.reading(&text, options.follow.is_some());
            let count = self.sampling.count()?;
            let ask = Ask { loaded, prompts: vec![prompt], options, count, reading };
            let answers = Answers::begin(ask, metrics, permit)?;
            for note in answers.notes().iter().filter(|_| has_schema) {
                tracing::warn!("the schema of a request: {note}");
            }
            Ok(answers)
        })
        .await
    }

    /// Returns the schema of the whole answer, which can be a function call.
    fn whole_schema(&self) -> Option<Value> {
        match (&self.schema, self.tools.is_forced, self.tools.offered.is_empty()) {
            (_, true, _) => Some(self.tools.schema()),
            (Some(schema), false, true) => Some(schema.clone()),
            // The model chooses between a function call and an answer that follows the schema.
            (Some(schema), false, false) => {
                Some(json!({ "anyOf": [self.tools.schema(), embedded(schema.clone(), "response_format")] }))
            }
            (None, false, _) => None,
        }
    }

    fn options(
        &self,
        defaults: &GenerateOptions,
        loaded: &Loaded,
        schema: Option<Value>,
    ) -> Result<GenerateOptions, Failure> {
        let mut options = self.sampling.options(defaults)?;
        let (param, most) = self.max_tokens;
        let context = loaded.model.info().context;
        let most = most.or(loaded.model.defaults().max_new_tokens.map(|most| most as u64));
        // A limit in the request replaces the model's limit on prompt and answer.
        options.max_length = options.max_length.filter(|_| most.is_none());
        options.max_tokens = max_tokens(param, most, context)?;
        options.logprobs = self.logprobs;
        options.stop.extend(self.stop.iter().cloned());
        if let Some(schema) = schema {
            options.follow = Some(Follow::JsonSchema(files::exact_json(&schema)));
        }
        Ok(options)
    }

    fn reading(&self, prompt: &str, follows: bool) -> Reading {
        let OfferedTools { offered, is_forced } = &self.tools;
        let end = prompt.trim_end();
        let opens = REASONING.iter().map(|&(open, _)| open).find(|open| end.ends_with(open));
        Reading {
            tools: offered.clone(),
            is_single: !self.parallel_calls,
            is_call: *is_forced,
            is_plain: (follows || self.keeps_reasoning) && offered.is_empty(),
            reasons: opens.filter(|_| !follows && !self.keeps_reasoning),
        }
    }
}

/// Returns the most tokens to generate. Without a limit, an answer can fill the context.
pub fn max_tokens(param: &str, given: Option<u64>, context: usize) -> Result<usize, Failure> {
    match given {
        None => Ok(context),
        Some(0) => Err(Failure::field(param, "0", "at least 1")),
        Some(most) => Ok(usize::try_from(most).unwrap_or(usize::MAX).min(context)),
    }
}

/// Reads the JSON Schema from a field whose `type` is `text`, `json_object` or `json_schema`. `schema` is the
/// schema's path in it.
pub fn schema(param: &str, format: Option<&Value>, schema: &str) -> Result<Option<Value>, Failure> {
    let Some(format) = format.filter(|format| !format.is_null()) else { return Ok(None) };
    match format.get("type").and_then(Value::as_str) {
        Some("text") => Ok(None),
        Some("json_object") => Ok(Some(json!({ "type": "object" }))),
        Some("json_schema") => {
            let found = format.pointer(&format!("/{}", schema.replace('.', "/"))).unwrap_or(&Value::Null);
            match found {
                Value::Object(_) => Ok(Some(found.clone())),
                found => Err(Failure::field(format!("{param}.{schema}"), shown(found), "a JSON Schema")),
            }
        }
        _ => {
            let found = shown(format.get("type").unwrap_or(&Value::Null));
            let expected = "`text`, `json_object` or `json_schema`";
            Err(Failure::field(format!("{param}.type"), found, expected))
        }
    }
}

/// Returns the variables of the chat template that a request sets.
pub fn variables(
    given: Option<&Map<String, Value>>,
    effort: Option<&str>,
) -> Result<Map<String, Value>, Failure> {
    let mut variables = given.cloned().unwrap_or_default();
    for name in ["messages", "tools", "add_generation_prompt"] {
        if let Some(value) = variables.get(name) {
            let param = format!("chat_template_kwargs.{name}");
            return Err(Failure::field(param, shown(value), "no value, because the server sets it"));
        }
    }
    if let Some(effort) = effort {
        variables.insert("reasoning_effort".to_owned(), json!(effort));
    }
    Ok(variables)
}
