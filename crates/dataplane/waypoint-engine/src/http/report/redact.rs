//! Redacts tokens from access logs and traces.

use std::borrow::Cow;

use http::HeaderMap;

use crate::session::Session;

/// Returns a request target without tokens, whichever step refuses the request.
pub(in crate::http) fn redact_target<'a>(session: &Session, target: &'a str) -> Cow<'a, str> {
    if !target.contains('?') {
        return Cow::Borrowed(target);
    }
    let all = session.shard.waypoint.published.authentications();
    all.redacted_target(session.attachments().services(), target)
}

/// Removes tokens from recorded headers.
pub(in crate::http) fn redact_headers(session: &Session, headers: &mut HeaderMap) {
    if !headers.is_empty() {
        let all = session.shard.waypoint.published.authentications();
        all.redact_headers(session.attachments().services(), headers);
    }
}
