//! Bounded queue of log records before their export.
//!
//! While a collector is unavailable, the oldest records stay, since they lead up to the failure,
//! and further ones are dropped and counted. A logging thread holds a lock for one append, and
//! wakes the exporter only for a first record or a full batch.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use ambit_rt::logging::{LogRecord, RecordSink};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::records::record_bytes;

/// Maximum number of queued log records.
pub(crate) const MAX_RECORDS: usize = 8192;
/// Approximate maximum memory of queued records, in bytes.
pub(crate) const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Maximum number of log records in one export.
pub(crate) const MAX_BATCH_RECORDS: usize = 512;
const MAX_BATCH_BYTES: usize = 1024 * 1024;

/// Bounded queue of log records. Clones share it.
#[derive(Clone, Debug, Default)]
pub(crate) struct LogQueue(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    queued: Mutex<QueuedRecords>,
    /// Wakes the exporter for a first record, or a full batch.
    wake: Notify,
    dropped: AtomicU64,
}

#[derive(Debug, Default)]
struct QueuedRecords {
    records: VecDeque<LogRecord>,
    bytes: usize,
}

impl RecordSink for LogQueue {
    fn record(&self, record: LogRecord) {
        let size = record_bytes(&record);
        let mut waiting = self.0.queued.lock();
        let many = waiting.records.len();
        if many >= MAX_RECORDS || waiting.bytes + size > MAX_BYTES {
            self.0.dropped.fetch_add(1, Relaxed);
            return;
        }
        waiting.records.push_back(record);
        waiting.bytes += size;
        drop(waiting);
        if many == 0 || many + 1 == MAX_BATCH_RECORDS {
            self.0.wake.notify_one();
        }
    }
}

impl LogQueue {
    /// Returns the number of records that were dropped.
    pub(crate) fn dropped(&self) -> u64 {
        self.0.dropped.load(Relaxed)
    }

    /// Counts records that were dropped after they had been queued.
    pub(crate) fn add_dropped(&self, many: usize) {
        let many = u64::try_from(many).unwrap_or(u64::MAX);
        self.0.dropped.fetch_add(many, Relaxed);
    }

    /// Waits until at least `many` records are queued.
    pub(crate) async fn wait_for_records(&self, many: usize) {
        while self.0.queued.lock().records.len() < many {
            self.0.wake.notified().await;
        }
    }

    /// Removes and returns the oldest records, up to the batch size.
    pub(crate) fn take_batch(&self) -> Vec<LogRecord> {
        let mut batch = Vec::new();
        let mut bytes = 0;
        let mut waiting = self.0.queued.lock();
        while batch.len() < MAX_BATCH_RECORDS && bytes < MAX_BATCH_BYTES {
            let Some(record) = waiting.records.pop_front() else {
                // An idle program keeps no memory of a burst.
                waiting.records = VecDeque::new();
                break;
            };
            let size = record_bytes(&record);
            waiting.bytes = waiting.bytes.saturating_sub(size);
            bytes += size;
            batch.push(record);
        }
        batch
    }
}

#[cfg(test)]
mod tests {
    use std::time::SystemTime;

    use ambit_rt::testing::within;

    use super::*;

    fn record(message: String) -> LogRecord {
        LogRecord {
            time: SystemTime::UNIX_EPOCH,
            level: tracing::Level::INFO,
            target: "test",
            message,
            fields: Vec::new(),
        }
    }

    #[test]
    fn a_full_queue_keeps_the_oldest_records_and_counts_the_others() {
        let queue = LogQueue::default();
        for number in 0..MAX_RECORDS + 3 {
            queue.record(record(number.to_string()));
        }
        assert_eq!(queue.dropped(), 3);
        let mut taken = Vec::new();
        loop {
            let batch = queue.take_batch();
            assert!(batch.len() <= MAX_BATCH_RECORDS);
            if batch.is_empty() {
                break;
            }
            taken.extend(batch);
        }
        assert_eq!(taken.len(), MAX_RECORDS);
        assert_eq!(taken[0].message, "0");
        queue.record(record("after".to_owned()));
        assert_eq!(queue.take_batch().len(), 1);
        assert_eq!(queue.dropped(), 3);
    }

    #[test]
    fn large_records_fill_the_queue_and_batches_by_their_bytes() {
        let queue = LogQueue::default();
        let large = "x".repeat(100 * 1024);
        for _ in 0..1000 {
            queue.record(record(large.clone()));
        }
        let retained = 1000 - usize::try_from(queue.dropped()).unwrap();
        assert!(
            retained * large.len() <= MAX_BYTES && retained > 70,
            "{retained}"
        );
        let batch = queue.take_batch();
        assert!(batch.len() * large.len() < MAX_BATCH_BYTES + large.len());
        for _ in 0..retained {
            queue.take_batch();
        }
        queue.record(record(large));
        assert_eq!(
            queue.take_batch().len(),
            1,
            "emptied queues take records again"
        );
    }

    #[tokio::test]
    async fn the_exporter_wakes_for_a_first_record_and_for_a_full_batch() {
        within(async {
            let queue = LogQueue::default();
            let waiting = queue.clone();
            let task = ambit_rt::spawn("first", async move {
                waiting.wait_for_records(1).await;
                waiting.wait_for_records(MAX_BATCH_RECORDS).await;
            });
            for _ in 0..MAX_BATCH_RECORDS {
                queue.record(record(String::new()));
                tokio::task::yield_now().await;
            }
            task.await.unwrap();
        })
        .await;
    }
}
