//! The worker threads: each runs its share of all pods' connections, from accept to close.
//!
//! The kernel spreads a pod's connections over the workers, since each has its own listeners on the
//! same ports. A connection never leaves its worker, nor does the tunnel it uses.

use std::{io, sync::Arc, thread::JoinHandle};

use ambit_sys::netns::Netns;
use tokio::sync::mpsc;

use crate::{
    pod::{Pod, PodListeners},
    shard,
};

#[derive(Debug)]
struct Assignment {
    pod: Arc<Pod>,
    listeners: PodListeners,
}

#[derive(Debug)]
struct Worker {
    assign: mpsc::UnboundedSender<Assignment>,
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

    /// Serves a pod, its policies followed: the workers take the sets of listeners in turn. To be called
    /// on a runtime that stays.
    pub fn serve(&self, pod: &Arc<Pod>, listeners: Vec<PodListeners>) {
        for (worker, listeners) in self.0.iter().cycle().zip(listeners) {
            let assigned = worker.assign.send(Assignment {
                pod: pod.clone(),
                listeners,
            });
            if assigned.is_err() {
                tracing::error!(pod = %pod.name, "a worker has ended");
            }
        }
        // The certificate is wanted with the first connection; it need not wait for xDS.
        pod.proxy.certificates.prefetch(&pod.identity);
        ambit_rt::spawn_essential("policy changes", pod.clone().enforce_changes());
    }
}

impl Worker {
    fn start(index: usize) -> io::Result<Self> {
        let runtime = ambit_rt::current_thread()?;
        let (assign, mut assigned) = mpsc::unbounded_channel::<Assignment>();
        let handle = runtime.handle().clone();
        let work = async move {
            if let Err(error) = Netns::stay_at_home() {
                tracing::debug!(%error, "a worker asks at each opening where it is");
            }
            while let Some(Assignment { pod, listeners }) = assigned.recv().await {
                if let Err(error) = shard::serve(&pod, listeners) {
                    tracing::error!(pod = %pod.name, %error, "cannot serve the pod");
                }
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
