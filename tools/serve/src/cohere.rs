//! Implements `POST /v2/embed`, Cohere's interface for embeddings.

use std::sync::Arc;

use axum::Json;
use axum::body::Body;
use axum::extract::State;
use axum::http::HeaderMap;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use schemars::JsonSchema;
use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::app::App;
use crate::body::{fields, schema, shown};
use crate::embeddings::{EmbeddingFields, bytes, computed};
use crate::failure::Failure;
use crate::ids::id;
use crate::interface::{Interface, OF_COHERE};
use crate::models::Loaded;

pub static EMBED: Interface = Interface::new(|| vec![schema::<EmbedFields>()], &[OF_COHERE]);

/// Kinds of input, and the names that prompts for them have in models of sentence-transformers.
const KINDS: [(&str, &[&str]); 4] = [
    ("search_query", &["query", "Retrieval-query", "search_query"]),
    ("search_document", &["document", "passage", "Retrieval-document", "search_document"]),
    ("classification", &["Classification", "classification"]),
    ("clustering", &["Clustering", "clustering"]),
];

#[derive(Deserialize, JsonSchema)]
pub struct EmbedFields {
    /// The name of the model. The default model is the server's first model.
    model: Option<String>,
    /// The texts to embed.
    texts: Vec<String>,
    /// `search_query`, `search_document`, `classification` or `clustering`, which selects the model's prompt.
    input_type: Option<String>,
    /// The number of dimensions of the embeddings.
    output_dimension: Option<u64>,
    /// `float` or `base64`, or both.
    embedding_types: Option<Vec<String>>,
}

/// Answers `POST /v2/embed`.
pub async fn embed(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let _permit = app.permit()?;
    let body = app.read_as(&EMBED, &headers, body).await?;
    let request: EmbedFields = fields(&body)?;
    let types = request.embedding_types.unwrap_or_else(|| vec!["float".to_owned()]);
    if let Some((i, other)) = types.iter().enumerate().find(|(_, one)| !matches!(&***one, "float" | "base64"))
    {
        let param = format!("embedding_types[{i}]");
        return Err(Failure::field(param, shown(&json!(other)), "`float` or `base64`"));
    }
    let loaded = app.models.get(request.model.as_deref()).await?;
    let prompt = request.input_type.map(|kind| prompt_name(&loaded, &kind)).transpose()?.flatten();
    let asked = EmbeddingFields::of(json!(request.texts), request.output_dimension, prompt);
    let (embeddings, tokens) = computed(&app, &loaded, asked).await?;
    let of = |kind: &String| {
        let one = |numbers: &Vec<f32>| {
            if kind == "base64" { json!(STANDARD.encode(bytes(numbers))) } else { json!(numbers) }
        };
        (kind.clone(), embeddings.iter().map(one).collect())
    };
    let embeddings: Map<String, Value> = types.iter().map(of).collect();
    Ok(Json(json!({
        "id": id("embed-"),
        "response_type": "embeddings_by_type",
        "embeddings": embeddings,
        "texts": request.texts,
        "meta": { "api_version": { "version": "2" }, "billed_units": { "input_tokens": tokens } },
    })))
}

/// Returns the name of the model's prompt for a kind of input, or `None` if the model has no prompt for it.
fn prompt_name(loaded: &Loaded, kind: &str) -> Result<Option<String>, Failure> {
    let Some((_, names)) = KINDS.iter().find(|(known, _)| *known == kind) else {
        let expected = KINDS.map(|(known, _)| format!("`{known}`")).join(", ");
        return Err(Failure::field("input_type", shown(&json!(kind)), format!("one of {expected}")));
    };
    let known: Vec<&str> = loaded.model.prompt_names().collect();
    Ok(names.iter().find(|name| known.contains(name)).map(|name| (*name).to_owned()))
}
