//! Histogram of integers with Envoy's buckets, which Istio's dashboards expect.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use prometheus_client::encoding::{MetricEncoder, NoLabelSet};

/// Upper bounds of the buckets, in milliseconds or bytes.
const BUCKET_BOUNDS: [f64; 19] = [
    0.5,
    1.0,
    5.0,
    10.0,
    25.0,
    50.0,
    100.0,
    250.0,
    500.0,
    1_000.0,
    2_500.0,
    5_000.0,
    10_000.0,
    30_000.0,
    60_000.0,
    300_000.0,
    600_000.0,
    1_800_000.0,
    3_600_000.0,
];

/// Histogram in which an observation takes a few atomic additions.
#[derive(Debug, Default)]
pub(super) struct Histogram {
    sum: AtomicU64,
    /// Counts by bucket; the last bucket has the values above all bounds.
    buckets: [AtomicU64; BUCKET_BOUNDS.len() + 1],
}

impl Histogram {
    pub(super) fn observe(&self, value: u64) {
        self.sum.fetch_add(value, Relaxed);
        #[expect(clippy::cast_precision_loss, reason = "bounds are small numbers")]
        let index = BUCKET_BOUNDS.partition_point(|bound| *bound < value as f64);
        if let Some(bucket) = self.buckets.get(index) {
            bucket.fetch_add(1, Relaxed);
        }
    }

    /// Adds the counts of another histogram.
    pub(super) fn add(&self, other: &Self) {
        self.sum.fetch_add(other.sum.load(Relaxed), Relaxed);
        for (own, other) in self.buckets.iter().zip(&other.buckets) {
            own.fetch_add(other.load(Relaxed), Relaxed);
        }
    }

    pub(super) fn encode(&self, mut encoder: MetricEncoder<'_>) -> std::fmt::Result {
        let bounds = BUCKET_BOUNDS.into_iter().chain([f64::INFINITY]);
        let buckets: Vec<_> = bounds
            .zip(&self.buckets)
            .map(|(bound, count)| (bound, count.load(Relaxed)))
            .collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        #[expect(clippy::cast_precision_loss, reason = "what Prometheus has")]
        let sum = self.sum.load(Relaxed) as f64;
        encoder.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}
