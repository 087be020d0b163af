//! The bounded queue between those who log and the thread that writes.

use std::{
    io,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::Duration,
};

/// Lines waiting at most; beyond it they are counted and dropped.
const MAX_LINES: usize = 10_000;
/// Bytes waiting at most.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Lines written with one call.
const BATCH: usize = 64;

enum Item {
    Line(String),
    Flush(SyncSender<()>),
}

/// Lines on their way to the output. Clones share it.
#[derive(Clone, Debug)]
pub(super) struct LineQueue {
    sender: SyncSender<Item>,
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    bytes: AtomicUsize,
    dropped: AtomicU64,
}

impl LineQueue {
    pub(super) fn start(output: impl io::Write + Send + 'static) -> io::Result<Self> {
        let (sender, receiver) = sync_channel(MAX_LINES);
        let shared = Arc::new(Shared::default());
        let state = shared.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&receiver, &state, output))?;
        Ok(Self { sender, shared })
    }

    /// Queues a line, or counts it as dropped; never waits.
    pub(super) fn push(&self, line: String) {
        let length = line.len();
        if self.shared.bytes.fetch_add(length, Ordering::Relaxed) + length > MAX_BYTES {
            self.drop_line(length);
            return;
        }
        match self.sender.try_send(Item::Line(line)) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => self.drop_line(length),
        }
    }

    fn drop_line(&self, length: usize) {
        self.shared.bytes.fetch_sub(length, Ordering::Relaxed);
        self.shared.dropped.fetch_add(1, Ordering::Relaxed);
    }

    pub(super) fn flush(&self, timeout: Duration) {
        let (done, wait) = sync_channel(1);
        if self.sender.try_send(Item::Flush(done)).is_ok() {
            // An error means that the writer is stuck or gone: nothing more can be done here.
            let _ = wait.recv_timeout(timeout);
        }
    }
}

fn write_lines(receiver: &Receiver<Item>, shared: &Shared, mut output: impl io::Write) {
    let mut batch = Vec::new();
    while let Ok(first) = receiver.recv() {
        batch.clear();
        let mut flushes = Vec::new();
        let mut next = Some(first);
        let mut taken = 0;
        while let Some(item) = next {
            match item {
                Item::Line(line) => {
                    shared.bytes.fetch_sub(line.len(), Ordering::Relaxed);
                    batch.extend_from_slice(line.as_bytes());
                }
                Item::Flush(done) => flushes.push(done),
            }
            taken += 1;
            next = if taken < BATCH {
                receiver.try_recv().ok()
            } else {
                None
            };
        }
        let dropped = shared.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            batch.extend_from_slice(
                format!("log output was too slow: {dropped} lines dropped\n").as_bytes(),
            );
        }
        // An output that is gone (closed pipe) must not end the process.
        output.write_all(&batch).and_then(|()| output.flush()).ok();
        for done in flushes {
            let _ = done.try_send(());
        }
    }
}
