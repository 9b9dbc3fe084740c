//! Implements `POST /api/embed`, and `POST /api/embeddings` of earlier clients.

use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use super::{load, options, plain};
use crate::app::App;
use crate::body::{fields, schema};
use crate::embeddings::{EmbeddingFields, computed};
use crate::failure::Failure;
use crate::interface::{Interface, OF_EMBED};
use crate::keep_alive::KeepAlive;
use crate::models::Loaded;

pub static EMBED: Interface = Interface::new(|| vec![schema::<EmbedFields>()], &[OF_EMBED]);
pub static EMBEDDINGS: Interface = Interface::new(|| vec![schema::<OneFields>()], &[]);

#[derive(Deserialize, JsonSchema)]
pub struct EmbedFields {
    /// The name of the model.
    model: String,
    /// The text to embed, or a list of texts.
    input: Value,
    /// The number of dimensions of the embeddings.
    dimensions: Option<u64>,
    /// How long the model stays loaded after this request.
    keep_alive: Option<Value>,
    options: Option<Map<String, Value>>,
}

#[derive(Deserialize, JsonSchema)]
pub struct OneFields {
    /// The name of the model.
    model: String,
    /// The text to embed.
    prompt: String,
    /// How long the model stays loaded after this request.
    keep_alive: Option<Value>,
    options: Option<Map<String, Value>>,
}

/// Answers `POST /api/embed`.
pub async fn embed(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let start = Instant::now();
    let _permit = app.permit()?;
    let body = app.read_as(&EMBED, &headers, body).await?;
    let EmbedFields { model, input, dimensions, keep_alive, options } = fields(&body)?;
    let loaded = loaded(&app, &model, keep_alive.as_ref(), options.as_ref()).await?;
    let loading = start.elapsed();
    let (embeddings, tokens) = computed(&app, &loaded, EmbeddingFields::of(input, dimensions, None)).await?;
    Ok(Json(json!({
        "model": model,
        "embeddings": embeddings,
        "total_duration": start.elapsed().as_nanos() as u64,
        "load_duration": loading.as_nanos() as u64,
        "prompt_eval_count": tokens,
    })))
}

/// Answers `POST /api/embeddings`.
pub async fn embeddings(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let _permit = app.permit()?;
    let body = app.read_as(&EMBEDDINGS, &headers, body).await?;
    let OneFields { model, prompt, keep_alive, options } = fields(&body)?;
    let loaded = loaded(&app, &model, keep_alive.as_ref(), options.as_ref()).await?;
    let (embeddings, _) = computed(&app, &loaded, EmbeddingFields::of(json!(prompt), None, None)).await?;
    Ok(Json(json!({ "embedding": embeddings.first() })))
}

/// Loads the model of a request, and checks the options.
async fn loaded(
    app: &App,
    model: &str,
    keep_alive: Option<&Value>,
    options: Option<&Map<String, Value>>,
) -> Result<Arc<Loaded>, Failure> {
    let loaded = load(app, plain(model), KeepAlive::of_field(keep_alive)?).await?;
    options::fields(options, loaded.model.info().context)?;
    Ok(loaded)
}
