//! Tokens of requests: verified, taken out, and told to applications as objects say (`ambit_jwt`). What a request has
//! proved stays with its admission.

use std::time::SystemTime;

use ambit_jwt::{Authenticated, Denial, Refused, RequestParts};
use ambit_telemetry::http::ResponseFlags;
use http::{HeaderValue, Request, StatusCode, uri::PathAndQuery};
use hyper::body::Incoming;

use super::{form::Form, record::Record, reply::Reply};
use crate::session::Session;

/// Authenticates a request. Its headers and its query are then what is judged and forwarded.
pub(super) fn authenticate(
    session: &Session,
    request: &mut Request<Incoming>,
    form: &mut Form,
    record: &mut Record,
) -> Result<Authenticated, Reply> {
    let all = session.shard.waypoint.published.authentications();
    if all.is_empty() {
        return Ok(Authenticated::default());
    }
    let method = request.method().clone();
    let parts = RequestParts {
        method: &method,
        headers: request.headers_mut(),
        query: form.target.query(),
    };
    let attachments = session.attachments();
    let outcome = all.authenticate(attachments.services(), parts, SystemTime::now());
    let query = match &outcome {
        Ok(Authenticated { query, .. }) | Err(Refused { query, .. }) => query,
    };
    // Applications that are not to have tokens do not get them.
    if let Some(query) = query {
        let target = match query {
            Some(query) => format!("{}?{query}", form.path_as_sent()),
            None => form.path_as_sent().to_owned(),
        };
        form.target = PathAndQuery::try_from(target)
            .map_err(|error| Reply::refused(error.to_string(), "path_form"))?;
        record.formed(&form.host, &form.target);
    }
    outcome.map_err(|Refused { why, .. }| {
        record.not_authenticated(why.details());
        reply(&why)
    })
}

fn reply(why: &Denial) -> Reply {
    let Denial::Token(error) = why else {
        tracing::warn!(error = %why, "a request is refused");
        return Reply::denied();
    };
    Reply {
        status: StatusCode::UNAUTHORIZED,
        text: error.to_string(),
        flags: ResponseFlags::default(),
        refused: None,
        grpc_status: None,
        details: None,
        challenge: Some(HeaderValue::from_static(
            r#"Bearer error="invalid_token", error_description="the token is not valid""#,
        )),
    }
}
