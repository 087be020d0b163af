//! Attributes of requests that routes and rate limits match.

use http::HeaderMap;

/// Attributes of a request that routes and rate limits match.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// Method of the request.
    pub method: &'a str,
    /// Normalized path without the query.
    pub path: &'a str,
    /// Query without the question mark.
    pub query: Option<&'a str>,
    /// Host of the request, from `Host` or `:authority`.
    pub host: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
}
