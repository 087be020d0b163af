//! Configured telemetry of one request: the headers that access logs read, the trace span, and the final report.

use std::sync::Arc;

use ambit_observation::{
    RequestObservation,
    span::{self, SpanContext},
    trace::{
        IncomingTraceContext, SpanId, TRACESTATE, TraceId, X_REQUEST_ID, format_request_id,
        should_sample,
    },
};
use ambit_telemetry::{
    TrafficLabels, WorkloadLabels,
    http::{HttpRequestReport, RelabeledValues},
};
use http::{HeaderMap, HeaderValue};

use crate::{
    http::report::redact::redact_headers,
    session::Session,
    telemetry_config::{ExportItem, TelemetryConfig, Tracing},
};

/// Telemetry state of a request whose target has a `Telemetry` configuration.
#[derive(Debug)]
pub(super) struct RequestTelemetry {
    telemetry_config: Arc<TelemetryConfig>,
    request_headers: HeaderMap,
    response_headers: HeaderMap,
    incoming_context: IncomingTraceContext,
    /// Trace id, span id and sampling decision of the forwarded request.
    span_context: Option<(TraceId, SpanId, bool)>,
    /// Request id that the waypoint has generated for a request without one.
    generated_request_id: Option<HeaderValue>,
    trace_state: String,
}

/// Attributes of a finished request that its [`HttpRequestReport`] does not have, or not in this form.
#[derive(Clone, Copy, Debug)]
pub(super) struct FinishedRequest<'a> {
    pub(super) method: &'a str,
    /// Request target, with tokens removed from its query.
    pub(super) target: &'a str,
    pub(super) host: &'a str,
    pub(super) status: u16,
    pub(super) is_grpc: bool,
    pub(super) grpc_status: Option<u32>,
}

impl RequestTelemetry {
    /// Creates the telemetry state of a request; `None` if its target has no `Telemetry` configuration.
    pub(super) fn new(session: &Session, headers: &HeaderMap) -> Option<Box<Self>> {
        let telemetry_config = session.telemetry_config()?;
        let mut telemetry = Self {
            request_headers: copy_redacted_headers(session, &telemetry_config, headers),
            response_headers: HeaderMap::new(),
            incoming_context: IncomingTraceContext::default(),
            span_context: None,
            generated_request_id: None,
            trace_state: String::new(),
            telemetry_config,
        };
        if telemetry.telemetry_config.tracing.is_some() {
            telemetry.read_trace_context(headers);
        }
        Some(Box::new(telemetry))
    }

    /// Parses the trace context of a request, decides whether it is sampled, and creates its span id.
    fn read_trace_context(&mut self, headers: &HeaderMap) {
        let Some(Tracing { settings, .. }) = &self.telemetry_config.tracing else {
            return;
        };
        self.incoming_context = IncomingTraceContext::from_headers(headers);
        let may_be_sampled = settings.sampling > 0 || self.incoming_context.sampled.is_some();
        if !may_be_sampled || self.incoming_context.sampled == Some(false) {
            // The request is not sampled: trace headers pass unchanged.
            return;
        }
        let mut id = headers.get(&X_REQUEST_ID).cloned();
        if id.is_none() {
            id = HeaderValue::from_str(&format_request_id(rand::random())).ok();
            self.generated_request_id.clone_from(&id);
        }
        let id = id.as_ref().filter(|_| settings.by_request_id);
        let sampled = self.incoming_context.sampled.unwrap_or_else(|| {
            should_sample(
                settings.sampling,
                id.map(HeaderValue::as_bytes),
                rand::random,
            )
        });
        let trace = match self.incoming_context.parent {
            Some((trace, _)) => trace,
            None => TraceId::new(rand::random()),
        };
        self.span_context = Some((trace, SpanId::new(rand::random()), sampled));
        if sampled && self.incoming_context.parent.is_some() {
            let state = headers.get_all(&TRACESTATE).iter();
            let state: Vec<_> = state.filter_map(|part| part.to_str().ok()).collect();
            self.trace_state = state.join(",");
        }
    }

    /// Writes the trace context to the request headers, before the request is authorized.
    pub(super) fn write_trace_context(&self, headers: &mut HeaderMap) {
        let tracing = self.telemetry_config.tracing.as_ref();
        let propagates = tracing.is_some_and(|tracing| tracing.settings.propagates);
        if let Some((trace, span, sampled)) = self.span_context.filter(|_| propagates) {
            self.incoming_context
                .propagate(headers, trace, span, sampled);
        }
        if let Some(name) = &self.generated_request_id {
            headers.insert(X_REQUEST_ID, name.clone());
        }
    }

    /// Records the headers of the forwarded request that access logs and span tags read.
    pub(super) fn record_forwarded_headers(&mut self, session: &Session, headers: &HeaderMap) {
        self.request_headers = copy_redacted_headers(session, &self.telemetry_config, headers);
    }

    /// Records the response headers that access logs and span tags read.
    pub(super) fn record_response_headers(&mut self, session: &Session, headers: &HeaderMap) {
        let mut redacted = self
            .telemetry_config
            .needed_headers
            .select_response_headers(headers);
        redact_headers(session, &mut redacted);
        self.response_headers = redacted;
    }

    /// Whether the configuration has access logs, which replace the waypoint's default access log.
    pub(super) fn has_logs(&self) -> bool {
        self.telemetry_config.logs.is_some()
    }

    /// Writes the access logs and the span of a finished request, and returns its overridden metric labels.
    pub(super) fn report(
        &mut self,
        session: &Session,
        request: FinishedRequest<'_>,
        report: &HttpRequestReport<'_>,
        traffic: &TrafficLabels,
    ) -> Option<RelabeledValues> {
        if let Some(name) = self.generated_request_id.take() {
            // The id is not yet among the headers of a request that was never forwarded.
            self.request_headers.entry(X_REQUEST_ID).or_insert(name);
        }
        let waypoint = &session.shard.waypoint;
        let flags = report.flags.to_string();
        let peer = session.caller.identity.as_ref().map(ToString::to_string);
        let sampled = self.span_context.filter(|(.., sampled)| *sampled);
        let trace_id = sampled.map(|(trace, ..)| trace.to_string());
        let observation = RequestObservation {
            start_time: report.started,
            duration: report.duration,
            method: Some(request.method),
            path: Some(request.target),
            protocol: report.protocol,
            authority: Some(request.host).filter(|host| !host.is_empty()),
            response_code: request.status,
            response_flags: &flags,
            response_flag_bits: report.flags.envoy_bits(),
            response_code_details: report.code_details,
            termination_details: report.termination_details,
            upstream_transport_failure: report.upstream_failure,
            request_bytes: report.request_bytes,
            response_bytes: report.response_bytes,
            upstream_time: report.upstream_time,
            grpc_status: request.grpc_status,
            is_grpc: request.is_grpc,
            upstream_host: report.upstream_host,
            upstream_cluster: report.upstream_cluster,
            upstream_local_address: report.upstream_local,
            downstream_local_address: report.downstream_local,
            downstream_remote_address: report.downstream_remote,
            server_name: None,
            route_name: report.route,
            downstream_spiffe_id: peer.as_deref(),
            trace_id: trace_id.as_deref(),
            hostname: &waypoint.config.own.name,
            request_headers: &self.request_headers,
            response_headers: &self.response_headers,
        };
        let span_context = sampled.map(|(trace, span, _)| (trace, span));
        let numbers = span_context.map(|(trace, span)| (trace.bytes(), span.bytes()));
        for log in self.telemetry_config.logs.iter().flatten() {
            log.write(&observation, numbers, &waypoint.http_metrics);
        }
        if let (Some((trace, id)), Some(tracing)) = (span_context, &self.telemetry_config.tracing) {
            let span_context = SpanContext {
                trace_id: trace,
                id,
                parent: self.incoming_context.parent.map(|(_, parent)| parent),
                trace_state: std::mem::take(&mut self.trace_state),
            };
            let parties = match tracing.settings.istio_tags {
                true => peer_attributes(session, traffic),
                false => Vec::new(),
            };
            let most = usize::try_from(tracing.settings.max_tag).unwrap_or(usize::MAX);
            let span = span::build_span(span_context, &observation, parties, &tracing.tags, most);
            tracing
                .queue
                .push(&waypoint.http_metrics, ExportItem::Span(Box::new(span)));
        }
        self.telemetry_config.labels(&observation)
    }
}

/// Copies the request headers that access logs and span tags read, with tokens removed.
fn copy_redacted_headers(
    session: &Session,
    telemetry_config: &TelemetryConfig,
    headers: &HeaderMap,
) -> HeaderMap {
    let mut redacted = telemetry_config
        .needed_headers
        .select_request_headers(headers);
    redact_headers(session, &mut redacted);
    redacted
}

/// Returns the values of Istio's span tags for source, destination and the waypoint itself.
fn peer_attributes(session: &Session, traffic: &TrafficLabels) -> span::PeerAttributes {
    let config = &session.shard.waypoint.config;
    let mut all = vec![
        ("istio.mesh_id", config.trust_domain.to_string()),
        ("istio.canonical_service", config.gateway.name.to_string()),
        ("istio.canonical_revision", "latest".to_owned()),
        ("istio.namespace", config.own.namespace.to_string()),
        ("istio.cluster_id", config.cluster_id.to_string()),
    ];
    let names = [
        "istio.source_workload",
        "istio.source_namespace",
        "istio.source_canonical_service",
        "istio.source_canonical_revision",
        "istio.source_principal",
    ];
    all.extend(party_attributes(names, traffic.source.as_deref()));
    let names = [
        "istio.destination_workload",
        "istio.destination_namespace",
        "istio.destination_canonical_service",
        "istio.destination_canonical_revision",
        "istio.destination_principal",
    ];
    all.extend(party_attributes(names, traffic.destination.as_deref()));
    if let Some(service) = &traffic.service {
        all.push(("istio.destination_service_name", service.name.to_string()));
        all.push((
            "istio.destination_service_namespace",
            service.namespace.to_string(),
        ));
    }
    all
}

fn party_attributes(
    names: [&'static str; 5],
    party: Option<&WorkloadLabels>,
) -> impl Iterator<Item = (&'static str, String)> {
    let values = party.map(|party| {
        let principal = party.principal.as_ref().map(ToString::to_string);
        [
            party.workload.to_string(),
            party.namespace.to_string(),
            party.canonical_service.to_string(),
            party.canonical_revision.to_string(),
            principal.unwrap_or_default(),
        ]
    });
    names.into_iter().zip(values.unwrap_or_default())
}
