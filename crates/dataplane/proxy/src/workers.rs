//! Worker threads, each of which runs a share of all instances' connections, from accept to close.
//!
//! The kernel spreads connections over the workers, since each has its own listeners on the same ports. A connection
//! never leaves its worker, nor does the tunnel it uses. Both sides of a tunnel within the node are on one worker
//! ([`steer_local_tunnels`]), so that one thread does all the work of a connection.

use std::{cell::Cell, io, net::TcpListener, thread::JoinHandle};

use ambit_sys::{
    netns::Netns,
    socket::{self, WorkerPosition},
};
use tokio::sync::mpsc;

thread_local! {
    static CURRENT_WORKER: Cell<Option<WorkerPosition>> = const { Cell::new(None) };
}

/// Returns the number of the worker that runs the calling thread.
pub(crate) fn current_worker() -> Option<WorkerPosition> {
    CURRENT_WORKER.get()
}

/// Job of a worker, run on its own thread and runtime.
type Job = Box<dyn FnOnce() + Send>;

#[derive(Debug)]
struct Worker {
    job_sender: mpsc::UnboundedSender<Job>,
    runtime: tokio::runtime::Handle,
    thread: Option<JoinHandle<()>>,
}

/// Worker threads. Dropping the value ends the threads and their connections.
#[derive(Debug)]
pub struct Workers(Vec<Worker>);

impl Workers {
    /// Starts `count` worker threads.
    ///
    /// # Errors
    ///
    /// When a thread or its runtime cannot be created.
    pub fn start(count: usize) -> io::Result<Self> {
        (0..count.max(1))
            .map(|index| {
                Worker::start(WorkerPosition {
                    index,
                    count: count.max(1),
                })
            })
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// Returns the number of workers.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Returns the workers' tokio runtimes, for metrics.
    pub fn runtimes(&self) -> Vec<tokio::runtime::Handle> {
        self.0.iter().map(|worker| worker.runtime.clone()).collect()
    }

    /// Steers incoming tunnels from the same node to the worker that opened them, among the listeners that share the
    /// port of `listener` in the order of workers.
    pub fn steer_local_tunnels(&self, listener: &TcpListener) {
        // Without it the kernel spreads them as it does all others.
        if let Err(error) = socket::steer(listener, self.count()) {
            tracing::debug!(%error, "the kernel spreads tunnels within the node over the workers");
        }
    }

    /// Distributes jobs to the workers round-robin. Tasks that a job spawns stay on its worker.
    pub fn assign_jobs<F: FnOnce() + Send + 'static>(&self, jobs: impl IntoIterator<Item = F>) {
        for (worker, job) in self.0.iter().cycle().zip(jobs) {
            if worker.job_sender.send(Box::new(job)).is_err() {
                tracing::error!("a worker has ended");
            }
        }
    }
}

impl Worker {
    fn start(position: WorkerPosition) -> io::Result<Self> {
        let runtime = ambit_rt::current_thread_runtime()?;
        let (assign, mut assigned) = mpsc::unbounded_channel::<Job>();
        let handle = runtime.handle().clone();
        let work = async move {
            CURRENT_WORKER.set(Some(position));
            if let Err(error) = Netns::remember_home_netns() {
                tracing::debug!(%error, "a worker looks up its network namespace at each connection");
            }
            while let Some(job) = assigned.recv().await {
                job();
            }
        };
        let thread = std::thread::Builder::new()
            .name(format!("ambit-worker-{}", position.index))
            .spawn(move || runtime.block_on(ambit_rt::end_process_on_panic("worker", work)))?;
        Ok(Self {
            job_sender: assign,
            runtime: handle,
            thread: Some(thread),
        })
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for worker in self.0.drain(..) {
            let Worker {
                job_sender: assign,
                thread,
                ..
            } = worker;
            drop(assign);
            // A worker's panic has been logged.
            let _panicked = thread.map(JoinHandle::join);
        }
    }
}
