//! Admission control by memory: before a request is copied, its decoded header section and the memory of handling it
//! are charged to the budgets of its connection, its caller and the process.

use http::{
    HeaderMap, Request, StatusCode,
    header::{CONTENT_TYPE, COOKIE},
};

use crate::{
    config::HeaderLimits,
    headers::header_memory_bytes,
    http::reply::Reply,
    memory::{ChargePurpose, ConnectionMemory, MemoryPermit},
    message::Version,
};

/// Bytes charged for an HTTP/2 request in addition to its headers: its tasks, its record, and its part of the
/// connection's buffers.
const HTTP2_REQUEST_BYTES: usize = 16 << 10;
/// Bytes charged for an HTTP/1 request in addition to its headers: each request has buffers of its own on both sides.
const HTTP1_REQUEST_BYTES: usize = 48 << 10;

/// Error of HTTP/2 header blocks that exceed the memory budget of their connection.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("header sections on their way take more than the memory budget")]
pub(in crate::http) struct HeaderBlocksTooLarge;

/// Charges a request to its memory budgets. The headers of a rejected request are dropped immediately.
///
/// # Errors
/// With the response, when it has too many fields or is too long (431), or a budget is exhausted (503).
pub(in crate::http) fn charge_request<B>(
    memory: &ConnectionMemory,
    limits: HeaderLimits,
    request: &mut Request<B>,
    version: Version,
) -> Result<MemoryPermit, Reply> {
    let headers = request.headers();
    let admitted = if has_too_many_fields(headers, limits) {
        Err(too_many_fields_reply(limits))
    } else if header_section_bytes(headers) + request.uri().path().len() > limits.bytes {
        Err(section_too_long_reply(limits))
    } else {
        let own = match version {
            Version::Http1 => HTTP1_REQUEST_BYTES,
            Version::Http2 => HTTP2_REQUEST_BYTES,
        };
        let bytes = own + header_memory_bytes(headers);
        memory
            .charge_request(ChargePurpose::Headers, bytes)
            .map_err(Reply::overloaded)
    };
    if admitted.is_err() {
        // gRPC clients receive gRPC errors.
        let content_type = request.headers_mut().remove(CONTENT_TYPE);
        *request.headers_mut() = HeaderMap::new();
        if let Some(content_type) = content_type {
            request.headers_mut().insert(CONTENT_TYPE, content_type);
        }
    }
    admitted
}

/// Whether a header section has more fields than allowed. Cookies count as one field, since HTTP/2 clients may split
/// them (RFC 9113, section 8.2.3).
pub(in crate::http) fn has_too_many_fields(headers: &HeaderMap, limits: HeaderLimits) -> bool {
    let cookies = headers.get_all(COOKIE).iter().count();
    headers.len() - cookies.saturating_sub(1) > limits.fields
}

/// Returns the size of a header section in HTTP/1's format, in bytes.
fn header_section_bytes(headers: &HeaderMap) -> usize {
    let line = |(name, value): (&http::HeaderName, &http::HeaderValue)| {
        name.as_str().len() + value.len() + ": \r\n".len()
    };
    headers.iter().map(line).sum()
}

fn too_many_fields_reply(limits: HeaderLimits) -> Reply {
    let most = limits.fields;
    let text = format!("the request has more than {most} header fields (AMBIT_MAX_HEADERS)");
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Reply::bad_request(text, "headers_too_many").with_status(status)
}

fn section_too_long_reply(limits: HeaderLimits) -> Reply {
    let most = limits.bytes;
    let text = format!(
        "the request's header section is longer than {most} bytes (AMBIT_MAX_HEADER_BYTES)"
    );
    let status = StatusCode::REQUEST_HEADER_FIELDS_TOO_LARGE;
    Reply::bad_request(text, "headers_too_large").with_status(status)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use ambit_telemetry::http::ResponseFlag;
    use http::{HeaderName, HeaderValue};

    use super::*;
    use crate::memory::Memory;

    fn request(lines: usize, name: &'static str, value: usize) -> Request<()> {
        let mut request = Request::new(());
        let value = HeaderValue::from_str(&"v".repeat(value)).unwrap();
        for _ in 0..lines {
            let name = HeaderName::from_static(name);
            request.headers_mut().append(name, value.clone());
        }
        request
    }

    fn connection(process: usize) -> ConnectionMemory {
        let memory = Memory::new(process, Arc::default());
        memory.connection(None, [10, 0, 0, 1].into())
    }

    #[test]
    fn too_many_fields_are_refused_and_cookies_count_as_one() {
        let memory = connection(512 << 20);
        let admit = |lines, name| {
            let mut request = request(lines, name, 1);
            let limits = HeaderLimits::default();
            let admitted = super::charge_request(&memory, limits, &mut request, Version::Http2);
            assert_eq!(request.headers().is_empty(), admitted.is_err());
            admitted.map(|_| ()).map_err(|reply| reply.status.as_u16())
        };
        let most = HeaderLimits::default().fields;
        assert_eq!(admit(most, "x"), Ok(()));
        assert_eq!(admit(most + 1, "x"), Err(431));
        assert_eq!(admit(most + 1, "cookie"), Ok(()));
    }

    #[test]
    fn request_over_the_budget_is_refused_as_overload() {
        let memory = connection(3 << 20);
        let admit = |request: &mut _, version| {
            super::charge_request(&memory, HeaderLimits::default(), request, version)
        };
        let mut held = Vec::new();
        let refused = loop {
            match admit(&mut request(15, "x", 4000), Version::Http2) {
                Ok(permit) => held.push(permit),
                Err(reply) => break reply,
            }
        };
        // A megabyte holds this many requests of more than 60 kB with their copies.
        assert!((8..16).contains(&held.len()), "{}", held.len());
        assert_eq!(refused.status, 503);
        assert!(refused.flags.contains(ResponseFlag::OverloadManager));
        assert_eq!(refused.rejection_label, Some("memory_budget_connection"));
        let response = refused.into_response(false);
        assert_eq!(response.headers()["x-envoy-overloaded"], "true");
        held.pop();
        assert!(admit(&mut request(15, "x", 4000), Version::Http2).is_ok());
    }
}
