//! The workload that a proxy instance serves, by its current record.

use std::{net::IpAddr, sync::Arc};

use ambit_codec::Baggage;
use ambit_model::{PodName, Workload};
use ambit_telemetry::WorkloadLabels;
use http::HeaderValue;
use parking_lot::Mutex;
use tokio::{sync::watch, time::Instant};

use crate::state::{LOCAL_WORKLOAD_TIMEOUT, SharedState};

/// Record of the instance's own workload, with data derived from it.
#[derive(Debug)]
pub struct LocalPod {
    /// Record of the workload.
    pub workload: Arc<Workload>,
    /// Metric labels of the workload.
    pub metric_labels: Arc<WorkloadLabels>,
    /// Value of the baggage header in the workload's CONNECT requests.
    pub baggage: Option<HeaderValue>,
    /// Whether the control plane published the record along with the policies that select the pod; if not, the record
    /// is derived from the pod's enrolment.
    pub is_published: bool,
}

impl LocalPod {
    fn new(workload: Workload, is_known: bool) -> Self {
        Self {
            metric_labels: Arc::new(WorkloadLabels::destination(&workload)),
            baggage: HeaderValue::from_str(&Baggage::from_workload(&workload).encode()).ok(),
            workload: Arc::new(workload),
            is_published: is_known,
        }
    }
}

#[derive(Debug)]
struct CachedPod {
    changes: watch::Receiver<u64>,
    addresses: Vec<IpAddr>,
    pod: Option<Arc<LocalPod>>,
}

/// Cache of one instance's [`LocalPod`], shared by all its workers. Its lock is held to read the cache, and to fill it
/// after a change.
#[derive(Debug)]
pub struct LocalWorkload {
    state: SharedState,
    name: PodName,
    cache: Mutex<CachedPod>,
}

impl LocalWorkload {
    /// Creates the cache for the pod `name` with the addresses of its enrolment.
    pub fn new(state: SharedState, name: PodName, addresses: Vec<IpAddr>) -> Self {
        let cache = CachedPod {
            changes: state.watch_pod(&name),
            addresses,
            pod: None,
        };
        Self {
            state,
            name,
            cache: Mutex::new(cache),
        }
    }

    /// Returns the name of the pod.
    pub fn name(&self) -> &PodName {
        &self.name
    }

    /// Returns the mesh state that the workload's record comes from.
    pub fn state(&self) -> &SharedState {
        &self.state
    }

    /// Returns a receiver that is notified when the pod's record, or a policy that applies to the pod, has changed
    /// since this value was created.
    pub fn changes(&self) -> watch::Receiver<u64> {
        self.cache.lock().changes.clone()
    }

    /// Updates the addresses from the pod's enrolment.
    pub fn update_addresses(&self, addresses: Vec<IpAddr>) {
        let mut cache = self.cache.lock();
        cache.addresses = addresses;
        cache.pod = None;
    }

    /// Whether the pod's enrolment names this address.
    pub fn is_enrolled_with(&self, ip: IpAddr) -> bool {
        let addresses = &self.cache.lock().addresses;
        addresses.iter().any(|own| own.to_canonical() == ip)
    }

    /// Returns the current workload: the control plane's record, or one derived from the enrolment; if that named no
    /// addresses, the record has `peer_ip`, the address from which the pod itself connects.
    pub fn current_pod(&self, peer_ip: Option<IpAddr>) -> Arc<LocalPod> {
        let mut cache = self.cache.lock();
        if cache.changes.has_changed().unwrap_or(false) {
            cache.changes.mark_unchanged();
            cache.pod = None;
        }
        if let Some(local) = &cache.pod {
            return local.clone();
        }
        let known = self.state.local_workload(&self.name);
        let is_known = known.is_some();
        let workload = known.map_or_else(
            || {
                let given = cache.addresses.iter().copied();
                let addresses: Vec<IpAddr> = if cache.addresses.is_empty() {
                    peer_ip.into_iter().collect()
                } else {
                    given.collect()
                };
                self.state.synthesize_workload(&self.name, &addresses)
            },
            Arc::unwrap_or_clone,
        );
        let local = Arc::new(LocalPod::new(workload, is_known));
        cache.pod = Some(local.clone());
        local
    }

    /// Waits until the control plane has published the pod's record, for at most [`LOCAL_WORKLOAD_TIMEOUT`], and
    /// returns the pod data. Without the record, no connection to the workload is authorized.
    pub async fn wait_until_published(&self) -> Option<Arc<LocalPod>> {
        let local = self.current_pod(None);
        if local.is_published {
            return Some(local);
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        self.state.wait_for_workload(&self.name, deadline).await?;
        Some(self.current_pod(None)).filter(|local| local.is_published)
    }
}
