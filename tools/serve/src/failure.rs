//! [`Failure`] lists the reasons why a request fails, each with an HTTP status, a code and a message.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use generate::GenerateError;
use serde_json::{Value, json};
use tracewright::ModelError;
use tracewright::embed::EmbedError;

/// The reason why a request fails.
#[derive(Clone, Debug, thiserror::Error)]
pub enum Failure {
    #[error("the body of the request is not valid JSON: {why}")]
    Json { why: String },
    /// A field of the body has a wrong type or an invalid value.
    #[error("`{param}` is {found}, expected {expected}")]
    Field { param: String, found: String, expected: String },
    #[error("`{param}` is missing, expected {expected}")]
    Missing { param: String, expected: String },
    #[error("`{param}` is not supported; leave out this parameter")]
    Unsupported { param: String },
    #[error("the body of the request has more than {most} bytes; send a smaller body")]
    TooLarge { most: usize },
    #[error("the body of the request did not arrive within {} s; send the body faster", .limit.as_secs())]
    TooSlow { limit: Duration },
    #[error("the body of the request cannot be read: {why}")]
    Body { why: String },
    #[error("the content type is `{found}`, expected `application/json`")]
    ContentType { found: String },
    #[error("the request contains no API key; send the key as `Authorization: Bearer KEY`")]
    NoKey,
    #[error("the API key of the request is not known")]
    WrongKey,
    #[error("the header `Host` is `{host}`, expected this machine's address or `localhost`")]
    Host { host: String },
    #[error("web pages of `{origin}` may not use this server; allow this origin when you start the server")]
    Origin { origin: String },
    #[error("the server has no endpoint `{path}`")]
    Path { path: String },
    #[error("the endpoint does not support the method `{method}`")]
    Method { method: String },
    #[error("the server has no model `{name}`, expected {}", names(.known))]
    Model { name: String, known: Vec<String> },
    /// The prompt and one new token do not fit into the context.
    #[error(
        "the prompt has {tokens} tokens, but the context of `{model}` has only {context} tokens; shorten the prompt, \
         or serve the model with a longer context"
    )]
    Context { model: String, tokens: usize, context: usize },
    #[error("the model `{model}` {does}, and cannot {asked}")]
    Kind { model: String, does: &'static str, asked: &'static str },
    #[error("the chat template of `{model}` rejects the messages: {why}")]
    Template { model: String, why: String },
    #[error("{most} requests are already waiting; send the request again later")]
    Busy { most: usize },
    #[error("the model `{name}` cannot be loaded: {why}")]
    Load { name: String, why: String },
    /// Any other error of the model, which the request may have caused.
    #[error("{}", causes(.0.as_ref()))]
    Of(Arc<ModelError>),
    #[error("the server failed: {why}")]
    Server { why: String },
}

/// Formats an error and all causes of the error in one line.
pub fn causes(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        text += &format!(": {cause}");
        next = cause.source();
    }
    text
}

fn names(known: &[String]) -> String {
    let known: Vec<String> = known.iter().map(|name| format!("`{name}`")).collect();
    known.join(" or ")
}

impl From<ModelError> for Failure {
    fn from(error: ModelError) -> Self {
        Self::Of(Arc::new(error))
    }
}

impl From<GenerateError> for Failure {
    fn from(error: GenerateError) -> Self {
        ModelError::from(error).into()
    }
}

impl Failure {
    /// Creates the failure for a request field with an invalid value.
    pub fn field(param: impl Into<String>, found: impl Into<String>, expected: impl Into<String>) -> Self {
        Self::Field { param: param.into(), found: found.into(), expected: expected.into() }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoKey | Self::WrongKey => StatusCode::UNAUTHORIZED,
            Self::Host { .. } | Self::Origin { .. } => StatusCode::FORBIDDEN,
            Self::Path { .. } | Self::Model { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::ContentType { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } => StatusCode::SERVICE_UNAVAILABLE,
            Self::Load { .. } | Self::Server { .. } => StatusCode::INTERNAL_SERVER_ERROR,
            Self::Of(error) if !is_of_request(error) => StatusCode::INTERNAL_SERVER_ERROR,
            _ => StatusCode::BAD_REQUEST,
        }
    }

    /// Returns the type of the error in OpenAI's API.
    pub fn kind(&self) -> &'static str {
        match self.status() {
            StatusCode::UNAUTHORIZED => "authentication_error",
            StatusCode::FORBIDDEN => "permission_error",
            StatusCode::NOT_FOUND => "not_found_error",
            StatusCode::SERVICE_UNAVAILABLE => "overloaded_error",
            status if status.is_server_error() => "server_error",
            _ => "invalid_request_error",
        }
    }

    pub fn code(&self) -> &'static str {
        match self {
            Self::Json { .. } => "invalid_json",
            Self::Field { .. } => "invalid_value",
            Self::Missing { .. } => "missing_required_parameter",
            Self::Unsupported { .. } => "unsupported_parameter",
            Self::TooLarge { .. } => "body_too_large",
            Self::TooSlow { .. } => "body_too_slow",
            Self::Body { .. } => "invalid_body",
            Self::ContentType { .. } => "unsupported_media_type",
            Self::NoKey | Self::WrongKey => "invalid_api_key",
            Self::Host { .. } => "host_not_allowed",
            Self::Origin { .. } => "origin_not_allowed",
            Self::Path { .. } => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Model { .. } => "model_not_found",
            Self::Context { .. } => "context_length_exceeded",
            Self::Kind { .. } => "unsupported_model",
            Self::Template { .. } => "invalid_messages",
            Self::Busy { .. } => "overloaded",
            Self::Load { .. } => "model_not_loaded",
            Self::Of(error) => match (&**error, is_of_request(error)) {
                (ModelError::Generate(error), true) if is_of_schema(error) => "invalid_schema",
                (_, true) => "invalid_value",
                (_, false) => "server_error",
            },
            Self::Server { .. } => "server_error",
        }
    }

    /// Returns the name of the request field that is invalid.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Field { param, .. } | Self::Missing { param, .. } | Self::Unsupported { param } => {
                Some(param.clone())
            }
            Self::Model { .. } => Some("model".to_owned()),
            Self::Context { .. } | Self::Template { .. } => Some("messages".to_owned()),
            Self::Of(error) => match &**error {
                ModelError::Generate(GenerateError::Setting { name, .. }) => {
                    Some(name.rsplit('.').next().unwrap_or(name).to_owned())
                }
                ModelError::Generate(error) if is_of_schema(error) => Some("response_format".to_owned()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Formats the error as OpenAI's API does.
    pub fn json(&self) -> Value {
        json!({ "error": {
            "message": self.to_string(),
            "type": self.kind(),
            "code": self.code(),
            "param": self.param(),
        } })
    }

    /// Creates an HTTP response with the given body, and with the headers that the HTTP status requires.
    pub fn respond(&self, body: Value) -> Response {
        let mut response = (self.status(), Json(body)).into_response();
        if self.status().is_server_error() {
            tracing::warn!("{self}");
        }
        let header = match self {
            Self::NoKey | Self::WrongKey => Some((header::WWW_AUTHENTICATE, "Bearer")),
            Self::Busy { .. } => Some((header::RETRY_AFTER, "1")),
            // The server closes the connection, because it does not read the rest of the body.
            Self::TooLarge { .. } | Self::TooSlow { .. } => Some((header::CONNECTION, "close")),
            _ => None,
        };
        if let Some((name, value)) = header {
            response.headers_mut().insert(name, HeaderValue::from_static(value));
        }
        response
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        self.respond(self.json())
    }
}

/// Whether the request is the cause of a model's error, so that the same request always fails.
fn is_of_request(error: &ModelError) -> bool {
    match error {
        ModelError::Generate(error) => {
            is_of_schema(error)
                || matches!(
                    error,
                    GenerateError::Tokenize { .. }
                        | GenerateError::NoTemplate { .. }
                        | GenerateError::Template(_)
                        | GenerateError::Setting { .. }
                        | GenerateError::NeedsText { .. }
                        | GenerateError::EmptyPrompt
                        | GenerateError::TooLong { .. }
                        | GenerateError::Token { .. }
                        | GenerateError::NothingLeft { .. }
                )
        }
        ModelError::Embed(error) => {
            matches!(error, EmbedError::TooLong { .. } | EmbedError::Empty { .. } | EmbedError::Token { .. })
        }
        ModelError::Prompt(_)
        | ModelError::Kind { .. }
        | ModelError::NoTokenizer { .. }
        | ModelError::Template { .. }
        | ModelError::UnreadVariable { .. }
        | ModelError::TemplateLimit => true,
        _ => false,
    }
}

fn is_of_schema(error: &GenerateError) -> bool {
    matches!(
        error,
        GenerateError::SchemaSyntax { .. }
            | GenerateError::Schema { .. }
            | GenerateError::SchemaKeyword(_)
            | GenerateError::Grammar { .. }
            | GenerateError::Constraint { .. }
            | GenerateError::ConstraintLimit { .. }
            | GenerateError::NothingAllowed { .. }
            | GenerateError::NoBytes { .. }
    )
}
