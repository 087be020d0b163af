//! The worker threads: each runs its share of all instances' connections, from accept to close.
//!
//! The kernel spreads connections over the workers, since each has its own listeners on the same ports. A
//! connection never leaves its worker, nor does the tunnel it uses.

use std::{io, thread::JoinHandle};

use ambit_sys::netns::Netns;
use tokio::sync::mpsc;

/// What a worker is given to do, on its own thread and runtime.
type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Worker {
    assign: mpsc::UnboundedSender<Job>,
    runtime: tokio::runtime::Handle,
    thread: Option<JoinHandle<()>>,
}

/// See the module. Dropping it ends the threads, and with them what they still serve.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

impl Workers {
    /// Starts `count` threads.
    ///
    /// # Errors
    /// When a thread or its runtime cannot be made.
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count.max(1))
            .map(Worker::start)
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Their runtimes, for metrics.
    pub fn runtimes(&self) -> Vec<tokio::runtime::Handle> {
        self.0.iter().map(|worker| worker.runtime.clone()).collect()
    }

    /// Runs the jobs, the workers taking them in turn. What a job spawns stays on its worker.
    pub fn assign<F: FnOnce() + Send + 'static>(&self, jobs: impl IntoIterator<Item = F>) {
        for (worker, job) in self.0.iter().cycle().zip(jobs) {
            if worker.assign.send(Box::new(job)).is_err() {
                tracing::error!("a worker has ended");
            }
        }
    }
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = ambit_rt::current_thread()?;
        let (assign, mut assigned) = mpsc::unbounded_channel::<Job>();
        let handle = runtime.handle().clone();
        let work = async move {
            if let Err(error) = Netns::stay_at_home() {
                tracing::debug!(%error, "a worker asks at each opening where it is");
            }
            while let Some(job) = assigned.recv().await {
                job();
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("ambit-worker-{index}"))
            .spawn(move || runtime.block_on(ambit_rt::essential("worker", work)))?;
        Ok(Self {
            assign,
            runtime: handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in self.0.drain(..) {
            let Worker { assign, thread, .. } = worker;
            drop(assign);
            // A worker that panicked has said so.
            let _panicked = thread.map(JoinHandle::join);
        }
    }
}
