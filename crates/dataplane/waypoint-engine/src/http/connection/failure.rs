//! Reports connections that end because the client violates HTTP, in metrics and access logs like requests.

use std::{
    error::Error,
    io,
    time::{Duration, SystemTime},
};

use ambit_proxy::report::format_error_chain;
use ambit_telemetry::http::{
    HttpLabels, HttpRequestReport, RequestProtocol, ResponseCode, ResponseFlag, ResponseFlags,
};

use crate::{message::Version, session::Session};

/// Violation of HTTP by a client: status of hyper's response, if it sent one, and reason label in metrics.
struct HttpViolation {
    status: u16,
    reason: &'static str,
}

/// Reports a connection that hyper has ended with an error.
pub(in crate::http) fn report(session: &Session, version: Version, error: &hyper::Error) {
    let caller = session.caller.address;
    let text = format_error_chain(error);
    tracing::debug!(%caller, error = text, "a client's HTTP connection ended");
    let Some(HttpViolation { status, reason }) = HttpViolation::from_error(version, error) else {
        return;
    };
    let text = match reason {
        "headers_too_large" => format!("{text} (AMBIT_MAX_HEADERS, AMBIT_MAX_HEADER_BYTES)"),
        _ => text,
    };
    report_violation(session, version, HttpViolation { status, reason }, &text);
}

/// Reports an HTTP/1 connection that the waypoint rejects with a response of this status; 0 for no response.
pub(in crate::http) fn report_rejected(
    session: &Session,
    status: u16,
    reason: &'static str,
    text: &str,
) {
    report_violation(
        session,
        Version::Http1,
        HttpViolation { status, reason },
        text,
    );
}

/// Reports a connection that is rejected because a memory budget has no room.
pub(in crate::http) fn report_overloaded(
    session: &Session,
    version: Version,
    reason: &'static str,
) {
    report_violation(
        session,
        version,
        HttpViolation { status: 0, reason },
        reason,
    );
}

fn report_violation(session: &Session, version: Version, violation: HttpViolation, text: &str) {
    let HttpViolation { status, reason } = violation;
    let caller = session.caller.address;
    let waypoint = &session.shard.waypoint;
    let flags = ResponseFlags::from(if reason.starts_with("memory_budget") {
        ResponseFlag::OverloadManager
    } else {
        ResponseFlag::DownstreamProtocolError
    });
    let code = ResponseCode::new(status);
    let protocol = match version {
        Version::Http1 => "HTTP/1.1",
        Version::Http2 => "HTTP/2",
    };
    let report = HttpRequestReport {
        protocol: Some(protocol),
        response_code: code,
        flags,
        code_details: Some(reason),
        termination_details: Some(text),
        ..HttpRequestReport::new(
            SystemTime::now(),
            Duration::ZERO,
            caller,
            session.target.address(),
        )
    };
    let traffic = session.traffic_labels();
    let labels = HttpLabels::new(traffic, RequestProtocol::Http, code, flags);
    waypoint.http_metrics.count_refused_request(reason);
    waypoint.http_metrics.record(&labels, &report);
    let is_silent = session
        .telemetry_config()
        .is_some_and(|telemetry_config| telemetry_config.has_no_stdout_log());
    if let Some(format) = waypoint.config.access_log.filter(|_| !is_silent) {
        ambit_rt::logging::write_line(&report.format_line(format));
    }
}

/// Returns the reason label of an error that the waypoint's own wrapper of the connection has caused (timeout or memory
/// budget); hyper preserves only its kind.
fn own_error_reason(error: &hyper::Error) -> Option<&'static str> {
    let source: &io::Error = error.source()?.downcast_ref()?;
    match source.kind() {
        io::ErrorKind::TimedOut => Some("headers_too_slow"),
        io::ErrorKind::QuotaExceeded => Some("memory_budget_header_block"),
        _ => None,
    }
}

impl HttpViolation {
    fn from_error(version: Version, error: &hyper::Error) -> Option<Self> {
        if let Some(reason) = own_error_reason(error) {
            return Some(Self { status: 0, reason });
        }
        match version {
            Version::Http1 if error.is_parse_too_large() => Some(Self {
                status: 431,
                reason: "headers_too_large",
            }),
            Version::Http1 if error.is_parse() => Some(Self {
                status: 400,
                reason: "malformed",
            }),
            Version::Http1 => None,
            Version::Http2 => {
                let http2 = error.source()?.downcast_ref::<h2::Error>()?;
                // Errors that the client reports itself, and failed connections, are no violations.
                let is_ours = http2.reason().is_some() && !http2.is_remote() && !http2.is_io();
                is_ours.then_some(Self {
                    status: 0,
                    reason: "http2",
                })
            }
        }
    }
}
