//! Merges the counts of dropped series into remaining ones.
//!
//! Where labels are removed by configuration, several series are written as one sum. If one of them is dropped, the
//! sum must not fall: Prometheus takes a falling counter for a restart, and its whole value for an increase.

use std::{
    collections::HashMap,
    fmt, mem,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use parking_lot::Mutex;

/// Label names and values with which a series is written in one family.
pub(crate) type LabelPairs = Vec<(String, String)>;

/// Functions by which one metric family labels its series, and merges series that have the same labels.
pub(crate) struct MergedFamily<Labels, Series> {
    /// Returns the labels with which a series is written in the family; `None` if it has no sample there.
    pub(crate) labels: fn(&Labels) -> Option<LabelPairs>,
    /// Adds the second series' counts to the first.
    pub(crate) merge: fn(&Series, &Series),
}

/// Adds the value of the counter `from` to `to`.
pub(crate) fn add_counter(to: &AtomicU64, from: &AtomicU64) {
    to.fetch_add(from.load(Relaxed), Relaxed);
}

/// Series that were dropped since the last scrape, whose counts are to be merged into remaining ones.
pub(crate) struct RetiredSeries<Labels, Series> {
    series: Mutex<Vec<(Arc<Labels>, Arc<Series>)>>,
    max_series: usize,
}

impl<Labels, Series> RetiredSeries<Labels, Series> {
    /// Creates an empty table of at most `most` series; further ones are discarded.
    pub(crate) fn new(most: usize) -> Self {
        Self {
            series: Mutex::default(),
            max_series: most,
        }
    }

    pub(crate) fn extend(&self, dropped: impl IntoIterator<Item = (Arc<Labels>, Arc<Series>)>) {
        let mut series = self.series.lock();
        let room = self.max_series.saturating_sub(series.len());
        let mut dropped = dropped.into_iter();
        series.extend(dropped.by_ref().take(room));
        // The iterator may drain a table, which must lose all of these entries.
        dropped.for_each(drop);
    }

    /// Adds each dropped series' counts to a remaining series with the same labels in the family. If none remains,
    /// the counts are discarded.
    pub(crate) fn merge_into_remaining<'a>(
        &self,
        stay: impl Iterator<Item = (&'a Labels, &'a Series)> + Clone,
        families: &[MergedFamily<Labels, Series>],
    ) where
        Labels: 'a,
        Series: 'a,
    {
        let retired = mem::take(&mut *self.series.lock());
        for MergedFamily {
            labels: written,
            merge: add,
        } in families
        {
            let mut left: HashMap<LabelPairs, Vec<&Series>> = HashMap::new();
            for (labels, series) in &retired {
                if let Some(written) = written(labels) {
                    left.entry(written).or_default().push(series);
                }
            }
            for (labels, heir) in stay.clone() {
                if left.is_empty() {
                    break;
                }
                let its = written(labels).and_then(|written| left.remove(&written));
                for series in its.into_iter().flatten() {
                    add(heir, series);
                }
            }
        }
    }
}

impl<Labels, Series> fmt::Debug for RetiredSeries<Labels, Series> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RetiredSeries").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn excess_series_are_dropped() {
        let mut table: HashMap<Arc<u8>, Arc<u8>> = (0..3).map(|n| (n.into(), n.into())).collect();
        let retired = RetiredSeries::new(1);
        retired.extend(table.extract_if(|_, _| true));
        assert!(table.is_empty(), "{table:?}");
        assert_eq!(retired.series.lock().len(), 1);
    }
}
