//! Flow events for their current readers. Without a reader no event is created or buffered.

mod queue;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::Instant,
};

use ambit_flow::{Filter, Flow, StreamItem};
use parking_lot::Mutex;
use prometheus_client::{
    metrics::{counter::Counter, gauge::Gauge},
    registry::Registry,
};
use tokio::sync::Notify;

use queue::{Queue, QueueOutcome};

/// Maximum concurrent readers of one kind.
const MAX_READERS: usize = 8;
/// Maximum events in one chunk for a reader.
const MAX_BATCH_EVENTS: usize = 256;

/// Proxy that reports the flow events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ProxyIdentity {
    /// Name of the proxy's pod.
    pub pod: String,
    /// Namespace of the proxy's pod.
    pub namespace: String,
    /// Node of the proxy's pod.
    pub node: String,
    /// Whether the proxy is a waypoint.
    pub is_waypoint: bool,
}

/// How a reader of flow events is connected. Each kind has its own limit of readers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReaderKind {
    /// Reader on the admin port.
    Admin,
    /// Reader connected through the control plane, which authorized it.
    ControlPlane,
}

/// Hub that distributes a proxy's flow events to their readers.
#[derive(Debug, Default)]
pub struct Flows {
    /// Number of readers, which the data path checks first.
    reader_count: AtomicUsize,
    readers: Mutex<Vec<Arc<Reader>>>,
    last_connection_id: AtomicU64,
    proxy_identity: OnceLock<ProxyIdentity>,
    reader_gauge: Gauge,
    dropped_readers: Counter,
}

#[derive(Debug)]
struct Reader {
    kind: ReaderKind,
    filter: Filter,
    queue: Mutex<Queue>,
    new_items: Notify,
    is_stalled: std::sync::atomic::AtomicBool,
}

impl Flows {
    /// Sets the proxy that the events name as reporter; only the first call has an effect.
    pub fn set_proxy_identity(&self, origin: ProxyIdentity) {
        self.proxy_identity.get_or_init(|| origin);
    }

    /// Returns the proxy that the events name as reporter.
    pub fn proxy_identity(&self) -> &ProxyIdentity {
        self.proxy_identity.get_or_init(ProxyIdentity::default)
    }

    /// Registers the metrics of flow event readers.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ambit_flow_readers",
            "Number of readers of flow events",
            self.reader_gauge.clone(),
        );
        registry.register(
            "ambit_flow_readers_dropped",
            "The total number of readers of flow events that were dropped because they read nothing",
            self.dropped_readers.clone(),
        );
    }

    /// Whether there is a reader of flow events. Without one, this check is all that the data path does.
    pub fn has_readers(&self) -> bool {
        self.reader_count.load(Relaxed) > 0
    }

    /// Returns a new connection id for flow events, unique in this process.
    pub fn next_connection_id(&self) -> u64 {
        self.last_connection_id.fetch_add(1, Relaxed) + 1
    }

    /// Sends an event to all readers whose filter matches.
    pub fn report(&self, flow: Flow) {
        let flow = Arc::new(flow);
        let now = Instant::now();
        let mut readers = self.readers.lock();
        readers.retain(|reader| {
            if !reader.filter.matches(&flow) {
                return true;
            }
            let added = reader.queue.lock().add(flow.clone(), now);
            let is_stalled = added == QueueOutcome::Stalled;
            if is_stalled {
                self.dropped_readers.inc();
                reader.is_stalled.store(true, Relaxed);
            }
            reader.new_items.notify_one();
            !is_stalled
        });
        self.set_reader_count(readers.len());
    }

    fn set_reader_count(&self, readers: usize) {
        self.reader_count.store(readers, Relaxed);
        self.reader_gauge
            .set(i64::try_from(readers).unwrap_or(i64::MAX));
    }

    /// Registers a reader of events that match `filter`; `None` if there are too many readers of the kind.
    pub fn subscribe(self: &Arc<Self>, kind: ReaderKind, filter: Filter) -> Option<FlowReader> {
        let mut readers = self.readers.lock();
        let alike = readers.iter().filter(|reader| reader.kind == kind).count();
        if alike >= MAX_READERS {
            return None;
        }
        let reader = Arc::new(Reader {
            kind,
            filter,
            queue: Mutex::new(Queue::new(Instant::now())),
            new_items: Notify::new(),
            is_stalled: false.into(),
        });
        readers.push(reader.clone());
        self.set_reader_count(readers.len());
        Some(FlowReader {
            flows: self.clone(),
            reader,
        })
    }
}

/// Flow events for one reader; dropping it unregisters the reader.
#[derive(Debug)]
pub struct FlowReader {
    flows: Arc<Flows>,
    reader: Arc<Reader>,
}

impl FlowReader {
    /// Waits for the next events; `None` if the reader was too slow and is disconnected.
    pub async fn next(&mut self) -> Option<Vec<StreamItem>> {
        loop {
            let items = self
                .reader
                .queue
                .lock()
                .take_batch(MAX_BATCH_EVENTS, Instant::now());
            if !items.is_empty() {
                return Some(self.redact_for_reader(items));
            }
            if self.reader.is_stalled.load(Relaxed) {
                return None;
            }
            self.reader.new_items.notified().await;
        }
    }

    fn redact_for_reader(&self, mut items: Vec<StreamItem>) -> Vec<StreamItem> {
        let filter = &self.reader.filter;
        if filter.confined {
            for item in &mut items {
                if let StreamItem::Flow(flow) = item {
                    **flow = flow.reduced_to_namespaces(&filter.namespaces);
                }
            }
        }
        items
    }
}

impl Drop for FlowReader {
    fn drop(&mut self) {
        let mut readers = self.flows.readers.lock();
        readers.retain(|reader| !Arc::ptr_eq(reader, &self.reader));
        self.flows.set_reader_count(readers.len());
    }
}

#[cfg(test)]
mod tests {
    use ambit_flow::{FlowEventKind, Reporter, ReporterKind};

    use super::*;

    pub(super) fn flow(event: FlowEventKind) -> Flow {
        let reporter = Reporter {
            kind: ReporterKind::Source,
            pod: String::new(),
            namespace: String::new(),
            node: String::new(),
        };
        Flow::new(event, reporter)
    }

    #[test]
    fn has_readers_is_false_once_the_last_reader_disconnects() {
        let flows = Arc::new(Flows::default());
        assert!(!flows.has_readers());
        let (first, second) = (
            flows.subscribe(ReaderKind::Admin, Filter::default()),
            flows.subscribe(ReaderKind::Admin, Filter::default()),
        );
        drop(first);
        assert!(flows.has_readers());
        drop(second);
        assert!(!flows.has_readers());
    }

    #[test]
    fn readers_are_bounded() {
        let flows = Arc::new(Flows::default());
        let readers: Vec<_> = (0..MAX_READERS)
            .map(|_| {
                flows
                    .subscribe(ReaderKind::Admin, Filter::default())
                    .unwrap()
            })
            .collect();
        assert!(
            flows
                .subscribe(ReaderKind::Admin, Filter::default())
                .is_none()
        );
        let other = flows.subscribe(ReaderKind::ControlPlane, Filter::default());
        assert!(other.is_some());
        drop(readers);
        assert!(
            flows
                .subscribe(ReaderKind::Admin, Filter::default())
                .is_some()
        );
    }

    #[tokio::test]
    async fn readers_get_events_that_match_their_filters() {
        let flows = Arc::new(Flows::default());
        let mut all = flows
            .subscribe(ReaderKind::Admin, Filter::default())
            .unwrap();
        let refused = Filter {
            only_refused: true,
            ..Filter::default()
        };
        let mut refused = flows.subscribe(ReaderKind::Admin, refused).unwrap();
        flows.report(flow(FlowEventKind::Opened));
        flows.report(flow(FlowEventKind::Refused));
        assert_eq!(all.next().await.unwrap().len(), 2);
        let only = refused.next().await.unwrap();
        assert_eq!(
            only,
            [StreamItem::Flow(Box::new(flow(FlowEventKind::Refused)))]
        );
    }

    #[tokio::test]
    async fn confined_readers_get_confined_events() {
        let flows = Arc::new(Flows::default());
        let filter = Filter {
            namespaces: vec!["mine".to_owned()],
            confined: true,
            ..Filter::default()
        };
        let mut reader = flows.subscribe(ReaderKind::ControlPlane, filter).unwrap();
        let mut call = flow(FlowEventKind::Opened);
        call.source.namespace = Some("theirs".to_owned());
        flows.report(call.clone());
        call.source.namespace = Some("mine".to_owned());
        call.destination.namespace = Some("theirs".to_owned());
        call.destination.workload = Some("secret-1".to_owned());
        flows.report(call.clone());
        call.destination.workload = None;
        let only = [StreamItem::Flow(Box::new(call))];
        assert_eq!(reader.next().await.unwrap(), only);
    }
}
