//! Calls a rate-limit service, and reads its decision.

use ambit_l7::route::RouteRequest;
use ambit_model::{GlobalLimit, LimitKey, LimitValue};
use ambit_wire::rate_limit_service::{
    SHOULD_RATE_LIMIT_PATH, ShouldRateLimitError, ShouldRateLimitRequest, ShouldRateLimitResponse,
};
use tokio::time::timeout;

use super::key::key_value;
use crate::{
    calls::CallIdentity,
    hops::Hops,
    http::admit::authorizer::{CheckError, UnaryCall, call_unary},
    in_flight_checks::CheckService,
    rate_limits::Limiter,
    session::Session,
};

/// Reason why a call to a rate-limit service yields no decision.
#[derive(Debug, thiserror::Error)]
pub(super) enum LimitError {
    #[error("there is no rate-limit service to call: {0}")]
    ServiceMissing(ambit_model::ArcStr),
    #[error(transparent)]
    Call(#[from] CheckError),
    #[error(transparent)]
    InvalidMessage(#[from] ShouldRateLimitError),
}

impl LimitError {
    /// Whether a rate limit that fails open allows the request after this error.
    pub(super) fn may_fail_open(&self) -> bool {
        match self {
            Self::Call(error) => error.may_fail_open(),
            Self::ServiceMissing(_) | Self::InvalidMessage(_) => true,
        }
    }

    /// Returns the value of the outcome label in metrics for a failed call.
    pub(super) fn outcome(&self) -> &'static str {
        match self {
            Self::ServiceMissing(_) => "nobody",
            Self::Call(error) => error.outcome(),
            Self::InvalidMessage(ShouldRateLimitError::UndecidedCode(_)) => "undecided",
            Self::InvalidMessage(ShouldRateLimitError::Malformed(_)) => "malformed",
        }
    }
}

/// Builds the descriptors that a rate-limit service receives for a request. Method and path are sent in their original
/// and in their normalized spelling, since the service's limits apply to both. Returns `None` without descriptors, or
/// if the service has already checked all of them for `before`, the request before its last change.
pub(super) fn build_query(
    session: &Session,
    limiter: &Limiter,
    global: &GlobalLimit,
    request: &RouteRequest<'_>,
    before: Option<&RouteRequest<'_>>,
) -> Option<ShouldRateLimitRequest> {
    let mut descriptors = build_descriptors(session, limiter, global, request);
    if let Some(before) = before {
        let known = self::build_descriptors(session, limiter, global, before);
        descriptors.retain(|one| !known.contains(one));
    }
    (!descriptors.is_empty()).then(|| ShouldRateLimitRequest {
        domain: global.domain.to_string(),
        descriptors,
        hits: global.hits,
    })
}

fn build_descriptors(
    session: &Session,
    limiter: &Limiter,
    global: &GlobalLimit,
    request: &RouteRequest<'_>,
) -> Vec<Vec<(String, String)>> {
    let as_it_came = |key: &LimitKey| match key {
        LimitKey::Method => Some(request.method.as_bytes().to_vec()),
        LimitKey::Path => Some(request.path.as_bytes().to_vec()),
        other => key_value(session, request, other),
    };
    let as_counted = |key: &LimitKey| key_value(session, request, key);
    let mut descriptors: Vec<Vec<_>> = Vec::new();
    for one in limiter.descriptors(global, request) {
        let entries = |of: &dyn Fn(&LimitKey) -> Option<Vec<u8>>| -> Option<Vec<_>> {
            let entries = one.entries.iter().map(|(key, value)| {
                let value = match value {
                    LimitValue::Text(text) => text.to_string(),
                    LimitValue::Attribute(key) => String::from_utf8_lossy(&of(key)?).into_owned(),
                };
                Some((key.to_string(), value))
            });
            entries.collect()
        };
        let all = [entries(&as_it_came), entries(&as_counted)];
        for descriptor in all.into_iter().flatten() {
            if !descriptors.contains(&descriptor) {
                descriptors.push(descriptor);
            }
        }
    }
    descriptors
}

pub(super) async fn check(
    session: &Session,
    namespace: &str,
    global: &GlobalLimit,
    request: ShouldRateLimitRequest,
    hops: Hops,
) -> Result<ShouldRateLimitResponse, LimitError> {
    let (service, port) = match &global.target {
        Ok((service, port)) => (service, *port),
        Err(why) => return Err(LimitError::ServiceMissing(why.clone())),
    };
    let checked = CheckService::RateLimits(namespace.into());
    let _check = session
        .begin_check(checked)
        .ok_or(CheckError::TooManyChecks)?;
    let call = UnaryCall {
        service,
        port,
        path: SHOULD_RATE_LIMIT_PATH,
        message: request.encode(),
        timeout: global.timeout,
        caller: CallIdentity::Namespace(namespace),
        hops,
    };
    let checking = call_unary(session, call);
    let answer = timeout(global.timeout, checking).await;
    let message = answer.map_err(|_| CheckError::Timeout)??;
    Ok(ShouldRateLimitResponse::decode(&message)?)
}
