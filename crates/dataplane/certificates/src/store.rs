//! Certificate store: fetches certificates when they are needed or prefetched, renews them at half of their lifetime,
//! and keeps them while they are valid.
//!
//! The state machine [`state::State`] decides what to fetch; this file carries out its effects and provides
//! certificates to connections.

mod options;
mod state;

use std::{collections::HashMap, fmt, sync::Arc, time::SystemTime};

use ambit_model::{FailureReason, Identity};
use ambit_rt::ErrorChain;
use ambit_tls::WorkloadCert;
use parking_lot::Mutex;
use rand::Rng;
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use crate::{CaClient, CertificateCounts, CertificateDump, FetchError};
pub use options::CertificatesOptions;
pub use state::Priority;
use state::{Effect, Event, Lifetime, State};

/// Reason why a connection gets no certificate.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CertError {
    /// The identity's last workload left this node while a connection waited for the certificate.
    #[error("identity error: {0} was forgotten: no workload of it is left on this node")]
    IdentityForgotten(Box<Identity>),
    /// The CA issued no certificate; the store retries automatically.
    #[error("identity error: no certificate for {identity}: {}", ErrorChain(source.as_ref()))]
    Unavailable {
        /// Identity whose certificate is unavailable.
        identity: Box<Identity>,
        /// Error of the last fetch.
        #[source]
        source: Arc<FetchError>,
    },
    /// The process is shutting down.
    #[error("identity error: certificates are no longer served")]
    ShuttingDown,
}

impl CertError {
    /// Returns the response flag for metrics and the access log.
    pub fn reason(&self) -> FailureReason {
        FailureReason::IdentityError
    }
}

/// State of one identity's certificate, as connections see it.
#[derive(Clone)]
enum CertState {
    Initializing,
    Available(Arc<WorkloadCert>),
    Unavailable(Arc<FetchError>),
    Forgotten,
}

struct IdentityEntry {
    state: watch::Sender<CertState>,
    /// Highest priority that connections have requested so far; the fetch task receives each priority only once.
    priority: Priority,
}

enum Command {
    Request(Identity, Priority),
    Forget(Identity),
    Expired(Identity),
}

struct Shared {
    entries: Mutex<HashMap<Identity, IdentityEntry>>,
    /// Commands to the fetch task, sent under the lock of `entries`, so that the task receives them in the order of
    /// changes.
    commands: mpsc::UnboundedSender<Command>,
}

/// Certificate store of this process. Clones share the certificates.
#[derive(Clone)]
pub struct Certificates(Arc<Shared>);

impl fmt::Debug for Certificates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// Starts the task that fetches and renews certificates; it ends when the last clone is dropped.
    ///
    /// Must be called within the runtime that runs the fetches. Certificates may be requested from any thread.
    pub fn start(client: Arc<dyn CaClient>, options: CertificatesOptions) -> Self {
        let (commands, receiver) = mpsc::unbounded_channel();
        let shared = Arc::new(Shared {
            entries: Mutex::default(),
            commands,
        });
        let weak = Arc::downgrade(&shared);
        ambit_rt::spawn_essential("certificates", async move {
            run(weak, receiver, client, options).await;
        });
        Self(shared)
    }

    /// Returns the certificate of an identity. Waits for its first fetch, but not for retries after a failure.
    pub async fn get(&self, identity: &Identity) -> Result<Arc<WorkloadCert>, CertError> {
        if let Some(cert) = self
            .peek(identity)
            .filter(|cert| !cert.is_expired(SystemTime::now()))
        {
            return Ok(cert);
        }
        let mut slot = self.request_with_priority(identity, Priority::RealTime);
        let settled = slot
            .wait_for(|slot| !matches!(slot, CertState::Initializing))
            .await
            .map_err(|_| CertError::ShuttingDown)?
            .clone();
        match settled {
            CertState::Available(cert) if cert.is_expired(SystemTime::now()) => {
                self.0
                    .commands
                    .send(Command::Expired(identity.clone()))
                    .ok();
                Err(CertError::Unavailable {
                    identity: Box::new(identity.clone()),
                    source: Arc::new(FetchError::Expired),
                })
            }
            CertState::Available(cert) => Ok(cert),
            CertState::Unavailable(source) => Err(CertError::Unavailable {
                identity: Box::new(identity.clone()),
                source,
            }),
            CertState::Forgotten => Err(CertError::IdentityForgotten(Box::new(identity.clone()))),
            CertState::Initializing => Err(CertError::ShuttingDown),
        }
    }

    /// Waits until a requested certificate is available or forgotten, also through failures and retries. Used at
    /// startup; connections use [`Self::get`].
    pub async fn wait_until_obtained(&self, identity: &Identity) {
        let follow = |entry: &IdentityEntry| entry.state.subscribe();
        let slot = self.0.entries.lock().get(identity).map(follow);
        if let Some(mut slot) = slot {
            // An error means that the loop has ended.
            let _ended = slot
                .wait_for(|slot| matches!(slot, CertState::Available(_) | CertState::Forgotten))
                .await;
        }
    }

    /// Whether a requested certificate is still being fetched: it is not available yet, and the CA has not rejected the
    /// request.
    pub fn is_awaited(&self, identity: &Identity) -> bool {
        let entries = self.0.entries.lock();
        let slot = entries.get(identity).map(|entry| entry.state.borrow());
        slot.is_some_and(|slot| match &*slot {
            CertState::Initializing => true,
            CertState::Unavailable(error) => !error.is_refusal(),
            CertState::Available(_) | CertState::Forgotten => false,
        })
    }

    /// Returns the certificate if it is available, without waiting and without requesting it.
    pub fn peek(&self, identity: &Identity) -> Option<Arc<WorkloadCert>> {
        match &*self.0.entries.lock().get(identity)?.state.borrow() {
            CertState::Available(cert) => Some(cert.clone()),
            _ => None,
        }
    }

    /// Requests a certificate in advance, before a connection needs it.
    pub fn prefetch(&self, identity: &Identity) {
        self.request_with_priority(identity, Priority::Warmup);
    }

    /// Drops the certificate of an identity whose last workload has left this node. Callers that wait for it get an
    /// error.
    pub fn forget(&self, identity: &Identity) {
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.remove(identity) {
            entry.state.send_replace(CertState::Forgotten);
            // Fails only when the loop has ended.
            self.0.commands.send(Command::Forget(identity.clone())).ok();
        }
    }

    /// Lists all identities with their certificates for `/config_dump`.
    pub fn dump(&self) -> Vec<CertificateDump> {
        let entries = self.0.entries.lock();
        let mut dump: Vec<_> = entries
            .iter()
            .map(|(identity, entry)| {
                let (state, cert) = match &*entry.state.borrow() {
                    CertState::Initializing => ("Initializing".to_owned(), None),
                    CertState::Available(cert) => ("Available".to_owned(), Some(cert.clone())),
                    CertState::Unavailable(error) => {
                        (format!("Unavailable: {}", ErrorChain(error.as_ref())), None)
                    }
                    CertState::Forgotten => ("Forgotten".to_owned(), None),
                };
                CertificateDump::new(identity, state, cert.as_deref())
            })
            .collect();
        drop(entries);
        dump.sort_by(|a, b| a.identity.cmp(&b.identity));
        dump
    }

    /// Counts the identities by the state of their certificates at `now`.
    pub fn counts(&self, now: SystemTime) -> CertificateCounts {
        let mut counts = CertificateCounts::default();
        for entry in self.0.entries.lock().values() {
            match &*entry.state.borrow() {
                CertState::Available(cert) => {
                    match cert {
                        cert if cert.is_expired(now) => counts.unavailable += 1,
                        cert if now >= cert.renewal_time() => counts.overdue += 1,
                        _ => counts.available += 1,
                    }
                    let expiry = cert.not_after();
                    let earliest = counts.earliest_expiry.get_or_insert(expiry);
                    *earliest = expiry.min(*earliest);
                }
                CertState::Initializing => counts.initializing += 1,
                CertState::Unavailable(_) | CertState::Forgotten => counts.unavailable += 1,
            }
        }
        counts
    }

    fn request_with_priority(
        &self,
        identity: &Identity,
        priority: Priority,
    ) -> watch::Receiver<CertState> {
        let mut entries = self.0.entries.lock();
        if let Some(entry) = entries.get_mut(identity) {
            if priority > entry.priority && matches!(*entry.state.borrow(), CertState::Initializing)
            {
                entry.priority = priority;
                self.0
                    .commands
                    .send(Command::Request(identity.clone(), priority))
                    .ok();
            }
            return entry.state.subscribe();
        }
        let (slot, receiver) = watch::channel(CertState::Initializing);
        entries.insert(
            identity.clone(),
            IdentityEntry {
                state: slot,
                priority,
            },
        );
        self.0
            .commands
            .send(Command::Request(identity.clone(), priority))
            .ok();
        receiver
    }
}

impl Shared {
    fn publish(&self, identity: &Identity, slot: CertState) {
        if let Some(entry) = self.entries.lock().get(identity) {
            entry.state.send_replace(slot);
        }
    }
}

type FetchResult = (Identity, u64, Result<WorkloadCert, FetchError>);

async fn run(
    shared: std::sync::Weak<Shared>,
    mut commands: mpsc::UnboundedReceiver<Command>,
    client: Arc<dyn CaClient>,
    options: CertificatesOptions,
) {
    let mut state = State::new(options);
    let renewals = client.renewals();
    let (done, mut fetched) = mpsc::channel::<FetchResult>(options.max_parallel_fetches.max(1));
    loop {
        let wake = state.next_wake();
        let event = tokio::select! {
            command = commands.recv() => match command {
                Some(Command::Request(identity, priority)) => Event::Request(identity, priority),
                Some(Command::Forget(identity)) => {
                    client.unsubscribe(&identity);
                    Event::Forget(identity)
                }
                Some(Command::Expired(identity)) => Event::Expired(identity),
                None => return,
            },
            Some((identity, attempt, result)) = fetched.recv() => {
                match result.and_then(|cert| Ok((Lifetime::remaining(&cert, SystemTime::now())?, cert))) {
                    Ok((life, cert)) => Event::Fetched(identity, attempt, life, Arc::new(cert)),
                    Err(error) => {
                        let (is_refusal, jitter) = (error.is_refusal(), rand::rng().random());
                        let error = Arc::new(error);
                        match is_refusal {
                            true => Event::Failed(identity, attempt, error, jitter),
                            false => Event::Unreachable(identity, attempt, error, jitter),
                        }
                    }
                }
            }
            identity = renewals.next() => Event::Renew(identity),
            () = ambit_rt::sleep_until(wake) => Event::Tick,
        };
        let Some(shared) = shared.upgrade() else {
            return;
        };
        for effect in state.on_event(event, Instant::now().into_std()) {
            match effect {
                Effect::Fetch(identity, attempt) => {
                    client.subscribe(&identity);
                    let (client, done) = (client.clone(), done.clone());
                    let fetch = {
                        let identity = identity.clone();
                        async move { client.fetch(&identity).await }
                    };
                    let fetching = ambit_rt::spawn("fetch certificate", fetch);
                    ambit_rt::spawn("certificate fetched", async move {
                        let result = fetching.await.unwrap_or(Err(FetchError::Panicked));
                        // Fails only when the loop has ended.
                        done.send((identity, attempt, result)).await.ok();
                    });
                }
                Effect::Publish(identity, cert) => {
                    tracing::debug!(%identity, "certificate available");
                    shared.publish(&identity, CertState::Available(cert));
                }
                Effect::PublishError(identity, error) => {
                    shared.publish(&identity, CertState::Unavailable(error));
                }
                Effect::Report {
                    identity,
                    error,
                    previous_remains: kept,
                    retry_in,
                } => {
                    let error = ErrorChain(error.as_ref());
                    tracing::warn!(%identity, %error, kept, ?retry_in, "no new certificate");
                }
            }
        }
    }
}
