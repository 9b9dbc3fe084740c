//! [`Failure`] lists the reasons why a request fails, each with an HTTP status, a code and a message.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use generate::GenerateError;
use generate::{TemplateError, TemplatePlace};
use serde_json::{Value, json};
use tracewright::ModelError;
use tracewright::embed::EmbedError;
use tracewright::footprint::readable;

/// The text about an error that concerns only the operator of the server.
const HIDDEN: &str = "the server failed; its log has the reason";

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
    #[error(
        "`{param}` is no field of this endpoint, expected one of the fields in `/openapi.json`; leave out this field"
    )]
    Unknown { param: String },
    /// The answer cannot follow the schema or the grammar in a field.
    #[error("{}", causes(.error.as_ref()))]
    Constraint { param: String, error: Arc<ModelError> },
    #[error("the body of the request has more than {most} bytes; send a smaller body")]
    TooLarge { most: usize },
    #[error("the body of the request did not arrive within {} s; send the body faster", .limit.as_secs())]
    TooSlow { limit: Duration },
    #[error("the body of the request cannot be read: {why}")]
    Body { why: String },
    #[error("the content type is `{found}`, expected `{expected}`")]
    ContentType { found: String, expected: &'static str },
    #[error("the content encoding is `{found}`, expected `gzip` or `identity`")]
    Encoding { found: String },
    #[error("the request contains no API key; send the key as `Authorization: Bearer KEY`")]
    NoKey,
    #[error("the API key of the request is not known")]
    WrongKey,
    #[error(
        "the header `Host` is `{host}`, expected this machine's address or name, or `localhost`; allow this host when you \
         start the server"
    )]
    Host { host: String },
    #[error("web pages of `{origin}` may not use this server; allow this origin when you start the server")]
    Origin { origin: String },
    #[error("the server has no endpoint `{path}`{}", suggested(.near.as_ref()))]
    Path { path: String, near: Option<&'static str> },
    #[error("the endpoint does not support the method `{method}`")]
    Method { method: String },
    #[error("the server has no model `{name}`, expected {}", names(.known))]
    Model { name: String, known: Vec<String> },
    #[error(
        "the server keeps no response with the id `{id}`; it drops the oldest responses, and all when it ends"
    )]
    Stored { id: String },
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
    #[error(
        "the model `{name}` needs {} of memory, but all models together may need only {}; serve it with a shorter \
         context or fewer slots, or allow more memory",
        readable(*.needs), readable(*.limit)
    )]
    Memory { name: String, needs: u64, limit: u64 },
    #[error(
        "the model `{name}` waits for the memory of models that are in use; send the request again later"
    )]
    Crowded { name: String },
    /// Any other error of the model, which the request may have caused.
    #[error("{}", causes(.0.as_ref()))]
    Of(Arc<ModelError>),
    /// The time for running answers is over.
    #[error("the server stops, and this answer is not complete; send the request again later")]
    Stopping,
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

fn suggested(path: Option<&&'static str>) -> String {
    path.map_or_else(String::new, |path| {
        format!(", expected `{path}`; end the base URL of the client with `/v1` once")
    })
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

    /// Names the field whose schema or grammar caused a model's error.
    pub fn about(self, param: &str) -> Self {
        match self {
            Self::Of(error) if matches!(&*error, ModelError::Generate(error) if is_of_schema(error)) => {
                Self::Constraint { param: param.to_owned(), error }
            }
            other => other,
        }
    }

    pub fn status(&self) -> StatusCode {
        match self {
            Self::NoKey | Self::WrongKey => StatusCode::UNAUTHORIZED,
            Self::Host { .. } | Self::Origin { .. } => StatusCode::FORBIDDEN,
            Self::Path { .. } | Self::Model { .. } | Self::Stored { .. } => StatusCode::NOT_FOUND,
            Self::Method { .. } => StatusCode::METHOD_NOT_ALLOWED,
            Self::TooLarge { .. } => StatusCode::PAYLOAD_TOO_LARGE,
            Self::TooSlow { .. } => StatusCode::REQUEST_TIMEOUT,
            Self::ContentType { .. } | Self::Encoding { .. } => StatusCode::UNSUPPORTED_MEDIA_TYPE,
            Self::Busy { .. } | Self::Crowded { .. } | Self::Stopping => StatusCode::SERVICE_UNAVAILABLE,
            Self::Memory { .. } => StatusCode::INSUFFICIENT_STORAGE,
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
            Self::Unknown { .. } => "unknown_parameter",
            Self::Constraint { .. } => "invalid_schema",
            Self::TooLarge { .. } => "body_too_large",
            Self::TooSlow { .. } => "body_too_slow",
            Self::Body { .. } => "invalid_body",
            Self::ContentType { .. } => "unsupported_media_type",
            Self::Encoding { .. } => "unsupported_encoding",
            Self::NoKey | Self::WrongKey => "invalid_api_key",
            Self::Host { .. } => "host_not_allowed",
            Self::Origin { .. } => "origin_not_allowed",
            Self::Path { .. } => "not_found",
            Self::Method { .. } => "method_not_allowed",
            Self::Model { .. } => "model_not_found",
            Self::Stored { .. } => "response_not_found",
            Self::Context { .. } => "context_length_exceeded",
            Self::Kind { .. } => "unsupported_model",
            Self::Template { .. } => "invalid_messages",
            Self::Busy { .. } | Self::Crowded { .. } => "overloaded",
            Self::Memory { .. } => "insufficient_memory",
            Self::Stopping => "server_stopping",
            Self::Load { .. } => "model_not_loaded",
            Self::Of(error) if is_of_request(error) => "invalid_value",
            Self::Of(_) => "server_error",
            Self::Server { .. } => "server_error",
        }
    }

    /// Returns the name of the request field that is invalid.
    pub fn param(&self) -> Option<String> {
        match self {
            Self::Field { param, .. }
            | Self::Missing { param, .. }
            | Self::Unsupported { param }
            | Self::Unknown { param }
            | Self::Constraint { param, .. } => Some(param.clone()),
            Self::Model { .. } => Some("model".to_owned()),
            Self::Context { .. } | Self::Template { .. } => Some("messages".to_owned()),
            Self::Of(error) => match &**error {
                ModelError::Generate(GenerateError::Setting { name, .. }) => {
                    Some(name.rsplit('.').next().unwrap_or(name).to_owned())
                }
                ModelError::Language { .. } => Some("language".to_owned()),
                ModelError::Audio(_) => Some("file".to_owned()),
                _ => None,
            },
            _ => None,
        }
    }

    /// Returns the text for the client. Faults of the server, which can contain paths, are only in the log.
    pub fn message(&self) -> String {
        let of_template = |error: &TemplateError| match error {
            TemplateError::Syntax { at, why } => {
                let at = Box::new(TemplatePlace { file: None, ..(**at).clone() });
                TemplateError::Syntax { at, why: why.clone() }.to_string()
            }
            TemplateError::Render { at, why } => {
                let at = Box::new(TemplatePlace { file: None, ..(**at).clone() });
                TemplateError::Render { at, why: why.clone() }.to_string()
            }
            other => other.to_string(),
        };
        match self {
            Self::Load { name, .. } => {
                format!("the model `{name}` cannot be loaded; the log of the server has the reason")
            }
            Self::Server { .. } => HIDDEN.to_owned(),
            Self::Of(error) if !is_of_request(error) => HIDDEN.to_owned(),
            Self::Of(error) => match &**error {
                ModelError::Generate(GenerateError::NoTemplate { .. }) => {
                    "the model has no chat template".to_owned()
                }
                ModelError::Generate(GenerateError::Template(error)) => of_template(error),
                ModelError::NoTokenizer { .. } => "the model has no tokenizer".to_owned(),
                ModelError::EnglishOnly { .. } => {
                    "the model transcribes English only, and cannot translate".to_owned()
                }
                ModelError::Kind { does, asked, .. } => format!("the model {does}, and cannot {asked}"),
                _ => self.to_string(),
            },
            _ => self.to_string(),
        }
    }

    /// Formats the error as Anthropic's API does.
    pub fn anthropic(&self) -> Value {
        let kind = match self.kind() {
            "server_error" => "api_error",
            kind => kind,
        };
        json!({ "type": "error", "error": { "type": kind, "message": self.message() } })
    }

    /// Formats the error as Ollama does.
    pub fn ollama(&self) -> Value {
        json!({ "error": self.message() })
    }

    /// Formats the error as OpenAI's API does.
    pub fn json(&self) -> Value {
        json!({ "error": {
            "message": self.message(),
            "type": self.kind(),
            "code": self.code(),
            "param": self.param(),
        } })
    }

    /// Creates an HTTP response with the given body, and with the headers that the HTTP status requires.
    pub fn respond(&self, body: Value) -> Response {
        let mut response = (self.status(), Json(body)).into_response();
        let header = match self {
            Self::NoKey | Self::WrongKey => Some((header::WWW_AUTHENTICATE, "Bearer")),
            Self::Busy { .. } | Self::Crowded { .. } => Some((header::RETRY_AFTER, "1")),
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
        let mut response = self.respond(self.json());
        response.extensions_mut().insert(self);
        response
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
        | ModelError::Audio(_)
        | ModelError::EnglishOnly { .. }
        | ModelError::Lora(_)
        | ModelError::Adapter(_)
        | ModelError::AdapterName { .. }
        | ModelError::AdapterRoom { .. }
        | ModelError::UnknownAdapter { .. }
        | ModelError::Kind { .. }
        | ModelError::ImagePart { .. }
        | ModelError::Placeholders { .. }
        | ModelError::Language { .. }
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
