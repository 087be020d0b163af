//! Files of the page, built from `web/` by `cargo xtask web`, and the headers that confine it.

use ambit_rt::http::{Response, not_found, respond};
use http::{HeaderMap, HeaderValue, header};

const PAGE: &[u8] = include_bytes!("bundle/index.html");
const SCRIPT: &[u8] = include_bytes!("bundle/app.js");
const STYLE: &[u8] = include_bytes!("bundle/app.css");
const ICON: &[u8] = include_bytes!("bundle/icon.svg");
const LICENCES: &[u8] = include_bytes!("bundle/licenses.txt");

/// Content security policy: the page loads its own files and calls its own server only, and cannot be framed.
const CONTENT_SECURITY_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; \
                      base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; \
                      trusted-types 'none'";

/// Returns a file of the page by its path; 404 if there is none.
pub(super) fn file_response(path: &str) -> Response {
    match path {
        "/" => respond(200, "text/html; charset=utf-8", PAGE),
        "/app.js" => respond(200, "text/javascript; charset=utf-8", SCRIPT),
        "/app.css" => respond(200, "text/css; charset=utf-8", STYLE),
        "/icon.svg" => respond(200, "image/svg+xml", ICON),
        "/licenses.txt" => respond(200, "text/plain; charset=utf-8", LICENCES),
        _ => not_found(),
    }
}

/// Adds the security headers that confine the page (such as its content security policy) to a response.
pub(super) fn add_security_headers(headers: &mut HeaderMap) {
    for (name, value) in [
        (header::CONTENT_SECURITY_POLICY, CONTENT_SECURITY_POLICY),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (header::CACHE_CONTROL, "no-store"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
    for (name, value) in [
        ("cross-origin-resource-policy", "same-origin"),
        ("cross-origin-opener-policy", "same-origin"),
    ] {
        headers.insert(name, HeaderValue::from_static(value));
    }
}
