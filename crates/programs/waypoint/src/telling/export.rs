//! What collectors are told: gathered in queues with bounds, and sent in batches by tasks of their own.
//!
//! A request never waits for it. What comes while a queue is full is dropped and counted; so is what a collector does
//! not take. A queue is there as long as something names its collector.

use std::{collections::HashMap, sync::Arc, time::Duration};

use ambit_model::{ArcStr, OtlpCollector};
use ambit_observation::span::Span;
use ambit_otlp::{LOGS_METHOD, Line, Resource, TRACES_METHOD};
use ambit_telemetry::http::{ExportOutcome, HttpMetrics, Signal};
use bytes::Bytes;
use http::{
    HeaderName, HeaderValue, Request, StatusCode,
    header::{CONTENT_TYPE, HOST, TE},
};
use http_body_util::{BodyExt as _, Limited};
use parking_lot::Mutex;
use tokio::sync::mpsc;

use crate::{
    asks::Asks,
    budget::Budgets,
    calls::{self, Callee},
    circle::Passed,
    message::{self, Version},
    mirrors::Mirrors,
    upstream::Upstreams,
    waypoint::{Shard, Waypoint},
};

/// Most spans and lines that wait for one collector.
const MAX_WAITING: usize = 8192;
/// Most in one call.
const MAX_BATCH: usize = 1024;
/// How long they are gathered.
const GATHER: Duration = Duration::from_millis(200);
/// How long a call may take, unless it is configured.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long nothing is sent after a call that failed, at first and at most.
const PAUSES: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Most bytes of an answer.
const MAX_ANSWER: usize = 64 << 10;

/// One thing to be told.
#[derive(Debug)]
pub(crate) enum Item {
    /// A span.
    Span(Box<Span>),
    /// A line of an access log.
    Line(Box<Line>),
}

/// What waits for one collector.
#[derive(Clone, Debug)]
pub(crate) struct Queue(mpsc::Sender<Item>);

impl Queue {
    /// Adds something; drops it if there is too much already.
    pub(crate) fn push(&self, metrics: &HttpMetrics, item: Item) {
        let signal = match item {
            Item::Span(_) => Signal::Traces,
            Item::Line(_) => Signal::Logs,
        };
        if self.0.try_send(item).is_err() {
            metrics.exported(signal, ExportOutcome::Dropped, 1);
        }
    }
}

/// A queue that nobody empties yet.
#[derive(Debug)]
struct Begun {
    collector: OtlpCollector,
    items: mpsc::Receiver<Item>,
}

/// The queues of all collectors.
#[derive(Debug)]
pub(crate) struct Exporters {
    open: Mutex<HashMap<OtlpCollector, mpsc::WeakSender<Item>>>,
    begun: mpsc::UnboundedSender<Begun>,
    waiting: Mutex<Option<mpsc::UnboundedReceiver<Begun>>>,
    environment: Mutex<HashMap<ArcStr, ArcStr>>,
}

impl Default for Exporters {
    fn default() -> Self {
        let (begun, waiting) = mpsc::unbounded_channel();
        Self {
            open: Mutex::default(),
            begun,
            waiting: Mutex::new(Some(waiting)),
            environment: Mutex::default(),
        }
    }
}

impl Exporters {
    /// The queue of a collector.
    pub(super) fn queue(&self, collector: &OtlpCollector) -> Queue {
        let mut open = self.open.lock();
        open.retain(|_, queue| queue.strong_count() > 0);
        if let Some(queue) = open.get(collector).and_then(mpsc::WeakSender::upgrade) {
            return Queue(queue);
        }
        let (sender, items) = mpsc::channel(MAX_WAITING);
        open.insert(collector.clone(), sender.downgrade());
        let collector = collector.clone();
        // Whoever empties queues has ended only if the process has.
        drop(self.begun.send(Begun { collector, items }));
        Queue(sender)
    }

    /// A variable of the waypoint's environment that tags may say.
    pub(super) fn environment(&self, name: &ArcStr) -> Option<ArcStr> {
        self.environment.lock().get(name).cloned()
    }

    /// Gives the waypoint's environment.
    pub(crate) fn know(&self, environment: impl IntoIterator<Item = (ArcStr, ArcStr)>) {
        self.environment.lock().extend(environment);
    }
}

/// Empties queues as they come to be.
pub(crate) async fn run(waypoint: Arc<Waypoint>) {
    let waiting = waypoint.published.exporters().waiting.lock().take();
    let Some(mut waiting) = waiting else {
        return;
    };
    let shard = Arc::new(Shard {
        upstreams: Upstreams::new(&waypoint.dialer),
        mirrors: Mirrors::default(),
        asks: Asks::default(),
        extensions: Default::default(),
        retries: Budgets::default(),
        waypoint,
    });
    while let Some(begun) = waiting.recv().await {
        ambit_rt::spawn("telemetry", export(shard.clone(), begun));
    }
}

async fn export(
    shard: Arc<Shard>,
    Begun {
        collector,
        mut items,
    }: Begun,
) {
    let resource = resource(&shard.waypoint);
    let (first_pause, longest_pause) = PAUSES;
    let mut pause = first_pause;
    let mut is_full = false;
    while let Some(first) = items.recv().await {
        if !is_full {
            tokio::time::sleep(GATHER).await;
        }
        let (mut spans, mut lines) = (Vec::new(), Vec::new());
        let mut next = Some(first);
        while let Some(item) = next {
            match item {
                Item::Span(span) => spans.push(*span),
                Item::Line(line) => lines.push(*line),
            }
            is_full = spans.len() + lines.len() >= MAX_BATCH;
            next = if is_full { None } else { items.try_recv().ok() };
        }
        let mut batches = Vec::new();
        if !spans.is_empty() {
            let message = ambit_otlp::traces(&resource, &spans);
            batches.push((Signal::Traces, message, spans.len()));
        }
        if !lines.is_empty() {
            let message = ambit_otlp::logs(&resource, &lines);
            batches.push((Signal::Logs, message, lines.len()));
        }
        let mut failed = None;
        for (signal, message, many) in batches {
            let many = u64::try_from(many).unwrap_or(u64::MAX);
            let patience = collector.timeout.unwrap_or(PATIENCE);
            let calling = call(&shard, &collector, signal, message);
            let called = match tokio::time::timeout(patience, calling).await {
                Ok(called) => called,
                Err(_) => Err(ExportError::TooLong(patience)),
            };
            let rejected = match called {
                Ok(rejected) => rejected.min(many),
                Err(error) => {
                    failed = Some(error);
                    many
                }
            };
            let metrics = &shard.waypoint.http_metrics;
            metrics.exported(signal, ExportOutcome::Sent, many - rejected);
            metrics.exported(signal, ExportOutcome::Failed, rejected);
        }
        let Some(error) = failed else {
            pause = first_pause;
            continue;
        };
        let service = &collector.service;
        tracing::warn!(%service, port = collector.port, %error, ?pause, "a collector of telemetry did not take what it was told");
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(longest_pause);
    }
}

/// Who tells.
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

/// A collector was not told.
#[derive(Debug, thiserror::Error)]
enum ExportError {
    #[error(transparent)]
    Call(#[from] calls::CallError),
    #[error("it took longer than {0:?}")]
    TooLong(Duration),
    #[error("its answer broke off or is too long: {0}")]
    Answer(Box<dyn std::error::Error + Send + Sync>),
    #[error("it answers {0}")]
    Status(StatusCode),
    #[error("it answers with the status {0} of gRPC")]
    Grpc(String),
    #[error("its name, path or headers cannot be written")]
    Form,
}

/// Tells; gives how many were not taken.
async fn call(
    shard: &Shard,
    collector: &OtlpCollector,
    signal: Signal,
    message: Vec<u8>,
) -> Result<u64, ExportError> {
    let callee = Callee {
        service: &collector.service,
        port: collector.port,
        passed: Passed::NONE,
    };
    let is_grpc = collector.http_path.is_none();
    let version = if is_grpc {
        Version::Http2
    } else {
        Version::Http1
    };
    let request = request(collector, signal, message).ok_or(ExportError::Form)?;
    let response = calls::request(shard, callee, version, request).await?;
    let (head, body) = response.into_parts();
    if head.status != StatusCode::OK {
        return Err(ExportError::Status(head.status));
    }
    let body = Limited::new(body, MAX_ANSWER).collect().await;
    let body = body.map_err(ExportError::Answer)?;
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
        ambit_otlp::unframed(&answer).unwrap_or_default()
    } else {
        &answer
    };
    Ok(match signal {
        Signal::Traces => ambit_otlp::rejected_spans(answer),
        Signal::Logs => ambit_otlp::rejected_lines(answer),
    })
}

fn request(
    collector: &OtlpCollector,
    signal: Signal,
    message: Vec<u8>,
) -> Option<Request<message::Body>> {
    let authority = format!("{}:{}", collector.service.hostname, collector.port);
    let path = match (&collector.http_path, signal) {
        (Some(path), _) => path.as_str(),
        (None, Signal::Traces) => TRACES_METHOD,
        (None, Signal::Logs) => LOGS_METHOD,
    };
    let is_grpc = collector.http_path.is_none();
    let body = match is_grpc {
        true => ambit_otlp::framed(&message),
        false => Bytes::from(message),
    };
    let request = Request::post(match is_grpc {
        true => format!("http://{authority}{path}"),
        false => path.to_owned(),
    });
    let mut request = request.body(message::text(body)).ok()?;
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
