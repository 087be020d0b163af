//! Answers, and the one thing handlers need of a query.

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::Full;
use serde::Serialize;

/// A whole answer.
pub type Response = http::Response<Full<Bytes>>;

/// An answer with a content type.
pub fn respond(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let mut response = Response::new(Full::new(body.into()));
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    response
}

/// Response in plain text.
pub fn text(status: u16, body: impl Into<Bytes>) -> Response {
    respond(status, "text/plain; charset=utf-8", body)
}

/// JSON on one line.
pub fn json<T: Serialize + ?Sized>(status: u16, value: &T) -> Response {
    encoded(status, serde_json::to_vec(value))
}

/// JSON for people.
pub fn json_pretty<T: Serialize + ?Sized>(status: u16, value: &T) -> Response {
    encoded(status, serde_json::to_vec_pretty(value))
}

fn encoded(status: u16, body: serde_json::Result<Vec<u8>>) -> Response {
    match body {
        Ok(body) => respond(status, "application/json", body),
        Err(error) => text(
            500,
            format!("the answer cannot be written as JSON: {error}\n"),
        ),
    }
}

/// Response with status 404.
pub fn not_found() -> Response {
    text(404, "not found\n")
}

/// 405, naming what is allowed.
pub fn method_not_allowed(allow: &'static str) -> Response {
    let mut response = text(405, format!("use {allow}\n"));
    response
        .headers_mut()
        .insert(header::ALLOW, header::HeaderValue::from_static(allow));
    response
}

/// The value of a query parameter, percent-decoded; empty when it stands without a value.
pub fn query_parameter(uri: &http::Uri, name: &str) -> Option<String> {
    uri.query()?.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (decode(key) == name).then(|| decode(value))
    })
}

fn decode(text: &str) -> String {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        let hex = |byte: Option<u8>| byte.and_then(|byte| char::from(byte).to_digit(16));
        match byte {
            b'+' => bytes.push(b' '),
            b'%' => {
                let mut ahead = rest.clone();
                if let (Some(high), Some(low)) = (hex(ahead.next()), hex(ahead.next())) {
                    bytes.extend(u8::try_from(high * 16 + low));
                    rest = ahead;
                } else {
                    bytes.push(b'%');
                }
            }
            other => bytes.push(other),
        }
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn query_parameters_are_decoded() {
        let uri: http::Uri = "/logging?level=info%2Cfoo%3Adebug&reset&a=b+c%zz"
            .parse()
            .unwrap();
        assert_eq!(
            query_parameter(&uri, "level").as_deref(),
            Some("info,foo:debug")
        );
        assert_eq!(query_parameter(&uri, "reset").as_deref(), Some(""));
        assert_eq!(query_parameter(&uri, "a").as_deref(), Some("b c%zz"));
        assert_eq!(query_parameter(&uri, "b"), None);
        assert_eq!(query_parameter(&"/".parse().unwrap(), "b"), None);
    }
}
