//! Telemetry of a connection that is not HTTP: metrics when it opens and closes, and its access log.

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Instant, SystemTime},
};

use ambit_flow::{FlowEventKind, Refusal};
use ambit_model::Service;
use ambit_observation::RequestObservation;
use ambit_proxy::{flow::truncate_text, report::format_error_chain};
use ambit_telemetry::{
    TrafficLabels, TrafficSeries,
    http::{HttpRequestReport, ResponseFlag, ResponseFlags},
};
use http::HeaderMap;

use super::error::TcpError;
use crate::{
    destination::NoUpstream, flow, session::Session, telemetry_config::TelemetryConfig,
    upstream::UpstreamError,
};

/// Telemetry state of one connection, from its acceptance to its end.
#[derive(Debug)]
pub(super) struct ConnectionReport {
    telemetry_config: Option<Arc<TelemetryConfig>>,
    began: Instant,
    start_time: SystemTime,
    received_bytes: AtomicU64,
    sent_bytes: AtomicU64,
}

/// Endpoint and service of a connection, as far as they were resolved.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct ConnectionRoute<'a> {
    pub(super) sni: Option<&'a str>,
    pub(super) endpoint: Option<SocketAddr>,
    /// Service that the connection was forwarded to.
    pub(super) service: Option<&'a Arc<Service>>,
}

impl<'a> ConnectionRoute<'a> {
    fn flow_upstream(self) -> flow::FlowUpstream<'a> {
        flow::FlowUpstream {
            endpoint: self.endpoint,
            service: self.service,
            ..flow::FlowUpstream::default()
        }
    }
}

/// End of a connection, as its access log reports it.
#[derive(Debug, Default)]
pub(super) struct ConnectionEnd {
    pub(super) flags: ResponseFlags,
    /// Reason why the waypoint closed the connection.
    pub(super) termination: Option<String>,
    /// Reason why connecting to the endpoint failed.
    pub(super) connect_failure: Option<String>,
    /// Name of the AUDIT policy that matched the connection.
    pub(super) audited_by: Option<String>,
    /// Whether the waypoint rejected the connection, or a policy change closed it.
    pub(super) is_rejected: bool,
    /// Name of the policy that denied the connection.
    pub(super) policy: Option<String>,
}

impl ConnectionEnd {
    /// Describes the end of a connection that failed with this error.
    pub(super) fn from_error(error: &TcpError) -> Self {
        let flagged = |flag: ResponseFlag| Self {
            flags: flag.into(),
            ..Self::default()
        };
        match error {
            TcpError::Denied(decision) => Self {
                termination: decision.response_code_details(),
                audited_by: decision
                    .matched_audit_rules
                    .first()
                    .map(ToString::to_string),
                is_rejected: true,
                policy: decision.denying_policy().map(ToString::to_string),
                ..Self::default()
            },
            TcpError::NotHttp(_) => Self {
                termination: Some(error.to_string()),
                is_rejected: true,
                ..Self::default()
            },
            TcpError::Unauthorized(_) => Self {
                termination: Some("ext_authz_denied".to_owned()),
                is_rejected: true,
                ..flagged(ResponseFlag::UnauthorizedExternal)
            },
            TcpError::Route(_) | TcpError::MisdirectedHost(_) => flagged(ResponseFlag::NoRoute),
            TcpError::DestinationRule(NoUpstream::Overflow(_)) => {
                flagged(ResponseFlag::UpstreamOverflow)
            }
            TcpError::NoOwnWorkload | TcpError::DestinationRule(_) => {
                flagged(ResponseFlag::NoHealthyUpstream)
            }
            TcpError::Upstream(
                error @ (UpstreamError::Memory(_) | UpstreamError::TooManyLookups(_)),
            ) => Self {
                connect_failure: Some(format_error_chain(error)),
                ..flagged(ResponseFlag::OverloadManager)
            },
            TcpError::Upstream(error) => Self {
                connect_failure: Some(format_error_chain(error)),
                ..flagged(ResponseFlag::UpstreamConnectionFailure)
            },
        }
    }
}

impl ConnectionReport {
    /// Starts the report of a connection.
    pub(super) fn new(session: &Session) -> Self {
        Self {
            telemetry_config: session.telemetry_config(),
            began: Instant::now(),
            start_time: SystemTime::now(),
            received_bytes: AtomicU64::default(),
            sent_bytes: AtomicU64::default(),
        }
    }

    /// Counts bytes received from the client.
    pub(super) fn add_received_bytes(&self, bytes: u64) {
        self.received_bytes.fetch_add(bytes, Relaxed);
    }

    /// Counts bytes sent to the client.
    pub(super) fn add_sent_bytes(&self, bytes: u64) {
        self.sent_bytes.fetch_add(bytes, Relaxed);
    }

    /// Returns the metric series of the connection. Label overrides see the attributes that are known when the
    /// connection opens.
    pub(super) fn traffic_series(
        &self,
        session: &Session,
        labels: &TrafficLabels,
        route: ConnectionRoute<'_>,
    ) -> Arc<TrafficSeries> {
        let traffic = session.shard.waypoint.metrics.traffic();
        let Some(telemetry_config) = &self.telemetry_config else {
            return traffic.series(labels);
        };
        let end = ConnectionEnd::default();
        let report = self.build_report(session, route, &end);
        let changed = with_observation(session, &report, |of| telemetry_config.labels(of));
        traffic.relabeled_series(labels, changed)
    }

    /// Reports the opened connection to readers of flow events.
    pub(super) fn report_opened(&self, session: &Session, route: ConnectionRoute<'_>) {
        flow::report(
            session,
            FlowEventKind::Opened,
            route.flow_upstream(),
            |flow| {
                flow::set_measurements(flow, 0, 0, self.began.elapsed());
            },
        );
    }

    /// Reports the closed connection: flow event and access log.
    pub(super) fn report_closed(
        &self,
        session: &Session,
        route: ConnectionRoute<'_>,
        end: &ConnectionEnd,
    ) {
        self.report_flow(session, route, end);
        let waypoint = &session.shard.waypoint;
        let report = self.build_report(session, route, end);
        let logs = self
            .telemetry_config
            .as_ref()
            .and_then(|one| one.logs.as_ref());
        if let Some(logs) = logs {
            return with_observation(session, &report, |of| {
                for log in logs {
                    log.write(of, None, &waypoint.http_metrics);
                }
            });
        }
        if let Some(format) = waypoint.config.access_log {
            ambit_rt::logging::write_line(&report.format_line(format));
        }
    }

    fn report_flow(&self, session: &Session, route: ConnectionRoute<'_>, end: &ConnectionEnd) {
        let reason = end
            .termination
            .as_deref()
            .or(end.connect_failure.as_deref());
        let event = match reason {
            _ if end.is_rejected => FlowEventKind::Refused,
            // Only an established connection has an endpoint.
            _ if route.endpoint.is_some() => FlowEventKind::Closed,
            _ => FlowEventKind::Failed,
        };
        flow::report(session, event, route.flow_upstream(), |flow| {
            let flags = || (event == FlowEventKind::Failed).then(|| end.flags.to_string());
            let reason = reason.map(truncate_text).or_else(flags);
            match event {
                FlowEventKind::Refused => {
                    flow.refusal = Some(Refusal {
                        policy: end.policy.clone(),
                        reason: reason.unwrap_or_default(),
                    });
                }
                _ => flow.error = reason,
            }
            let (received, sent) = (
                self.received_bytes.load(Relaxed),
                self.sent_bytes.load(Relaxed),
            );
            flow::set_measurements(flow, received, sent, self.began.elapsed());
        });
    }

    fn build_report<'a>(
        &self,
        session: &Session,
        route: ConnectionRoute<'a>,
        end: &'a ConnectionEnd,
    ) -> HttpRequestReport<'a> {
        HttpRequestReport {
            flags: end.flags,
            termination_details: end.termination.as_deref(),
            upstream_failure: end.connect_failure.as_deref(),
            request_bytes: self.received_bytes.load(Relaxed),
            response_bytes: self.sent_bytes.load(Relaxed),
            upstream_host: route.endpoint,
            upstream_cluster: route.service.map(|service| service.hostname.as_str()),
            server_name: route.sni.map(str::as_bytes),
            audit_policy: end.audited_by.as_deref(),
            ..HttpRequestReport::new(
                self.start_time,
                self.began.elapsed(),
                session.caller.address,
                session.target.address(),
            )
        }
    }
}

/// Converts a report to the attributes that filters, log formats and label expressions read, and passes them to `read`.
fn with_observation<T>(
    session: &Session,
    report: &HttpRequestReport<'_>,
    read: impl FnOnce(&RequestObservation<'_>) -> T,
) -> T {
    let none = HeaderMap::new();
    let flags = report.flags.to_string();
    let peer = session.caller.identity.as_ref().map(ToString::to_string);
    let name = report.server_name.map(String::from_utf8_lossy);
    read(&RequestObservation {
        start_time: report.started,
        duration: report.duration,
        method: None,
        path: None,
        protocol: None,
        authority: None,
        response_code: 0,
        response_flags: &flags,
        response_flag_bits: report.flags.envoy_bits(),
        response_code_details: None,
        termination_details: report.termination_details,
        upstream_transport_failure: report.upstream_failure,
        request_bytes: report.request_bytes,
        response_bytes: report.response_bytes,
        upstream_time: None,
        grpc_status: None,
        is_grpc: false,
        upstream_host: report.upstream_host,
        upstream_cluster: report.upstream_cluster,
        upstream_local_address: None,
        downstream_local_address: report.downstream_local,
        downstream_remote_address: report.downstream_remote,
        server_name: name.as_deref(),
        route_name: None,
        downstream_spiffe_id: peer.as_deref(),
        trace_id: None,
        hostname: &session.shard.waypoint.config.own.name,
        request_headers: &none,
        response_headers: &none,
    })
}
