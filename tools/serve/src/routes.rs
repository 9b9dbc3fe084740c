//! Maps the paths of the server to functions that answer requests.

use std::sync::{Arc, LazyLock};
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

use crate::ServeOptions;
use crate::access::check_origin;
use crate::app::App;
use crate::failure::Failure;
use crate::interface::Interface;
use crate::models::ListedModel;
use crate::openapi::{Endpoint, document};
use crate::permit::{self, request_id};
use crate::{
    adapters, audio, chat, cohere, completions, embeddings, infill, loading, messages, ollama, page, props,
    rerank, responses, tokens,
};

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
    let of = |path, about, route, body| Endpoint { path, about, route, body, content: "application/json" };
    let form = |path, about, route| {
        let body = vec![audio::AUDIO.schema()];
        Endpoint { path, about, route, body, content: "multipart/form-data" }
    };
    let fields = |interface: &Interface| vec![interface.schema()];
    let reranks = || fields(&rerank::RERANK);
    vec![
        of("/v1/models", "List the models", get(models), vec![]),
        of("/v1/models/{*name}", "Describe a model", get(model), vec![]),
        of("/v1/chat/completions", "Answer a conversation", post(chat::chat), fields(&chat::CHAT)),
        of(
            "/v1/completions",
            "Continue texts",
            post(completions::complete),
            fields(&completions::COMPLETIONS),
        ),
        of(
            "/v1/embeddings",
            "Compute embeddings of texts",
            post(embeddings::embed),
            fields(&embeddings::EMBEDDINGS),
        ),
        of(
            "/v2/embed",
            "Compute embeddings of texts, in Cohere's form",
            post(cohere::embed),
            fields(&cohere::EMBED),
        ),
        of("/v1/rerank", "Order documents by their scores for a query", post(rerank::rerank), reranks()),
        of("/v2/rerank", "The same, in Cohere's form", post(rerank::rerank), reranks()),
        of("/rerank", "The same, for older clients", post(rerank::rerank), reranks()),
        form("/v1/audio/transcriptions", "Transcribe speech", post(audio::transcribe)),
        form("/v1/audio/translations", "Transcribe speech in English", post(audio::translate)),
        of(
            "/v1/responses",
            "Answer a conversation, in OpenAI's newer form",
            post(responses::respond),
            fields(&responses::RESPONSES),
        ),
        of(
            "/v1/responses/{id}",
            "Return or delete a stored response",
            get(responses::get).delete(responses::delete),
            vec![],
        ),
        of(
            "/v1/messages",
            "Answer a conversation, in Anthropic's form",
            post(messages::answer),
            fields(&messages::MESSAGES),
        ),
        of(
            "/v1/messages/count_tokens",
            "Count the tokens of a conversation",
            post(messages::count),
            fields(&messages::MESSAGES),
        ),
        of("/tokenize", "Print the tokens of a text", post(tokens::tokenize), fields(&tokens::TOKENIZE)),
        of("/tokenizer_info", "Report the special tokens, as vLLM does", get(tokens::info), vec![]),
        of("/detokenize", "Print the text of tokens", post(tokens::detokenize), fields(&tokens::DETOKENIZE)),
        of(
            "/apply-template",
            "Print the prompt of a conversation",
            post(chat::apply_template),
            fields(&chat::CHAT),
        ),
        of("/infill", "Fill in text, as llama.cpp does", post(infill::infill), fields(&infill::INFILL)),
        of("/models/load", "Load a model", post(loading::load), fields(&loading::LOADING)),
        of("/models/unload", "Unload a model", post(loading::unload), fields(&loading::LOADING)),
        of(
            "/v1/load_lora_adapter",
            "Add an adapter to a model, as vLLM does",
            post(adapters::load),
            fields(&adapters::LOAD_ADAPTER),
        ),
        of(
            "/v1/unload_lora_adapter",
            "Remove an adapter, as vLLM does",
            post(adapters::unload),
            fields(&adapters::UNLOAD_ADAPTER),
        ),
        of("/api/version", "Report the version, in Ollama's form", get(props::version), vec![]),
        of("/api/tags", "List the models, in Ollama's form", get(ollama::tags), vec![]),
        of("/api/ps", "List the loaded models, in Ollama's form", get(ollama::running), vec![]),
        of("/api/show", "Describe a model, in Ollama's form", post(ollama::show), fields(&ollama::SHOW)),
        of("/api/chat", "Answer a conversation, in Ollama's form", post(ollama::chat), fields(&ollama::CHAT)),
        of(
            "/api/generate",
            "Answer a question or continue a text, in Ollama's form",
            post(ollama::generate),
            fields(&ollama::GENERATE),
        ),
        of(
            "/api/embed",
            "Compute embeddings of texts, in Ollama's form",
            post(ollama::embed),
            fields(&ollama::EMBED),
        ),
        of(
            "/api/embeddings",
            "Compute the embedding of one text, for older clients of Ollama",
            post(ollama::embeddings),
            fields(&ollama::EMBEDDINGS),
        ),
        of("/props", "Report the settings of a model, as llama.cpp does", get(props::props), vec![]),
        of("/slots", "List the slots of a model, as llama.cpp does", get(props::slots), vec![]),
        of("/version", "Report the version, as vLLM does", get(props::version), vec![]),
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
    CorsLayer::new()
        .allow_origin(origin)
        .allow_methods([Method::GET, Method::POST, Method::DELETE])
        .allow_headers(Any)
}

/// Counts and logs a request, and rejects requests from web pages whose origin is not allowed.
async fn watch(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    let start = Instant::now();
    let method = request.method().clone();
    let path = request.extensions().get::<MatchedPath>().map(|path| path.as_str().to_owned());
    let path = path.unwrap_or_else(|| "other".to_owned());
    let id = request_id(request.headers());
    let is_ollama = request.uri().path().starts_with("/api/");
    let is_anthropic = request.uri().path().starts_with("/v1/messages")
        || request.headers().contains_key("anthropic-version");
    let ServeOptions { allowed_hosts, allowed_origins, .. } = &app.options;
    let allowed = check_origin(request.headers(), app.is_local, allowed_hosts, allowed_origins);
    let mut response = match allowed {
        Ok(()) => permit::within(id.clone(), next.run(request)).await,
        Err(failure) => failure.into_response(),
    };
    let failure = response.extensions_mut().remove::<Failure>();
    match &failure {
        Some(failure) if is_anthropic => response = failure.respond(failure.anthropic()),
        Some(failure) if is_ollama => response = failure.respond(failure.ollama()),
        _ => {}
    }
    if let Ok(id) = HeaderValue::from_str(&id) {
        // OpenAI's and Anthropic's clients report these headers.
        response.headers_mut().insert("request-id", id.clone());
        response.headers_mut().insert("x-request-id", id);
    }
    let status = response.status();
    app.metrics.request(&path, status);
    let (status, time) = (status.as_u16(), start.elapsed().as_millis());
    match failure {
        Some(failure) if status >= 500 => {
            tracing::warn!("{id} {method} {path} {status} {time} ms: {failure}")
        }
        Some(failure) => tracing::info!("{id} {method} {path} {status} {time} ms: {failure}"),
        None => tracing::info!("{id} {method} {path} {status} {time} ms"),
    }
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
    let wanted = uri.path().trim_start_matches("/v1").trim_end_matches('/');
    static KNOWN: LazyLock<Vec<&str>> = LazyLock::new(|| endpoints().iter().map(|one| one.path).collect());
    let is_near = |known: &&&str| !wanted.is_empty() && known.strip_prefix("/v1") == Some(wanted);
    let near = KNOWN.iter().find(is_near).copied();
    Failure::Path { path: shortened(escaped(uri.path()), 200), near }
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
    let data: Vec<Value> = app.models.list().map(|listed| described(&app, &listed)).collect();
    Json(json!({ "object": "list", "data": data }))
}

async fn model(State(app): State<Arc<App>>, Path(name): Path<String>) -> Result<Json<Value>, Failure> {
    Ok(Json(described(&app, &app.models.find(Some(&name))?)))
}

/// Formats a model in the format of OpenAI's API. If the model is loaded, the result contains the
/// sizes of the model's context, vocabulary and batch.
fn described(app: &App, listed: &ListedModel) -> Value {
    let ListedModel { name, loaded, adapter, .. } = listed;
    let mut model =
        json!({ "id": name, "object": "model", "created": app.models.since, "owned_by": "tracewright" });
    if let Some((of, path)) = adapter {
        // As vLLM writes it.
        model["root"] = json!(path);
        model["parent"] = json!(of);
    }
    // As llama.cpp's server writes it.
    model["status"] = json!({ "value": if loaded.is_some() { "loaded" } else { "unloaded" } });
    if let Some(loaded) = loaded {
        let info = loaded.model.info();
        model["meta"] = json!({
            "context": info.context,
            "vocabulary": info.vocabulary,
            "slots": info.slots,
            "embeds": loaded.embeds(),
        });
        if let Some(build) = &info.build {
            let formats = build.formats();
            model["meta"]["size"] = json!(formats.iter().map(|(_, bytes)| bytes).sum::<usize>());
            model["meta"]["formats"] = formats.into_iter().map(|(format, _)| format).collect();
        }
    }
    model
}
