//! Load balancing of one service port: endpoints, their state, and the policy of a `DestinationRule`.

use std::{
    collections::HashMap,
    sync::{
        Arc,
        atomic::{
            AtomicU32, AtomicU64,
            Ordering::{Relaxed, Release},
        },
    },
    time::{Duration, Instant},
};

use ambit_model::{ArcStr, DestinationPolicy, OutlierPolicy};
use parking_lot::{Mutex, RwLock};
use rand::RngCore;

use crate::{
    host::{EndpointCandidate, Host},
    limits::LimitCounters,
    locality::Topology,
    outliers::{Ejection, EjectionRecords, EndpointOutcome, count_outcome},
    pool::{Pool, PoolQuery},
};

/// Endpoints of one service port with their state, and the `DestinationRule` policy by which one is picked for a
/// request.
#[derive(Debug)]
pub struct Destination<E> {
    policy: DestinationPolicy,
    state: Arc<SharedState>,
    current_pool: RwLock<CurrentPool<E>>,
}

/// State of a destination that remains when its policy changes.
#[derive(Debug)]
struct SharedState {
    limits: LimitCounters,
    /// Number of active requests at all endpoints together.
    active_requests: AtomicU32,
    outliers: Mutex<EjectionRecords>,
    /// Revision of the endpoints' health, incremented when an ejection begins or ends.
    health_revision: AtomicU64,
    /// Time at which the next ejection ends, in milliseconds from the creation of the state; `u64::MAX` if no endpoint
    /// is ejected.
    next_ejection_end: AtomicU64,
    /// Number of endpoints.
    endpoint_count: AtomicU32,
    created_at: Instant,
}

#[derive(Debug)]
struct CurrentPool<E> {
    revision: Option<u64>,
    own_topology: Topology,
    pool: Arc<Pool<E>>,
}

/// Parameters of picking an endpoint for a request.
#[derive(Clone, Copy, Debug, Default)]
pub struct PickRequest<'a> {
    /// Hash for consistent hashing, if the policy uses it.
    pub hash: Option<u64>,
    /// Uids of endpoints that earlier attempts of the request used, and that are excluded.
    pub tried_uids: &'a [ArcStr],
    /// Uid of the endpoint to prefer. The endpoint is picked while it exists and is not ejected.
    pub preferred_uid: Option<&'a ArcStr>,
}

/// State of an endpoint, for operators.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct EndpointState {
    /// Uid of the endpoint's workload.
    pub uid: ArcStr,
    /// Number of active requests at the endpoint.
    pub active_requests: u32,
    /// Remaining time of the ejection; `None` if the endpoint is not ejected.
    pub ejected_for: Option<Duration>,
}

/// Reason why no endpoint can be picked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NoEndpoint {
    /// No endpoint exists, or the request has already tried all of them.
    NoCandidates,
    /// All endpoints are ejected.
    AllEjected,
}

/// Endpoint that was picked for a request. The request counts as active at the endpoint until the value is dropped.
#[derive(Debug)]
pub struct PickedEndpoint<E> {
    pool: Arc<Pool<E>>,
    pub(crate) host: Arc<Host>,
    index: usize,
    state: Arc<SharedState>,
    outliers: Option<OutlierPolicy>,
}

impl SharedState {
    fn milliseconds_since_creation(&self, at: Instant) -> u64 {
        let since = at.saturating_duration_since(self.created_at).as_millis();
        u64::try_from(since).unwrap_or(u64::MAX - 1)
    }

    fn set_next_ejection_end(&self, at: Option<Instant>) {
        // Rounded up, so that the ejection has ended at that time.
        let due = at.map_or(u64::MAX, |at| self.milliseconds_since_creation(at) + 1);
        self.next_ejection_end.store(due, Release);
    }

    /// Ends the ejections that are due, so that their endpoints can be picked again.
    fn end_due_ejections(&self, now: Instant) {
        if self.milliseconds_since_creation(now) < self.next_ejection_end.load(Relaxed) {
            return;
        }
        let mut outliers = self.outliers.lock();
        self.set_next_ejection_end(outliers.end_due_ejections(now));
        self.health_revision.fetch_add(1, Release);
    }
}

impl<E: Clone> Destination<E> {
    /// Creates a destination that has no endpoints yet.
    pub fn new(policy: DestinationPolicy, now: Instant) -> Self {
        let state = SharedState {
            limits: LimitCounters::default(),
            active_requests: AtomicU32::default(),
            outliers: Mutex::default(),
            health_revision: AtomicU64::default(),
            next_ejection_end: AtomicU64::new(u64::MAX),
            endpoint_count: AtomicU32::default(),
            created_at: now,
        };
        let own = Topology::default();
        let pool = Arc::new(Pool::new(&policy, &own, Vec::new()));
        Self {
            policy,
            state: Arc::new(state),
            current_pool: RwLock::new(CurrentPool {
                revision: None,
                own_topology: own,
                pool,
            }),
        }
    }

    /// Returns a destination with the same endpoints and their state under another policy.
    #[must_use]
    pub fn with_policy(&self, policy: DestinationPolicy) -> Self {
        let current = self.current_pool.read();
        if policy.outliers.is_none() {
            self.state.outliers.lock().clear_ejections();
            self.state.set_next_ejection_end(None);
            self.state.health_revision.fetch_add(1, Release);
        }
        let pool = Pool::new(&policy, &current.own_topology, current.pool.hosts.clone());
        Self {
            state: self.state.clone(),
            current_pool: RwLock::new(CurrentPool {
                revision: current.revision,
                own_topology: current.own_topology.clone(),
                pool: Arc::new(pool),
            }),
            policy,
        }
    }

    /// Replaces the endpoints by those of `candidates` if `revision` is new; otherwise does not call `candidates`.
    pub fn update(
        &self,
        revision: u64,
        now: Instant,
        own: &Topology,
        candidates: impl FnOnce() -> Vec<EndpointCandidate<E>>,
    ) {
        if self.current_pool.read().revision == Some(revision) {
            return;
        }
        let mut current = self.current_pool.write();
        if current.revision == Some(revision) {
            return;
        }
        let is_first = current.revision.is_none();
        let known: HashMap<&ArcStr, &Arc<Host>> = {
            let hosts = current.pool.hosts.iter();
            hosts.map(|(host, _)| (&host.uid, host)).collect()
        };
        let joined = (!is_first).then_some(now);
        let hosts: Vec<_> = candidates()
            .into_iter()
            .map(|candidate| {
                let host = known.get(&candidate.uid).map(|host| Arc::clone(host));
                let host = host.unwrap_or_else(|| Host::new(candidate.uid.clone(), joined));
                (host, candidate)
            })
            .collect();
        let names: std::collections::HashSet<&ArcStr> =
            hosts.iter().map(|(host, _)| &host.uid).collect();
        let mut outliers = self.state.outliers.lock();
        outliers.retain_hosts(|uid| names.contains(uid));
        drop(outliers);
        let total = u32::try_from(hosts.len()).unwrap_or(u32::MAX);
        self.state.endpoint_count.store(total, Relaxed);
        self.state.health_revision.fetch_add(1, Release);
        let pool = Arc::new(Pool::new(&self.policy, own, hosts));
        *current = CurrentPool {
            revision: Some(revision),
            own_topology: own.clone(),
            pool,
        };
    }

    /// Picks an endpoint for a request according to the policy.
    ///
    /// # Errors
    ///
    /// When there is no endpoint that can be picked.
    pub fn pick_endpoint(
        &self,
        wish: PickRequest<'_>,
        now: Instant,
        rng: &mut dyn RngCore,
    ) -> Result<PickedEndpoint<E>, NoEndpoint> {
        self.state.end_due_ejections(now);
        let pool = self.current_pool.read().pool.clone();
        let question = PoolQuery {
            policy: &self.policy,
            hash: wish.hash,
            excluded_uids: wish.tried_uids,
            now,
            health_revision: self.state.health_revision.load(Relaxed),
            active_requests: self.state.active_requests.load(Relaxed),
        };
        let preferred = wish
            .preferred_uid
            .filter(|uid| !wish.tried_uids.contains(uid));
        let preferred = preferred.and_then(|uid| {
            let is_it = |host: &Host| host.uid == *uid && !host.is_ejected();
            pool.hosts.iter().position(|(host, _)| is_it(host))
        });
        let chosen = preferred.or_else(|| pool.pick_host(question, rng));
        let found = chosen.and_then(|index| Some((index, pool.hosts.get(index)?.0.clone())));
        let Some((index, host)) = found else {
            let mut hosts = pool.hosts.iter();
            return Err(match hosts.any(|(host, _)| host.is_ejected()) {
                true => NoEndpoint::AllEjected,
                false => NoEndpoint::NoCandidates,
            });
        };
        host.active_requests.fetch_add(1, Relaxed);
        self.state.active_requests.fetch_add(1, Relaxed);
        Ok(PickedEndpoint {
            pool,
            host,
            index,
            state: self.state.clone(),
            outliers: self.policy.outliers,
        })
    }
}

impl<E> Destination<E> {
    /// Returns the policy of the service port.
    pub fn policy(&self) -> &DestinationPolicy {
        &self.policy
    }

    /// Whether the endpoints have this revision, so that no update is necessary.
    pub fn is_at_revision(&self, revision: u64) -> bool {
        self.current_pool.read().revision == Some(revision)
    }

    /// Returns the request and retry counters of the circuit breakers.
    pub fn limits(&self) -> &LimitCounters {
        &self.state.limits
    }

    /// Returns the state of each endpoint.
    pub fn endpoints(&self, now: Instant) -> Vec<EndpointState> {
        let pool = self.current_pool.read().pool.clone();
        let outliers = self.state.outliers.lock();
        let state = |(host, _): &(Arc<Host>, EndpointCandidate<E>)| EndpointState {
            uid: host.uid.clone(),
            active_requests: host.active_requests.load(Relaxed),
            ejected_for: outliers
                .ejected_until(&host.uid)
                .map(|until| until.saturating_duration_since(now)),
        };
        pool.hosts.iter().map(state).collect()
    }

    /// Returns the number of ejected endpoints.
    pub fn ejected_count(&self) -> usize {
        self.state.outliers.lock().ejected_count()
    }
}

impl<E> PickedEndpoint<E> {
    /// Returns the picked endpoint in the caller's type, if it is still in the snapshot.
    pub fn endpoint(&self) -> Option<&E> {
        let one = self.pool.hosts.get(self.index);
        one.map(|(_, candidate)| &candidate.endpoint)
    }

    /// Returns the uid of the picked endpoint.
    pub fn uid(&self) -> &ArcStr {
        &self.host.uid
    }

    /// Reports the outcome of the request to outlier detection. Returns the ejection that results, if any.
    pub fn report_outcome(&self, outcome: EndpointOutcome, now: Instant) -> Option<Ejection> {
        let policy = self.outliers.as_ref()?;
        let fault = count_outcome(&self.host, policy, outcome)?;
        if self.host.is_ejected() {
            return None;
        }
        let state = &self.state;
        let mut outliers = state.outliers.lock();
        let next = outliers.end_due_ejections(now);
        let total = state.endpoint_count.load(Relaxed) as usize;
        let duration = outliers.eject(&self.host, policy, total, now);
        let ends = duration.map(|duration| now + duration);
        state.set_next_ejection_end(next.into_iter().chain(ends).min());
        state.health_revision.fetch_add(1, Release);
        Some(Ejection {
            cause: fault,
            duration: duration?,
        })
    }
}

impl<E> Drop for PickedEndpoint<E> {
    fn drop(&mut self) {
        self.host.active_requests.fetch_sub(1, Relaxed);
        self.state.active_requests.fetch_sub(1, Relaxed);
    }
}
