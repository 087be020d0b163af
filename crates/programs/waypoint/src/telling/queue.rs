//! What collectors are told: gathered in queues with bounds, and sent in batches by tasks of their own.
//!
//! A request never waits for it. What comes while a queue is full is dropped and counted; so is what a collector does
//! not take. A queue is there as long as something names its collector.

use std::collections::HashMap;

use ambit_model::{ArcStr, OtlpCollector};
use ambit_observation::span::Span;
use ambit_otlp::Line;
use ambit_telemetry::http::{ExportOutcome, HttpMetrics, Signal};
use parking_lot::Mutex;
use tokio::sync::mpsc;

/// Most spans and lines that wait for one collector.
const MAX_WAITING: usize = 8192;

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
pub(crate) struct Begun {
    pub(crate) collector: OtlpCollector,
    pub(crate) items: mpsc::Receiver<Item>,
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

    /// The queues that come to be, for who empties them; given once.
    pub(crate) fn begun(&self) -> Option<mpsc::UnboundedReceiver<Begun>> {
        self.waiting.lock().take()
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

    fn line() -> Item {
        Item::Line(Box::new(Line {
            time: SystemTime::UNIX_EPOCH,
            log: String::new(),
            body: String::new(),
            attributes: Vec::new(),
            span: None,
        }))
    }

    #[test]
    fn what_is_too_much_is_dropped_and_counted_and_other_collectors_have_queues_of_their_own() {
        let mut registry = Registry::default();
        let metrics = HttpMetrics::register(&mut registry);
        let exporters = Exporters::default();
        let mut begun = exporters.begun().unwrap();
        let queue = exporters.queue(&collector(1));
        for _ in 0..MAX_WAITING + 3 {
            queue.push(&metrics, line());
        }
        // The same one by another name of it.
        exporters.queue(&collector(1)).push(&metrics, line());
        exporters.queue(&collector(2)).push(&metrics, line());
        let mut text = String::new();
        encode(&mut text, &registry).unwrap();
        let dropped = "ambit_telemetry_exported_total{signal=\"logs\",outcome=\"dropped\"} 4";
        assert!(text.contains(dropped), "{text}");
        let (mut first, second) = (begun.try_recv().unwrap(), begun.try_recv().unwrap());
        assert_eq!((first.collector.port, second.collector.port), (1, 2));
        assert!(begun.try_recv().is_err());
        // As long as somebody names the collector, and to the last of what waits.
        drop(queue);
        let mut waiting = 0;
        while first.items.blocking_recv().is_some() {
            waiting += 1;
        }
        assert_eq!(waiting, MAX_WAITING);
    }
}
