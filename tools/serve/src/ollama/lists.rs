//! Implements `GET /api/tags` and `/api/ps`, and `POST /api/show`.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use jiff::Timestamp;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use super::plain;
use crate::app::App;
use crate::body::{fields, schema};
use crate::failure::Failure;
use crate::interface::{Interface, OF_SHOW};
use crate::models::{ListedModel, Loaded};

pub static SHOW: Interface = Interface::new(|| vec![schema::<ShowFields>()], &[OF_SHOW]);

#[derive(Deserialize, JsonSchema)]
pub struct ShowFields {
    /// The name of the model.
    model: Option<String>,
    /// The earlier name of `model`.
    name: Option<String>,
}

/// Answers `GET /api/tags` with all models of the server.
pub async fn tags(State(app): State<Arc<App>>) -> Json<Value> {
    let models: Vec<Value> = app.models.list().map(|listed| described(&app, &listed)).collect();
    Json(json!({ "models": models }))
}

/// Answers `GET /api/ps` with the models that are loaded.
pub async fn running(State(app): State<Arc<App>>) -> Json<Value> {
    let model = |listed: ListedModel| {
        let loaded = listed.loaded.as_ref()?;
        let mut model = described(&app, &listed);
        model["context_length"] = json!(loaded.model.info().context);
        let expires = listed.remaining.and_then(|time| Timestamp::now().checked_add(time).ok());
        // As Ollama writes the end of a model that it keeps.
        model["expires_at"] = expires.map_or(json!("2318-03-19T00:00:00Z"), |time| json!(time.to_string()));
        Some(model)
    };
    let models: Vec<Value> = app.models.list().filter_map(model).collect();
    Json(json!({ "models": models }))
}

fn described(app: &App, listed: &ListedModel) -> Value {
    let since = i64::try_from(app.models.since).ok().and_then(|since| Timestamp::from_second(since).ok());
    json!({
        "name": listed.name,
        "model": listed.name,
        "modified_at": since.unwrap_or_default().to_string(),
        "size": 0,
        // Clients show its first digits.
        "digest": blake3::hash(listed.name.as_bytes()).to_hex().as_str(),
        "details": details(),
    })
}

/// The facts about a GGUF file in Ollama's form. Here, a model can have files of any format.
fn details() -> Value {
    json!({
        "parent_model": "",
        "format": "",
        "family": "",
        "families": [],
        "parameter_size": "",
        "quantization_level": "",
    })
}

/// Answers `POST /api/show`. A model that is not loaded stays so.
pub async fn show(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let body = app.read_as(&SHOW, &headers, body).await?;
    let request: ShowFields = fields(&body)?;
    let missing =
        || Failure::Missing { param: "model".to_owned(), expected: "the name of a model".to_owned() };
    // Clients written in Go send both names, one of them empty.
    let mut names = [request.model, request.name].into_iter().flatten();
    let name = names.find(|name| !name.is_empty()).ok_or_else(missing)?;
    let listed = app.models.find(Some(plain(&name)))?;
    let mut info = json!({ "general.architecture": "tracewright" });
    if let Some(loaded) = &listed.loaded {
        info["tracewright.context_length"] = json!(loaded.model.info().context);
        info["tracewright.vocab_size"] = json!(loaded.model.info().vocabulary);
    }
    Ok(Json(json!({
        "details": details(),
        "capabilities": capabilities(listed.loaded.as_deref()),
        "model_info": info,
        "modified_at": Timestamp::now().to_string(),
    })))
}

fn capabilities(loaded: Option<&Loaded>) -> &'static [&'static str] {
    if loaded.is_some_and(Loaded::embeds) { &["embedding"] } else { &["completion", "tools"] }
}
