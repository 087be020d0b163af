//! Enforces rate limits on a request: local limits first, then those of rate-limit services.

mod global;
mod key;

use std::{
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_l7::route::RouteRequest;
use ambit_model::{NamespacedHostname, RateLimit};
use ambit_telemetry::http::ResponseFlag;
use ambit_wire::{
    ext_authz::{HeaderAction, HeaderMutation},
    rate_limit_service::ShouldRateLimitResponse,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, header::RETRY_AFTER};

use super::{
    admit::{
        admission::Admission,
        authorizer::{CheckError, changes},
    },
    reply::Reply,
};
use crate::{headers::RATE_LIMITED, hops::Hops, rate_limits::Limiter, session::Session};
use key::key_value;

/// Response body and response-code details of a request rejected by a local rate limit, as in Envoy.
const LOCAL_LIMIT_DETAILS: &str = "local_rate_limited";
const GLOBAL_LIMIT_DETAILS: &str = "request_rate_limited";
const SERVICE_ERROR_DETAILS: &str = "rate_limiter_error";

/// Rate-limit headers (`x-ratelimit-*`, `Retry-After`) to add to the response.
#[derive(Debug, Default)]
pub(super) struct RateLimitHeaders {
    /// Limit with the fewest remaining requests, among the rate limits whose state clients may see (`tellClients`).
    nearest_limit: Option<EvaluatedLimit>,
    is_rejected: bool,
    /// Time after which the client may retry (`Retry-After`).
    retry_after: Option<Duration>,
    /// Response headers that rate-limit services have returned.
    headers_to_add: Vec<HeaderMutation>,
}

/// State of a rate limit after it has counted the request.
#[derive(Clone, Copy, Debug)]
struct EvaluatedLimit {
    requests: u32,
    period: Duration,
    remaining: u32,
    reset: Duration,
}

impl RateLimitHeaders {
    fn record_limit(&mut self, evaluated: EvaluatedLimit) {
        let is_tighter = |known: &EvaluatedLimit| {
            (evaluated.remaining, known.reset) < (known.remaining, evaluated.reset)
        };
        if self.nearest_limit.as_ref().is_none_or(is_tighter) {
            self.nearest_limit = Some(evaluated);
        }
    }

    /// Adds the rate-limit headers to a response.
    pub(super) fn change_response(&self, headers: &mut HeaderMap) {
        changes::apply_header_changes(headers, &self.headers_to_add);
        if self.is_rejected {
            headers.insert(RATE_LIMITED, HeaderValue::from_static("true"));
        }
        // Format of Envoy (draft-polli-ratelimit-headers-03).
        if let Some(evaluated) = &self.nearest_limit {
            let window = seconds(evaluated.period);
            let lines = [
                (
                    "x-ratelimit-limit",
                    format!("{0}, {0};w={window}", evaluated.requests),
                ),
                ("x-ratelimit-remaining", evaluated.remaining.to_string()),
                ("x-ratelimit-reset", seconds(evaluated.reset).to_string()),
            ];
            for (name, value) in lines {
                if let Ok(value) = HeaderValue::from_str(&value) {
                    headers.insert(HeaderName::from_static(name), value);
                }
            }
        }
        if let Some(after) = self.retry_after {
            headers.insert(RETRY_AFTER, HeaderValue::from(seconds(after).max(1)));
        }
    }
}

/// Converts a duration to whole seconds, rounded up.
fn seconds(duration: Duration) -> u64 {
    duration.as_secs() + u64::from(duration.subsec_nanos() > 0)
}

/// Request in its original or forwarded form, and the services whose rate limits count it.
#[derive(Clone, Copy, Debug)]
pub(super) struct CountedRequest<'a> {
    pub(super) services: &'a [NamespacedHostname],
    pub(super) request: RouteRequest<'a>,
}

/// Counts a request against each rate limit of the services. `before` is the request as it was before a route changed it:
/// a limit that has counted that does not count this one.
///
/// # Errors
/// When a limit rejects the request, or a policy that has changed during the wait for limits denies it; the error is the
/// reply to the client.
pub(super) async fn enforce(
    session: &Session,
    counted: CountedRequest<'_>,
    before: Option<CountedRequest<'_>>,
    admission: &Admission,
    hops: Hops,
    limit_headers: &mut RateLimitHeaders,
) -> Result<(), Reply> {
    let published = &session.shard.waypoint.published;
    let Some(limits) = published.limits() else {
        return Ok(());
    };
    let all = limits.for_services(counted.services);
    let known = before.map(|before| (limits.for_services(before.services), before.request));
    let before = |one: &Arc<Limiter>| {
        let (known, request) = known.as_ref()?;
        let mut known = known.iter();
        known
            .any(|known| Arc::ptr_eq(known, one))
            .then_some(request)
    };
    for one in all.iter() {
        enforce_local(session, one, &counted.request, before(one), limit_headers)?;
    }
    // Rate-limit services are called only when no local limit refuses.
    for one in all.iter() {
        let Some(global) = &one.config.global else {
            continue;
        };
        // The call would cause itself.
        if session.caller.calls_on_behalf_of(&one.config.key.namespace) {
            continue;
        }
        let question = global::build_query(session, one, global, &counted.request, before(one));
        let Some(question) = question else {
            continue;
        };
        let namespace = &one.config.key.namespace;
        let checking = Box::pin(global::check(session, namespace, global, question, hops));
        let decided = tokio::select! {
            decided = checking => decided,
            () = admission.wait_until_revoked() => return Err(Reply::denied()),
        };
        apply_decision(session, &one.config, decided, limit_headers)?;
    }
    Ok(())
}

fn enforce_local(
    session: &Session,
    limiter: &Limiter,
    request: &RouteRequest<'_>,
    before: Option<&RouteRequest<'_>>,
    limit_headers: &mut RateLimitHeaders,
) -> Result<(), Reply> {
    let config = &limiter.config;
    if let Some(why) = &config.not_understood {
        tracing::debug!(limit = %config.key, %why, "a rate limit decides nothing");
        return apply_failure_mode(session, config, "local", "not_understood", true);
    }
    let key = |of: &ambit_model::LocalLimit, request: &RouteRequest<'_>| -> Vec<_> {
        let parts = of.bucket_keys.iter();
        parts.map(|key| key_value(session, request, key)).collect()
    };
    for (of, decision) in limiter.count_request(request, before, key, Instant::now()) {
        if config.sends_headers && !config.dry_run {
            limit_headers.record_limit(EvaluatedLimit {
                requests: of.requests,
                period: of.per,
                remaining: decision.remaining,
                reset: decision.full_after,
            });
        }
        if let Some(after) = decision.retry_after {
            let reply = Reply {
                details: Some(LOCAL_LIMIT_DETAILS),
                ..Reply::new(
                    StatusCode::TOO_MANY_REQUESTS,
                    LOCAL_LIMIT_DETAILS,
                    ResponseFlag::RateLimited,
                )
            };
            reject(session, config, "local", reply, Some(after), limit_headers)?;
        }
    }
    Ok(())
}

/// Applies the decision of a rate-limit service, or the configured behaviour if the call has failed.
fn apply_decision(
    session: &Session,
    config: &RateLimit,
    decided: Result<ShouldRateLimitResponse, global::LimitError>,
    limit_headers: &mut RateLimitHeaders,
) -> Result<(), Reply> {
    let decided = match decided {
        Ok(decided) => decided,
        Err(global::LimitError::Call(CheckError::BudgetExhausted(exhausted))) => {
            count_outcome(session, config, "global", "no_memory");
            return Err(Reply::overloaded(exhausted));
        }
        Err(error) => {
            let why = ambit_proxy::report::format_error_chain(&error);
            tracing::debug!(limit = %config.key, why, "a rate-limit service has not decided");
            let may_pass = error.may_fail_open();
            return apply_failure_mode(session, config, "global", error.outcome(), may_pass);
        }
    };
    if config.dry_run {
        if decided.is_over_limit {
            count_outcome(session, config, "global", "dry_run");
        }
        return Ok(());
    }
    let header = |(name, value)| HeaderMutation {
        name,
        value,
        action: HeaderAction::Set,
    };
    let headers = decided.response_headers.into_iter();
    limit_headers.headers_to_add.extend(headers.map(header));
    if let Some(evaluated) = decided.nearest_limit.filter(|_| config.sends_headers) {
        limit_headers.record_limit(EvaluatedLimit {
            requests: evaluated.requests,
            period: evaluated.per,
            remaining: evaluated.remaining,
            reset: evaluated.reset_after,
        });
    }
    if !decided.is_over_limit {
        count_outcome(session, config, "global", "passed");
        return Ok(());
    }
    let text = String::from_utf8_lossy(&decided.body).into_owned();
    let reply = Reply {
        details: Some(GLOBAL_LIMIT_DETAILS),
        ..Reply::new(
            StatusCode::TOO_MANY_REQUESTS,
            text,
            ResponseFlag::RateLimited,
        )
    };
    let after = decided.nearest_limit.map(|evaluated| evaluated.reset_after);
    reject(session, config, "global", reply, after, limit_headers)
}

/// Rejects a request that exceeds a limit (429), unless the limit is a dry run.
fn reject(
    session: &Session,
    config: &RateLimit,
    kind: &'static str,
    reply: Reply,
    retry_after: Option<Duration>,
    limit_headers: &mut RateLimitHeaders,
) -> Result<(), Reply> {
    if config.dry_run {
        tracing::debug!(limit = %config.key, "a request is over a rate limit that is a dry run");
        count_outcome(session, config, kind, "dry_run");
        return Ok(());
    }
    count_outcome(session, config, kind, "refused");
    limit_headers.is_rejected = true;
    limit_headers.retry_after = retry_after.filter(|_| config.sends_headers);
    Err(reply)
}

/// Rejects or allows a request for which a rate-limit service has made no decision, as the limit configures.
fn apply_failure_mode(
    session: &Session,
    config: &RateLimit,
    kind: &'static str,
    outcome: &'static str,
    may_fail_open: bool,
) -> Result<(), Reply> {
    count_outcome(session, config, kind, outcome);
    if config.dry_run {
        return Ok(());
    }
    if config.fail_open && may_fail_open {
        count_outcome(session, config, kind, "failed_open");
        return Ok(());
    }
    let flag = ResponseFlag::RateLimiterServiceError;
    Err(Reply {
        details: Some(SERVICE_ERROR_DETAILS),
        ..Reply::new(StatusCode::INTERNAL_SERVER_ERROR, "", flag)
    })
}

fn count_outcome(session: &Session, config: &RateLimit, kind: &'static str, outcome: &'static str) {
    let metrics = &session.shard.waypoint.http_metrics;
    metrics.count_rate_limit_decision(&config.key, kind, outcome);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn evaluated(remaining: u32, reset: u64) -> EvaluatedLimit {
        EvaluatedLimit {
            requests: 10,
            period: Duration::from_secs(60),
            remaining,
            reset: Duration::from_secs(reset),
        }
    }

    #[test]
    fn clients_get_headers_of_the_tightest_limit() {
        let mut limit_headers = RateLimitHeaders::default();
        for one in [
            evaluated(5, 1),
            evaluated(2, 7),
            evaluated(2, 9),
            evaluated(2, 8),
            evaluated(3, 60),
        ] {
            limit_headers.record_limit(one);
        }
        limit_headers.retry_after = Some(Duration::from_millis(1500));
        limit_headers.is_rejected = true;
        let mut headers = HeaderMap::new();
        limit_headers.change_response(&mut headers);
        for (name, value) in [
            ("x-ratelimit-limit", "10, 10;w=60"),
            ("x-ratelimit-remaining", "2"),
            ("x-ratelimit-reset", "9"),
            ("retry-after", "2"),
            ("x-envoy-ratelimited", "true"),
        ] {
            assert_eq!(headers[name], value, "{name}");
        }
    }

    #[test]
    fn requests_without_a_limit_get_no_headers() {
        let mut headers = HeaderMap::new();
        RateLimitHeaders::default().change_response(&mut headers);
        assert!(headers.is_empty());
    }

    #[test]
    fn rate_limit_service_cannot_set_framing_headers() {
        let mut headers = HeaderMap::new();
        let headers_to_add = ["transfer-encoding", "content-length", "x-left"];
        let limit_headers = RateLimitHeaders {
            headers_to_add: headers_to_add
                .map(|name| HeaderMutation {
                    name: name.to_owned(),
                    value: b"7".to_vec(),
                    action: HeaderAction::Set,
                })
                .into(),
            ..RateLimitHeaders::default()
        };
        limit_headers.change_response(&mut headers);
        assert_eq!(headers.len(), 1);
        assert_eq!(headers["x-left"], "7");
    }
}
