//! The paths of the server, and what all requests share.

use std::sync::Arc;
use std::time::Instant;

use axum::body::Body;
use axum::extract::{MatchedPath, Request, State};
use axum::http::{HeaderMap, HeaderValue, Method, Uri, header};
use axum::middleware::{Next, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{MethodRouter, get, post};
use axum::{Json, Router};
use schemars::{Schema, schema_for};
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tower_http::cors::{AllowOrigin, Any, CorsLayer};

use crate::access::check_origin;
use crate::failure::Failure;
use crate::metrics::Metrics;
use crate::models::Models;
use crate::sampling::SamplingFields;
use crate::{ServeOptions, body, chat, completions, embeddings, messages, openapi, page, responses, tokens};

/// How many requests are rendered and tokenized at the same time.
const PREPARED: usize = 8;

/// What all requests share.
pub struct App {
    pub models: Models,
    pub options: ServeOptions,
    pub metrics: Arc<Metrics>,
    permits: Arc<Semaphore>,
    prepared: Semaphore,
    /// Whether only this machine reaches the server.
    is_local: bool,
}

impl App {
    pub fn new(models: Models, options: ServeOptions, is_local: bool) -> Self {
        let permits = Arc::new(Semaphore::new(options.max_requests));
        let prepared = Semaphore::new(PREPARED);
        Self { models, options, metrics: Arc::default(), permits, prepared, is_local }
    }

    /// A place among the requests that may be answered at the same time.
    pub fn permit(&self) -> Result<OwnedSemaphorePermit, Failure> {
        let most = self.options.max_requests;
        self.permits.clone().try_acquire_owned().map_err(|_| Failure::Busy { most })
    }

    /// The body of a request as a JSON object.
    pub async fn read(&self, headers: &HeaderMap, body: Body) -> Result<Value, Failure> {
        body::read(headers, body, &self.options).await
    }

    /// Runs work that takes long, away from the threads that send and receive.
    pub async fn blocking<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> Result<T, Failure> + Send + 'static,
    ) -> Result<T, Failure> {
        let server = |why: String| Failure::Server { why };
        let _place = self.prepared.acquire().await.map_err(|error| server(error.to_string()))?;
        tokio::task::spawn_blocking(work).await.map_err(|error| server(error.to_string()))?
    }

    /// The server's paths.
    pub fn router(self: &Arc<Self>) -> Router {
        let mut closed = Router::new();
        for Endpoint { path, route, .. } in endpoints() {
            closed = closed.route(path, route);
        }
        let router = page::router()
            .route("/health", get(health))
            .route("/openapi.json", get(openapi::document))
            .merge(closed.route_layer(from_fn_with_state(self.clone(), admit)))
            .fallback(nothing)
            .method_not_allowed_fallback(no_method)
            .layer(from_fn_with_state(self.clone(), watch))
            .with_state(self.clone());
        match self.options.allowed_origins.as_slice() {
            [] => router,
            origins => router.layer(cors(origins)),
        }
    }
}

/// A path that needs a key, if there are keys.
pub struct Endpoint {
    pub path: &'static str,
    pub about: &'static str,
    pub route: MethodRouter<Arc<App>>,
    /// The JSON Schemas of the body; none for `GET`.
    pub body: Vec<Schema>,
}

/// All paths that need a key: the router and the OpenAPI document follow from this list.
pub fn endpoints() -> Vec<Endpoint> {
    let of = |path, about, route, body| Endpoint { path, about, route, body };
    let sampled = |schema| vec![schema, schema_for!(SamplingFields)];
    let chats = || sampled(schema_for!(chat::ChatFields));
    let messages = || sampled(schema_for!(messages::MessageFields));
    vec![
        of("/v1/models", "List the models", get(models), vec![]),
        of("/v1/models/{*name}", "Describe a model", get(model), vec![]),
        of("/v1/chat/completions", "Answer a conversation", post(chat::chat), chats()),
        of(
            "/v1/completions",
            "Continue texts",
            post(completions::complete),
            sampled(schema_for!(completions::CompletionFields)),
        ),
        of(
            "/v1/embeddings",
            "Compute embeddings of texts",
            post(embeddings::embed),
            vec![schema_for!(embeddings::EmbeddingFields)],
        ),
        of(
            "/v1/responses",
            "Answer a conversation, in OpenAI's newer form",
            post(responses::respond),
            sampled(schema_for!(responses::ResponseFields)),
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
            vec![schema_for!(tokens::TokenizeFields)],
        ),
        of(
            "/detokenize",
            "Print the text of tokens",
            post(tokens::detokenize),
            vec![schema_for!(tokens::DetokenizeFields)],
        ),
        of("/apply-template", "Print the prompt of a conversation", post(chat::apply_template), chats()),
        of("/metrics", "Report counts and times, for Prometheus", get(metrics), vec![]),
    ]
}

/// The headers with which web pages of these origins may read answers.
fn cors(origins: &[String]) -> CorsLayer {
    let origin = match origins.iter().any(|origin| origin == "*") {
        true => AllowOrigin::any(),
        false => AllowOrigin::list(origins.iter().filter_map(|origin| HeaderValue::from_str(origin).ok())),
    };
    CorsLayer::new().allow_origin(origin).allow_methods([Method::GET, Method::POST]).allow_headers(Any)
}

/// Counts and logs a request, and refuses those of other web pages.
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

/// Refuses requests without a key.
async fn admit(State(app): State<Arc<App>>, request: Request, next: Next) -> Response {
    match app.options.keys.as_ref().map_or(Ok(()), |keys| keys.admit(request.headers())) {
        Ok(()) => next.run(request).await,
        Err(failure) => failure.into_response(),
    }
}

async fn nothing(uri: Uri) -> Failure {
    let path = errors::shortened(errors::escaped(uri.path()), 200);
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

async fn model(
    State(app): State<Arc<App>>,
    axum::extract::Path(name): axum::extract::Path<String>,
) -> Result<Json<Value>, Failure> {
    match app.models.names().find(|known| *known == name) {
        Some(name) => Ok(Json(described(&app, name))),
        None => {
            let known = app.models.names().map(str::to_owned).collect();
            Err(Failure::Model { name: errors::shortened(errors::escaped(&name), 200), known })
        }
    }
}

/// A model in OpenAI's form, with its sizes if it is loaded.
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
