//! Prompts that ask for the text between a prefix and a suffix. Implements `POST /infill`, with the fields of llama.cpp.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::{IntoResponse as _, Response};
use generate::{GenerateError, Tokenizer};
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::answers::{Answers, Ask};
use crate::app::App;
use crate::body::fields;
use crate::collect::collect;
use crate::constraint::ConstraintFields;
use crate::failure::Failure;
use crate::generation::max_tokens;
use crate::interface::{Interface, OF_INFILL, OF_SERVERS, sampled};
use crate::models::Loaded;
use crate::nested;
use crate::prepare::check_length;
use crate::reader::Reading;
use crate::sampling::SamplingFields;
use crate::stream::{self, Events, Sent};
use crate::update::{AnswerEnd, EndReason, Update};

pub static INFILL: Interface =
    Interface::with_objects(sampled::<InfillFields>, &[OF_SERVERS, OF_INFILL], nested::OF_CHAT);

#[derive(Deserialize, JsonSchema)]
pub struct InfillFields {
    model: Option<String>,
    /// The text before the answer.
    #[serde(default)]
    input_prefix: String,
    /// The text behind the answer.
    #[serde(default)]
    input_suffix: String,
    /// Other files of the project, which stand before the prefix.
    input_extra: Option<Vec<ExtraFile>>,
    /// More text directly before the answer.
    #[serde(default)]
    prompt: String,
    /// The largest number of new tokens; -1 for no limit.
    n_predict: Option<i64>,
    max_tokens: Option<i64>,
    stream: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
struct ExtraFile {
    text: String,
    filename: Option<String>,
}

/// The names that tokenizers give to one token, as llama.cpp lists them.
type Names = &'static [&'static str];

const PREFIX: Names = &[
    "<|fim_prefix|>",
    "<fim-prefix>",
    "<fim_prefix>",
    "<｜fim▁begin｜>",
    "<PRE>",
    "▁<PRE>",
    "<|code_prefix|>",
    "[PREFIX]",
];
const SUFFIX: Names = &[
    "<|fim_suffix|>",
    "<fim-suffix>",
    "<fim_suffix>",
    "<｜fim▁hole｜>",
    "<SUF>",
    "▁<SUF>",
    "<|code_suffix|>",
    "[SUFFIX]",
];
const MIDDLE: Names = &[
    "<|fim_middle|>",
    "<fim-middle>",
    "<fim_middle>",
    "<｜fim▁end｜>",
    "<MID>",
    "▁<MID>",
    "<|code_middle|>",
    "[MIDDLE]",
];
const PAD: Names = &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>"];
const REPOSITORY: Names = &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"];
const FILE: Names = &["<|file_sep|>"];

/// The tokens between the parts of a prompt.
pub struct FillTokens {
    prefix: u32,
    suffix: u32,
    middle: u32,
    repository: Option<u32>,
    file: Option<u32>,
    /// Tokens that end an answer, because they begin another part.
    pub ends: Vec<u32>,
}

impl FillTokens {
    /// Finds the tokens, or returns an error for a model without them.
    pub fn of(loaded: &Loaded) -> Result<Self, Failure> {
        let tokenizer = loaded.tokenizer()?;
        let token = |names: Names| names.iter().find_map(|name| one_token(tokenizer, name));
        let without =
            || loaded.kind("has no fill-in-the-middle tokens", "continue text between a prefix and a suffix");
        let (Some(prefix), Some(suffix), Some(middle)) = (token(PREFIX), token(SUFFIX), token(MIDDLE)) else {
            return Err(without());
        };
        let (repository, file) = (token(REPOSITORY), token(FILE));
        let ends = [token(PAD), repository, file].into_iter().flatten().collect();
        Ok(Self { prefix, suffix, middle, repository, file, ends })
    }

    /// Returns the tokens of a prompt whose answer stands between two texts.
    pub fn between(&self, prefix: &[u32], suffix: &[u32]) -> Vec<u32> {
        [&[self.prefix], prefix, &[self.suffix], suffix, &[self.middle]].concat()
    }

    /// Returns the tokens of other files, in llama.cpp's form: the name of a repository, then each file below its name.
    fn files(&self, tokenizer: &Tokenizer, files: &[ExtraFile]) -> Result<Vec<u32>, GenerateError> {
        let mut tokens = Vec::new();
        if let Some(repository) = self.repository {
            tokens.push(repository);
            tokens.extend(tokenizer.encode_plain("myproject\n")?);
        }
        for ExtraFile { text, filename } in files {
            match self.file {
                Some(file) => {
                    tokens.push(file);
                    let name = filename.as_deref().unwrap_or("tmp");
                    tokens.extend(tokenizer.encode_plain(&format!("{name}\n"))?);
                }
                None => tokens.extend(tokenizer.encode_plain("\n\n--- snippet ---\n\n")?),
            }
            tokens.extend(tokenizer.encode_plain(text)?);
        }
        if let Some(file) = self.file {
            tokens.push(file);
            tokens.extend(tokenizer.encode_plain("filename\n")?);
        }
        Ok(tokens)
    }
}

/// The token with this name. Not all tokenizers mark their fill-in-the-middle tokens as special.
fn one_token(tokenizer: &Tokenizer, name: &str) -> Option<u32> {
    match tokenizer.encode_plain(name).ok()?.as_slice() {
        [token] => Some(*token),
        _ => None,
    }
}

impl InfillFields {
    fn prompt(&self, loaded: &Loaded, fill: &FillTokens) -> Result<Vec<u32>, Failure> {
        let tokenizer = loaded.tokenizer()?;
        let prefix = [
            tokenizer.encode_plain(&self.input_prefix)?,
            // As in llama.cpp, the prompt is text of its own.
            tokenizer.encode_plain(&self.prompt)?,
        ];
        let mut tokens = fill.files(tokenizer, self.input_extra.as_deref().unwrap_or_default())?;
        // The token that begins a text.
        tokens.extend(tokenizer.encode("")?);
        tokens.extend(fill.between(&prefix.concat(), &tokenizer.encode_plain(&self.input_suffix)?));
        check_length(loaded, tokens.len())?;
        Ok(tokens)
    }
}

/// Answers `POST /infill`.
pub async fn infill(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Response, Failure> {
    let permit = app.permit()?;
    let mut body = app.read_as(&INFILL, &headers, body).await?;
    let request: InfillFields = fields(&body)?;
    // This step of llama.cpp joins tokens that begin alike, and llama.vim always sends it.
    if let Some(steps) = body["samplers"].as_array_mut() {
        steps.retain(|step| step != "infill");
    }
    let sampling = SamplingFields::read(&body)?;
    if sampling.count()? != 1 {
        return Err(Failure::Unsupported { param: "n".to_owned() });
    }
    let constraint = fields::<ConstraintFields>(&body)?.read()?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    loaded.check_generates()?;
    let (metrics, of_model) = (app.metrics.clone(), loaded.clone());
    let (opens, is_streamed) = (app.options.open_objects, request.stream.unwrap_or_default());
    let answers = app
        .blocking(move || {
            let fill = FillTokens::of(&of_model)?;
            let info = of_model.model.info();
            let mut options = sampling.options(&of_model.defaults(), info.vocabulary)?;
            options.max_length = None;
            let most = request.n_predict.or(request.max_tokens);
            options.max_tokens = max_tokens("n_predict", most, 0, info.context)?;
            options.stop_tokens.extend(&fill.ends);
            let (followed, follow) = constraint.map(|constraint| constraint.follow(opens)).unzip();
            options.follow = follow.or(options.follow);
            let followed = followed.unwrap_or_default();
            let reuse = sampling.reuses();
            let tokens = request.prompt(&of_model, &fill)?;
            let prompts = vec![tracewright::generate::Prompt { reuse, ..tokens.into() }];
            let reading = Reading { is_plain: true, ..Reading::default() };
            let ask = Ask { loaded: of_model, prompts, options, count: 1, reading, followed };
            Answers::begin(ask, &metrics, permit)
        })
        .await?;
    let model = loaded.name.clone();
    if is_streamed {
        return Ok(stream::respond(answers, InfillEvents { model }));
    }
    let (answers, usage) = collect(answers).await?;
    let Some(answer) = answers.into_iter().next() else {
        return Err(Failure::Server { why: "there is no answer".to_owned() });
    };
    let end = AnswerEnd { reason: answer.reason, usage };
    Ok(Json(last(&model, &answer.content, &end)).into_response())
}

/// The last event of a stream, or the whole answer.
fn last(model: &str, text: &str, AnswerEnd { reason, usage }: &AnswerEnd) -> Value {
    let (kind, word) = match reason {
        EndReason::StopString(word) => ("word", word.as_str()),
        EndReason::Length => ("limit", ""),
        EndReason::Stop | EndReason::ToolCalls => ("eos", ""),
    };
    json!({
        "index": 0,
        "content": text,
        "model": model,
        "stop": true,
        "stop_type": kind,
        "stopping_word": word,
        "tokens_predicted": usage.completion,
        "tokens_evaluated": usage.prompt,
        "tokens_cached": usage.cached,
        "truncated": false,
        "timings": {
            "prompt_n": usage.prompt - usage.cached,
            "prompt_ms": usage.prefill.as_secs_f64() * 1e3,
            "predicted_n": usage.completion,
            "predicted_ms": usage.decode.as_secs_f64() * 1e3,
        },
    })
}

struct InfillEvents {
    model: String,
}

impl Events for InfillEvents {
    fn begin(&mut self) -> Vec<Sent> {
        Vec::new()
    }

    fn update(&mut self, _: usize, update: Update) -> Vec<Sent> {
        match update {
            Update::Content(text) => {
                vec![Sent::Data(json!({ "index": 0, "content": text, "stop": false }))]
            }
            Update::End(end) => vec![Sent::Data(last(&self.model, "", &end))],
            Update::Reasoning(_) | Update::Call(_) | Update::Logprobs(_) => Vec::new(),
        }
    }

    fn finish(&mut self) -> Vec<Sent> {
        Vec::new()
    }
}
