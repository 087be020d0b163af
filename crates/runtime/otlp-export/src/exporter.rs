//! Tasks that export metrics and logs, one for each signal.

use std::{
    fmt,
    hash::{BuildHasher as _, RandomState},
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, SystemTime},
};

use ambit_rt::{
    AbortOnDrop, Env, ErrorChain,
    logging::{LogRecord, RecordSink, unrecorded},
};
use bytes::Bytes;
use prometheus_client::registry::Registry;
use prost::Message as _;
use tokio::{sync::watch, time::MissedTickBehavior};

use crate::{
    client::Client,
    message::{Resource, Scope},
    metrics::{self, MetricTimes},
    own_metrics::{ExportCounts, OwnMetrics},
    queue::{LogQueue, MAX_BATCH_RECORDS},
    records, resource,
    retry::{Attempt, RetryDecision, RetryState},
    settings::{Settings, SettingsError, Signal},
};

/// Maximum time for which records are batched before they are sent.
const MAX_BATCH_DELAY: Duration = Duration::from_secs(1);

/// Exporters of a program's metrics and logs, before they are started. A program may export either, both or neither.
#[derive(Debug)]
pub struct Exporter {
    metrics: Option<Client>,
    interval: Duration,
    logs: Option<Client>,
    resource: Resource,
    scope: Scope,
    start: SystemTime,
    own_metrics: OwnMetrics,
}

impl Exporter {
    /// Parses OpenTelemetry's environment variables at the start of a program; `service` is its default
    /// `service.name`.
    ///
    /// # Errors
    ///
    /// When a variable has an invalid or unsupported value.
    pub fn from_env(env: &Env, service: &str) -> Result<Self, SettingsError> {
        let settings = Settings::from_env(env)?;
        let signals = [
            (Signal::Metrics, settings.metrics.is_some()),
            (Signal::Logs, settings.logs.is_some()),
        ];
        let exported = signals.into_iter().filter(|(_, is_exported)| *is_exported);
        Ok(Self {
            resource: resource::resource(env, service, &settings.attributes),
            scope: Scope {
                name: service.to_owned(),
                version: env!("CARGO_PKG_VERSION").to_owned(),
            },
            start: SystemTime::now(),
            own_metrics: OwnMetrics {
                counts: exported
                    .map(|(signal, _)| (signal, Arc::default()))
                    .collect(),
                logs: settings.logs.is_some().then(LogQueue::default),
            },
            metrics: settings.metrics.map(Client::new).transpose()?,
            interval: settings.interval,
            logs: settings.logs.map(Client::new).transpose()?,
        })
    }

    /// Returns the receiver of the program's log records, if they are exported.
    pub fn record_sink(&self) -> Option<Arc<dyn RecordSink>> {
        let queue = self.own_metrics.logs.clone()?;
        Some(Arc::new(queue))
    }

    /// Registers the exporter's own metrics, if anything is exported.
    pub fn register(&self, registry: &mut Registry) {
        if !self.own_metrics.counts.is_empty() {
            registry.register_collector(Box::new(self.own_metrics.clone()));
        }
    }

    /// Starts to export the metrics of a registry, after adding the exporter's own, and the logs. Must be called
    /// within a runtime.
    pub fn start_with(self, mut registry: Registry) -> (Arc<Registry>, RunningExporter) {
        self.register(&mut registry);
        let registry = Arc::new(registry);
        let exported = registry.clone();
        let exporting = self.start(move || ambit_rt::metrics::exposition(&exported));
        (registry, exporting)
    }

    /// Starts to export metrics and logs. `exposition` writes the metrics in scrape format. Must be called within a
    /// runtime.
    pub fn start<M>(self, exposition: M) -> RunningExporter
    where
        M: Fn() -> Result<String, fmt::Error> + Send + Sync + 'static,
    {
        let (ending, ended) = watch::channel(false);
        let mut tasks = Vec::new();
        let counts = self.own_metrics.counts.iter();
        let counts = |signal| {
            let mut counts = counts.clone();
            let found = counts.find(|(own, _)| *own == signal);
            found.map(|(_, counts)| counts.clone()).unwrap_or_default()
        };
        let signal = |signal, client| ExportSender {
            signal,
            client,
            retries: RetryState::default(),
            counts: counts(signal),
            is_failing: false,
            end_signal: ended.clone(),
        };
        if let Some(client) = self.metrics {
            let export = MetricsExport {
                sender: signal(Signal::Metrics, client),
                exposition,
                start: self.start,
                resource: self.resource.clone(),
                scope: self.scope.clone(),
            };
            let export = unrecorded(export.run(self.interval));
            tasks.push(ambit_rt::spawn_abortable("otlp metrics", export));
        }
        if let Some((client, queue)) = self.logs.zip(self.own_metrics.logs) {
            let export = LogsExport {
                sender: signal(Signal::Logs, client),
                queue,
                resource: self.resource,
                scope: self.scope,
            };
            let export = unrecorded(export.run());
            tasks.push(ambit_rt::spawn_abortable("otlp logs", export));
        }
        RunningExporter {
            tasks,
            end_signal: ending,
        }
    }
}

/// Running tasks that export metrics and logs; dropping the value ends them.
#[derive(Debug)]
pub struct RunningExporter {
    tasks: Vec<AbortOnDrop<()>>,
    /// Sender that signals the end of the program; its receivers are dropped when all tasks have ended.
    end_signal: watch::Sender<bool>,
}

impl RunningExporter {
    /// Exports metrics and queued logs once more, for at most `timeout`, and ends the tasks.
    pub async fn finish(self, timeout: Duration) {
        self.end_signal.send_replace(true);
        let ended = tokio::time::timeout(timeout, self.end_signal.closed()).await;
        if ended.is_err() {
            tracing::debug!("the last export was not taken in time");
        }
        drop(self.tasks);
    }
}

/// Task that exports the metrics.
struct MetricsExport<M> {
    sender: ExportSender,
    exposition: M,
    start: SystemTime,
    resource: Resource,
    scope: Scope,
}

impl<M: Fn() -> Result<String, fmt::Error>> MetricsExport<M> {
    async fn run(mut self, interval: Duration) {
        self.sender.log_start();
        let mut ticks = tokio::time::interval(interval);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        // The first tick fires at once, when there is nothing to export yet.
        ticks.tick().await;
        let mut ended = self.sender.end_signal.clone();
        loop {
            tokio::select! {
                _ = ticks.tick() => self.export().await,
                () = wait_for_end(&mut ended) => break,
            }
        }
        self.export().await;
    }

    /// Sends all metrics once. They are cumulative, so a failed export loses nothing.
    async fn export(&mut self) {
        let Ok(text) = (self.exposition)() else {
            tracing::warn!("metrics are not exported: they cannot be written");
            return;
        };
        let times = MetricTimes {
            start: self.start,
            now: SystemTime::now(),
        };
        for message in metrics::encode_messages(&text, times, &self.resource, &self.scope) {
            let message = Bytes::from(message.encode_to_vec());
            if self.sender.send(&message).await == SendOutcome::Unreachable {
                return;
            }
        }
    }
}

/// Task that exports the log records.
struct LogsExport {
    sender: ExportSender,
    queue: LogQueue,
    resource: Resource,
    scope: Scope,
}

impl LogsExport {
    async fn run(mut self) {
        self.sender.log_start();
        let mut ended = self.sender.end_signal.clone();
        loop {
            tokio::select! {
                () = self.queue.wait_for_records(1) => {}
                () = wait_for_end(&mut ended) => break,
            }
            tokio::select! {
                () = self.queue.wait_for_records(MAX_BATCH_RECORDS) => {}
                () = tokio::time::sleep(MAX_BATCH_DELAY) => {}
                () = wait_for_end(&mut ended) => break,
            }
            let batch = self.queue.take_batch();
            self.export(batch).await;
        }
        loop {
            let batch = self.queue.take_batch();
            if batch.is_empty() || self.export(batch).await != SendOutcome::Done {
                return;
            }
        }
    }

    async fn export(&mut self, batch: Vec<LogRecord>) -> SendOutcome {
        let many = batch.len();
        let message = records::export_request(&batch, &self.resource, &self.scope);
        drop(batch);
        let message = Bytes::from(message.encode_to_vec());
        let sent = self.sender.send(&message).await;
        if sent != SendOutcome::Done {
            self.queue.add_dropped(many);
        }
        sent
    }
}

/// Result of sending one message, after retries.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SendOutcome {
    /// The collector accepted the message.
    Done,
    /// The collector rejected the message, but may accept others.
    Rejected,
    /// The collector could not be reached.
    Unreachable,
}

/// Sends the messages of one signal, one at a time, with retries.
#[derive(Debug)]
struct ExportSender {
    signal: Signal,
    client: Client,
    retries: RetryState,
    counts: Arc<ExportCounts>,
    /// Whether the last attempt failed, which is logged once.
    is_failing: bool,
    end_signal: watch::Receiver<bool>,
}

impl ExportSender {
    fn log_start(&self) {
        let (signal, collector) = (self.signal.metric_label(), self.client.address());
        tracing::info!(signal, collector, "exporting to an OpenTelemetry collector");
    }

    async fn send(&mut self, message: &Bytes) -> SendOutcome {
        let signal = self.signal.metric_label();
        loop {
            let attempt = match self.client.export(message).await {
                Ok(rejected) => Attempt::Accepted { rejected },
                Err(error) => {
                    if !std::mem::replace(&mut self.is_failing, true) {
                        let error = ErrorChain(&error);
                        tracing::warn!(signal, %error, "the OpenTelemetry collector does not take exports");
                    }
                    error.to_attempt()
                }
            };
            match self.retries.decide(&attempt, random_fraction()) {
                RetryDecision::Done { rejected } => {
                    if std::mem::take(&mut self.is_failing) {
                        tracing::info!(signal, "the OpenTelemetry collector takes exports again");
                    }
                    self.counts.sent.fetch_add(1, Relaxed);
                    self.counts.rejected.fetch_add(rejected, Relaxed);
                    return SendOutcome::Done;
                }
                RetryDecision::Retry(pause) => {
                    if self.back_off(pause).await {
                        continue;
                    }
                    self.counts.failed.fetch_add(1, Relaxed);
                    return SendOutcome::Unreachable;
                }
                RetryDecision::GiveUp(pause) => {
                    self.counts.failed.fetch_add(1, Relaxed);
                    self.back_off(pause).await;
                    return match attempt {
                        Attempt::Rejected => SendOutcome::Rejected,
                        _ => SendOutcome::Unreachable,
                    };
                }
            }
        }
    }

    /// Waits for the backoff; returns false if the program ends meanwhile.
    async fn back_off(&mut self, pause: Duration) -> bool {
        tokio::select! {
            () = tokio::time::sleep(pause) => true,
            () = wait_for_end(&mut self.end_signal) => false,
        }
    }
}

/// Waits for the signal that the program ends.
async fn wait_for_end(ended: &mut watch::Receiver<bool>) {
    // Without a sender the tasks are being aborted.
    ended.wait_for(|is_over| *is_over).await.ok();
}

/// Returns a random number in `0.0..1.0`, from the keys of the standard library's hashes.
#[expect(clippy::cast_precision_loss, reason = "53 bits fit")]
fn random_fraction() -> f64 {
    let bits = RandomState::new().hash_one(()) >> 11;
    bits as f64 / (1_u64 << 53) as f64
}
