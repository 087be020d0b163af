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
