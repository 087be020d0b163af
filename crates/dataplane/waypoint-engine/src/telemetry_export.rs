//! Tasks that send the queued spans and log lines to collectors in batches ([`crate::telemetry_config`]). Batches that
//! a collector rejects are dropped and counted.

use std::{sync::Arc, time::Duration};

use ambit_codec::grpc_frame;
use ambit_model::OtlpCollector;
use ambit_otlp::{LOGS_METHOD, Resource, TRACES_METHOD};
use ambit_telemetry::http::{ExportOutcome, ExportSignal};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, HOST, TE},
};
use http_body_util::{BodyExt as _, Limited};

use crate::{
    calls::{self, CallIdentity, Callee},
    extensions::PluginSlots,
    fair_share::FairShares,
    hops::Hops,
    in_flight_checks::InFlightChecks,
    message::{self, Version},
    mirrors::MirrorLimits,
    retry_budget::RetryBudgets,
    stall_detector::StallDetector,
    telemetry_config::{ExportItem, NewQueue},
    upstream::UpstreamPools,
    waypoint::{Shard, Waypoint},
};

/// Maximum number of spans or log lines in one batch.
const MAX_BATCH_ITEMS: usize = 1024;
/// Maximum time for which the first item of a batch waits for others. It is short, since large batches cause bursts of
/// work that delay requests at this waypoint or at a collector on the same node.
const BATCH_DELAY: Duration = Duration::from_millis(20);
/// Timeout of an export, unless the collector's configuration has one.
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(10);
/// Initial and maximum delay before a failed export to a collector is retried.
const RETRY_DELAYS: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Maximum size of a collector's response, in bytes.
const MAX_RESPONSE_BYTES: usize = 64 << 10;

/// Starts an export task for each new queue, while the process runs.
pub async fn run(waypoint: Arc<Waypoint>) {
    let waiting = waypoint.published.exporters().take_new_queues();
    let Some(mut waiting) = waiting else {
        return;
    };
    let shard = Arc::new(Shard {
        upstreams: UpstreamPools::new(&waypoint.dialer, &waypoint.config, &waypoint.idle),
        mirrors: MirrorLimits::default(),
        stalls: StallDetector::new(waypoint.config.streams.stall_timeout),
        checks: InFlightChecks::default(),
        shares: FairShares::default(),
        extensions: PluginSlots::default(),
        retries: RetryBudgets::default(),
        waypoint,
    });
    while let Some(begun) = waiting.recv().await {
        ambit_rt::spawn("telemetry", export(shard.clone(), begun));
    }
}

async fn export(
    shard: Arc<Shard>,
    NewQueue {
        collector,
        mut items,
    }: NewQueue,
) {
    let resource = resource(&shard.waypoint);
    let (first_pause, longest_pause) = RETRY_DELAYS;
    let mut pause = first_pause;
    let mut is_full = false;
    while let Some(first) = items.recv().await {
        if !is_full {
            tokio::time::sleep(BATCH_DELAY).await;
        }
        let (mut spans, mut lines) = (Vec::new(), Vec::new());
        // Items count as waiting until the collector has accepted them.
        let mut counted = Vec::new();
        let mut next = Some(first);
        while let Some((item, bytes)) = next {
            counted.push(bytes);
            match item {
                ExportItem::Span(span) => spans.push(*span),
                ExportItem::LogLine(line) => lines.push(*line),
            }
            is_full = spans.len() + lines.len() >= MAX_BATCH_ITEMS;
            next = if is_full { None } else { items.try_recv().ok() };
        }
        let mut batches = Vec::new();
        if !spans.is_empty() {
            let message = ambit_otlp::encode_traces(&resource, &spans);
            batches.push((ExportSignal::Traces, message, spans.len()));
        }
        if !lines.is_empty() {
            let message = ambit_otlp::encode_logs(&resource, &lines);
            batches.push((ExportSignal::Logs, message, lines.len()));
        }
        drop((spans, lines));
        let mut failed = None;
        for (signal, message, many) in batches {
            let many = u64::try_from(many).unwrap_or(u64::MAX);
            let timeout = collector.timeout.unwrap_or(DEFAULT_TIMEOUT);
            let calling = send_batch(&shard, &collector, signal, message);
            let called = match tokio::time::timeout(timeout, calling).await {
                Ok(called) => called,
                Err(_) => Err(ExportError::Timeout(timeout)),
            };
            let rejected = match called {
                Ok(rejected) => rejected.min(many),
                Err(error) => {
                    failed = Some(error);
                    many
                }
            };
            let metrics = &shard.waypoint.http_metrics;
            metrics.count_exported(signal, ExportOutcome::Sent, many - rejected);
            metrics.count_exported(signal, ExportOutcome::Failed, rejected);
        }
        drop(counted);
        let Some(error) = failed else {
            pause = first_pause;
            continue;
        };
        let service = &collector.service;
        tracing::warn!(%service, port = collector.port, %error, ?pause, "a telemetry collector did not accept an export");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest_pause);
    }
}

/// Returns the OpenTelemetry resource attributes of the waypoint.
fn resource(waypoint: &Waypoint) -> Resource {
    let config = &waypoint.config;
    let gateway = &config.gateway;
    Resource {
        attributes: vec![
            (
                "service.name",
                format!("{}.{}", gateway.name, gateway.namespace),
            ),
            ("service.instance.id", config.own.name.to_string()),
            ("k8s.pod.name", config.own.name.to_string()),
            ("k8s.namespace.name", config.own.namespace.to_string()),
            ("k8s.cluster.name", config.cluster_id.to_string()),
        ],
    }
}

/// Failed export to a collector.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Call(#[from] calls::CallError),
    #[error("it took longer than {0:?}")]
    Timeout(Duration),
    #[error("its response is truncated or too long: {0}")]
    ResponseBody(Box<dyn std::error::Error + Send + Sync>),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("it answers with the status {0} of gRPC")]
    Grpc(String),
    #[error("its name, path or headers cannot be written")]
    InvalidResponse,
}

/// Sends a batch to its collector, and returns the number of records that the collector rejected (partial success).
async fn send_batch(
    shard: &Shard,
    collector: &OtlpCollector,
    signal: ExportSignal,
    message: Vec<u8>,
) -> Result<u64, ExportError> {
    let callee = Callee {
        service: &collector.service,
        port: collector.port,
        caller: CallIdentity::Waypoint,
        hops: Hops::NONE,
        initiator: None,
    };
    let is_grpc = collector.http_path.is_none();
    let version = if is_grpc {
        Version::Http2
    } else {
        Version::Http1
    };
    let request = build_request(collector, signal, message).ok_or(ExportError::InvalidResponse)?;
    let response = calls::request(shard, callee, version, request).await?;
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(ExportError::Status(head.status));
    }
    let body = Limited::new(body, MAX_RESPONSE_BYTES).collect().await;
    let body = body.map_err(ExportError::ResponseBody)?;
    let trailers = body.trailers().cloned();
    let answer = body.to_bytes();
    let answer = if is_grpc {
        let status = trailers
            .as_ref()
            .and_then(|trailers| trailers.get("grpc-status"));
        let status = status.or_else(|| head.headers.get("grpc-status"));
        if status.is_none_or(|status| status != "0") {
            let status = status.map(|status| String::from_utf8_lossy(status.as_bytes()));
            let status = status.unwrap_or_else(|| "-".into());
            return Err(ExportError::Grpc(status.into_owned()));
        }
        grpc_frame::decode_grpc_frame(&answer).unwrap_or_default()
    } else {
        &answer
    };
    Ok(match signal {
        ExportSignal::Traces => ambit_otlp::rejected_spans(answer),
        ExportSignal::Logs => ambit_otlp::rejected_log_records(answer),
    })
}

fn build_request(
    collector: &OtlpCollector,
    signal: ExportSignal,
    message: Vec<u8>,
) -> Option<Request<message::Body>> {
    let authority = format!("{}:{}", collector.service.hostname, collector.port);
    let path = match (&collector.http_path, signal) {
        (Some(path), _) => path.as_str(),
        (None, ExportSignal::Traces) => TRACES_METHOD,
        (None, ExportSignal::Logs) => LOGS_METHOD,
    };
    let is_grpc = collector.http_path.is_none();
    let body = match is_grpc {
        true => Bytes::from(grpc_frame::encode_grpc_frame(&message)?),
        false => Bytes::from(message),
    };
    let request = Request::post(match is_grpc {
        true => format!("http://{authority}{path}"),
        false => path.to_owned(),
    });
    let mut request = request.body(message::text_body(body)).ok()?;
    let headers = request.headers_mut();
    for (name, value) in &collector.headers {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        headers.insert(name, HeaderValue::from_str(value).ok()?);
    }
    if is_grpc {
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
        headers.insert(TE, HeaderValue::from_static("trailers"));
    } else {
        headers.insert(
            CONTENT_TYPE,
            HeaderValue::from_static("application/x-protobuf"),
        );
        headers.insert(HOST, HeaderValue::from_str(&authority).ok()?);
    }
    Some(request)
}
