//! Responses that the waypoint itself generates.

use ambit_telemetry::http::{ResponseFlag, ResponseFlags};
use http::{HeaderName, HeaderValue, Response, StatusCode, header};

use crate::{
    memory::{BudgetExhausted, BudgetScope},
    message::{self, Body},
};

/// Header `x-envoy-overloaded`, which asks clients not to retry immediately.
const OVERLOADED: HeaderName = HeaderName::from_static("x-envoy-overloaded");

/// Response that the waypoint itself generates, with the reason for access logs and metrics.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Reply {
    pub(crate) status: StatusCode,
    pub(crate) text: String,
    /// Response flags for the access log.
    pub(crate) flags: ResponseFlags,
    /// Label of the rejection counter, for a request that violates HTTP or is ambiguous.
    pub(crate) rejection_label: Option<&'static str>,
    /// gRPC status, if it differs from the one to which the HTTP status maps.
    pub(crate) grpc_status: Option<u8>,
    /// Value of `WWW-Authenticate` for a request without a valid token (RFC 6750).
    pub(crate) challenge: Option<HeaderValue>,
    /// Response-code details that the access log shows.
    pub(crate) details: Option<&'static str>,
}

impl Reply {
    pub(crate) fn new(status: StatusCode, text: impl Into<String>, flag: ResponseFlag) -> Self {
        Self {
            status,
            text: text.into(),
            flags: flag.into(),
            rejection_label: None,
            grpc_status: None,
            challenge: None,
            details: None,
        }
    }

    /// Returns the reply to a request that policies deny, with Istio's text (403).
    pub(crate) fn denied() -> Self {
        Self {
            status: StatusCode::FORBIDDEN,
            text: "RBAC: access denied".to_owned(),
            flags: ResponseFlags::default(),
            rejection_label: None,
            grpc_status: None,
            challenge: None,
            details: None,
        }
    }

    /// Returns the reply for a plugin that has failed, or has ended the request.
    pub(crate) fn for_plugin(
        status: StatusCode,
        details: &'static str,
        flags: ResponseFlags,
    ) -> Self {
        Self {
            status,
            text: String::new(),
            flags,
            rejection_label: None,
            grpc_status: None,
            challenge: None,
            details: Some(details),
        }
    }

    /// Returns the reply to a request that violates HTTP or is ambiguous (400).
    pub(crate) fn bad_request(text: impl Into<String>, reason: &'static str) -> Self {
        let flag = ResponseFlag::DownstreamProtocolError;
        Self {
            rejection_label: Some(reason),
            ..Self::new(StatusCode::BAD_REQUEST, text, flag)
        }
    }

    /// Returns the reply to a request for which a memory budget has no room.
    pub(crate) fn overloaded(BudgetExhausted(scope): BudgetExhausted) -> Self {
        let reason = match scope {
            BudgetScope::Connection => "memory_budget_connection",
            BudgetScope::Caller => "memory_budget_caller",
            BudgetScope::Process => "memory_budget_process",
        };
        Self {
            rejection_label: Some(reason),
            ..Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "overloaded: requests under way hold as much memory as they may",
                ResponseFlag::OverloadManager,
            )
        }
    }

    /// Returns the reply to a request that has passed too many waypoints (508).
    pub(crate) fn routing_loop() -> Self {
        let text = "the routes of waypoints form a loop";
        Self::new(StatusCode::LOOP_DETECTED, text, ResponseFlag::NoRoute)
    }

    /// Replaces the status of the reply.
    pub(crate) fn with_status(self, status: StatusCode) -> Self {
        Self { status, ..self }
    }

    /// Converts the reply to an HTTP response. gRPC clients receive a gRPC status and message.
    pub(crate) fn into_response(self, is_grpc: bool) -> Response<Body> {
        let Self {
            status,
            text,
            flags,
            grpc_status,
            challenge,
            ..
        } = self;
        let mut response = Response::new(message::text_body(if is_grpc {
            String::new()
        } else {
            text.clone()
        }));
        let headers = response.headers_mut();
        if let Some(challenge) = challenge {
            headers.insert(header::WWW_AUTHENTICATE, challenge);
        }
        let overloaded = [
            ResponseFlag::UpstreamOverflow,
            ResponseFlag::OverloadManager,
        ];
        if overloaded.iter().any(|flag| flags.contains(*flag)) {
            headers.insert(OVERLOADED, HeaderValue::from_static("true"));
        }
        if is_grpc {
            headers.insert(
                header::CONTENT_TYPE,
                HeaderValue::from_static("application/grpc"),
            );
            headers.insert(
                "grpc-status",
                match grpc_status {
                    Some(status) => HeaderValue::from(u16::from(status)),
                    None => HeaderValue::from_static(grpc_status_for(status)),
                },
            );
            if let Ok(message) = HeaderValue::from_str(&text.replace('%', "%25")) {
                headers.insert("grpc-message", message);
            }
        } else {
            headers.insert(header::CONTENT_TYPE, HeaderValue::from_static("text/plain"));
            *response.status_mut() = status;
        }
        response
    }
}

/// Maps an HTTP status to a gRPC status (gRPC's doc/http-grpc-status-mapping.md), and returns the gRPC code.
fn grpc_status_for(status: StatusCode) -> &'static str {
    match status.as_u16() {
        400 => "13",
        401 => "16",
        403 => "7",
        404 => "12",
        429 | 502 | 503 | 504 => "14",
        _ => "2",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn grpc_clients_get_a_grpc_status() {
        let plain = Reply::denied().into_response(false);
        assert_eq!(plain.status(), 403);
        let grpc = Reply::denied().into_response(true);
        assert_eq!(grpc.status(), 200);
        assert_eq!(grpc.headers()["grpc-status"], "7");
        assert_eq!(grpc.headers()["grpc-message"], "RBAC: access denied");
        let own = Reply {
            grpc_status: Some(9),
            ..Reply::denied()
        };
        assert_eq!(own.into_response(true).headers()["grpc-status"], "9");
    }
}
