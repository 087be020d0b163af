//! Evaluates the keys of rate limits for a request.

use ambit_l7::{
    limits::{header_key, method_key, path_key},
    route::RouteRequest,
};
use ambit_model::LimitKey;
use http::HeaderName;

use crate::session::Session;

/// Returns the request's value for a rate-limit key; `None` if the request has none.
pub(super) fn key_value(
    session: &Session,
    request: &RouteRequest<'_>,
    key: &LimitKey,
) -> Option<Vec<u8>> {
    let caller = &session.caller;
    let headers = request.headers;
    match key {
        LimitKey::Principal => {
            let identity = caller.identity.as_ref();
            identity.map(|one| one.to_string().into_bytes())
        }
        LimitKey::Namespace => caller.namespace().map(|one| one.as_bytes().to_vec()),
        LimitKey::Address => Some(session.remote_ip(headers).to_string().into_bytes()),
        LimitKey::Header(name) => {
            header_key(headers, &HeaderName::from_bytes(name.as_bytes()).ok()?)
        }
        LimitKey::Method => Some(method_key(request.method).into_bytes()),
        LimitKey::Path => Some(path_key(request.path).into_owned().into_bytes()),
    }
}
