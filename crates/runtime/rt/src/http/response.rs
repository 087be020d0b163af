//! Builds responses for handlers, and parses query parameters.

use std::{
    convert::Infallible,
    pin::Pin,
    task::{Context, Poll},
};

use bytes::Bytes;
use http::{StatusCode, header};
use http_body_util::{BodyExt as _, Either, Full, combinators::UnsyncBoxBody};
use hyper::body::Frame;
use serde::Serialize;
use tokio::sync::mpsc;

/// Body of a response: complete, or a stream of unknown length.
pub type Body = Either<Full<Bytes>, UnsyncBoxBody<Bytes, Infallible>>;

/// HTTP response that a handler returns.
pub type Response = http::Response<Body>;

/// Builds a response with a status, content type and body.
pub fn respond(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Response {
    let body = Either::Left(Full::new(body.into()));
    with_body(status, content_type, body)
}

/// Builds a response whose body is streamed from a channel until its sender is dropped.
pub fn stream(status: u16, content_type: &'static str, chunks: mpsc::Receiver<Bytes>) -> Response {
    let body = Either::Right(Chunks(chunks).boxed_unsync());
    with_body(status, content_type, body)
}

fn with_body(status: u16, content_type: &'static str, body: Body) -> Response {
    let mut response = Response::new(body);
    *response.status_mut() =
        StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        header::HeaderValue::from_static(content_type),
    );
    response
}

/// Response body that streams chunks from a channel.
struct Chunks(mpsc::Receiver<Bytes>);

impl hyper::body::Body for Chunks {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let next = self.0.poll_recv(cx);
        next.map(|chunk| chunk.map(|chunk| Ok(Frame::data(chunk))))
    }
}

/// Builds a response with plain text.
pub fn text(status: u16, body: impl Into<Bytes>) -> Response {
    respond(status, "text/plain; charset=utf-8", body)
}

/// Builds a response with JSON on one line.
pub fn json<T: Serialize + ?Sized>(status: u16, value: &T) -> Response {
    json_response(status, serde_json::to_vec(value))
}

/// Builds a response with indented JSON.
pub fn json_pretty<T: Serialize + ?Sized>(status: u16, value: &T) -> Response {
    json_response(status, serde_json::to_vec_pretty(value))
}

fn json_response(status: u16, body: serde_json::Result<Vec<u8>>) -> Response {
    match body {
        Ok(body) => respond(status, "application/json", body),
        Err(error) => text(
            500,
            format!("the answer cannot be written as JSON: {error}\n"),
        ),
    }
}

/// Builds a response with status 404.
pub fn not_found() -> Response {
    text(404, "not found\n")
}

/// Builds a response with status 405 and the header `Allow`.
pub fn method_not_allowed(allow: &'static str) -> Response {
    let mut response = text(405, format!("use {allow}\n"));
    response
        .headers_mut()
        .insert(header::ALLOW, header::HeaderValue::from_static(allow));
    response
}

/// Returns the percent-decoded value of a query parameter; empty if it has no value.
pub fn query_parameter(uri: &http::Uri, name: &str) -> Option<String> {
    let mut all = query_parameters(uri);
    all.find_map(|(key, value)| (key == name).then_some(value))
}

/// Iterates over the percent-decoded names and values of all query parameters.
pub fn query_parameters(uri: &http::Uri) -> impl Iterator<Item = (String, String)> {
    let pairs = uri.query().unwrap_or_default().split('&');
    pairs.filter(|pair| !pair.is_empty()).map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (percent_decode(key), percent_decode(value))
    })
}

fn percent_decode(text: &str) -> String {
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
