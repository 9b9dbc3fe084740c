//! Serves the web page for chats at the path `/`. The program contains the files of the web page,
//! and the page sends requests only to this server.

use axum::Router;
use axum::http::header;
use axum::response::IntoResponse;
use axum::routing::get;

/// The files of the chat page, each with a path, a media type and the content.
const FILES: [(&str, &str, &str); 6] = [
    ("/", "text/html; charset=utf-8", include_str!("../page/index.html")),
    ("/page.css", "text/css; charset=utf-8", include_str!("../page/page.css")),
    ("/page.js", "text/javascript; charset=utf-8", include_str!("../page/page.js")),
    ("/chats.js", "text/javascript; charset=utf-8", include_str!("../page/chats.js")),
    ("/markdown.js", "text/javascript; charset=utf-8", include_str!("../page/markdown.js")),
    ("/settings.js", "text/javascript; charset=utf-8", include_str!("../page/settings.js")),
];

/// The content security policy of the chat page. The policy allows the browser to load only files
/// of this server, and forbids other web pages to embed the chat page.
const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; frame-ancestors 'none'; base-uri 'none'";

pub fn router<S: Clone + Send + Sync + 'static>() -> Router<S> {
    FILES.into_iter().fold(Router::new(), |router, (path, kind, content)| {
        let headers = [
            (header::CONTENT_TYPE, kind),
            (header::CONTENT_SECURITY_POLICY, POLICY),
            (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
            (header::CACHE_CONTROL, "no-cache"),
        ];
        router.route(path, get(move || async move { (headers, content).into_response() }))
    })
}
