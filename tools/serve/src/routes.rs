//! Maps the paths of the server to functions that answer requests.

use std::sync::Arc;
use std::time::Instant;

use axum::extract::{MatchedPath, Path, Request, State};
use axum::http::{HeaderValue, Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{get, post};
use axum::{Json, Router};
use errors::{escaped, shortened};
use serde_json::{Value, json};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::access::check_origin;
use crate::app::App;
use crate::body::schema;
use crate::failure::Failure;
use crate::openapi::{Endpoint, document};
use crate::sampling::{self, SamplingFields};
use crate::{chat, completions, embeddings, messages, page, rerank, responses, tokens};

/// Creates the router for all paths of the server.
pub fn router(app: &Arc<App>) -> Router {
    let mut closed = Router::new();
    for Endpoint { path, route, .. } in endpoints() {
        closed = closed.route(path, route);
    }
    let router = page::router()
        .route("/health", get(health))
        .route("/openapi.json", get(|| async { document(endpoints()) }))
        .merge(closed.route_layer(from_fn_with_state(app.clone(), admit)))
        .fallback(nothing)
        .method_not_allowed_fallback(no_method)
        .layer(from_fn_with_state(app.clone(), watch))
        .with_state(app.clone());
    match app.options.allowed_origins.as_slice() {
        [] => router,
        origins => router.layer(cors(origins)),
    }
}

/// Lists all paths that require an API key. The router and the OpenAPI document both use the list
/// of paths that require an API key.
fn endpoints() -> Vec<Endpoint> {
    let of = |path, about, route, body| Endpoint { path, about, route, body };
    let sampled = |one| vec![one, schema::<SamplingFields>(), sampling::number_schema()];
    let chats = || sampled(schema::<chat::ChatFields>());
    let messages = || sampled(schema::<messages::MessageFields>());
    let reranks = || vec![schema::<rerank::RerankFields>()];
    vec![
        of("/v1/models", "List the models", get(models), vec![]),
        of("/v1/models/{*name}", "Describe a model", get(model), vec![]),
        of("/v1/chat/completions", "Answer a conversation", post(chat::chat), chats()),
        of(
            "/v1/completions",
            "Continue texts",
            post(completions::complete),
            sampled(schema::<completions::CompletionFields>()),
        ),
        of(
            "/v1/embeddings",
            "Compute embeddings of texts",
            post(embeddings::embed),
            vec![schema::<embeddings::EmbeddingFields>()],
        ),
        of("/v1/rerank", "Order documents by their scores for a query", post(rerank::rerank), reranks()),
        of("/v2/rerank", "The same, in Cohere's form", post(rerank::rerank), reranks()),
        of("/rerank", "The same, for older clients", post(rerank::rerank), reranks()),
        of(
            "/v1/responses",
            "Answer a conversation, in OpenAI's newer form",
            post(responses::respond),
            sampled(schema::<responses::ResponseFields>()),
        ),
        of("/v1/messages", "Answer a conversation, in Anthropic's form", post(messages::answer), messages()),
        of(
            "/v1/messages/count_tokens",
            "Count the tokens of a conversation",
            post(messages::count),
            messages(),
        ),
        of(
            "/tokenize",
            "Print the tokens of a text",
            post(tokens::tokenize),
            vec![schema::<tokens::TokenizeFields>()],
        ),
        of(
            "/detokenize",
            "Print the text of tokens",
            post(tokens::detokenize),
            vec![schema::<tokens::DetokenizeFields>()],
        ),
        of("/apply-template", "Print the prompt of a conversation", post(chat::apply_template), chats()),
        of("/metrics", "Report counts and times, for Prometheus", get(metrics), vec![]),
    ]
}

/// Creates the CORS headers, which allow web pages of the given origins to read answers.
fn cors(origins: &[String]) -> CorsLayer {
    let origin = if origins.iter().any(|origin| origin == "*") {
        AllowOrigin::any()
    } else {
        AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok()))
    };
    CorsLayer::new().allow_origin(origin).allow_methods([Method::GET, Method::POST]).allow_headers(Any)
}

/// Counts and logs a request, and rejects requests from web pages whose origin is not allowed.
async fn watch(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = path.unwrap_or_else(|| "other".to_owned());
    let allowed = check_origin(request.headers(), app.is_local, &app.options.allowed_origins);
    let response = match allowed {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    };
    app.metrics.request(&path, response.status());
    tracing::info!("{method} {path} {} {} ms", response.status().as_u16(), start.elapsed().as_millis());
    response
}

/// Rejects requests without a valid API key.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.options.keys.as_ref().map_or(Ok(()), |keys| keys.admit(request.headers())) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

async fn nothing(uri: Uri) -> Failure {
    let path = shortened(escaped(uri.path()), 200);
    Failure::Path { path }
}

async fn no_method(method: Method) -> Failure {
    Failure::Method { method: method.to_string() }
}

async fn health() -> Json<Value> {
    Json(json!({ "status": "ok" }))
}

async fn metrics(State(app): State<Arc<App>>) -> Response {
    let kind = [(header::CONTENT_TYPE, "text/plain; version=0.0.4; charset=utf-8")];
    (kind, app.metrics.text(&app.models)).into_response()
}

async fn models(State(app): State<Arc<App>>) -> Json<Value> {
    let data: Vec<Value> = app.models.names().map(|name| described(&app, name)).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, Failure> {
    match app.models.names().find(|known| *known == name) {
        Some(name) => Ok(Json(described(&app, name))),
        None => {
            let known = app.models.names().map(str::to_owned).collect();
            Err(Failure::Model { name: shortened(escaped(&name), 200), known })
        }
    }
}

/// Formats a model in the format of OpenAI's API. If the model is loaded, the result contains the
/// sizes of the model's context, vocabulary and batch.
fn described(app: &App, name: &str) -> Value {
    let mut model =
        json!({ "id": name, "object": "model", "created": app.models.since, "owned_by": "tracewright" });
    if let Some(loaded) = app.models.loaded().find(|loaded| loaded.name == name) {
        let info = loaded.model.info();
        model["meta"] = json!({
            "context": info.context,
            "vocabulary": info.vocabulary,
            "slots": info.slots,
            "embeds": loaded.embeds(),
        });
    }
    model
}
