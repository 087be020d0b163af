//! Bounded queues of spans and log lines for collectors; separate tasks export them in batches.
//!
//! Requests never wait for a queue. Items are dropped and counted while it is full, and when the collector rejects
//! them. A queue exists as long as some configuration names its collector.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
};

use ambit_model::{ArcStr, OtlpCollector};
use ambit_observation::span::{AttributeValue, Span};
use ambit_otlp::LogEntry;
use ambit_telemetry::http::{ExportOutcome, ExportSignal, HttpMetrics};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Maximum number of spans and log lines that wait for one collector.
const MAX_QUEUED_ITEMS: usize = 8192;
/// Maximum memory of the spans and log lines that wait for one collector, including those being exported, in bytes.
const MAX_QUEUED_BYTES: usize = 16 << 20;
/// Bytes that a span or log line counts in the queue in addition to its texts, and for each of its attributes.
const ITEM_OVERHEAD_BYTES: usize = 256;
const ATTRIBUTE_OVERHEAD_BYTES: usize = 64;

/// Span or log line that is exported to a collector.
#[derive(Debug)]
pub(crate) enum ExportItem {
    /// Finished span of a trace.
    Span(Box<Span>),
    /// Access log line.
    LogLine(Box<LogEntry>),
}

impl ExportItem {
    fn bytes(&self) -> usize {
        let texts: usize = match self {
            Self::Span(span) => {
                let attributes = span.attributes.iter().map(|(name, value)| {
                    let value = match value {
                        AttributeValue::Text(text) => text.len(),
                        AttributeValue::Number(_) => 0,
                    };
                    ATTRIBUTE_OVERHEAD_BYTES + name.len() + value
                });
                span.name.len() + span.trace_state.len() + attributes.sum::<usize>()
            }
            Self::LogLine(line) => {
                let attributes = line.attributes.iter();
                let attributes = attributes
                    .map(|(name, value)| ATTRIBUTE_OVERHEAD_BYTES + name.len() + value.len());
                line.log_name.len() + line.body.len() + attributes.sum::<usize>()
            }
        };
        ITEM_OVERHEAD_BYTES + texts
    }
}

/// Memory of one queued item, which counts towards the limit of its collector's queue until it is dropped.
#[derive(Debug)]
pub(crate) struct ItemCharge {
    queued_bytes: Arc<AtomicUsize>,
    bytes: usize,
}

impl ItemCharge {
    /// Counts the memory of an item; `None` if the queue's memory limit is reached.
    fn new(item: &ExportItem, waiting: &Arc<AtomicUsize>) -> Option<Self> {
        let bytes = item.bytes();
        // Added first, so that two callers cannot both take the last bytes.
        let all = waiting.fetch_add(bytes, Relaxed) + bytes;
        let counted = Self {
            queued_bytes: waiting.clone(),
            bytes,
        };
        (all <= MAX_QUEUED_BYTES).then_some(counted)
    }
}

impl Drop for ItemCharge {
    fn drop(&mut self) {
        self.queued_bytes.fetch_sub(self.bytes, Relaxed);
    }
}

/// Sending half of one collector's queue.
#[derive(Clone, Debug)]
pub(crate) struct ExportQueue {
    items: mpsc::Sender<(ExportItem, ItemCharge)>,
    queued_bytes: Arc<AtomicUsize>,
}

impl ExportQueue {
    /// Queues an item, or drops it and counts that if the queue is full.
    pub(crate) fn push(&self, metrics: &HttpMetrics, item: ExportItem) {
        let signal = match item {
            ExportItem::Span(_) => ExportSignal::Traces,
            ExportItem::LogLine(_) => ExportSignal::Logs,
        };
        let counted = ItemCharge::new(&item, &self.queued_bytes);
        let is_queued = counted.is_some_and(|counted| self.items.try_send((item, counted)).is_ok());
        if !is_queued {
            metrics.count_exported(signal, ExportOutcome::Dropped, 1);
        }
    }
}

/// Receiving half of a new collector's queue, which an export task must drain.
#[derive(Debug)]
pub(crate) struct NewQueue {
    pub(crate) collector: OtlpCollector,
    pub(crate) items: mpsc::Receiver<(ExportItem, ItemCharge)>,
}

/// Entry in the table of queues: number of queued bytes, and a weak sender, which does not keep the queue open.
#[derive(Debug)]
struct OpenQueue {
    items: mpsc::WeakSender<(ExportItem, ItemCharge)>,
    queued_bytes: Arc<AtomicUsize>,
}

/// Export queues, one for each telemetry collector.
#[derive(Debug)]
pub(crate) struct Exporters {
    open_queues: Mutex<HashMap<OtlpCollector, OpenQueue>>,
    new_queues: mpsc::UnboundedSender<NewQueue>,
    new_queues_receiver: Mutex<Option<mpsc::UnboundedReceiver<NewQueue>>>,
    environment: Mutex<HashMap<ArcStr, ArcStr>>,
}

impl Default for Exporters {
    fn default() -> Self {
        let (begun, waiting) = mpsc::unbounded_channel();
        Self {
            open_queues: Mutex::default(),
            new_queues: begun,
            new_queues_receiver: Mutex::new(Some(waiting)),
            environment: Mutex::default(),
        }
    }
}

impl Exporters {
    /// Returns the queue of a collector, which is created if no configuration has used it yet.
    pub(super) fn queue(&self, collector: &OtlpCollector) -> ExportQueue {
        let mut open = self.open_queues.lock();
        open.retain(|_, queue| queue.items.strong_count() > 0);
        let known = open.get(collector).and_then(|known| {
            let items = known.items.upgrade()?;
            let waiting = known.queued_bytes.clone();
            Some(ExportQueue {
                items,
                queued_bytes: waiting,
            })
        });
        if let Some(known) = known {
            return known;
        }
        let (sender, items) = mpsc::channel(MAX_QUEUED_ITEMS);
        let waiting = Arc::<AtomicUsize>::default();
        let queue = OpenQueue {
            items: sender.downgrade(),
            queued_bytes: waiting.clone(),
        };
        open.insert(collector.clone(), queue);
        let collector = collector.clone();
        // Sending only fails when the exporter has ended with the process.
        drop(self.new_queues.send(NewQueue { collector, items }));
        ExportQueue {
            items: sender,
            queued_bytes: waiting,
        }
    }

    /// Takes the receiver of new queues, for the task that starts exports; `None` after the first call.
    pub(crate) fn take_new_queues(&self) -> Option<mpsc::UnboundedReceiver<NewQueue>> {
        self.new_queues_receiver.lock().take()
    }

    /// Returns the value of an environment variable that span tags may use.
    pub(super) fn environment(&self, name: &ArcStr) -> Option<ArcStr> {
        self.environment.lock().get(name).cloned()
    }

    /// Sets the environment variables that span tags may use.
    pub(crate) fn set_environment(&self, environment: impl IntoIterator<Item = (ArcStr, ArcStr)>) {
        self.environment.lock().extend(environment);
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_model::NamespacedHostname;
    use prometheus_client::{encoding::text::encode, registry::Registry};

    use super::*;

    fn collector(port: u16) -> OtlpCollector {
        OtlpCollector {
            service: NamespacedHostname::new("obs", "otel.obs.svc.cluster.local"),
            port,
            http_path: None,
            timeout: None,
            headers: Vec::new(),
        }
    }

    fn line() -> ExportItem {
        long_line(0)
    }

    fn long_line(bytes: usize) -> ExportItem {
        ExportItem::LogLine(Box::new(LogEntry {
            time: SystemTime::UNIX_EPOCH,
            log_name: String::new(),
            body: "x".repeat(bytes),
            attributes: Vec::new(),
            span: None,
        }))
    }

    #[test]
    fn full_queues_drop_and_count_for_one_collector_only() {
        let mut registry = Registry::default();
        let metrics = HttpMetrics::register(&mut registry);
        let exporters = Exporters::default();
        let mut begun = exporters.take_new_queues().unwrap();
        let queue = exporters.queue(&collector(1));
        for _ in 0..MAX_QUEUED_ITEMS + 3 {
            queue.push(&metrics, line());
        }
        // A collector with the same settings under another name shares the queue.
        exporters.queue(&collector(1)).push(&metrics, line());
        exporters.queue(&collector(2)).push(&metrics, line());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let dropped = "ambit_telemetry_exported_total{signal=\"logs\",outcome=\"dropped\"} 4";
        assert!(text.contains(dropped), "{text}");
        let (mut first, second) = (begun.try_recv().unwrap(), begun.try_recv().unwrap());
        assert_eq!((first.collector.port, second.collector.port), (1, 2));
        assert!(begun.try_recv().is_err());
        // The queue remains while a configuration names the collector, and until it is empty.
        drop(queue);
        let mut waiting = 0;
        while first.items.blocking_recv().is_some() {
            waiting += 1;
        }
        assert_eq!(waiting, MAX_QUEUED_ITEMS);
    }

    #[test]
    fn long_items_wait_for_a_collector_up_to_a_number_of_bytes() {
        let mut registry = Registry::default();
        let metrics = HttpMetrics::register(&mut registry);
        let exporters = Exporters::default();
        let mut begun = exporters.take_new_queues().unwrap();
        let queue = exporters.queue(&collector(1));
        let room = MAX_QUEUED_BYTES / (60_000 + ITEM_OVERHEAD_BYTES);
        for _ in 0..room + 5 {
            queue.push(&metrics, long_line(60_000));
        }
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let dropped = "ambit_telemetry_exported_total{signal=\"logs\",outcome=\"dropped\"} 5";
        assert!(text.contains(dropped), "{text}");
        // Items of the current export count until it ends.
        let mut first = begun.try_recv().unwrap();
        let (_, counted) = first.items.try_recv().unwrap();
        queue.push(&metrics, long_line(60_000));
        drop(counted);
        queue.push(&metrics, long_line(60_000));
        let mut waiting = 0;
        while first.items.try_recv().is_ok() {
            waiting += 1;
        }
        assert_eq!(waiting, room);
        assert_eq!(queue.queued_bytes.load(Relaxed), 0);
    }
}
