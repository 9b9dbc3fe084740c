//! Implements `POST /v1/embeddings`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{fields, schema, shown};
use crate::completions::token_ids;
use crate::failure::Failure;
use crate::interface::{Interface, OF_EMBEDDINGS};
use crate::models::Loaded;

/// The largest number of texts per request, as in OpenAI's API.
const TEXTS: usize = 2048;

pub static EMBEDDINGS: Interface = Interface::new(|| vec![schema::<EmbeddingFields>()], &[OF_EMBEDDINGS]);

#[derive(Deserialize, JsonSchema)]
pub struct EmbeddingFields {
    /// The name of the model that computes the embeddings. The default model is the server's first model.
    model: Option<String>,
    /// The texts to embed: one text, a list of texts, a list of token ids, or a list of lists of token ids.
    input: Value,
    /// The encoding of the embeddings: `float` or `base64`.
    encoding_format: Option<String>,
    /// The number of dimensions of the embeddings. An embedding with more is cut to its first numbers, and
    /// gets the length 1 again.
    dimensions: Option<u64>,
    /// The name of one of the model's prompts, such as `query`.
    prompt_name: Option<String>,
}

/// Answers `POST /v1/embeddings`.
pub async fn embed(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let _permit = app.permit()?;
    let body = app.read_as(&EMBEDDINGS, &headers, body).await?;
    let request: EmbeddingFields = fields(&body)?;
    let as_base64 = match request.encoding_format.as_deref() {
        None | Some("float") => false,
        Some("base64") => true,
        Some(other) => {
            return Err(Failure::field("encoding_format", shown(&json!(other)), "`float` or `base64`"));
        }
    };
    let loaded = app.models.get(request.model.as_deref()).await?;
    let (embeddings, tokens) = computed(&app, &loaded, request).await?;
    let entry = |(index, numbers): (usize, &Vec<f32>)| {
        let embedding = if as_base64 { json!(STANDARD.encode(bytes(numbers))) } else { json!(numbers) };
        json!({ "object": "embedding", "index": index, "embedding": embedding })
    };
    let data: Vec<Value> = embeddings.iter().enumerate().map(entry).collect();
    let usage = json!({ "prompt_tokens": tokens, "total_tokens": tokens });
    Ok(Json(json!({ "object": "list", "data": data, "model": loaded.name, "usage": usage })))
}

/// Computes the embeddings of a request. Returns them with the number of tokens of all texts.
pub async fn computed(
    app: &App,
    loaded: &Arc<Loaded>,
    request: EmbeddingFields,
) -> Result<(Vec<Vec<f32>>, usize), Failure> {
    if loaded.model.reranks() {
        return Err(loaded.kind("scores pairs of texts", "compute embeddings"));
    }
    if !loaded.embeds() {
        return Err(loaded.kind("continues text", "compute embeddings"));
    }
    let (of_model, dimensions) = (loaded.clone(), request.dimensions);
    let (mut embeddings, tokens) = app
        .embedding(move || {
            let texts = texts(&of_model, &request)?;
            let tokens: usize = texts.iter().map(Vec::len).sum();
            Ok((of_model.model.embed_tokens(texts)?.embeddings, tokens))
        })
        .await?;
    let width = embeddings.first().map_or(0, Vec::len);
    if let Some(dimensions) = dimensions {
        let Some(kept) = usize::try_from(dimensions).ok().filter(|kept| (1..=width).contains(kept)) else {
            let expected = format!("1 to {width}, the model's own");
            return Err(Failure::field("dimensions", dimensions.to_string(), expected));
        };
        embeddings.iter_mut().filter(|_| kept < width).for_each(|numbers| shorten(numbers, kept));
    }
    Ok((embeddings, tokens))
}

impl EmbeddingFields {
    /// The fields of another interface's request.
    pub fn of(input: Value, dimensions: Option<u64>, prompt_name: Option<String>) -> Self {
        Self { model: None, input, encoding_format: None, dimensions, prompt_name }
    }
}

/// The little-endian bytes of numbers.
pub fn bytes(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|x| x.to_le_bytes()).collect()
}

/// To the first numbers, with the length 1: models that are trained for it (Kusupati et al., "Matryoshka
/// Representation Learning", 2022) keep most of their meaning there.
fn shorten(numbers: &mut Vec<f32>, kept: usize) {
    numbers.truncate(kept);
    let length = numbers.iter().map(|x| x * x).sum::<f32>().sqrt().max(1e-12);
    numbers.iter_mut().for_each(|x| *x /= length);
}

/// Reads the input of a request and returns the token ids. The input is a text, a list of texts, a
/// list of token ids, or a list of lists of token ids.
fn texts(loaded: &Loaded, request: &EmbeddingFields) -> Result<Vec<Vec<u32>>, Failure> {
    let given = &request.input;
    let expected = "a text, a list of texts, or token ids";
    let refuse = || Failure::field("input", shown(given), expected);
    let list: Vec<&Value> = match given {
        Value::Array(list) if list.first().is_some_and(|first| !first.is_number()) => list.iter().collect(),
        one => vec![one],
    };
    if list.len() > TEXTS {
        return Err(Failure::field("input", format!("a list of {}", list.len()), format!("at most {TEXTS}")));
    }
    let tokens = |one: &Value| match one {
        Value::String(text) => {
            let tokens = loaded.model.embedding_prompts(&[text], request.prompt_name.as_deref())?;
            tokens.into_iter().next().ok_or_else(refuse)
        }
        one => token_ids(one, loaded).ok_or_else(refuse),
    };
    list.into_iter().map(tokens).collect()
}
