//! [`ChatRequest`] is a conversation to answer, to which the handlers of all chat APIs convert.

use std::sync::Arc;

use serde_json::{Map, Value, json};
use tracewright::generate::Prompt;
use tracewright::model::Message;
use tracewright::{Follow, GenerateOptions};

use crate::answers::{Answers, Ask};
use crate::app::App;
use crate::body::shown;
use crate::closed::closed;
use crate::constraint::{AnswerForm, FormKind};
use crate::failure::Failure;
use crate::media;
use crate::models::Loaded;
use crate::permit::Permit;
use crate::prepare::{Dialogue, Rendered};
use crate::reader::{REASONING, Reading};
use crate::sampling::SamplingFields;
use crate::tools::{OfferedTools, embedded};

/// A conversation that the model must answer; the request can come from any chat API.
pub struct ChatRequest {
    pub messages: Vec<Message>,
    /// The paths of the images in the body of the request.
    pub images: Vec<String>,
    /// Whether the answer continues the last message.
    pub continues: bool,
    pub tools: OfferedTools,
    /// Whether an answer can contain several function calls.
    pub parallel_calls: bool,
    pub variables: Map<String, Value>,
    pub constraint: Option<AnswerForm>,
    /// The name of the request's field that limits the number of new tokens, and the value of this field.
    pub max_tokens: (&'static str, Option<i64>),
    pub logprobs: Option<usize>,
    pub sampling: SamplingFields,
    /// The stop strings of the request, in addition to the server's stop strings.
    pub stop: Vec<String>,
    /// Whether the content of the answer includes the reasoning.
    pub keeps_reasoning: bool,
}

impl ChatRequest {
    /// Renders the text of the prompt with the chat template.
    pub fn render(&self, loaded: &Loaded) -> Result<Rendered, Failure> {
        let &Self { ref messages, ref tools, ref variables, continues, .. } = self;
        let images = &media::decoded(messages, &self.images, loaded)?;
        Dialogue { messages, images, tools: &tools.offered, variables, continues }.render(loaded)
    }

    /// Prepares the prompt, and starts the generation.
    pub async fn begin(self, app: &App, loaded: &Arc<Loaded>, permit: Permit) -> Result<Answers, Failure> {
        loaded.check_generates()?;
        let (metrics, loaded) = (app.metrics.clone(), loaded.clone());
        let opens = app.options.open_objects;
        app.blocking(move || {
            let rendered = self.render(&loaded)?;
            let text = rendered.text.clone();
            let prompt = Prompt { reuse: self.sampling.reuses(), ..rendered.prompt(&loaded)? };
            let (followed, follow) = self.follow(opens)?.unzip();
            let has_schema = follow.is_some();
            let options = self.options(&loaded, follow)?;
            let reading = self.reading(&text, options.follow.is_some());
            let count = self.sampling.count()?;
            let followed = followed.unwrap_or_default();
            let ask = Ask { loaded, prompts: vec![prompt], options, count, reading, followed };
            let answers = Answers::begin(ask, &metrics, permit)?;
            for note in answers.notes().iter().filter(|_| has_schema) {
                tracing::warn!("the schema of a request: {note}");
            }
            Ok(answers)
        })
        .await
    }

    /// Returns the rule of the whole answer, which can be a function call, and the field that sets it.
    fn follow(&self, opens: bool) -> Result<Option<(String, Follow)>, Failure> {
        let schema = |param: &str, schema: &Value| {
            Ok(Some((param.to_owned(), Follow::JsonSchema(files::exact_json(schema)))))
        };
        let Some(AnswerForm { param, rule }) = &self.constraint else {
            return if self.tools.is_forced { schema("tools", &self.tools.schema(opens)) } else { Ok(None) };
        };
        match (rule, self.tools.offered.is_empty()) {
            (FormKind::Schema(one), true) => schema(param, &closed(one, opens)),
            // The answer is a call, and has no text that could follow the schema.
            (FormKind::Schema(_), false) if self.tools.is_forced => {
                schema("tools", &self.tools.schema(opens))
            }
            // The model chooses between a function call and an answer that follows the schema.
            (FormKind::Schema(one), false) => {
                let both = [self.tools.schema(opens), embedded(closed(one, opens), "response_format")];
                schema(param, &json!({ "anyOf": both }))
            }
            (FormKind::Grammar(text), true) => Ok(Some((param.clone(), Follow::Grammar(text.clone())))),
            (FormKind::Grammar(_), false) => {
                Err(Failure::field(param, "a grammar", "a JSON Schema, because the request offers tools"))
            }
        }
    }

    fn options(&self, loaded: &Loaded, follow: Option<Follow>) -> Result<GenerateOptions, Failure> {
        let mut options = self.sampling.options(&loaded.defaults(), loaded.model.info().vocabulary)?;
        let (param, most) = self.max_tokens;
        let context = loaded.model.info().context;
        let most = most.or(loaded.model.defaults().max_new_tokens.map(|most| most as i64));
        // A limit in the request replaces the model's limit on prompt and answer.
        options.max_length = options.max_length.filter(|_| most.is_none());
        options.max_tokens = max_tokens(param, most, 1, context)?;
        options.logprobs = self.logprobs;
        options.stop.extend(self.stop.iter().cloned());
        options.follow = follow.or(options.follow);
        Ok(options)
    }

    fn reading(&self, prompt: &str, follows: bool) -> Reading {
        let OfferedTools { offered, is_forced, .. } = &self.tools;
        let (end, last) = (prompt.trim_end(), self.messages.last().map(Message::text).unwrap_or_default());
        let is_open = |open: &str, close: &str| {
            if self.continues { last.rfind(open) > last.rfind(close) } else { end.ends_with(open) }
        };
        let opens = REASONING.iter().find(|(open, close)| is_open(open, close)).map(|&(open, _)| open);
        Reading {
            tools: offered.clone(),
            is_single: !self.parallel_calls,
            is_call: *is_forced,
            is_plain: (follows || self.keeps_reasoning) && offered.is_empty(),
            continues: self.continues,
            reasons: opens.filter(|_| !follows && !self.keeps_reasoning),
        }
    }
}

/// Returns the most tokens to generate. Without a limit, or with -1, an answer can fill the context.
pub fn max_tokens(param: &str, given: Option<i64>, least: i64, context: usize) -> Result<usize, Failure> {
    match given {
        None | Some(-1) => Ok(context),
        Some(most) if most < least => {
            Err(Failure::field(param, most.to_string(), format!("at least {least}, or -1 for no limit")))
        }
        Some(most) => Ok(usize::try_from(most).unwrap_or(usize::MAX).min(context)),
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
