//! Implements `GET /openapi.json`, which returns the OpenAPI document of the server. The OpenAPI
//! document is generated from the Rust types of requests.

use std::sync::Arc;

use axum::Json;
use axum::routing::MethodRouter;
use schemars::Schema;
use serde_json::{Map, Value, json};

use crate::app::App;

/// A path of the server that requires an API key, if the server has API keys.
pub struct Endpoint {
    pub path: &'static str,
    pub about: &'static str,
    pub route: MethodRouter<Arc<App>>,
    /// The JSON Schemas of the request's body. For a path with the method `GET`, the list of JSON
    /// Schemas is empty.
    pub body: Vec<Schema>,
    /// The content type of the body.
    pub content: &'static str,
}

/// Creates the OpenAPI document of the given paths.
pub fn document(endpoints: Vec<Endpoint>) -> Json<Value> {
    let paths: Map<String, Value> = endpoints.into_iter().map(path).collect();
    let error = json!({ "type": "object", "required": ["message", "type", "code", "param"], "properties": {
        "message": { "type": "string" },
        "type": { "type": "string" },
        "code": { "type": "string" },
        "param": { "type": ["string", "null"] },
    } });
    let error = json!({ "type": "object", "required": ["error"], "properties": { "error": error } });
    Json(json!({
        "openapi": "3.1.0",
        "info": { "title": "Tracewright", "version": env!("CARGO_PKG_VERSION") },
        "paths": paths,
        "components": {
            "schemas": { "Error": error },
            "securitySchemes": { "key": { "type": "http", "scheme": "bearer" } },
        },
        "security": [{ "key": [] }, {}],
    }))
}

fn path(Endpoint { path, about, body, content, .. }: Endpoint) -> (String, Value) {
    let name = path.replace("{*", "{");
    let failure = json!({
        "description": "An error",
        "content": { "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } },
    });
    let mut operation = json!({
        "summary": about,
        "responses": { "200": { "description": "The answer" }, "default": failure },
    });
    if let Some((_, parameter)) = name.split_once('{') {
        let (parameter, schema) = (parameter.trim_end_matches('}'), json!({ "type": "string" }));
        operation["parameters"] =
            json!([{ "name": parameter, "in": "path", "required": true, "schema": schema }]);
        if parameter == "id" {
            return (name, json!({ "get": operation, "delete": operation }));
        }
    }
    let method = if body.is_empty() {
        "get"
    } else {
        let schema = json!({ "allOf": body });
        operation["requestBody"] = json!({ "required": true, "content": { content: { "schema": schema } } });
        "post"
    };
    (name, json!({ method: operation }))
}
