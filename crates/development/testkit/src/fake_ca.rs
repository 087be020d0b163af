//! CA client in memory, for tests of certificate renewal.

use std::{
    collections::VecDeque,
    future::Future,
    pin::Pin,
    sync::Arc,
    time::{Duration, SystemTime},
};

use ambit_certificates::{CaClient, FetchError};
use ambit_model::Identity;
use ambit_tls::WorkloadCert;
use parking_lot::Mutex;
use tokio::sync::Semaphore;

use crate::Pki;

/// CA client that issues certificates at once, unless set to hold or to fail. Clones share the state.
#[derive(Clone, Debug)]
pub struct FakeCa {
    pki: Arc<Pki>,
    ttl: Duration,
    state: Arc<Mutex<State>>,
    gate: Arc<Semaphore>,
}

#[derive(Debug, Default)]
struct State {
    requested: Vec<Identity>,
    failures: VecDeque<tonic::Status>,
    is_holding: bool,
    running_fetches: usize,
    max_running_fetches: usize,
}

impl FakeCa {
    /// Creates a CA client whose certificates have the lifetime `ttl`.
    pub fn new(pki: Arc<Pki>, ttl: Duration) -> Self {
        Self {
            pki,
            ttl,
            state: Arc::default(),
            gate: Arc::new(Semaphore::new(0)),
        }
    }

    /// Holds every certificate fetch until [`Self::release_fetches`].
    pub fn hold_fetches(&self) {
        self.state.lock().is_holding = true;
    }

    /// Lets this number of held fetches complete.
    pub fn release_fetches(&self, fetches: usize) {
        self.gate.add_permits(fetches);
    }

    /// Makes this number of certificate fetches fail.
    pub fn fail_fetches(&self, fetches: usize) {
        self.queue_failures(fetches, || {
            tonic::Status::unavailable("the fake CA is set to fail")
        });
    }

    /// Makes this number of fetches be rejected by the CA.
    pub fn refuse_fetches(&self, fetches: usize) {
        self.queue_failures(fetches, || {
            tonic::Status::unauthenticated("the fake CA is set to refuse")
        });
    }

    fn queue_failures(&self, fetches: usize, status: impl Fn() -> tonic::Status) {
        let failures = &mut self.state.lock().failures;
        failures.extend((0..fetches).map(|_| status()));
    }

    /// Makes all later certificate fetches succeed.
    pub fn recover(&self) {
        self.state.lock().failures.clear();
    }

    /// Returns the requested identities, in order.
    pub fn requested(&self) -> Vec<Identity> {
        self.state.lock().requested.clone()
    }

    /// Returns the maximum number of concurrent fetches so far.
    pub fn max_concurrent_fetches(&self) -> usize {
        self.state.lock().max_running_fetches
    }

    async fn issue(&self, identity: &Identity) -> Result<WorkloadCert, FetchError> {
        let (holding, failure) = {
            let mut state = self.state.lock();
            state.requested.push(identity.clone());
            state.running_fetches += 1;
            state.max_running_fetches = state.max_running_fetches.max(state.running_fetches);
            (state.is_holding, state.failures.pop_front())
        };
        if holding {
            self.gate
                .acquire()
                .await
                .expect("the gate is never closed")
                .forget();
        }
        self.state.lock().running_fetches -= 1;
        match failure {
            Some(status) => Err(FetchError::Status(Box::new(status))),
            None => Ok(self.pki.cert_at(identity, SystemTime::now(), self.ttl)),
        }
    }
}

impl CaClient for FakeCa {
    fn fetch<'a>(
        &'a self,
        identity: &'a Identity,
    ) -> Pin<Box<dyn Future<Output = Result<WorkloadCert, FetchError>> + Send + 'a>> {
        Box::pin(self.issue(identity))
    }
}
