//! Converts requests to the form in which they are sent on upstream connections.

use http::{
    HeaderValue, Request, Uri,
    header::{HOST, TRANSFER_ENCODING},
    uri::PathAndQuery,
};
use hyper::body::Body as _;

use crate::{
    http::reply::Reply,
    message::{Body, Version},
};

/// Returns the HTTP version in which a request is sent by default: the same as the client's.
pub(in crate::http) fn default_upstream_version(version: http::Version) -> Version {
    if version == http::Version::HTTP_2 {
        Version::Http2
    } else {
        Version::Http1
    }
}

/// Sets chunked transfer encoding for an HTTP/1 body of unknown length, regardless of the method: hyper would drop the
/// body of a GET or HEAD.
pub(in crate::http) fn set_chunked_framing(request: &mut Request<Body>) {
    let body = request.body();
    if !body.is_end_stream() && body.size_hint().exact().is_none() {
        let chunked = HeaderValue::from_static("chunked");
        request.headers_mut().insert(TRANSFER_ENCODING, chunked);
    }
}

/// Sets the request target and `Host` in the form that the HTTP version requires.
pub(in crate::http) fn set_request_target(
    request: &mut Request<Body>,
    host: &str,
    target: &PathAndQuery,
    version: Version,
) -> Result<(), Reply> {
    let mut parts = http::uri::Parts::default();
    parts.path_and_query = Some(target.clone());
    match version {
        Version::Http1 => *request.version_mut() = http::Version::HTTP_11,
        Version::Http2 => {
            *request.version_mut() = http::Version::HTTP_2;
            request.headers_mut().remove(HOST);
            let authority = host.parse();
            parts.scheme = Some(http::uri::Scheme::HTTP);
            parts.authority =
                Some(authority.map_err(|_| Reply::bad_request("there is no host", "host"))?);
        }
    }
    *request.uri_mut() =
        Uri::from_parts(parts).map_err(|error| Reply::bad_request(error.to_string(), "target"))?;
    Ok(())
}
