//! Key sets of token issuers: fetched here, so that waypoints need no way out and all of them have the same keys at the
//! same time. What is wanted is what objects name (`ambit_derive`); what is due when is [`book`], the way to an issuer is
//! [`fetch`].

mod book;
mod fetch;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use ambit_derive::{KeySource, KeyState};
use ambit_rt::DrainWatcher;
use rand::Rng as _;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, sleep_until},
};

use book::Book;
use fetch::Fetcher;

/// Answers that wait for the index.
const QUEUE: usize = 64;

/// The end that follows what is wanted.
#[derive(Debug)]
pub(crate) struct KeySets {
    wanted: watch::Sender<BTreeSet<KeySource>>,
    answers: mpsc::Receiver<(KeySource, KeyState)>,
}

impl KeySets {
    /// Begins; ends with the drain. Sets are fetched again after `refresh`.
    pub(crate) fn start(refresh: Duration, drain: DrainWatcher) -> Self {
        let (wanted, wants) = watch::channel(BTreeSet::new());
        let (answer, answers) = mpsc::channel(QUEUE);
        let fetcher = Arc::new(Fetcher::with_system_roots());
        ambit_rt::spawn("key sets", run(refresh, fetcher, wants, answer, drain));
        Self { wanted, answers }
    }

    /// What is wanted from now on.
    pub(crate) fn want(&self, sources: BTreeSet<KeySource>) {
        self.wanted.send_if_modified(|known| {
            let differs = *known != sources;
            *known = sources;
            differs
        });
    }

    /// The next set that was fetched, or could not be.
    pub(crate) async fn answer(&mut self) -> (KeySource, KeyState) {
        match self.answers.recv().await {
            Some(answer) => answer,
            // It ends with the process.
            None => std::future::pending().await,
        }
    }
}

async fn run(
    refresh: Duration,
    fetcher: Arc<Fetcher>,
    mut wanted: watch::Receiver<BTreeSet<KeySource>>,
    answer: mpsc::Sender<(KeySource, KeyState)>,
    mut drain: DrainWatcher,
) {
    let mut book = Book::new(refresh);
    let (done, mut fetched) = mpsc::unbounded_channel();
    loop {
        book.want(&wanted.borrow_and_update(), Instant::now());
        for source in book.due(Instant::now()) {
            let (fetcher, done) = (Arc::clone(&fetcher), done.clone());
            ambit_rt::spawn("key set", async move {
                let outcome = fetcher.key_set(&source).await;
                // Nobody waits for it any more at the end.
                done.send((source, outcome)).ok();
            });
        }
        let next = book.next();
        tokio::select! {
            changed = wanted.changed() => if changed.is_err() { return },
            Some((source, outcome)) = fetched.recv() => {
                if let Err(error) = &outcome {
                    tracing::warn!(url = %source.url, %error, "a key set cannot be had");
                }
                let spread = rand::rng().random_range(0.9..1.1);
                let state = book.fetched(&source, outcome, Instant::now(), spread);
                if let Some(state) = state
                    && answer.send((source, state)).await.is_err()
                {
                    return;
                }
            }
            () = sleep_until(next.unwrap_or_else(Instant::now)), if next.is_some() => {}
            _ = drain.started() => return,
        }
    }
}
