//! Retries of failed requests.
//!
//! Without a retry policy, a request that may have reached an application is retried only if that has no side effects:
//! its method is idempotent and it has no body (RFC 9110, section 9.2.2), or HTTP/2 reports that it was not processed
//! (RFC 9113, section 8.7). With a route's retry policy, any request is retried whose body is small enough to be
//! buffered.

use std::time::Duration;

use ambit_l7::route;
use ambit_model::HttpRetry;
use http::{HeaderMap, Method, Request, StatusCode, request};
use hyper::body::Body as _;

use crate::{
    http::body::replay::ReplayBody,
    memory::ConnectionMemory,
    message::{self, Body},
};

/// Maximum number of retries of a request without a retry policy.
pub(crate) const DEFAULT_RETRIES: u32 = 2;

/// Conditions under which a failed request is retried.
#[derive(Clone, Copy, Debug)]
pub(in crate::http) enum RetryPolicy<'a> {
    /// No retries, as for mirrored requests.
    Never,
    /// Retries only if nothing was sent, since a previous waypoint already retries the request.
    OnlyUnsent,
    /// Retries only without side effects: of idempotent requests without a body, and of unprocessed requests.
    OnlySafe,
    /// Retries that the route's retry policy configures.
    RoutePolicy(&'a HttpRetry),
}

/// Outcome of one attempt, by which a retry is decided.
#[derive(Debug)]
pub(in crate::http) enum AttemptOutcome<'a> {
    /// Status and headers of the endpoint's response.
    Response(StatusCode, &'a HeaderMap),
    /// Failure without a response, and whether the endpoint reports that it has not processed the request.
    Failed { is_untouched: bool },
    /// Attempt that exceeded its timeout.
    TimedOut,
}

/// Retry state of one request: policy, buffered request, and number of retries.
pub(in crate::http) struct RetryState<'a> {
    policy: RetryPolicy<'a>,
    request_head: Option<request::Parts>,
    /// Buffered body for retries; `None` for a request without a body.
    body: Option<ReplayBody>,
    is_idempotent: bool,
    retries: u32,
}

impl<'a> RetryState<'a> {
    /// Saves the headers and buffers the body of a request, if it may be retried.
    pub(in crate::http) fn new(
        again: RetryPolicy<'a>,
        request: Request<Body>,
        memory: &ConnectionMemory,
    ) -> (Self, Request<Body>) {
        let is_idempotent = matches!(
            *request.method(),
            Method::GET
                | Method::HEAD
                | Method::OPTIONS
                | Method::PUT
                | Method::DELETE
                | Method::TRACE
        );
        let has_body = !request.body().is_end_stream();
        let is_replayable = match again {
            RetryPolicy::Never | RetryPolicy::OnlyUnsent => false,
            RetryPolicy::OnlySafe => !has_body,
            RetryPolicy::RoutePolicy(_) => true,
        };
        let (parts, body) = request.into_parts();
        let mut retrying = Self {
            policy: again,
            request_head: is_replayable.then(|| parts.clone()),
            body: None,
            is_idempotent,
            retries: 0,
        };
        let body = if is_replayable && has_body {
            let replay = retrying.body.insert(ReplayBody::new(body, memory));
            // Cannot fail: nothing has been read of a new body.
            replay.rewind().unwrap_or_else(|| message::text_body(""))
        } else {
            body
        };
        (retrying, Request::from_parts(parts, body))
    }

    /// Whether the retry policy permits a retry after this outcome, and the request can be sent again.
    pub(in crate::http) fn should_retry(&self, outcome: &AttemptOutcome<'_>) -> bool {
        let is_reason = match (self.policy, outcome) {
            (RetryPolicy::Never | RetryPolicy::OnlyUnsent, _)
            | (RetryPolicy::OnlySafe, AttemptOutcome::TimedOut) => false,
            (RetryPolicy::OnlySafe, AttemptOutcome::Response(status, _)) => {
                *status == StatusCode::SERVICE_UNAVAILABLE && self.is_idempotent
            }
            (RetryPolicy::OnlySafe, AttemptOutcome::Failed { is_untouched }) => {
                *is_untouched || self.is_idempotent
            }
            (RetryPolicy::RoutePolicy(rule), AttemptOutcome::Response(status, headers)) => {
                route::is_retriable(rule, *status, headers)
            }
            (
                RetryPolicy::RoutePolicy(_),
                AttemptOutcome::Failed { .. } | AttemptOutcome::TimedOut,
            ) => true,
        };
        let is_replayable =
            self.request_head.is_some() && self.body.as_ref().is_none_or(ReplayBody::is_replayable);
        is_reason && is_replayable
    }

    /// Returns the request for the next attempt; `None` if it is not buffered. The body of the previous attempt
    /// receives no more frames.
    pub(in crate::http) fn next_request(&self) -> Option<Request<Body>> {
        let body = match &self.body {
            Some(replay) => replay.rewind()?,
            None => message::text_body(""),
        };
        Some(Request::from_parts(self.request_head.clone()?, body))
    }

    /// Whether the request may be sent again whatever has become of it: it is idempotent, has no body, and is kept.
    pub(in crate::http) fn is_repeatable(&self) -> bool {
        self.is_idempotent && self.body.is_none() && self.request_head.is_some()
    }

    /// Returns the request for another connection to the same endpoint, if it is [repeatable](Self::is_repeatable).
    pub(in crate::http) fn repeated_request(&self) -> Option<Request<Body>> {
        self.is_repeatable().then(|| self.next_request()).flatten()
    }

    /// Whether a request of which nothing was sent may go to another endpoint.
    pub(in crate::http) fn may_try_other_endpoint(&self) -> bool {
        !matches!(self.policy, RetryPolicy::Never)
    }

    /// Whether a retry may use the same endpoint if there is no other.
    pub(in crate::http) fn may_try_same_endpoint(&self) -> bool {
        matches!(self.policy, RetryPolicy::RoutePolicy(_))
    }

    /// Counts a retry, and returns the delay before it; `None` if the maximum number of retries is reached.
    pub(in crate::http) fn next_delay(&mut self) -> Option<Duration> {
        let (most, wait) = match self.policy {
            RetryPolicy::Never => (0, Duration::ZERO),
            RetryPolicy::OnlyUnsent | RetryPolicy::OnlySafe => (DEFAULT_RETRIES, Duration::ZERO),
            RetryPolicy::RoutePolicy(rule) => {
                let wait = route::backoff_delay(rule, self.retries, &mut rand::rng());
                (rule.attempts, wait)
            }
        };
        let is_left = self.retries < most;
        self.retries += 1;
        is_left.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::Memory;

    fn memory() -> ConnectionMemory {
        let memory = Memory::new(8 << 20, std::sync::Arc::default());
        memory.connection(None, [10, 0, 0, 1].into())
    }

    fn request(method: Method, body: &'static str) -> Request<Body> {
        let mut request = Request::new(message::text_body(body));
        *request.method_mut() = method;
        request
    }

    /// Returns whether each outcome of an attempt is retried: 503, 500, unprocessed failure, other failure, timeout.
    fn retried_outcomes(again: RetryPolicy<'_>, method: &Method, body: &'static str) -> [bool; 5] {
        let (retrying, _first) = RetryState::new(again, request(method.clone(), body), &memory());
        let none = HeaderMap::new();
        [
            AttemptOutcome::Response(StatusCode::SERVICE_UNAVAILABLE, &none),
            AttemptOutcome::Response(StatusCode::INTERNAL_SERVER_ERROR, &none),
            AttemptOutcome::Failed { is_untouched: true },
            AttemptOutcome::Failed {
                is_untouched: false,
            },
            AttemptOutcome::TimedOut,
        ]
        .map(|outcome| {
            let is_reason = retrying.should_retry(&outcome);
            assert!(!is_reason || retrying.next_request().is_some());
            is_reason
        })
    }

    #[test]
    fn only_permitted_requests_are_retried() {
        let rule = HttpRetry {
            codes: vec![500],
            attempts: 1,
            backoff: None,
        };
        let by_rule = RetryPolicy::RoutePolicy(&rule);
        let (none, all) = ([false; 5], [false, true, true, true, true]);
        for (kind, method, body, expected) in [
            (
                RetryPolicy::OnlySafe,
                Method::GET,
                "",
                [true, false, true, true, false],
            ),
            (
                RetryPolicy::OnlySafe,
                Method::POST,
                "",
                [false, false, true, false, false],
            ),
            (RetryPolicy::OnlySafe, Method::PUT, "a", none),
            (by_rule, Method::GET, "", all),
            (by_rule, Method::POST, "a", all),
            (RetryPolicy::Never, Method::GET, "", none),
            (RetryPolicy::OnlyUnsent, Method::GET, "", none),
        ] {
            assert_eq!(
                retried_outcomes(kind, &method, body),
                expected,
                "{kind:?} {method} {body}"
            );
        }
    }

    #[test]
    fn retry_policy_sets_the_number_of_attempts() {
        for (attempts, backoff) in [(1, 5), (3, 7)] {
            let rule = HttpRetry {
                codes: Vec::new(),
                attempts,
                backoff: Some(Duration::from_secs(backoff)),
            };
            let (mut retrying, _) = RetryState::new(
                RetryPolicy::RoutePolicy(&rule),
                request(Method::GET, ""),
                &memory(),
            );
            for _ in 0..attempts {
                assert!(retrying.next_delay().unwrap() >= Duration::from_secs(backoff));
            }
            assert_eq!(retrying.next_delay(), None);
        }
        let (mut retrying, _) =
            RetryState::new(RetryPolicy::OnlySafe, request(Method::GET, ""), &memory());
        assert_eq!(
            [(); 3].map(|()| retrying.next_delay().is_some()),
            [true, true, false]
        );
        let (mut retrying, _) =
            RetryState::new(RetryPolicy::Never, request(Method::GET, ""), &memory());
        assert_eq!(retrying.next_delay(), None);
    }
}
