//! Key sets of token issuers, and SPIFFE trust bundles. The control plane fetches them, so that proxies need no
//! connection to issuers, and all have the same keys at the same time. Objects name them (`ambit_derive`); [`schedule`]
//! decides when a key set is fetched, and [`fetch`] fetches it.

mod bundle;
mod callees;
mod fetch;
mod schedule;

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ambit_derive::{KeySetState, KeySource};
use ambit_egress::Guard;
use ambit_fetch::Client;
use ambit_rt::DrainWatcher;
use rand::Rng as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use callees::{CalleeCheck, CalleeChecker};
use fetch::Fetcher;
use schedule::FetchSchedule;

/// Capacity of the queue of fetched key sets.
const QUEUE_CAPACITY: usize = 64;

/// Handle of the task that fetches key sets: sets which key sets are desired, and receives the results.
#[derive(Debug)]
pub(crate) struct KeySets {
    desired: watch::Sender<BTreeSet<KeySource>>,
    results: mpsc::Receiver<(KeySource, KeySetState)>,
    callee_checks: mpsc::Receiver<CalleeCheck>,
    guard: Guard,
}

/// Event of fetching key sets, for the task that owns the index.
#[derive(Debug)]
pub(crate) enum KeySetEvent {
    /// A key set was fetched, or the fetch failed.
    Fetched(KeySource, KeySetState),
    /// Request to decide whether a fetch may call an address.
    CalleeCheck(CalleeCheck),
}

impl KeySets {
    /// Starts fetching the desired key sets until the drain. Each is fetched again after `refresh`, only from addresses
    /// that the guard allows.
    pub(crate) fn start(refresh: Duration, guard: Guard, drain: DrainWatcher) -> Self {
        let (desired, wants) = watch::channel(BTreeSet::new());
        let (answer, answers) = mpsc::channel(QUEUE_CAPACITY);
        let (callees, inquiries) = CalleeChecker::new();
        let client = Client::new(guard.clone(), "ambit-control");
        let fetcher = Arc::new(Fetcher::new(client, callees));
        ambit_rt::spawn("key sets", run(refresh, fetcher, wants, answer, drain));
        Self {
            desired,
            results: answers,
            callee_checks: inquiries,
            guard,
        }
    }

    /// Sets the addresses of the API server and of nodes, from which key sets may not be fetched.
    pub(crate) fn set_protected_addresses(&self, cluster: BTreeSet<IpAddr>) {
        self.guard.update(Vec::new(), cluster);
    }

    /// Sets the desired key sets, which replace earlier ones.
    pub(crate) fn set_desired(&self, sources: BTreeSet<KeySource>) {
        self.desired.send_if_modified(|known| {
            let differs = *known != sources;
            *known = sources;
            differs
        });
    }

    /// Waits for the next fetched key set, or for the next request to decide about an address.
    pub(crate) async fn next(&mut self) -> KeySetEvent {
        tokio::select! {
            Some((source, state)) = self.results.recv() => KeySetEvent::Fetched(source, state),
            Some(inquiry) = self.callee_checks.recv() => KeySetEvent::CalleeCheck(inquiry),
            // The tasks end with the process.
            else => std::future::pending().await,
        }
    }
}

async fn run(
    refresh: Duration,
    fetcher: Arc<Fetcher>,
    mut desired: watch::Receiver<BTreeSet<KeySource>>,
    answer: mpsc::Sender<(KeySource, KeySetState)>,
    mut drain: DrainWatcher,
) {
    let mut schedule = FetchSchedule::new(refresh);
    let (done, mut fetched) = mpsc::unbounded_channel();
    loop {
        schedule.set_desired(&desired.borrow_and_update(), Instant::now());
        for source in schedule.take_due(Instant::now()) {
            let (fetcher, done) = (Arc::clone(&fetcher), done.clone());
            ambit_rt::spawn("key set", async move {
                let outcome = fetcher.fetch_key_set(&source).await;
                // At the end there is no receiver any more.
                done.send((source, outcome)).ok();
            });
        }
        let next = schedule.next_due();
        tokio::select! {
            changed = desired.changed() => if changed.is_err() { return },
            Some((source, outcome)) = fetched.recv() => {
                if let Err(error) = &outcome {
                    tracing::warn!(url = %source.url, %error, "a key set cannot be had");
                }
                let spread = rand::rng().random_range(0.9..1.1);
                let state = schedule.on_fetched(&source, outcome, Instant::now(), spread);
                if let Some(state) = state
                    && answer.send((source, state)).await.is_err()
                {
                    return;
                }
            }
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            _ = drain.wait_until_started() => return,
        }
    }
}
