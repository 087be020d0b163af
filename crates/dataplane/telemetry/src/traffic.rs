//! Counters of connections and bytes, one series for each set of [`TrafficLabels`] and label
//! overrides.
//!
//! A connection looks its series up once and then only adds to atomics; the series write all five families
//! at a scrape. Series that no connection uses are dropped after a while, so the table contains current
//! peers, not all peers ever seen.

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    fmt,
    hash::Hash,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};

use ambit_model::{FailureReason, TelemetryFamily};
use parking_lot::RwLock;
use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, EncodeMetric},
    metrics::{MetricType, counter::ConstCounter},
};

use crate::{
    TrafficLabels,
    http::RelabeledValues,
    labels::{LabelsWithReason, Principals},
    retired_series::{LabelPairs, MergedFamily, RetiredSeries, add_counter},
};

/// Time after which an unused series is dropped: several scrapes see its last values first.
const UNUSED_SERIES_TTL: Duration = Duration::from_secs(3600);
/// Maximum series; beyond it unused ones are dropped at once, longest unused first.
const MAX_SERIES: usize = 50_000;

const REASONS: [FailureReason; 8] = [
    FailureReason::None,
    FailureReason::Deny,
    FailureReason::TlsFailure,
    FailureReason::H2Failure,
    FailureReason::NetworkPolicy,
    FailureReason::IdentityError,
    FailureReason::CertRevoked,
    FailureReason::Connect,
];

/// One counter for each response flag.
#[derive(Debug, Default)]
struct CountsByReason([AtomicU64; REASONS.len()]);

impl CountsByReason {
    fn add(&self, reason: FailureReason) {
        let index = REASONS.iter().position(|known| *known == reason);
        if let Some(counter) = index.and_then(|index| self.0.get(index)) {
            counter.fetch_add(1, Relaxed);
        }
    }

    fn add_all(&self, other: &Self) {
        for (own, other) in self.0.iter().zip(&other.0) {
            add_counter(own, other);
        }
    }

    fn nonzero(&self) -> impl Iterator<Item = (FailureReason, u64)> + '_ {
        REASONS
            .into_iter()
            .zip(&self.0)
            .map(|(reason, counter)| (reason, counter.load(Relaxed)))
            .filter(|(_, count)| *count > 0)
    }
}

/// Counters of the connections with one set of labels.
#[derive(Debug)]
pub struct TrafficSeries {
    opened: AtomicU64,
    received: AtomicU64,
    sent: AtomicU64,
    closed: CountsByReason,
    failed: CountsByReason,
    open_connections: AtomicUsize,
    created_at: Instant,
    /// Time of the last use of the series, in seconds since `born`.
    last_used_seconds: AtomicU64,
}

impl TrafficSeries {
    fn new(now: Instant) -> Self {
        Self {
            opened: AtomicU64::default(),
            received: AtomicU64::default(),
            sent: AtomicU64::default(),
            closed: CountsByReason::default(),
            failed: CountsByReason::default(),
            open_connections: AtomicUsize::default(),
            created_at: now,
            last_used_seconds: AtomicU64::default(),
        }
    }

    /// Counts an opened connection; its end is counted when the returned value is closed.
    pub fn open_connection(self: &Arc<Self>) -> ConnectionMetrics {
        self.count_opened();
        ConnectionMetrics {
            series: self.clone(),
            reason: FailureReason::None,
        }
    }

    fn count_opened(&self) {
        self.opened.fetch_add(1, Relaxed);
        self.open_connections.fetch_add(1, Relaxed);
    }

    /// Counts the end of a connection that [`Traffic::open_in_series`] has counted, with its response flag.
    pub fn close_connection(&self, reason: FailureReason) {
        self.closed.add(reason);
        if reason != FailureReason::None {
            self.failed.add(reason);
        }
        self.mark_used(Instant::now());
        self.open_connections.fetch_sub(1, Relaxed);
    }

    /// Adds bytes from client to server, whichever proxy reports.
    pub fn add_received(&self, bytes: u64) {
        self.received.fetch_add(bytes, Relaxed);
    }

    /// Adds bytes from server to client, whichever proxy reports.
    pub fn add_sent(&self, bytes: u64) {
        self.sent.fetch_add(bytes, Relaxed);
    }

    /// Counts a connection that ended before it was opened; with a reason other than `None`, as failed.
    pub fn count_failure(&self, reason: FailureReason) {
        self.closed.add(reason);
        if reason != FailureReason::None {
            self.failed.add(reason);
        }
        self.mark_used(Instant::now());
    }

    fn mark_used(&self, now: Instant) {
        self.last_used_seconds.fetch_max(
            now.saturating_duration_since(self.created_at).as_secs(),
            Relaxed,
        );
    }

    fn last_use(&self) -> Instant {
        self.created_at + Duration::from_secs(self.last_used_seconds.load(Relaxed))
    }

    fn is_unused(&self) -> bool {
        self.open_connections.load(Relaxed) == 0
    }
}

/// Metrics of one open connection. If dropped without [`Self::close`], the connection counts as closed without
/// failure.
#[derive(Debug)]
pub struct ConnectionMetrics {
    series: Arc<TrafficSeries>,
    reason: FailureReason,
}

impl ConnectionMetrics {
    /// Adds bytes from client to server, whichever proxy reports.
    pub fn add_received(&self, bytes: u64) {
        self.series.add_received(bytes);
    }

    /// Adds bytes from server to client, whichever proxy reports.
    pub fn add_sent(&self, bytes: u64) {
        self.series.add_sent(bytes);
    }

    /// Counts the end of the connection with its response flag.
    pub fn close(mut self, reason: FailureReason) {
        self.reason = reason;
    }
}

impl Drop for ConnectionMetrics {
    fn drop(&mut self) {
        self.series.close_connection(self.reason);
    }
}

/// Connection metrics of the process: a table of series.
#[derive(Debug)]
pub struct Traffic {
    series: Table<TrafficLabels>,
    /// Series whose labels, or families, are overridden by configuration.
    relabeled: Table<RelabeledLabels>,
    /// Dropped series whose counts are to be merged into others, since they may have the same labels.
    retired_series: RetiredSeries<RelabeledLabels, TrafficSeries>,
    principals: Principals,
}

type RelabeledLabels = (TrafficLabels, RelabeledValues);

/// Table of series by labels. It is locked for reading when a connection opens, and for writing to add a series or to
/// drop unused ones.
type Table<Labels> = RwLock<HashMap<Arc<Labels>, Arc<TrafficSeries>>>;

impl Default for Traffic {
    fn default() -> Self {
        Self {
            series: Table::default(),
            relabeled: Table::default(),
            retired_series: RetiredSeries::new(MAX_SERIES),
            principals: Principals::default(),
        }
    }
}

impl Traffic {
    /// Reports every principal label as "unknown" from now on: connections that differ only in principals share one
    /// series.
    pub fn hide_principals(&self) {
        self.principals.hide();
    }

    fn without_hidden_principals<'a>(&self, labels: &'a TrafficLabels) -> Cow<'a, TrafficLabels> {
        if self.principals.are_hidden() {
            Cow::Owned(labels.without_principals())
        } else {
            Cow::Borrowed(labels)
        }
    }

    /// Returns the series for a set of labels; the lookup is cheap enough for every connection. Counts added to a
    /// series after it was dropped from the table are lost.
    pub fn series(&self, labels: &TrafficLabels) -> Arc<TrafficSeries> {
        self.series_and_labels(labels).1
    }

    fn series_and_labels(
        &self,
        labels: &TrafficLabels,
    ) -> (Arc<TrafficLabels>, Arc<TrafficSeries>) {
        find_or_insert(&self.series, &*self.without_hidden_principals(labels), drop)
    }

    /// Returns the series of a set of labels with label overrides, if there are any.
    pub fn relabeled_series(
        &self,
        labels: &TrafficLabels,
        changed: Option<RelabeledValues>,
    ) -> Arc<TrafficSeries> {
        match changed {
            None => self.series(labels),
            Some(changed) => {
                let retire = |dropped| self.retired_series.extend(dropped);
                let labels = self.without_hidden_principals(labels).into_owned();
                find_or_insert(&self.relabeled, &(labels, changed), retire).1
            }
        }
    }

    /// Counts an opened connection with these labels.
    pub fn open_connection(&self, labels: &TrafficLabels) -> ConnectionMetrics {
        self.series(labels).open_connection()
    }

    /// Counts an opened connection with these labels, and replaces them by those of its series, which all connections of
    /// the series share. The caller counts the end of the connection: [`TrafficSeries::close_connection`].
    pub fn open_in_series(&self, labels: &mut Arc<TrafficLabels>) -> Arc<TrafficSeries> {
        let (shared, series) = self.series_and_labels(labels);
        *labels = shared;
        series.count_opened();
        series
    }

    /// Returns the number of series.
    pub fn len(&self) -> usize {
        self.series.read().len() + self.relabeled.read().len()
    }

    /// Whether there are no series.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn drop_unused(&self, now: Instant) {
        let goes = |series: &TrafficSeries| {
            series.is_unused()
                && now.saturating_duration_since(series.last_use()) >= UNUSED_SERIES_TTL
        };
        self.series.write().retain(|_, series| !goes(series));
        let mut changed = self.relabeled.write();
        self.retired_series
            .extend(changed.extract_if(|_, series| goes(series)));
    }

    /// Returns all series with their labels and overrides.
    fn series_rows(&self) -> Vec<SeriesRow> {
        let changed = rows_of(&self.relabeled);
        let stay = changed.iter();
        let stay = stay.map(|(labels, series)| (&**labels, &**series));
        self.retired_series.merge_into_remaining(stay, &FAMILIES);
        let changed = changed.into_iter().map(|(labels, series)| SeriesRow {
            labels: SeriesLabels::Relabeled(labels),
            series,
        });
        let plain = rows_of(&self.series).into_iter();
        let plain = plain.map(|(labels, series)| SeriesRow {
            labels: SeriesLabels::Plain(labels),
            series,
        });
        plain.chain(changed).collect()
    }
}

fn rows_of<K>(table: &Table<K>) -> Vec<(Arc<K>, Arc<TrafficSeries>)> {
    let table = table.read();
    let rows = table.iter();
    rows.map(|(labels, series)| (labels.clone(), series.clone()))
        .collect()
}

/// Metric families of connections, with their counters by response flag.
const FAMILIES: [MergedFamily<RelabeledLabels, TrafficSeries>; 4] = [
    MergedFamily {
        labels: |labels| family_labels(labels, TelemetryFamily::OpenedConnections),
        merge: |to, from| add_counter(&to.opened, &from.opened),
    },
    MergedFamily {
        labels: |labels| family_labels(labels, TelemetryFamily::ClosedConnections),
        merge: |to, from| {
            to.closed.add_all(&from.closed);
            to.failed.add_all(&from.failed);
        },
    },
    MergedFamily {
        labels: |labels| family_labels(labels, TelemetryFamily::ReceivedBytes),
        merge: |to, from| add_counter(&to.received, &from.received),
    },
    MergedFamily {
        labels: |labels| family_labels(labels, TelemetryFamily::SentBytes),
        merge: |to, from| add_counter(&to.sent, &from.sent),
    },
];

fn family_labels((labels, changed): &RelabeledLabels, of: TelemetryFamily) -> Option<LabelPairs> {
    changed.apply(of, labels_with_reason(labels, FailureReason::None)?)
}

/// Returns the series of a table for some labels, creating it if necessary; unused series may be dropped to make
/// room.
fn find_or_insert<K: Clone + Eq + Hash>(
    table: &Table<K>,
    labels: &K,
    retire: impl FnOnce(Vec<(Arc<K>, Arc<TrafficSeries>)>),
) -> (Arc<K>, Arc<TrafficSeries>) {
    let cloned =
        |(labels, series): (&Arc<K>, &Arc<TrafficSeries>)| (labels.clone(), series.clone());
    if let Some(found) = table.read().get_key_value(labels) {
        return cloned(found);
    }
    let mut table = table.write();
    // Another connection may have created the series meanwhile.
    if let Some(found) = table.get_key_value(labels) {
        return cloned(found);
    }
    if table.len() >= MAX_SERIES {
        retire(evict_unused(&mut table));
    }
    let series = Arc::new(TrafficSeries::new(Instant::now()));
    let labels = Arc::new(labels.clone());
    table.insert(labels.clone(), series.clone());
    (labels, series)
}

/// Drops the longest unused half of the unused series. Series in use are never dropped, since the number of connections
/// bounds them.
fn evict_unused<K: Eq + Hash>(
    table: &mut HashMap<K, Arc<TrafficSeries>>,
) -> Vec<(K, Arc<TrafficSeries>)> {
    let mut uses: Vec<_> = table
        .values()
        .filter(|series| series.is_unused())
        .map(|series| series.last_use())
        .collect();
    let middle = uses.len() / 2;
    if middle >= uses.len() {
        return Vec::new();
    }
    let (_, limit, _) = uses.select_nth_unstable(middle);
    let limit = *limit;
    let dropped = table.extract_if(|_, series| series.is_unused() && series.last_use() <= limit);
    dropped.collect()
}

/// Collector that encodes the connection metrics at a scrape.
#[derive(Debug)]
pub(crate) struct TrafficCollector(pub(crate) Arc<Traffic>);

impl Collector for TrafficCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        self.0.drop_unused(Instant::now());
        let table = self.0.series_rows();
        if table.is_empty() {
            return Ok(());
        }
        // Omitted labels may make several series equal.
        let mut is_changed = table.iter().map(|row| &row.labels);
        let is_changed = is_changed.any(|labels| matches!(labels, SeriesLabels::Relabeled(_)));
        let mut family = |name: &str,
                          help: &str,
                          of: TelemetryFamily,
                          samples: &dyn Fn(&TrafficSeries) -> Samples| {
            let rows = table.iter().flat_map(|SeriesRow { labels, series }| {
                let samples = samples(series).into_iter();
                samples.map(move |(reason, count)| (labels, reason, count))
            });
            let kind = MetricType::Counter;
            if is_changed {
                let mut sums: BTreeMap<_, u64> = BTreeMap::new();
                for (labels, reason, count) in rows {
                    if let Some(labels) = labels.family_labels(of, reason) {
                        *sums.entry(labels).or_default() += count;
                    }
                }
                if sums.is_empty() {
                    return Ok(());
                }
                let mut family = encoder.encode_descriptor(name, help, None, kind)?;
                for (labels, sum) in sums {
                    ConstCounter::new(sum).encode(family.encode_family(&labels)?)?;
                }
                return Ok(());
            }
            let mut rows = rows.peekable();
            // Families without samples are left out.
            if rows.peek().is_none() {
                return Ok(());
            }
            let mut family = encoder.encode_descriptor(name, help, None, kind)?;
            for (labels, reason, count) in rows {
                let labels = LabelsWithReason(labels.traffic(), reason);
                ConstCounter::new(count).encode(family.encode_family(&labels)?)?;
            }
            Ok(())
        };
        use TelemetryFamily as Family;
        let plain = |count: &AtomicU64| vec![(FailureReason::None, count.load(Relaxed))];
        family(
            "istio_tcp_connections_opened",
            "The total number of TCP connections opened",
            Family::OpenedConnections,
            &|series| plain(&series.opened),
        )?;
        family(
            "istio_tcp_connections_closed",
            "The total number of TCP connections closed",
            Family::ClosedConnections,
            &|series| series.closed.nonzero().collect(),
        )?;
        family(
            "istio_tcp_received_bytes",
            "The size of total bytes received during request in case of a TCP connection",
            Family::ReceivedBytes,
            &|series| plain(&series.received),
        )?;
        family(
            "istio_tcp_sent_bytes",
            "The size of total bytes sent during response in case of a TCP connection",
            Family::SentBytes,
            &|series| plain(&series.sent),
        )?;
        family(
            "istio_tcp_connections_failed",
            "The total number of TCP connections that failed (unstable)",
            // Of closed connections.
            Family::ClosedConnections,
            &|series| series.failed.nonzero().collect(),
        )
    }
}

type Samples = Vec<(FailureReason, u64)>;

fn labels_with_reason(labels: &TrafficLabels, reason: FailureReason) -> Option<LabelPairs> {
    let mut written = Vec::with_capacity(32);
    // Writing to a list cannot fail.
    LabelsWithReason(labels, reason)
        .put_labels(&mut written)
        .ok()?;
    Some(written)
}

/// Series with its labels, as it is written at a scrape.
struct SeriesRow {
    labels: SeriesLabels,
    series: Arc<TrafficSeries>,
}

/// Labels of a series, with or without configured overrides.
enum SeriesLabels {
    Plain(Arc<TrafficLabels>),
    Relabeled(Arc<(TrafficLabels, RelabeledValues)>),
}

impl SeriesLabels {
    fn traffic(&self) -> &TrafficLabels {
        match self {
            Self::Plain(traffic) => traffic,
            Self::Relabeled(both) => &both.0,
        }
    }

    /// Returns the labels with which the series is written in a family; `None` if it has no sample there.
    fn family_labels(&self, of: TelemetryFamily, reason: FailureReason) -> Option<LabelPairs> {
        let labels = labels_with_reason(self.traffic(), reason)?;
        match self {
            Self::Plain(_) => Some(labels),
            Self::Relabeled(both) => both.1.apply(of, labels),
        }
    }
}

#[cfg(test)]
mod tests;
