//! What of a request logs and traces may tell: no tokens.

use std::borrow::Cow;

use http::HeaderMap;

use crate::session::Session;

/// A target as logs and traces may tell it: without tokens, whichever step refuses the request.
pub(super) fn tellable<'a>(session: &Session, target: &'a str) -> Cow<'a, str> {
    if !target.contains('?') {
        return Cow::Borrowed(target);
    }
    let all = session.shard.waypoint.published.authentications();
    all.tellable_target(session.attachments().services(), target)
}

/// Leaves of headers that are kept for logs and traces what these may tell.
pub(super) fn keep_tellable(session: &Session, headers: &mut HeaderMap) {
    if !headers.is_empty() {
        let all = session.shard.waypoint.published.authentications();
        all.keep_tellable(session.attachments().services(), headers);
    }
}
