//! Metrics that a plugin defines. All its instances, one per worker, share them.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use parking_lot::Mutex;

/// Maximum metrics that one plugin defines.
const MAX_SERIES: usize = 1024;
/// Maximum length of a metric's name.
const MAX_METRIC_NAME_BYTES: usize = 512;
/// Upper bounds of the buckets of plugin histograms.
pub(crate) const HISTOGRAM_BUCKETS: [u64; 19] = [
    1, 2, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 30_000, 60_000, 300_000,
    600_000, 1_800_000, 3_600_000,
];

/// Type of a plugin's metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricKind {
    /// Counter, which only increases.
    Counter,
    /// Gauge, which can be set and decreased.
    Gauge,
    /// Histogram, which counts values by bucket.
    Histogram,
}

/// Current value of a plugin's metric.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetricValue {
    /// Value of a counter.
    Counter(u64),
    /// Value of a gauge.
    Gauge(u64),
    /// Value of a histogram: cumulative counts by the buckets' upper bounds, number of observations, and their sum.
    Histogram(Vec<(u64, u64)>, u64, u64),
}

/// Metrics of one plugin. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct Metrics(Arc<Mutex<MetricRegistry>>);

#[derive(Debug, Default)]
struct MetricRegistry {
    ids: HashMap<String, u32>,
    series: Vec<Arc<Series>>,
}

#[derive(Debug)]
pub(crate) struct Series {
    name: String,
    pub(crate) kind: MetricKind,
    value: AtomicU64,
    sum: AtomicU64,
    buckets: [AtomicU64; HISTOGRAM_BUCKETS.len()],
}

impl Metrics {
    /// Defines a metric and returns its number; `None` if there are too many, or if the name exists with another
    /// type.
    pub(crate) fn define(&self, kind: MetricKind, name: &str) -> Option<u32> {
        let mut defined = self.0.lock();
        if let Some(id) = defined.ids.get(name) {
            let known = defined.series.get(*id as usize)?;
            return (known.kind == kind).then_some(*id);
        }
        if name.is_empty()
            || name.len() > MAX_METRIC_NAME_BYTES
            || defined.series.len() >= MAX_SERIES
        {
            return None;
        }
        let id = u32::try_from(defined.series.len()).ok()?;
        defined.ids.insert(name.to_owned(), id);
        defined.series.push(Arc::new(Series {
            name: name.to_owned(),
            kind,
            value: AtomicU64::new(0),
            sum: AtomicU64::new(0),
            buckets: [const { AtomicU64::new(0) }; HISTOGRAM_BUCKETS.len()],
        }));
        Some(id)
    }

    pub(crate) fn series(&self, id: u32) -> Option<Arc<Series>> {
        self.0.lock().series.get(id as usize).cloned()
    }

    /// Returns all metrics of the plugin with their names and values.
    pub fn named_values(&self) -> Vec<(String, MetricValue)> {
        let series = self.0.lock().series.clone();
        let mut all: Vec<_> = series
            .iter()
            .map(|one| (one.name.clone(), one.snapshot()))
            .collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all
    }
}

impl Series {
    pub(crate) fn get(&self) -> u64 {
        self.value.load(Ordering::Relaxed)
    }

    pub(crate) fn add(&self, by: u64) {
        self.value.fetch_add(by, Ordering::Relaxed);
    }

    /// Decreases a gauge, though not below zero.
    pub(crate) fn subtract(&self, by: u64) {
        let less = |value: u64| Some(value.saturating_sub(by));
        let _before = self
            .value
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    pub(crate) fn record(&self, value: u64) {
        match self.kind {
            MetricKind::Counter => self.add(value),
            MetricKind::Gauge => self.value.store(value, Ordering::Relaxed),
            MetricKind::Histogram => {
                self.add(1);
                self.sum.fetch_add(value, Ordering::Relaxed);
                let index = HISTOGRAM_BUCKETS.partition_point(|end| *end < value);
                if let Some(bucket) = self.buckets.get(index) {
                    bucket.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
    }

    fn snapshot(&self) -> MetricValue {
        match self.kind {
            MetricKind::Counter => MetricValue::Counter(self.get()),
            MetricKind::Gauge => MetricValue::Gauge(self.get()),
            MetricKind::Histogram => {
                let mut below = 0;
                let buckets = HISTOGRAM_BUCKETS
                    .iter()
                    .zip(&self.buckets)
                    .map(|(end, count)| {
                        below += count.load(Ordering::Relaxed);
                        (*end, below)
                    });
                let buckets = buckets.collect();
                MetricValue::Histogram(buckets, self.get(), self.sum.load(Ordering::Relaxed))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_of_a_plugin_share_bounded_series() {
        let (one, other) = (Metrics::default(), Metrics::default());
        let clone = one.clone();
        let id = one.define(MetricKind::Counter, "hits").unwrap();
        assert_eq!(clone.define(MetricKind::Counter, "hits"), Some(id));
        assert_eq!(clone.define(MetricKind::Gauge, "hits"), None);
        clone.series(id).unwrap().add(2);
        one.series(id).unwrap().add(1);
        assert_eq!(
            one.named_values(),
            [("hits".to_owned(), MetricValue::Counter(3))]
        );
        assert!(other.named_values().is_empty());
        let defined =
            (0..2 * MAX_SERIES).filter_map(|n| one.define(MetricKind::Gauge, &n.to_string()));
        assert_eq!(defined.count(), MAX_SERIES - 1);
    }

    #[test]
    fn histogram_counts_values_in_buckets() {
        let metrics = Metrics::default();
        let id = metrics.define(MetricKind::Histogram, "time").unwrap();
        for value in [1, 2, 3, u64::MAX / 4] {
            metrics.series(id).unwrap().record(value);
        }
        let all = metrics.named_values();
        let [(_, MetricValue::Histogram(buckets, 4, sum))] = &all[..] else {
            panic!("{all:?}");
        };
        assert_eq!(*sum, u64::MAX / 4 + 6);
        assert_eq!(buckets[..3], [(1, 1), (2, 2), (5, 3)]);
        assert_eq!(buckets[HISTOGRAM_BUCKETS.len() - 1].1, 3);
    }
}
