//! Implements `POST /models/load` and `POST /models/unload`, with the fields of llama.cpp's server.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::app::App;
use crate::body::{fields, schema};
use crate::failure::Failure;
use crate::interface::Interface;

pub static LOADING: Interface = Interface::new(|| vec![schema::<LoadingFields>()], &[]);

#[derive(Deserialize, JsonSchema)]
pub struct LoadingFields {
    /// The name of the model.
    model: String,
}

async fn name(app: &App, headers: &HeaderMap, body: Body) -> Result<String, Failure> {
    let body = app.read_as(&LOADING, headers, body).await?;
    let LoadingFields { model } = fields(&body)?;
    Ok(model)
}

/// Answers `POST /models/load` after the model is loaded.
pub async fn load(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let name = name(&app, &headers, body).await?;
    app.models.get(Some(&name)).await?;
    Ok(Json(json!({ "success": true })))
}

/// Answers `POST /models/unload`. Running answers of the model end as usual.
pub async fn unload(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let name = name(&app, &headers, body).await?;
    app.models.unload(Some(&name)).await?;
    Ok(Json(json!({ "success": true })))
}
