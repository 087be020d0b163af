//! Bounded buffer between logging threads and the thread that writes the lines.
//!
//! Lines are appended to one buffer under a lock held for a copy; the writer swaps the whole buffer for its empty
//! one, and then pauses for a moment. So a burst costs few system calls and wake-ups, which would cost the logging
//! threads more than the lines, and no memory when idle.

use std::{
    io,
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use tracing_subscriber::fmt::MakeWriter;

/// Maximum buffered bytes; further lines are counted and dropped.
const MAX_QUEUED_BYTES: usize = 4 * 1024 * 1024;
/// Maximum capacity that an empty buffer retains.
const MAX_RETAINED_BYTES: usize = 64 * 1024;

/// Maximum time for which lines are batched after a write; the first line after a pause is written at once.
const BATCH_DELAY: Duration = Duration::from_millis(10);

/// Queue of log lines for the output. Clones share it; the writer's thread ends with the last clone.
#[derive(Clone, Debug)]
pub(super) struct LineQueue(Arc<QueueOwner>);

#[derive(Debug)]
struct QueueOwner(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    /// Wakes the writer for lines to write, or when the last clone is dropped.
    wake: Condvar,
    /// Notifies waiting tasks that lines were written.
    written: Condvar,
}

#[derive(Debug, Default)]
struct State {
    buffer: Vec<u8>,
    dropped_lines: u64,
    /// Number of bytes of lines queued so far, which a flush waits for.
    accepted_bytes: u64,
    written_bytes: u64,
    /// Whether the writer's thread waits for a line.
    is_writer_idle: bool,
    /// Number of threads that wait for their lines to be written.
    waiting_flushes: usize,
    is_closed: bool,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl LineQueue {
    pub(super) fn start(output: impl io::Write + Send + 'static) -> io::Result<Self> {
        let shared = Arc::new(Shared::default());
        let writer = shared.clone();
        thread::Builder::new()
            .name("log".to_owned())
            .spawn(move || write_lines(&writer, output))?;
        Ok(Self(Arc::new(QueueOwner(shared))))
    }

    /// Queues a line, or counts it as dropped; never blocks on the output.
    pub(super) fn push(&self, line: &[u8]) {
        let shared = &self.0.0;
        let mut state = shared.lock();
        if state.buffer.len() + line.len() > MAX_QUEUED_BYTES {
            state.dropped_lines += 1;
            return;
        }
        let idle = std::mem::take(&mut state.is_writer_idle);
        state.buffer.extend_from_slice(line);
        state.accepted_bytes += line.len() as u64;
        drop(state);
        if idle {
            shared.wake.notify_one();
        }
    }

    /// Waits until queued lines are written, for at most `timeout`.
    pub(super) fn flush(&self, timeout: Duration) {
        let shared = &self.0.0;
        let deadline = Instant::now() + timeout;
        let mut state = shared.lock();
        let target = state.accepted_bytes;
        state.waiting_flushes += 1;
        shared.wake.notify_one();
        while state.written_bytes < target {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = shared
                .written
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state.waiting_flushes -= 1;
    }
}

impl<'a> MakeWriter<'a> for LineQueue {
    type Writer = LineWriter<'a>;

    fn make_writer(&'a self) -> LineWriter<'a> {
        LineWriter(self)
    }
}

/// Writer that queues each write as one complete line.
#[derive(Debug)]
pub(super) struct LineWriter<'a>(&'a LineQueue);

impl io::Write for LineWriter<'_> {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.push(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Drop for QueueOwner {
    fn drop(&mut self) {
        self.0.lock().is_closed = true;
        self.0.wake.notify_one();
    }
}

fn write_lines(shared: &Shared, mut output: impl io::Write) {
    let mut batch = Vec::new();
    loop {
        let mut state = shared.lock();
        while state.buffer.is_empty() && state.dropped_lines == 0 {
            if state.is_closed {
                return;
            }
            state.is_writer_idle = true;
            state = shared
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        batch.clear();
        batch.shrink_to(MAX_RETAINED_BYTES);
        std::mem::swap(&mut batch, &mut state.buffer);
        let dropped = std::mem::take(&mut state.dropped_lines);
        drop(state);
        let length = batch.len() as u64;
        if dropped > 0 {
            batch.extend_from_slice(
                format!("log output was too slow: {dropped} lines dropped\n").as_bytes(),
            );
        }
        // An output that is gone (a closed pipe) must not end the process.
        output.write_all(&batch).and_then(|()| output.flush()).ok();
        let mut state = shared.lock();
        state.written_bytes += length;
        shared.written.notify_all();
        let gathering = shared.wake.wait_timeout_while(state, BATCH_DELAY, |state| {
            state.waiting_flushes == 0 && !state.is_closed
        });
        drop(gathering.unwrap_or_else(PoisonError::into_inner));
    }
}
