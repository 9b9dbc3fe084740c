//! Implements `POST /v1/load_lora_adapter` and `POST /v1/unload_lora_adapter`, with the fields of vLLM.

use std::path::PathBuf;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use schemars::JsonSchema;
use serde::Deserialize;
use tracewright::model::NamedAdapter;

use crate::app::App;
use crate::body::{fields, schema};
use crate::failure::Failure;
use crate::interface::{Interface, OF_ADAPTERS};

pub static LOAD_ADAPTER: Interface = Interface::new(|| vec![schema::<LoadAdapterFields>()], &[OF_ADAPTERS]);
pub static UNLOAD_ADAPTER: Interface =
    Interface::new(|| vec![schema::<UnloadAdapterFields>()], &[OF_ADAPTERS]);

#[derive(Deserialize, JsonSchema)]
struct LoadAdapterFields {
    /// The name by which requests select the adapter.
    lora_name: String,
    /// The path of the adapter on the machine of the server: a folder that PEFT wrote, or a GGUF file.
    lora_path: PathBuf,
    /// The name of the model that gets the adapter. The default is the first model.
    base_model_name: Option<String>,
}

#[derive(Deserialize, JsonSchema)]
struct UnloadAdapterFields {
    /// The name of the adapter.
    lora_name: String,
}

/// Answers `POST /v1/load_lora_adapter` after the adapter is loaded.
pub async fn load(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<String, Failure> {
    let body = app.read_as(&LOAD_ADAPTER, &headers, body).await?;
    let LoadAdapterFields { lora_name: name, lora_path: path, base_model_name } = fields(&body)?;
    if name.is_empty() {
        return Err(Failure::field("lora_name", "``", "a name"));
    }
    let answer = format!("Success: LoRA adapter '{name}' added successfully.");
    app.models.load_adapter(base_model_name, NamedAdapter { name, path }).await?;
    Ok(answer)
}

/// Answers `POST /v1/unload_lora_adapter`. Running answers keep the adapter until they end.
pub async fn unload(State(app): State<Arc<App>>, headers: HeaderMap, body: Body) -> Result<String, Failure> {
    let body = app.read_as(&UNLOAD_ADAPTER, &headers, body).await?;
    let UnloadAdapterFields { lora_name } = fields(&body)?;
    app.models.unload_adapter(&lora_name).await?;
    Ok(format!("Success: LoRA adapter '{lora_name}' removed successfully."))
}
