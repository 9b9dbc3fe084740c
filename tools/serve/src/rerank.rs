//! Implements `POST /v1/rerank`, in the form that Cohere, Jina and vLLM share.

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
use crate::failure::Failure;
use crate::ids::id;
use crate::interface::{Interface, OF_RERANK};

/// The largest number of documents per request.
const DOCUMENTS: usize = 2048;

pub static RERANK: Interface = Interface::new(|| vec![schema::<RerankFields>()], &[OF_RERANK]);

#[derive(Deserialize, JsonSchema)]
pub struct RerankFields {
    /// The name of the model that scores the documents. The default model is the server's first model.
    model: Option<String>,
    /// The text for which the documents are scored.
    query: String,
    /// The documents: strings, or objects with a string `text`.
    documents: Vec<Value>,
    /// The number of documents in the answer, the best first. By default, the answer has all.
    top_n: Option<u64>,
    /// Whether the answer repeats the texts of the documents.
    return_documents: Option<bool>,
}

/// Answers `POST /v1/rerank`.
pub async fn rerank(
    State(app): State<Arc<App>>,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<Value>, Failure> {
    let _permit = app.permit()?;
    let body = app.read_as(&RERANK, &headers, body).await?;
    let request: RerankFields = fields(&body)?;
    let found = request.documents.len();
    if !(1..=DOCUMENTS).contains(&found) {
        let expected = format!("1 to {DOCUMENTS} documents");
        return Err(Failure::field("documents", format!("a list of {found}"), expected));
    }
    let text = |document: &Value| {
        let text = document.as_str().or_else(|| document.get("text")?.as_str());
        let refuse =
            || Failure::field("documents", shown(document), "strings, or objects with a string `text`");
        text.map(str::to_owned).ok_or_else(refuse)
    };
    let documents: Vec<String> = request.documents.iter().map(text).collect::<Result<_, _>>()?;
    let loaded = app.models.get(request.model.as_deref()).await?;
    if !loaded.model.reranks() {
        let does = if loaded.embeds() { "computes embeddings" } else { "continues text" };
        return Err(loaded.kind(does, "score pairs of texts"));
    }
    let (model, query) = (loaded.clone(), request.query);
    let (reranked, documents) = app
        .embedding(move || {
            let texts: Vec<&str> = documents.iter().map(String::as_str).collect();
            Ok((model.model.rank(&query, &texts)?, documents))
        })
        .await?;
    let shows = request.return_documents.unwrap_or(false);
    let top = request.top_n.map_or(usize::MAX, |top| usize::try_from(top).unwrap_or(usize::MAX));
    let result = |one: &tracewright::model::Ranked| {
        let mut result = json!({ "index": one.index, "relevance_score": one.score });
        if shows {
            result["document"] = json!({ "text": documents[one.index] });
        }
        result
    };
    let results: Vec<Value> = reranked.ranked.iter().take(top).map(result).collect();
    let tokens = reranked.tokens;
    Ok(Json(json!({
        "id": id("rerank-"),
        "model": loaded.name,
        "results": results,
        "usage": { "prompt_tokens": tokens, "total_tokens": tokens },
        "meta": { "api_version": { "version": "2" }, "billed_units": { "search_units": 1 } },
    })))
}
