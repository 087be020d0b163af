//! Requests as routes match them.

use http::HeaderMap;

/// Parts of a request that routes match.
#[derive(Clone, Copy, Debug)]
pub struct RouteRequest<'a> {
    /// Method of the request.
    pub method: &'a str,
    /// Normalized path without the query.
    pub path: &'a str,
    /// Query without the question mark.
    pub query: Option<&'a str>,
    /// Host of the request, which HTTP/2 does not send as a header.
    pub host: &'a str,
    /// Headers of the request.
    pub headers: &'a HeaderMap,
}
