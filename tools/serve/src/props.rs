//! Implements `GET /props` and `GET /slots` of llama.cpp's server, and `GET /version` of vLLM.

use std::sync::Arc;

use axum::Json;
use axum::extract::{Query, State};
use generate::Sampling;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::failure::Failure;
use crate::models::ListedModel;

/// The question after the path.
#[derive(Deserialize)]
pub struct Asked {
    /// The name of the model. The default model is the server's first model.
    pub model: Option<String>,
}

/// Answers `GET /version`.
pub async fn version() -> Json<Value> {
    Json(json!({ "version": env!("CARGO_PKG_VERSION") }))
}

/// Answers `GET /props` with the settings of a model. A model that is not loaded stays so.
pub async fn props(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Failure> {
    let ListedModel { name, loaded, .. } = app.models.find(asked.model.as_deref())?;
    let mut props = json!({
        "model_alias": name,
        "build_info": concat!("tracewright ", env!("CARGO_PKG_VERSION")),
        "modalities": { "vision": false, "audio": false },
        "is_sleeping": loaded.is_none(),
    });
    if let Some(loaded) = loaded {
        let (info, options) = (loaded.model.info(), loaded.defaults());
        let number = |setting: &'static generate::Setting| {
            (setting.name.to_owned(), json!(options.sampling.get(setting)))
        };
        let params: Map<String, Value> = Sampling::settings().map(number).collect();
        props["total_slots"] = json!(info.slots);
        props["default_generation_settings"] = json!({ "n_ctx": info.context, "params": params });
    }
    Ok(Json(props))
}

/// Answers `GET /slots` with the slots of a model that is loaded.
pub async fn slots(State(app): State<Arc<App>>, Query(asked): Query<Asked>) -> Result<Json<Value>, Failure> {
    let ListedModel { name, loaded, .. } = app.models.find(asked.model.as_deref())?;
    let Some(loaded) = loaded else { return Ok(Json(json!([]))) };
    let (info, open) = (loaded.model.info(), app.metrics.model(&name).open());
    let slot = |id: usize| json!({ "id": id, "n_ctx": info.context, "is_processing": id < open });
    Ok(Json((0..info.slots).map(slot).collect()))
}
