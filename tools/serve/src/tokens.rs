//! Implements `POST /tokenize` and `POST /detokenize`, with the fields of llama.cpp and of vLLM.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{fields, schema, shown};
use crate::completions::token_ids;
use crate::failure::Failure;
use crate::interface::{Interface, OF_TOKENIZE};

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
