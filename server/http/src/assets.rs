//! The web console, the reader of the API's description and the guide: files built by `web-console`, embedded here.

use std::borrow::Cow;

use axum::{
    body::Body,
    extract::Request,
    http::{HeaderMap, HeaderValue, StatusCode, header},
    response::{IntoResponse, Redirect, Response},
};
use rust_embed::{EmbeddedFile, RustEmbed};

use crate::refusal::Refusal;

#[derive(RustEmbed)]
#[folder = "../../web-console/dist"]
struct Dist;

const NOT_BUILT: &str = include_str!("not-built.html");
/// The console talks to its own server alone and runs no script but its own.
const POLICY: &str = "default-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; \
                      object-src 'none'; base-uri 'self'; frame-ancestors 'none'";

/// Redirects from `/` or `/console`. The target is relative, because a proxy may serve all of this below a path of its own.
pub async fn to_console() -> Redirect {
    Redirect::temporary("console/")
}

/// Redirects from `/docs`.
pub async fn to_docs() -> Redirect {
    Redirect::temporary("docs/")
}

/// Returns a file of the console. Any other path leads to the page, whose own routes follow `#`.
pub async fn console(request: Request) -> Response {
    let path = request.uri().path().trim_start_matches("/console/");
    // The reader's files lie in the same folder but have their own place.
    let file = if path.starts_with("docs/") { None } else { find(path) };
    if let Some(file) = file.filter(|_| !path.is_empty()) {
        return send(path, file, request.headers());
    }
    let last = path.rsplit('/').next().unwrap_or("");
    if last.contains('.') {
        return Refusal::not_found("the console has no file at this path").into_response();
    }
    // The page names its files relative to its own path.
    if path.contains('/') {
        return Redirect::temporary(&"../".repeat(path.matches('/').count())).into_response();
    }
    send_page("index.html", request.headers())
}

/// Redirects from `/docs/guide`.
pub async fn to_guide() -> Redirect {
    Redirect::temporary("guide/")
}

/// A file of the reader or of the guide; a folder is its page.
pub async fn docs(request: Request) -> Response {
    let path = request.uri().path().trim_start_matches('/');
    if path.ends_with('/') {
        return send_folder(path, request.headers());
    }
    match find(path) {
        Some(file) => send(path, file, request.headers()),
        None => Refusal::not_found("the docs have no such file").into_response(),
    }
}

/// The page of a folder. If the console was not built, each folder is the page that says so.
fn send_folder(path: &str, headers: &HeaderMap) -> Response {
    let page = format!("{path}index.html");
    if find("index.html").is_some() && find(&page).is_none() {
        return Refusal::not_found("the docs have no such page").into_response();
    }
    send_page(&page, headers)
}

fn send_page(path: &str, headers: &HeaderMap) -> Response {
    match find(path) {
        Some(file) => send(path, file, headers),
        None => ([(header::CONTENT_TYPE, "text/html; charset=utf-8")], NOT_BUILT).into_response(),
    }
}

fn find(path: &str) -> Option<EmbeddedFile> {
    Dist::get(path)
}

fn send(path: &str, file: EmbeddedFile, headers: &HeaderMap) -> Response {
    let etag = format!("\"{}\"", reprise_codec::hex(&file.metadata.sha256_hash()[..16]));
    let is_known = headers
        .get(header::IF_NONE_MATCH)
        .is_some_and(|value| value.as_bytes() == etag.as_bytes());
    let mut response = Response::new(match (is_known, file.data) {
        (true, _) => Body::empty(),
        (false, Cow::Borrowed(bytes)) => Body::from(bytes),
        (false, Cow::Owned(bytes)) => Body::from(bytes),
    });
    if is_known {
        *response.status_mut() = StatusCode::NOT_MODIFIED;
    }
    // Files with a hash in their name never change; the others are asked for again each time.
    let caching = match path.contains("assets/") {
        true => "public, max-age=31536000, immutable",
        false => "no-cache",
    };
    let own = response.headers_mut();
    own.insert(header::CONTENT_TYPE, HeaderValue::from_static(media_type(path)));
    own.insert(header::CACHE_CONTROL, HeaderValue::from_static(caching));
    own.insert(header::ETAG, HeaderValue::try_from(etag).expect("hexadecimal digits"));
    own.insert(header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY));
    own.insert(header::X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

fn media_type(path: &str) -> &'static str {
    match path.rsplit_once('.').map_or("", |(_, extension)| extension) {
        "html" => "text/html; charset=utf-8",
        "js" | "mjs" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "json" | "map" => "application/json",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "ico" => "image/x-icon",
        "woff2" => "font/woff2",
        "wasm" => "application/wasm",
        _ => "text/plain; charset=utf-8",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Holds with a console that was built and without one, whose folders are the page that says so.
    #[tokio::test]
    async fn folders_of_the_docs_are_pages_and_other_names_are_unknown() {
        for (path, expected) in [
            ("/docs/", StatusCode::OK),
            ("/docs/guide/", StatusCode::OK),
            ("/docs/guide/none.html", StatusCode::NOT_FOUND),
            ("/docs/none", StatusCode::NOT_FOUND),
        ] {
            let request = axum::http::Request::get(path).body(Body::empty()).expect("a request");
            let answer = docs(request).await;
            assert_eq!(answer.status(), expected, "{path}");
        }
    }
}
