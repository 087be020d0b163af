//! Record of a request in flight. It is reported to metrics, access logs and traces when the last part of the response
//! has been sent.

mod telemetry;

use std::{
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ambit_flow::{FlowEventKind, Refusal, RequestSummary};
use ambit_l7::authz::HttpDecision;
use ambit_proxy::flow::truncate_text;
use ambit_telemetry::{
    ServiceName, TrafficLabels, WorkloadLabels,
    http::{
        HttpLabels, HttpRequestReport, RequestProtocol, ResponseCode, ResponseFlag, ResponseFlags,
    },
};
use http::{
    HeaderMap, HeaderName, Method, Request, Response, header::USER_AGENT, uri::PathAndQuery,
};
use hyper::body::Incoming;

use super::redact::redact_target;
use crate::{
    flow,
    http::{body::count::BodyCounter, reply::Reply, send::SelectedEndpoint},
    session::Session,
};
use telemetry::{FinishedRequest, RequestTelemetry};

const X_FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// Data of one request for metrics, access log and traces, reported when the record is dropped.
#[derive(Debug)]
pub(in crate::http) struct RequestRecord {
    session: Arc<Session>,
    began: Instant,
    start_time: SystemTime,
    method: Method,
    /// Request target, with tokens removed from its query.
    target: String,
    host: String,
    version: http::Version,
    is_grpc: bool,
    status: u16,
    flags: ResponseFlags,
    details: Option<String>,
    audited_by: Option<String>,
    /// Policy that denied the request.
    policy: Option<String>,
    /// Whether the waypoint has rejected the request, rather than failed to forward it.
    is_rejected: bool,
    pub(in crate::http) upstream_failure: Option<String>,
    upstream_time: Option<Duration>,
    pub(in crate::http) route: Option<String>,
    selected_endpoint: Option<SelectedEndpoint>,
    /// Values of the forwarded `x-forwarded-for`, `user-agent` and `x-request-id` for the access log.
    logged_headers: [Option<Vec<u8>>; 3],
    pub(in crate::http) received_body: BodyCounter,
    pub(in crate::http) sent_body: BodyCounter,
    /// State of the access logs and the trace span; `None` without a `Telemetry` configuration.
    telemetry: Option<Box<RequestTelemetry>>,
}

impl RequestRecord {
    pub(in crate::http) fn new(
        session: &Arc<Session>,
        request: &Request<Incoming>,
        is_grpc: bool,
    ) -> Self {
        Self {
            session: session.clone(),
            began: Instant::now(),
            start_time: SystemTime::now(),
            method: request.method().clone(),
            target: redact_target(session, &request.uri().to_string()).into_owned(),
            host: String::new(),
            version: request.version(),
            is_grpc,
            status: 0,
            flags: ResponseFlags::default(),
            details: None,
            audited_by: None,
            policy: None,
            is_rejected: false,
            upstream_failure: None,
            upstream_time: None,
            route: None,
            selected_endpoint: None,
            logged_headers: [const { None }; 3],
            received_body: BodyCounter::new(is_grpc),
            sent_body: BodyCounter::new(is_grpc),
            telemetry: RequestTelemetry::new(session, request.headers()),
        }
    }

    /// Records the request's normalized host and target.
    pub(in crate::http) fn record_target(&mut self, host: &str, target: &PathAndQuery) {
        host.clone_into(&mut self.host);
        self.target.clear();
        self.target
            .push_str(&redact_target(&self.session, target.as_str()));
    }

    /// Records that JWT authentication rejected the request.
    pub(in crate::http) fn record_unauthenticated(&mut self, details: String) {
        self.details = Some(details);
    }

    /// Writes the trace context of the waypoint's span to the request headers.
    pub(in crate::http) fn write_trace_context(&self, headers: &mut HeaderMap) {
        if let Some(telemetry) = &self.telemetry {
            telemetry.write_trace_context(headers);
        }
    }

    /// Records the decision of the authorization policies.
    pub(in crate::http) fn record_policy_decision(&mut self, decision: &HttpDecision) {
        self.details = decision.response_code_details();
        self.policy = decision.denying_policy().map(ToString::to_string);
        let metrics = &self.session.shard.waypoint.http_metrics;
        for dry_run in &decision.dry_run_denials {
            metrics.count_dry_run_denial(&dry_run.policy);
        }
        if let Some(audit) = decision.matched_audit_rules.first() {
            self.audited_by.get_or_insert_with(|| audit.to_string());
        }
    }

    /// Records that an authorization provider denied the request, or that its check failed.
    pub(in crate::http) fn record_external_denial(&mut self, details: &str) {
        self.details = Some(details.to_owned());
        self.is_rejected = true;
    }

    /// Records the headers of the forwarded request.
    pub(in crate::http) fn record_forwarded_headers(&mut self, headers: &HeaderMap) {
        let names = [X_FORWARDED_FOR, USER_AGENT, X_REQUEST_ID];
        self.logged_headers =
            names.map(|name| headers.get(name).map(|value| value.as_bytes().to_vec()));
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.record_forwarded_headers(&self.session, headers);
        }
    }

    /// Adds a response flag to the request's record.
    pub(in crate::http) fn add_flag(&mut self, flag: ResponseFlag) {
        self.flags.insert(flag);
    }

    /// Records the response-code details for the access log.
    pub(in crate::http) fn set_details(&mut self, details: &str) {
        self.details = Some(details.to_owned());
    }

    /// Records the endpoint that has responded.
    pub(in crate::http) fn record_endpoint(
        &mut self,
        chosen: SelectedEndpoint,
        flags: ResponseFlags,
    ) {
        self.flags = self.flags | flags;
        self.upstream_time = Some(self.began.elapsed());
        self.selected_endpoint = Some(chosen);
        self.details = Some("via_upstream".to_owned());
    }

    /// Records a response that the waypoint generates.
    pub(in crate::http) fn record_reply(&mut self, reply: &Reply) {
        self.flags = self.flags | reply.flags;
        self.is_rejected = matches!(reply.status.as_u16(), 401 | 403 | 429);
        if let Some(details) = reply.details {
            self.details = Some(details.to_owned());
        }
        if let Some(reason) = reply.rejection_label {
            self.session
                .shard
                .waypoint
                .http_metrics
                .count_refused_request(reason);
            self.details = Some(reason.to_owned());
        }
        self.sent_body.add_bytes(reply.text.len());
        self.sent_body.mark_complete();
    }

    /// Records a response that a plugin gives in place of the application.
    pub(in crate::http) fn record_plugin_reply(&mut self, details: &str, bytes: usize) {
        self.flags = ResponseFlags::default();
        self.details = Some(details.to_owned());
        self.selected_endpoint = None;
        self.sent_body.add_bytes(bytes);
        self.sent_body.mark_complete();
    }

    /// Records the status and the headers of the response.
    pub(in crate::http) fn record_response<B>(&mut self, response: &Response<B>) {
        self.status = response.status().as_u16();
        self.sent_body.record_grpc_status(response.headers());
        if let Some(telemetry) = &mut self.telemetry {
            telemetry.record_response_headers(&self.session, response.headers());
        }
    }

    fn protocol(&self) -> RequestProtocol {
        if self.is_grpc {
            RequestProtocol::Grpc(self.sent_body.grpc_status())
        } else {
            RequestProtocol::Http
        }
    }

    /// Reports the completed request to readers of flow events.
    fn report_flow(&self, report: &HttpRequestReport<'_>) {
        let chosen = self.selected_endpoint.as_ref();
        let server = flow::FlowUpstream {
            endpoint: chosen.map(|chosen| chosen.endpoint),
            workload: chosen.and_then(|chosen| chosen.workload.as_ref()),
            service: chosen.and_then(|chosen| chosen.service.as_ref()),
        };
        let is_refused = self.is_rejected && chosen.is_none();
        let event = match is_refused {
            true => FlowEventKind::Refused,
            false => FlowEventKind::Request,
        };
        flow::report(&self.session, event, server, |flow| {
            let path = self.target.split('?').next().unwrap_or_default();
            let details = report.code_details.map(truncate_text);
            flow.refusal = is_refused.then(|| Refusal {
                policy: self.policy.clone(),
                reason: details.clone().unwrap_or_else(|| self.flags.to_string()),
            });
            flow.error = self.upstream_failure.as_deref().map(truncate_text);
            flow.request = Some(RequestSummary {
                method: truncate_text(self.method.as_str()),
                path: truncate_text(path),
                authority: truncate_text(&self.host),
                protocol: match self.is_grpc {
                    true => "gRPC".to_owned(),
                    false => protocol(self.version).to_owned(),
                },
                status: self.status,
                route: self.route.clone(),
                details,
                flags: self.flags.to_string(),
            });
            let (received, sent) = (report.request_bytes, report.response_bytes);
            flow::set_measurements(flow, received, sent, report.duration);
        });
    }

    fn traffic_labels(&self) -> TrafficLabels {
        let session = &self.session;
        let chosen = self.selected_endpoint.as_ref();
        let mut traffic = session.traffic_labels();
        if let Some(service) = chosen.and_then(|chosen| chosen.service.as_ref()) {
            traffic.service = Some(ServiceName::from(&**service));
        }
        if let Some(workload) = chosen.and_then(|chosen| chosen.workload.as_ref()) {
            traffic.destination = Some(Arc::new(WorkloadLabels::destination(&workload.to_model())));
        }
        traffic
    }
}

impl Drop for RequestRecord {
    fn drop(&mut self) {
        if self.sent_body.has_timed_out() {
            self.flags.insert(ResponseFlag::UpstreamRequestTimeout);
        } else if self.selected_endpoint.is_some() && self.sent_body.is_aborted() {
            self.flags
                .insert(ResponseFlag::UpstreamConnectionTermination);
        } else if self.status == 0
            || self.selected_endpoint.is_some() && !self.sent_body.is_complete()
        {
            self.flags
                .insert(ResponseFlag::DownstreamConnectionTermination);
        }
        let mut telemetry = self.telemetry.take();
        let session = &self.session;
        let [forwarded_for, user_agent, request_id] = &self.logged_headers;
        let cluster = self
            .selected_endpoint
            .as_ref()
            .and_then(|chosen| chosen.service.as_ref());
        let report = HttpRequestReport {
            method: Some(self.method.as_str().as_bytes()),
            path: Some(self.target.as_bytes()),
            protocol: Some(protocol(self.version)),
            response_code: ResponseCode::new(self.status),
            flags: self.flags,
            code_details: self.details.as_deref(),
            upstream_failure: self.upstream_failure.as_deref(),
            request_bytes: self.received_body.bytes(),
            response_bytes: self.sent_body.bytes(),
            request_messages: self.received_body.messages(),
            response_messages: self.sent_body.messages(),
            upstream_time: self.upstream_time,
            forwarded_for: forwarded_for.as_deref(),
            user_agent: user_agent.as_deref(),
            request_id: request_id.as_deref(),
            authority: Some(self.host.as_bytes()),
            upstream_host: self
                .selected_endpoint
                .as_ref()
                .map(|chosen| chosen.endpoint),
            upstream_cluster: cluster.map(|service| service.hostname.as_str()),
            route: self.route.as_deref(),
            audit_policy: self.audited_by.as_deref(),
            external_host: self
                .selected_endpoint
                .as_ref()
                .and_then(|chosen| chosen.wildcard_host.as_deref()),
            external_san: self
                .selected_endpoint
                .as_ref()
                .and_then(|chosen| chosen.remote_identity.as_deref()),
            ..HttpRequestReport::new(
                self.start_time,
                self.began.elapsed(),
                session.caller.address,
                session.target.address(),
            )
        };
        self.report_flow(&report);
        let waypoint = &session.shard.waypoint;
        let traffic = self.traffic_labels();
        let has_logs = telemetry
            .as_ref()
            .is_some_and(|telemetry| telemetry.has_logs());
        let changed = telemetry.as_mut().and_then(|telemetry| {
            let finished = FinishedRequest {
                method: self.method.as_str(),
                target: &self.target,
                host: &self.host,
                status: self.status,
                is_grpc: self.is_grpc,
                grpc_status: self.sent_body.grpc_status(),
            };
            telemetry.report(session, finished, &report, &traffic)
        });
        let code = ResponseCode::new(self.status);
        let labels = HttpLabels::new(traffic, self.protocol(), code, self.flags);
        waypoint
            .http_metrics
            .record(&labels.with_overrides(changed), &report);
        if let Some(format) = waypoint.config.access_log.filter(|_| !has_logs) {
            ambit_rt::logging::write_line(&report.format_line(format));
        }
    }
}

pub(in crate::http) fn protocol(version: http::Version) -> &'static str {
    match version {
        http::Version::HTTP_10 => "HTTP/1.0",
        http::Version::HTTP_2 => "HTTP/2",
        _ => "HTTP/1.1",
    }
}
