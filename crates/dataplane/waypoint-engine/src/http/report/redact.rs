//! Redacts tokens from access logs and traces.

use std::borrow::Cow;

use http::HeaderMap;

use crate::session::Session;

/// Removes tokens from a request target, also for requests that are rejected before authentication.
pub(in crate::http) fn redact_target<'a>(session: &Session, target: &'a str) -> Cow<'a, str> {
    if !target.contains('?') {
        return Cow::Borrowed(target);
    }
    let all = session.shard.waypoint.published.authentications();
    all.redact_target(session.attachments().services(), target)
}

/// Removes tokens from headers that access logs and traces record.
pub(in crate::http) fn redact_headers(session: &Session, headers: &mut HeaderMap) {
    if !headers.is_empty() {
        let all = session.shard.waypoint.published.authentications();
        all.redact_headers(session.attachments().services(), headers);
    }
}
