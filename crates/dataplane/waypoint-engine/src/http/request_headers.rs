//! Removes and adds headers of forwarded requests.

use http::{
    HeaderValue, Request, StatusCode,
    header::{CONTENT_LENGTH, EXPECT, HOST},
};

use super::{normalized_target::NormalizedTarget, reply::Reply};
use crate::{headers, session::Session};

/// Removes hop-by-hop headers of a request, and headers that only proxies of the mesh may send.
pub(super) fn sanitize<B>(request: &mut Request<B>) -> Result<(), Reply> {
    let all = request.headers_mut();
    if headers::has_unsupported_transfer_encoding(all) {
        let reply = Reply::bad_request(
            "only the transfer encoding chunked is supported",
            "transfer_encoding",
        );
        return Err(reply.with_status(StatusCode::NOT_IMPLEMENTED));
    }
    let removed = headers::remove_hop_by_hop(all);
    removed.map_err(|error| Reply::bad_request(error.to_string(), "connection_header"))?;
    headers::remove_mesh_only_headers(all);
    // The body is framed again, and `Expect` sent again if needed.
    all.remove(CONTENT_LENGTH);
    all.remove(EXPECT);
    Ok(())
}

/// Adds the headers that the waypoint generates to a request, such as `x-forwarded-for`.
pub(super) fn add_generated_headers<B>(
    session: &Session,
    request: &mut Request<B>,
    normalized: &NormalizedTarget,
) {
    let all = request.headers_mut();
    // Plugins and routes may have added `cookie` lines.
    headers::join_cookies(all);
    all.remove(HOST);
    if let Ok(host) = HeaderValue::from_str(&normalized.host) {
        all.insert(HOST, host);
    }
    let gateway = session.shard.waypoint.published.gateway();
    if gateway.trusted_proxies > 0 {
        let client = session.remote_ip(all);
        headers::add_external_address(all, client);
    }
    headers::add_forwarding_headers(all, session.caller.address.ip());
    let waypoint = &session.shard.waypoint;
    if gateway.client_identity_header {
        let client = session.caller.identity.as_ref();
        headers::add_client_identity(all, &waypoint.dialer.identity, client);
    }
}
