//! Validates and sanitizes the response headers of endpoints.

use ambit_telemetry::http::ResponseFlag;
use http::{Response, StatusCode};

use super::{connection::overload::has_too_many_fields, reply::Reply};
use crate::{headers, session::Session};

/// Validates an endpoint's response, and removes hop-by-hop headers and those that only proxies of the mesh may send.
///
/// # Errors
/// When the response has too many fields or violates HTTP; the error is the reply that replaces the response.
pub(super) fn sanitize<B>(session: &Session, response: &mut Response<B>) -> Result<(), Reply> {
    let limits = session.shard.waypoint.config.headers;
    let all = response.headers_mut();
    if has_too_many_fields(all, limits) {
        return Err(too_many_headers(limits.fields));
    }
    if headers::has_unsupported_transfer_encoding(all) || headers::remove_hop_by_hop(all).is_err() {
        return Err(protocol_error("upstream protocol error"));
    }
    headers::remove_mesh_only_response_headers(all);
    Ok(())
}

fn too_many_headers(limit: usize) -> Reply {
    protocol_error(format!(
        "the application's response has more than {limit} header fields (AMBIT_MAX_HEADERS)"
    ))
}

fn protocol_error(text: impl Into<String>) -> Reply {
    let flag = ResponseFlag::UpstreamProtocolError;
    Reply::new(StatusCode::BAD_GATEWAY, text, flag)
}
