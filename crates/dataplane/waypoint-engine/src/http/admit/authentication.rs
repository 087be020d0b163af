//! Authentication by JWT: verifies the tokens of a request, removes them, and passes their claims to applications as
//! configured (`ambit_jwt`). The verified claims are part of the request's admission.

use std::time::SystemTime;

use ambit_jwt::{AuthenticatedRequest, RejectedRequest, RejectionReason, RequestParts};
use ambit_telemetry::http::ResponseFlags;
use http::{HeaderValue, Request, StatusCode, uri::PathAndQuery};

use crate::{
    http::{normalized_target::NormalizedTarget, reply::Reply, report::observer::RequestObserver},
    session::Session,
};

/// Verifies the JWTs of a request, and removes them from its headers and query before the request is authorized and
/// forwarded.
pub(in crate::http) fn authenticate<B>(
    session: &Session,
    request: &mut Request<B>,
    normalized: &mut NormalizedTarget,
    observer: &mut impl RequestObserver,
) -> Result<AuthenticatedRequest, Reply> {
    let all = session.shard.waypoint.published.authentications();
    if all.is_empty() {
        return Ok(AuthenticatedRequest::default());
    }
    let method = request.method().clone();
    let parts = RequestParts {
        method: &method,
        headers: request.headers_mut(),
        query: normalized.target.query(),
    };
    let attachments = session.attachments();
    let outcome = all.authenticate(attachments.services(), parts, SystemTime::now());
    let query = match &outcome {
        Ok(AuthenticatedRequest { query, .. }) | Err(RejectedRequest { query, .. }) => query,
    };
    // Applications do not receive tokens that their rule does not forward.
    if let Some(query) = query {
        let target = match query {
            Some(query) => format!("{}?{query}", normalized.outgoing_path()),
            None => normalized.outgoing_path().to_owned(),
        };
        normalized.target = PathAndQuery::try_from(target)
            .map_err(|error| Reply::bad_request(error.to_string(), "path_form"))?;
        observer.on_normalized(&normalized.host, &normalized.target);
    }
    outcome.map_err(|RejectedRequest { reason: why, .. }| {
        observer.on_unauthenticated(&why);
        denial_reply(&why)
    })
}

fn denial_reply(why: &RejectionReason) -> Reply {
    let RejectionReason::InvalidToken(error) = why else {
        tracing::warn!(error = %why, "a request is refused");
        return Reply::denied();
    };
    Reply {
        status: StatusCode::UNAUTHORIZED,
        text: error.to_string(),
        flags: ResponseFlags::default(),
        rejection_label: None,
        grpc_status: None,
        details: None,
        challenge: Some(HeaderValue::from_static(
            r#"Bearer error="invalid_token", error_description="the token is not valid""#,
        )),
    }
}
