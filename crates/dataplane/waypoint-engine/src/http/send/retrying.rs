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
    /// Never, as for mirrored requests.
    Never,
    /// Only if nothing was sent, since a previous waypoint already retries the request.
    Unsent,
    /// Only if a retry has no side effects: idempotent requests without a body, and unprocessed requests.
    Safely,
    /// As the route's retry policy configures.
    ByRule(&'a HttpRetry),
}

/// Outcome of one attempt, by which a retry is decided.
#[derive(Debug)]
pub(in crate::http) enum Outcome<'a> {
    /// Status and headers of the endpoint's response.
    Answer(StatusCode, &'a HeaderMap),
    /// Failure without a response; `is_untouched` if the endpoint reports that it has not processed the request.
    Broken { is_untouched: bool },
    /// Timeout of the attempt.
    Late,
}

/// State of a request that may be retried.
pub(in crate::http) struct Retrying<'a> {
    again: RetryPolicy<'a>,
    head: Option<request::Parts>,
    /// Buffered body for retries; `None` for a request without a body.
    body: Option<ReplayBody>,
    is_idempotent: bool,
    done: u32,
}

impl<'a> Retrying<'a> {
    /// Saves the headers and buffers the body of a request, if it may be retried.
    pub(in crate::http) fn of(
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
            RetryPolicy::Never | RetryPolicy::Unsent => false,
            RetryPolicy::Safely => !has_body,
            RetryPolicy::ByRule(_) => true,
        };
        let (parts, body) = request.into_parts();
        let mut retrying = Self {
            again,
            head: is_replayable.then(|| parts.clone()),
            body: None,
            is_idempotent,
            done: 0,
        };
        let body = if is_replayable && has_body {
            let replay = retrying.body.insert(ReplayBody::new(body, memory));
            // Cannot fail: nothing has been read of a new body.
            replay.rewind().unwrap_or_else(|| message::text(""))
        } else {
            body
        };
        (retrying, Request::from_parts(parts, body))
    }

    /// Whether the retry policy permits a retry after this outcome, and the request can be sent again.
    pub(in crate::http) fn is_reason(&self, outcome: &Outcome<'_>) -> bool {
        let is_reason = match (self.again, outcome) {
            (RetryPolicy::Never | RetryPolicy::Unsent, _)
            | (RetryPolicy::Safely, Outcome::Late) => false,
            (RetryPolicy::Safely, Outcome::Answer(status, _)) => {
                *status == StatusCode::SERVICE_UNAVAILABLE && self.is_idempotent
            }
            (RetryPolicy::Safely, Outcome::Broken { is_untouched }) => {
                *is_untouched || self.is_idempotent
            }
            (RetryPolicy::ByRule(rule), Outcome::Answer(status, headers)) => {
                route::is_retriable(rule, *status, headers)
            }
            (RetryPolicy::ByRule(_), Outcome::Broken { .. } | Outcome::Late) => true,
        };
        let is_replayable =
            self.head.is_some() && self.body.as_ref().is_none_or(ReplayBody::is_replayable);
        is_reason && is_replayable
    }

    /// Returns the request for the next attempt; `None` if it is not buffered. The body of the previous attempt
    /// receives no more frames.
    pub(in crate::http) fn request(&self) -> Option<Request<Body>> {
        let body = match &self.body {
            Some(replay) => replay.rewind()?,
            None => message::text(""),
        };
        Some(Request::from_parts(self.head.clone()?, body))
    }

    /// Whether a request of which nothing was sent may go to another endpoint.
    pub(in crate::http) fn may_try_another(&self) -> bool {
        !matches!(self.again, RetryPolicy::Never)
    }

    /// Whether a retry may use the same endpoint if there is no other.
    pub(in crate::http) fn may_try_the_same(&self) -> bool {
        matches!(self.again, RetryPolicy::ByRule(_))
    }

    /// Counts a retry, and returns the delay before it; `None` if the maximum number of retries is reached.
    pub(in crate::http) fn next(&mut self) -> Option<Duration> {
        let (most, wait) = match self.again {
            RetryPolicy::Never => (0, Duration::ZERO),
            RetryPolicy::Unsent | RetryPolicy::Safely => (DEFAULT_RETRIES, Duration::ZERO),
            RetryPolicy::ByRule(rule) => {
                let wait = route::wait(rule, self.done, &mut rand::rng());
                (rule.attempts, wait)
            }
        };
        let is_left = self.done < most;
        self.done += 1;
        is_left.then_some(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::memory::{Memory, MemoryLimits};

    fn memory() -> ConnectionMemory {
        let memory = Memory::new(MemoryLimits::of(8 << 20), std::sync::Arc::default());
        memory.connection(None, [10, 0, 0, 1].into())
    }

    fn request(method: Method, body: &'static str) -> Request<Body> {
        let mut request = Request::new(message::text(body));
        *request.method_mut() = method;
        request
    }

    /// Returns the bodies of a request's retries, by outcome.
    fn again(again: RetryPolicy<'_>, method: &Method, body: &'static str) -> [bool; 5] {
        let (retrying, _first) = Retrying::of(again, request(method.clone(), body), &memory());
        let none = HeaderMap::new();
        [
            Outcome::Answer(StatusCode::SERVICE_UNAVAILABLE, &none),
            Outcome::Answer(StatusCode::INTERNAL_SERVER_ERROR, &none),
            Outcome::Broken { is_untouched: true },
            Outcome::Broken {
                is_untouched: false,
            },
            Outcome::Late,
        ]
        .map(|outcome| {
            let is_reason = retrying.is_reason(&outcome);
            assert!(!is_reason || retrying.request().is_some());
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
        let by_rule = RetryPolicy::ByRule(&rule);
        let (none, all) = ([false; 5], [false, true, true, true, true]);
        for (kind, method, body, expected) in [
            (
                RetryPolicy::Safely,
                Method::GET,
                "",
                [true, false, true, true, false],
            ),
            (
                RetryPolicy::Safely,
                Method::POST,
                "",
                [false, false, true, false, false],
            ),
            (RetryPolicy::Safely, Method::PUT, "a", none),
            (by_rule, Method::GET, "", all),
            (by_rule, Method::POST, "a", all),
            (RetryPolicy::Never, Method::GET, "", none),
            (RetryPolicy::Unsent, Method::GET, "", none),
        ] {
            assert_eq!(
                again(kind, &method, body),
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
            let (mut retrying, _) = Retrying::of(
                RetryPolicy::ByRule(&rule),
                request(Method::GET, ""),
                &memory(),
            );
            for _ in 0..attempts {
                assert!(retrying.next().unwrap() >= Duration::from_secs(backoff));
            }
            assert_eq!(retrying.next(), None);
        }
        let (mut retrying, _) =
            Retrying::of(RetryPolicy::Safely, request(Method::GET, ""), &memory());
        assert_eq!(
            [(); 3].map(|()| retrying.next().is_some()),
            [true, true, false]
        );
        let (mut retrying, _) =
            Retrying::of(RetryPolicy::Never, request(Method::GET, ""), &memory());
        assert_eq!(retrying.next(), None);
    }
}
