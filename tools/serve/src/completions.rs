//! Implements `POST /v1/completions`, which continues texts without a chat template.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use generate::TokenLogprobs;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::answers::{Answers, Ask};
use crate::app::App;
use crate::body::{fields, shown};
use crate::chat::{StreamFields, TOP, last_events, usage};
use crate::collect::collect;
use crate::constraint::ConstraintFields;
use crate::failure::Failure;
use crate::generation::max_tokens;
use crate::ids::{id, now};
use crate::infill::FillTokens;
use crate::interface::{Interface, OF_COMPLETIONS, OF_OPENAI, OF_SERVERS, sampled};
use crate::logprobs::finite;
use crate::models::Loaded;
use crate::nested;
use crate::prepare::check_length;
use crate::reader::Reading;
use crate::sampling::SamplingFields;
use crate::stream::{self, Events, Sent};
use crate::update::{Update, Usage};

/// The largest number of prompts that one request can contain.
const PROMPTS: usize = 256;

/// The default of `max_tokens`, as in OpenAI's API.
const USUAL: i64 = 16;

pub static COMPLETIONS: Interface = Interface::with_objects(
    sampled::<CompletionFields>,
    &[OF_COMPLETIONS, OF_OPENAI, OF_SERVERS],
    nested::OF_CHAT,
);

#[derive(Deserialize, JsonSchema)]
pub struct CompletionFields {
    /// The name of the model that continues the prompts. The default model is the server's first model.
    model: Option<String>,
    /// The prompts: a text, a list of texts, a list of token ids, or a list of lists of token ids.
    prompt: Value,
    stream: Option<bool>,
    stream_options: Option<StreamFields>,
    /// The largest number of tokens that the model generates for an answer. By default, an answer
    /// has at most 16 new tokens.
    max_tokens: Option<i64>,
    /// The number of most likely tokens that the answer contains for each position, with the
    /// probabilities of these tokens. The largest valid value of this field is 20.
    logprobs: Option<u64>,
    /// Whether the text of the answer begins with the prompt.
    echo: Option<bool>,
    /// The text behind the answer, for models with fill-in-the-middle tokens.
    suffix: Option<String>,
}

/// The token ids of a prompt, and the prompt's text if the client sent text.
struct Prompt {
    text: String,
    tokens: Vec<u32>,
}

/// The text with which an answer begins: the prompt if the client sets `echo`, or else nothing.
#[derive(Default)]
struct Echo {
    text: String,
    /// The tokens of the text, if the client asks for their probabilities. The first one has none.
    tokens: Vec<u32>,
    logprobs: Vec<TokenLogprobs>,
}

impl Echo {
    /// Computes the probability of each token of a prompt after the tokens before it.
    fn scored(loaded: &Loaded, prompt: &Prompt, count: usize) -> Result<Self, Failure> {
        let Prompt { text, tokens } = prompt;
        let logits = loaded.model.score(tokens)?;
        let of = |(logits, token): (&Vec<f32>, &u32)| TokenLogprobs::of(logits, *token, count);
        let logprobs = logits.iter().zip(&tokens[1..]).map(of).collect();
        Ok(Self { text: text.clone(), tokens: tokens.clone(), logprobs })
    }
}

/// Answers `POST /v1/completions`.
pub async fn complete(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let body = app.read_as(&COMPLETIONS, &headers, body).await?;
    let request: CompletionFields = fields(&body)?;
    let sampling = SamplingFields::read(&body)?;
    let constraint = fields::<ConstraintFields>(&body)?.read()?;
    let logprobs = request.logprobs()?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    loaded.check_generates()?;
    let is_streamed = request.stream.unwrap_or_default();
    let includes_usage = request.stream_options.is_some_and(|options| options.include_usage == Some(true));
    let count = sampling.count()?;
    let (metrics, of_model) = (app.metrics.clone(), loaded.clone());
    let opens = app.options.open_objects;
    let (answers, echoes) = app
        .blocking(move || {
            let fill = request.suffix().map(|_| FillTokens::of(&of_model)).transpose()?;
            let between = fill.as_ref().zip(request.suffix());
            let prompts = prompts(&of_model, &request.prompt, between)?;
            let mut options = sampling.options(&of_model.defaults(), of_model.model.info().vocabulary)?;
            options.stop_tokens.extend(fill.iter().flat_map(|fill| &fill.ends));
            options.max_length = None;
            let most = request.max_tokens.unwrap_or(USUAL);
            options.max_tokens = max_tokens("max_tokens", Some(most), 0, of_model.model.info().context)?;
            options.logprobs = logprobs;
            let (followed, follow) = constraint.map(|constraint| constraint.follow(opens)).unzip();
            options.follow = follow.or(options.follow);
            let followed = followed.unwrap_or_default();
            let echo = |prompt: &Prompt| match (request.echo == Some(true), logprobs) {
                (false, _) => Ok(Echo::default()),
                (true, None) => Ok(Echo { text: prompt.text.clone(), ..Echo::default() }),
                (true, Some(count)) => Echo::scored(&of_model, prompt, count),
            };
            let echoes: Vec<Echo> = prompts.iter().map(echo).collect::<Result<_, Failure>>()?;
            let reuse = sampling.reuses();
            let prompts =
                prompts.into_iter().map(|one| tracewright::generate::Prompt { reuse, ..one.tokens.into() });
            let reading = Reading { is_plain: true, ..Reading::default() };
            let ask = Ask { loaded: of_model, prompts: prompts.collect(), options, count, reading, followed };
            Ok((Answers::begin(ask, &metrics, permit)?, echoes))
        })
        .await?;
    let head = Completion { loaded, id: id("cmpl-"), created: now(), echoes, count };
    if is_streamed {
        let chunks = Chunks {
            texts: vec![(String::new(), 0); answers.len()],
            with_logprobs: logprobs.is_some(),
            head,
            includes_usage,
            usage: Usage::default(),
        };
        return Ok(stream::respond(answers, chunks));
    }
    let (answers, used) = collect(answers).await?;
    let choice = |(index, answer): (usize, &crate::collect::Answer)| {
        let echo = head.echo(index);
        let text = echo.text.clone() + &answer.content;
        let logprobs = logprobs.map(|_| head.logprobs(echo, &answer.logprobs, 0));
        head.choice(index, &text, logprobs.unwrap_or_default(), answer.reason.word().into())
    };
    let choices: Vec<Value> = answers.iter().enumerate().map(choice).collect();
    let mut body = head.object(choices);
    body["usage"] = usage(used);
    Ok(Json(body).into_response())
}

impl CompletionFields {
    fn suffix(&self) -> Option<&str> {
        self.suffix.as_deref().filter(|suffix| !suffix.is_empty())
    }

    fn logprobs(&self) -> Result<Option<usize>, Failure> {
        if self.suffix().is_some() && self.echo == Some(true) {
            return Err(Failure::field("echo", "true", "false, because `suffix` is set"));
        }
        match self.logprobs {
            Some(top) if top > TOP => {
                Err(Failure::field("logprobs", top.to_string(), format!("a number from 0 to {TOP}")))
            }
            top => Ok(top.map(|top| top as usize)),
        }
    }
}

/// Reads the prompts of a request: a text, a list of texts, a list of token ids, or a list of lists
/// of token ids. `between` contains the text behind each answer.
fn prompts(
    loaded: &Loaded,
    given: &Value,
    between: Option<(&FillTokens, &str)>,
) -> Result<Vec<Prompt>, Failure> {
    let expected = "a text, a list of texts, or token ids";
    let refuse = || Failure::field("prompt", shown(given), expected);
    let list: Vec<&Value> = match given {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => list.iter().collect(),
        one => vec![one],
    };
    if list.len() > PROMPTS {
        return Err(Failure::field(
            "prompt",
            format!("a list of {}", list.len()),
            format!("at most {PROMPTS}"),
        ));
    }
    let tokenizer = loaded.tokenizer()?;
    let prompt = |one: &Value| {
        let mut prompt = match one {
            Value::String(text) if between.is_some() => {
                Prompt { text: text.clone(), tokens: tokenizer.encode_plain(text)? }
            }
            Value::String(text) => Prompt { text: text.clone(), tokens: tokenizer.encode(text)? },
            one => {
                let tokens = token_ids(one, loaded).ok_or_else(refuse)?;
                Prompt { text: tokenizer.decode(&tokens)?, tokens }
            }
        };
        if let Some((fill, suffix)) = between {
            let whole = fill.between(&prompt.tokens, &tokenizer.encode_plain(suffix)?);
            prompt.tokens = [tokenizer.encode("")?, whole].concat();
        }
        check_length(loaded, prompt.tokens.len())?;
        if prompt.tokens.is_empty() {
            Err(Failure::field("prompt", "empty", "at least one token"))
        } else {
            Ok(prompt)
        }
    };
    list.into_iter().map(prompt).collect()
}

/// Reads a list of token ids. The result is `None` if the value is not a list of token ids, or if
/// the model's vocabulary lacks one of the token ids.
pub fn token_ids(given: &Value, loaded: &Loaded) -> Option<Vec<u32>> {
    let vocabulary = loaded.model.info().vocabulary as u64;
    let id = |id: &Value| id.as_u64().filter(|&id| id < vocabulary).map(|id| id as u32);
    given.as_array()?.iter().map(id).collect()
}

/// The data from which the server creates each event of an answer.
struct Completion {
    loaded: Arc<Loaded>,
    id: String,
    created: u64,
    /// The beginning of the answers to each prompt.
    echoes: Vec<Echo>,
    /// The number of answers that the model generates for each prompt.
    count: usize,
}

impl Completion {
    fn echo(&self, index: usize) -> &Echo {
        &self.echoes[index / self.count]
    }

    fn object(&self, choices: Vec<Value>) -> Value {
        json!({
            "id": self.id,
            "object": "text_completion",
            "created": self.created,
            "model": self.loaded.name,
            "choices": choices,
        })
    }

    fn choice(&self, index: usize, text: &str, logprobs: Value, finish: Value) -> Value {
        json!({ "index": index, "text": text, "logprobs": logprobs, "finish_reason": finish })
    }

    /// Formats the probabilities of the prompt's tokens in `echo` and of new tokens. `offset` is the number of
    /// characters before the first token.
    fn logprobs(&self, echo: &Echo, logprobs: &[TokenLogprobs], mut offset: usize) -> Value {
        let text = |token| String::from_utf8_lossy(self.loaded.piece(token)).into_owned();
        let (mut tokens, mut chosen, mut top, mut offsets) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
        if let Some(&first) = echo.tokens.first() {
            offsets.push(offset);
            tokens.push(text(first));
            offset += tokens[0].chars().count();
            chosen.push(Value::Null);
            top.push(Value::Null);
        } else {
            offset += echo.text.chars().count();
        }
        for one in echo.logprobs.iter().chain(logprobs) {
            let token = text(one.chosen.token);
            offsets.push(offset);
            offset += token.chars().count();
            tokens.push(token);
            chosen.push(json!(finite(one.chosen.logprob)));
            let likely = one.top.iter().map(|one| (text(one.token), json!(finite(one.logprob))));
            top.push(likely.collect::<Map<_, _>>().into());
        }
        json!({ "tokens": tokens, "token_logprobs": chosen, "top_logprobs": top, "text_offset": offsets })
    }
}

/// Creates the events of a streamed answer.
struct Chunks {
    head: Completion,
    /// For each answer, the text that the server holds back until the server receives the
    /// probabilities of the text's tokens. The integer is the number of characters of the answer
    /// that precede the held-back text.
    texts: Vec<(String, usize)>,
    with_logprobs: bool,
    includes_usage: bool,
    usage: Usage,
}

impl Chunks {
    fn chunk(&self, choices: Vec<Value>) -> Value {
        let mut chunk = self.head.object(choices);
        if self.includes_usage {
            chunk["usage"] = Value::Null;
        }
        chunk
    }

    fn text(&self, index: usize, text: &str, logprobs: Value, finish: Value) -> Sent {
        Sent::Data(self.chunk(vec![self.head.choice(index, text, logprobs, finish)]))
    }
}

impl Events for Chunks {
    fn begin(&mut self) -> Vec<Sent> {
        let mut begun = Vec::new();
        for index in 0..self.texts.len() {
            let echo = self.head.echo(index);
            if !echo.text.is_empty() {
                let logprobs =
                    if self.with_logprobs { self.head.logprobs(echo, &[], 0) } else { Value::Null };
                let length = echo.text.chars().count();
                begun.push(self.text(index, &echo.text, logprobs, Value::Null));
                self.texts[index].1 = length;
            }
        }
        begun
    }

    fn update(&mut self, index: usize, update: Update) -> Vec<Sent> {
        match update {
            Update::Content(text) if self.with_logprobs => {
                self.texts[index].0 += &text;
                Vec::new()
            }
            Update::Content(text) => vec![self.text(index, &text, Value::Null, Value::Null)],
            Update::Logprobs(new) => {
                let (text, offset) = std::mem::take(&mut self.texts[index]);
                let logprobs = self.head.logprobs(&Echo::default(), &new, offset);
                self.texts[index].1 = offset + text.chars().count();
                vec![self.text(index, &text, logprobs, Value::Null)]
            }
            Update::End(end) => {
                self.usage.add(end.usage);
                let text = std::mem::take(&mut self.texts[index].0);
                vec![self.text(index, &text, Value::Null, end.reason.word().into())]
            }
            Update::Reasoning(_) | Update::Call(_) => Vec::new(),
        }
    }

    fn finish(&mut self) -> Vec<Sent> {
        last_events(self.includes_usage.then(|| self.chunk(Vec::new())), self.usage)
    }
}
