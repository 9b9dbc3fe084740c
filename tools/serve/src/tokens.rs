//! Implements `POST /tokenize` and `POST /detokenize`, with the fields of llama.cpp and of vLLM, and vLLM's
//! `GET /tokenizer_info`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::{Query, State};
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{fields, schema, shown};
use crate::completions::token_ids;
use crate::failure::Failure;
use crate::interface::{Interface, OF_TOKENIZE};
use crate::models::Loaded;
use crate::props::Asked;

pub static TOKENIZE: Interface = Interface::new(|| vec![schema::<TokenizeFields>()], &[OF_TOKENIZE]);
pub static DETOKENIZE: Interface = Interface::new(|| vec![schema::<DetokenizeFields>()], &[]);

#[derive(Deserialize, JsonSchema)]
pub struct TokenizeFields {
    model: Option<String>,
    /// The text to tokenize, in llama.cpp's API. By default, the result includes no special tokens.
    content: Option<String>,
    /// The text to tokenize, in vLLM's API. By default, the result includes special tokens.
    prompt: Option<String>,
    /// Whether the result contains the tokenizer's special tokens.
    add_special: Option<bool>,
    /// This field is vLLM's name for `add_special`.
    add_special_tokens: Option<bool>,
}

#[derive(Deserialize, JsonSchema)]
pub struct DetokenizeFields {
    model: Option<String>,
    /// The token ids to convert to text.
    tokens: Value,
}

/// Answers `POST /tokenize`.
pub async fn tokenize(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let body = app.read_as(&TOKENIZE, &headers, body).await?;
    let request: TokenizeFields = fields(&body)?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    // llama.cpp calls the text `content` and adds no special tokens. vLLM calls the text `prompt` and adds
    // special tokens.
    let adds = request.add_special.or(request.add_special_tokens).unwrap_or(request.content.is_none());
    let missing = || Failure::Missing { param: "content".to_owned(), expected: "a text".to_owned() };
    let text = request.content.or(request.prompt).ok_or_else(missing)?;
    let context = loaded.model.info().context;
    let tokens = app
        .blocking(move || {
            let tokenizer = loaded.tokenizer()?;
            Ok(if adds { tokenizer.encode(&text)? } else { tokenizer.encode_plain(&text)? })
        })
        .await?;
    Ok(Json(json!({ "count": tokens.len(), "max_model_len": context, "tokens": tokens })))
}

/// Answers `POST /detokenize`.
pub async fn detokenize(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let body = app.read_as(&DETOKENIZE, &headers, body).await?;
    let request: DetokenizeFields = fields(&body)?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    let text = app
        .blocking(move || {
            let refuse =
                || Failure::field("tokens", shown(&request.tokens), "a list of token ids of the model");
            let tokens = token_ids(&request.tokens, &loaded).ok_or_else(refuse)?;
            Ok(loaded.tokenizer()?.decode(&tokens)?)
        })
        .await?;
    Ok(Json(json!({ "content": text, "prompt": text })))
}

/// Answers `GET /tokenizer_info` with the special tokens of a model, from which lm-eval begins and ends texts.
pub async fn info(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Failure> {
    let loaded = app.models.get(asked.model.as_deref()).await?;
    let tokenizer = loaded.tokenizer()?;
    // The token that begins every text is the first token of the empty text, unless it only ends texts.
    let begin = tokenizer.encode("")?.first().copied();
    let of_text = tokenizer.encode("a")?;
    let begin = begin.filter(|token| of_text.first() == Some(token));
    let text = |token: u32, loaded: &Loaded| String::from_utf8_lossy(loaded.piece(token)).into_owned();
    Ok(Json(json!({
        "bos_token": begin.map(|token| text(token, &loaded)),
        "eos_token": loaded.model.stop_tokens().first().map(|&token| text(token, &loaded)),
        "model_max_length": loaded.model.info().context,
    })))
}
