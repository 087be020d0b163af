//! Describes requests that failed at their endpoint: response flag, status and body for the client, and text for the
//! access log.

use std::{borrow::Cow, error::Error};

use ambit_hbone::{DialError, TunnelError};
use ambit_proxy::{dial::ConnectError, report::format_error_chain};
use ambit_telemetry::http::ResponseFlag;
use http::StatusCode;

use crate::{message::Version, upstream::UpstreamError};

const HEADERS_TOO_LARGE: &str = "the header section of the application's response is over the limits (AMBIT_MAX_HEADERS, AMBIT_MAX_HEADER_BYTES)";
/// Prefix of the response body for a request that failed at its endpoint, as in Envoy.
const ERROR_PREFIX: &str =
    "upstream connect error or disconnect/reset before headers. reset reason: ";

/// Failure of a request at its endpoint, with the response to the client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) struct UpstreamFailure {
    pub(in crate::http) flag: ResponseFlag,
    /// Status of the response to the client.
    pub(in crate::http) status: StatusCode,
    /// Body of the response to the client.
    pub(in crate::http) body: Cow<'static, str>,
    /// Response-code details and failure text for the access log.
    pub(in crate::http) details: String,
    /// Whether the endpoint reports that it has not processed the request (HTTP/2 `REFUSED_STREAM` or GOAWAY).
    pub(in crate::http) is_unprocessed: bool,
}

impl UpstreamFailure {
    /// Describes a failed connection attempt. `reader` is the client's verified namespace: names of policies are
    /// revealed only to clients of the policies' namespace, and to the log.
    pub(in crate::http) fn connect_failure(
        error: &(dyn Error + 'static),
        reader: Option<&str>,
    ) -> Self {
        let text = format_error_chain(error);
        let flag = ResponseFlag::UpstreamConnectionFailure;
        let tunnel = match error.downcast_ref() {
            Some(UpstreamError::Memory(_)) => {
                let body = "no memory budget has room for a connection to the endpoint";
                return Self::new(ResponseFlag::OverloadManager, body.into(), text);
            }
            Some(UpstreamError::Connect(ConnectError::Tunnel(error))) => Some(error),
            _ => None,
        };
        match tunnel {
            Some(TunnelError::Denied { policies, .. }) => Self::new(
                flag,
                refusal_text(visible_policies(policies, reader).as_deref()).into(),
                format!("{}: {text}", refusal_text(Some(policies))),
            ),
            // Node proxies reject by policy with this status alone, which other proxies use without a reason.
            Some(TunnelError::Status(StatusCode::UNAUTHORIZED)) => Self::new(
                flag,
                refusal_text(None).into(),
                format!("{}: {text}", refusal_text(None)),
            ),
            Some(TunnelError::Dial(error)) if matches!(**error, DialError::Tls { .. }) => Self::new(
                flag,
                format!(
                    "{ERROR_PREFIX}connection failure, transport failure reason: the TLS handshake with the workload failed: \
                     a certificate is refused, or is not of the identity that is expected"
                )
                .into(),
                text,
            ),
            _ => Self::new(flag, format!("{ERROR_PREFIX}connection failure").into(), text),
        }
    }

    fn new(flag: ResponseFlag, body: Cow<'static, str>, text: String) -> Self {
        Self {
            flag,
            status: StatusCode::SERVICE_UNAVAILABLE,
            body,
            details: text,
            is_unprocessed: false,
        }
    }

    /// Describes the failure of a request of this HTTP version after at least a part of it was sent.
    pub(in crate::http) fn request_failure(error: &hyper::Error, version: Version) -> Self {
        let text = format_error_chain(error);
        let cause = error
            .source()
            .and_then(|cause| cause.downcast_ref::<h2::Error>());
        let is_violation = error.is_parse()
            || cause.is_some_and(|cause| cause.reason().is_some() && !cause.is_remote());
        if is_violation {
            let body = match error.is_parse_too_large() {
                true => HEADERS_TOO_LARGE.into(),
                false => format!(
                    "{ERROR_PREFIX}protocol error: {}",
                    version_mismatch_hint(version)
                )
                .into(),
            };
            return Self {
                status: StatusCode::BAD_GATEWAY,
                ..Self::new(ResponseFlag::UpstreamProtocolError, body, text)
            };
        }
        let ended = || format!("{ERROR_PREFIX}connection termination").into();
        match cause {
            Some(reset) if reset.is_remote() && reset.is_reset() => Self {
                is_unprocessed: reset.reason() == Some(h2::Reason::REFUSED_STREAM),
                ..Self::new(
                    ResponseFlag::UpstreamRemoteReset,
                    format!("{ERROR_PREFIX}remote reset").into(),
                    text,
                )
            },
            // GOAWAY names the last request that may have been processed; only later ones fail with it.
            Some(going) if going.is_remote() && going.is_go_away() => Self {
                is_unprocessed: true,
                ..Self::new(ResponseFlag::UpstreamConnectionTermination, ended(), text)
            },
            _ => Self::new(ResponseFlag::UpstreamConnectionTermination, ended(), text),
        }
    }
}

fn refusal_text(policies: Option<&str>) -> String {
    match policies {
        Some(policies) => format!("policy {policies} of the workload refused the waypoint"),
        None => "a layer 4 policy of the workload refused the waypoint".to_owned(),
    }
}

/// Filters a list of policy names to those that clients of this namespace may see: the policies of their own namespace.
fn visible_policies(policies: &str, reader: Option<&str>) -> Option<String> {
    let reader = reader?;
    let of_reader = |policy: &&str| {
        let namespace = policy.split_once('/').map(|(namespace, _)| namespace);
        namespace == Some(reader)
    };
    let visible: Vec<_> = policies.split(", ").filter(of_reader).collect();
    (!visible.is_empty()).then(|| visible.join(", "))
}

/// Returns a hint for a failure that occurs with endpoints that do not speak the expected HTTP version.
fn version_mismatch_hint(version: Version) -> &'static str {
    match version {
        Version::Http1 => {
            "the response is not HTTP/1.1; if the port speaks gRPC or HTTP/2, declare appProtocol (grpc, \
             kubernetes.io/h2c) on the Service"
        }
        Version::Http2 => {
            "the response is not HTTP/2; if the port speaks HTTP/1.1 only, declare appProtocol http on the Service"
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unreached(error: TunnelError, reader: Option<&str>) -> UpstreamFailure {
        let error = UpstreamError::Connect(ConnectError::Tunnel(error));
        UpstreamFailure::connect_failure(&error, reader)
    }

    fn denied(policies: &str) -> TunnelError {
        TunnelError::Denied {
            status: StatusCode::UNAUTHORIZED,
            policies: policies.to_owned(),
        }
    }

    #[test]
    fn denying_policy_is_named_to_its_namespace_and_the_log() {
        let policies = "istio-system/all, shop/orders";
        let of_shop = unreached(denied(policies), Some("shop"));
        assert_eq!(
            of_shop.body,
            "policy shop/orders of the workload refused the waypoint"
        );
        assert_eq!(of_shop.status, 503);
        assert_eq!(of_shop.flag, ResponseFlag::UpstreamConnectionFailure);
        for reader in [None, Some("legacy")] {
            let broken = unreached(denied(policies), reader);
            assert_eq!(
                broken.body,
                "a layer 4 policy of the workload refused the waypoint"
            );
            let log = "policy istio-system/all, shop/orders of the workload refused the waypoint: ";
            assert!(broken.details.starts_with(log), "{}", broken.details);
        }
    }

    #[test]
    fn denial_without_names_is_attributed_to_a_policy() {
        let refused = |status| unreached(TunnelError::Status(status), Some("shop"));
        let by_policy = refused(StatusCode::UNAUTHORIZED);
        assert_eq!(
            by_policy.body,
            "a layer 4 policy of the workload refused the waypoint"
        );
        let unavailable = refused(StatusCode::SERVICE_UNAVAILABLE);
        assert!(
            unavailable
                .body
                .ends_with("reset reason: connection failure")
        );
    }

    #[test]
    fn rejected_certificate_is_named() {
        let source = ambit_hbone::tls::HandshakeError::NoH2Alpn;
        let error = DialError::Tls {
            addr: ([10, 0, 0, 2], 15008).into(),
            source,
        };
        let broken = unreached(TunnelError::Dial(error.into()), None);
        assert!(
            broken.body.contains("a certificate is refused"),
            "{}",
            broken.body
        );
    }
}
