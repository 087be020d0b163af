//! Normalizes the host and path of a request.

use ambit_l7::{
    path,
    route::{MatchedPath, RouteRequest},
};
use http::{
    HeaderValue, Method, Request, StatusCode,
    header::{CONTENT_TYPE, HOST},
    uri::PathAndQuery,
};
use hyper::ext::Protocol;

use super::reply::Reply;
use crate::session::Session;

/// Whether a request is gRPC. gRPC-Web does not count: its clients receive errors as HTTP responses.
pub(super) fn is_grpc<B>(request: &Request<B>) -> bool {
    let content_type = request.headers().get(CONTENT_TYPE);
    let rest = content_type.and_then(|of| of.as_bytes().strip_prefix(b"application/grpc"));
    rest.is_some_and(|rest| matches!(rest.first(), None | Some(b'+' | b';')))
}

/// Normalized host and path of a request, which policies, routes and the application all see.
#[derive(Debug)]
pub(super) struct NormalizedTarget {
    pub(super) host: String,
    /// Normalized path without the query string.
    pub(super) path: String,
    pub(super) target: PathAndQuery,
}

impl NormalizedTarget {
    /// Returns the path and query to be rewritten. `prefix` is the number of bytes of the path that the rule matched as
    /// prefix.
    pub(super) fn matched_path(&self, prefix: usize) -> MatchedPath<'_> {
        MatchedPath {
            path: &self.path,
            query: self.target.query(),
            prefix_len: prefix,
        }
    }

    /// Returns the attributes of a request that route rules and rate limits match.
    pub(super) fn route_request<'a, B>(&'a self, request: &'a Request<B>) -> RouteRequest<'a> {
        RouteRequest {
            method: request.method().as_str(),
            path: &self.path,
            query: self.target.query(),
            host: &self.host,
            headers: request.headers(),
        }
    }

    /// Returns the path of the request target as it is sent to the application.
    pub(super) fn outgoing_path(&self) -> &str {
        self.target.path()
    }

    /// Normalizes a request that a plugin has changed, by the same rules as a received request.
    pub(super) fn from_plugin(
        session: &Session,
        method: &Method,
        host: String,
        path: &str,
    ) -> Result<Self, Reply> {
        check_host(&host).map_err(|error| Reply::bad_request(error, "host"))?;
        Self::normalize(session, method, host, path)
    }

    /// Normalizes a received request; rejects ambiguous hosts and paths.
    pub(super) fn from_request<B>(session: &Session, request: &Request<B>) -> Result<Self, Reply> {
        if let Some(protocol) = request.extensions().get::<Protocol>() {
            let text = format!("CONNECT for the protocol {protocol:?} is not supported");
            let reply = Reply::bad_request(text, "connect_protocol");
            return Err(reply.with_status(StatusCode::NOT_IMPLEMENTED));
        }
        if *request.method() == Method::CONNECT {
            let reply = Reply::bad_request("CONNECT is not supported", "method");
            return Err(reply.with_status(StatusCode::METHOD_NOT_ALLOWED));
        }
        let host = request_host(request).map_err(|error| Reply::bad_request(error, "host"))?;
        let pass_through = request.uri().path_and_query();
        let pass_through = pass_through.map_or("/", PathAndQuery::as_str);
        Self::normalize(session, request.method(), host, pass_through)
    }

    fn normalize(
        session: &Session,
        method: &Method,
        host: String,
        pass_through: &str,
    ) -> Result<Self, Reply> {
        let mode = session
            .shard
            .waypoint
            .published
            .gateway()
            .path_normalization;
        let normal = path::normalize_request_target(method, pass_through, mode);
        let normal =
            normal.map_err(|error| Reply::bad_request(error.to_string(), error.reason()))?;
        let target = PathAndQuery::try_from(normal.as_str());
        let target = target.map_err(|error| Reply::bad_request(error.to_string(), "path_form"))?;
        Ok(Self {
            host,
            path: normal.path().to_owned(),
            target,
        })
    }
}

/// Parses the host of a request. Rejects ambiguous ones: a target and a `Host` header that differ, several `Host`
/// headers, or user info.
pub(super) fn request_host<B>(request: &Request<B>) -> Result<String, &'static str> {
    let mut lines = request.headers().get_all(HOST).iter();
    let header = lines.next().map(HeaderValue::to_str).transpose();
    let header = header.map_err(|_| "the host is no text")?;
    if lines.next().is_some() {
        return Err("there is more than one host header");
    }
    let authority = request.uri().authority().map(|one| one.as_str());
    let host = match (authority, header) {
        (Some(authority), Some(header)) if !authority.eq_ignore_ascii_case(header) => {
            return Err("the host header is another than the target's");
        }
        (Some(host), _) | (None, Some(host)) => host,
        (None, None) if request.version() <= http::Version::HTTP_10 => "",
        (None, None) => return Err("there is no host"),
    };
    check_host(host)?;
    Ok(host.to_owned())
}

/// Checks that a text is a valid host.
fn check_host(host: &str) -> Result<(), &'static str> {
    if host.contains('@') || (!host.is_empty() && host.parse::<http::uri::Authority>().is_err()) {
        return Err("the host cannot be one");
    }
    Ok(())
}
