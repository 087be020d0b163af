//! Mesh state of the proxy, shared by the xDS client and the data path.
//!
//! One table and one set of policies behind read-write locks. Writers hold a lock for a small batch of records at a
//! time, so a reader on a worker thread waits microseconds even during a very large push, and nothing is stored
//! twice. Tasks that must act on changes (re-checks of open connections, the certificates) wait on `watch` channels;
//! no callback runs under a lock.

mod departures;
mod follow;
mod on_demand;
#[cfg(test)]
mod tests;

use std::{
    collections::{BTreeMap, HashMap},
    net::{IpAddr, SocketAddr},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use ambit_authz::{
    AffectedWorkloads, Connection, Decision, Explanation, MissingPolicies, PolicySet,
};
use ambit_hbone::Pool;
use ambit_model::{ArcStr, Identity, PodName, PolicyKey, Protocol, Workload, canonical_ip};
use ambit_route::{MeshTable, Route, RouteError, TableConfig, WaypointBypass, WorkloadChange};
use parking_lot::{Mutex, RwLock, RwLockReadGuard};
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};

pub use ambit_xds::{AddressDemand, InvalidPolicyMode, MeshUpdate};
use departures::{DepartedWorkloads, Departures};
pub use follow::{IdentityEvent, follow_identities};

/// Maximum time for which a connection waits until the control plane has published the record of its pod.
pub const LOCAL_WORKLOAD_TIMEOUT: Duration = Duration::from_secs(5);

/// Maximum number of queued on-demand requests to the control plane.
pub const MAX_QUEUED_DEMANDS: usize = 100;

/// Configuration of the mesh state, from the proxy's environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StateConfig {
    /// Node of the proxy (`NODE_NAME`), whose workloads are local. If empty, all workloads are local.
    pub node: ArcStr,
    /// Network of the proxy (`NETWORK`).
    pub network: ArcStr,
    /// Cluster of the proxy (`CLUSTER_ID`).
    pub cluster_id: ArcStr,
    /// Trust domain of the mesh (`TRUST_DOMAIN`).
    pub trust_domain: ArcStr,
    /// Namespace whose services win ambiguous host names (`PREFERED_SERVICE_NAMESPACE`).
    pub preferred_service_namespace: Option<ArcStr>,
    /// Decision for workloads whose record names an unknown policy.
    pub missing_policies: MissingPolicies,
    /// Decision for policies that could not be decoded in full.
    pub invalid_policies: InvalidPolicyMode,
}

impl Default for StateConfig {
    fn default() -> Self {
        Self {
            node: ArcStr::new(),
            network: ArcStr::new(),
            cluster_id: arcstr::literal!("Kubernetes"),
            trust_domain: arcstr::literal!("cluster.local"),
            preferred_service_namespace: None,
            missing_policies: MissingPolicies::Deny,
            invalid_policies: InvalidPolicyMode::Deny,
        }
    }
}

/// Mesh state: workloads, services and policies. Clones share it.
#[derive(Clone, Debug)]
pub struct SharedState(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    config: StateConfig,
    table: RwLock<MeshTable>,
    policies: RwLock<PolicySet>,
    /// Whether the initial set of workloads and services has been received.
    addresses_known: AtomicBool,
    /// Whether the initial set of policies has been received.
    policies_known: AtomicBool,
    /// Counter of changes of local workloads; also incremented when the initial state is complete.
    local_changes: watch::Sender<u64>,
    /// Counter of changes of workloads and services.
    address_changes: watch::Sender<u64>,
    /// For each watched pod, by namespace and name: revision of the records and policies that its authorization
    /// depends on.
    pod_watchers: Mutex<HashMap<(ArcStr, ArcStr), watch::Sender<u64>>>,
    /// Signals that close connections to removed workloads.
    departures: Departures,
    demands: Option<mpsc::Sender<AddressDemand>>,
}

impl SharedState {
    /// Creates a state for wildcard subscriptions, which receive all records.
    pub fn new(config: StateConfig) -> Self {
        Self::build(config, None)
    }

    /// Creates a state for on-demand subscriptions: requests for unknown destinations go to the receiver, which the
    /// xDS client serves.
    pub fn on_demand(config: StateConfig) -> (Self, mpsc::Receiver<AddressDemand>) {
        let (sender, receiver) = mpsc::channel(MAX_QUEUED_DEMANDS);
        (Self::build(config, Some(sender)), receiver)
    }

    fn build(config: StateConfig, demands: Option<mpsc::Sender<AddressDemand>>) -> Self {
        let table = MeshTable::new(TableConfig {
            node: config.node.clone(),
            preferred_service_namespace: config.preferred_service_namespace.clone(),
        });
        let policies = PolicySet::new(config.missing_policies);
        Self(Arc::new(Inner {
            config,
            table: RwLock::new(table),
            policies: RwLock::new(policies),
            addresses_known: AtomicBool::new(false),
            policies_known: AtomicBool::new(false),
            local_changes: watch::Sender::new(0),
            address_changes: watch::Sender::new(0),
            pod_watchers: Mutex::default(),
            departures: Departures::default(),
            demands,
        }))
    }

    /// Returns the configuration.
    pub fn config(&self) -> &StateConfig {
        &self.0.config
    }

    /// Locks the workloads and services. Never hold the guard across an await.
    pub fn table(&self) -> RwLockReadGuard<'_, MeshTable> {
        self.0.table.read()
    }

    /// Locks the policies. Never hold the guard across an await.
    pub fn policies(&self) -> RwLockReadGuard<'_, PolicySet> {
        self.0.policies.read()
    }

    // === changes ===

    /// Applies a batch of updates and empties it. Large pushes come as many small batches, so that no lock is held
    /// for long.
    pub fn apply(&self, batch: &mut Vec<MeshUpdate>) {
        let (addresses, policies): (Vec<_>, Vec<_>) = batch.drain(..).partition(|update| {
            !matches!(update, MeshUpdate::Policy(_) | MeshUpdate::PolicyRemoved(_))
        });
        if !addresses.is_empty() {
            self.apply_addresses(addresses);
        }
        if !policies.is_empty() {
            self.apply_policies(policies);
        }
    }

    fn apply_addresses(&self, updates: Vec<MeshUpdate>) {
        let mut local = Vec::new();
        let mut departed = DepartedWorkloads::default();
        {
            let mut table = self.0.table.write();
            for update in updates {
                let change = match update {
                    MeshUpdate::Workload(workload) => table.insert_workload(&workload),
                    MeshUpdate::Service(service) => {
                        table.insert_service(*service);
                        continue;
                    }
                    MeshUpdate::AddressRemoved(name) => table.remove_address(&name),
                    // A waypoint's own are not part of this state.
                    MeshUpdate::Policy(_)
                    | MeshUpdate::PolicyRemoved(_)
                    | MeshUpdate::Waypoint(_) => continue,
                };
                if !change.has_changed() {
                    continue;
                }
                departed.record_change(&table, &change);
                if is_local(&table, &change) {
                    local.push(change);
                }
            }
        }
        self.0.address_changes.send_modify(|count| *count += 1);
        self.0.departures.notify_pools(&self.0.table, &departed);
        if local.is_empty() {
            return;
        }
        self.notify_pods(|_, namespace, name| {
            local.iter().any(|change| {
                let mut sides = change.before.iter().chain(&change.after);
                sides.any(|workload| workload.namespace() == namespace && workload.name() == name)
            })
        });
        self.0.local_changes.send_modify(|count| *count += 1);
    }

    fn apply_policies(&self, updates: Vec<MeshUpdate>) {
        let affects: Vec<AffectedWorkloads> = {
            let mut policies = self.0.policies.write();
            updates
                .into_iter()
                .map(|update| match update {
                    MeshUpdate::Policy(policy) => policies.insert(policy),
                    MeshUpdate::PolicyRemoved(name) => policies.remove_named(&name),
                    _ => AffectedWorkloads::None,
                })
                .filter(|affects| *affects != AffectedWorkloads::None)
                .collect()
        };
        if affects.is_empty() {
            return;
        }
        self.notify_pods(|state, namespace, name| {
            let pod = state.find_local(namespace, name);
            let names = pod
                .as_ref()
                .map_or(&[][..], |pod| pod.authorization_policies());
            affects
                .iter()
                .any(|affects| affects.includes_any(namespace, names))
        });
    }

    /// Marks the initial set of workloads and services as received. Before that, no connection is passed through as
    /// leaving the mesh; from then on, unknown destinations count as outside the mesh.
    pub fn mark_addresses_known(&self) {
        if !self.0.addresses_known.swap(true, Ordering::AcqRel) {
            self.0.local_changes.send_modify(|count| *count += 1);
        }
    }

    /// Marks the initial set of policies as received. Before that, no local pod is authorized, since policies of its
    /// namespace may still be missing.
    pub fn mark_policies_known(&self) {
        if !self.0.policies_known.swap(true, Ordering::AcqRel) {
            self.notify_pods(|_, _, _| true);
            self.0.local_changes.send_modify(|count| *count += 1);
        }
    }

    /// Notifies the watchers of the pods for which `concerned` returns true, called with namespace and name.
    fn notify_pods(&self, concerned: impl Fn(&Self, &str, &str) -> bool) {
        let watched: Vec<_> = {
            let mut pods = self.0.pod_watchers.lock();
            pods.retain(|_, sender| sender.receiver_count() > 0);
            pods.iter()
                .map(|(pod, sender)| (pod.clone(), sender.clone()))
                .collect()
        };
        for ((namespace, name), sender) in watched {
            if concerned(self, &namespace, &name) {
                sender.send_modify(|count| *count += 1);
            }
        }
    }

    // === connections to removed workloads ===

    /// Registers a pool, whose connections to removed workloads are closed from now on, until the pool is dropped.
    pub fn close_departed_connections(&self, pool: &Pool) {
        self.0.departures.register_pool(pool);
    }

    /// Completes when the workload with this uid is no longer known, or no longer at this address.
    pub async fn wait_for_departure(&self, uid: &str, ip: IpAddr) {
        self.0
            .departures
            .wait_until_gone(&self.0.table, uid, ip)
            .await;
    }

    // === the data path ===

    /// Routes an outbound connection of `source`. In on-demand mode it first requests unknown records from the
    /// control plane; otherwise, it waits at startup until the initial state is complete.
    pub async fn route(&self, source: &Workload, dst: SocketAddr) -> Result<Route, RouteError> {
        self.route_excluding(source, dst, &[]).await
    }

    /// Routes like [`Self::route`], but excludes the workloads with the uids `failed`, to which connections have
    /// failed.
    pub async fn route_excluding(
        &self,
        source: &Workload,
        dst: SocketAddr,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        self.find_route(source, dst, |table| {
            table.outbound_excluding(source, dst, failed, &mut rand::rng())
        })
        .await
    }

    /// Routes a connection to `dst` that bypasses the local workload's waypoint to that waypoint. As in
    /// [`Self::route_excluding`], `failed` excludes workloads.
    pub async fn hairpin(
        &self,
        local: &Workload,
        dst: SocketAddr,
        failed: &[ArcStr],
    ) -> Result<Route, RouteError> {
        self.find_route(local, dst, |table| {
            table.hairpin(local, dst, failed, &mut rand::rng())
        })
        .await
    }

    /// Returns the route that `look` finds for the local workload, once the records that it needs have been received.
    async fn find_route(
        &self,
        local: &Workload,
        dst: SocketAddr,
        look: impl Fn(&MeshTable) -> Result<Route, RouteError> + Sync,
    ) -> Result<Route, RouteError> {
        if self.0.demands.is_some() {
            return self.find_on_demand(local, dst, look).await;
        }
        if !self.addresses_known() {
            let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
            if !self.wait_for_addresses(deadline).await {
                return Err(RouteError::ControlPlaneTimeout {
                    key: dst.to_string(),
                });
            }
        }
        look(&self.table())
    }

    /// Whether the initial set of workloads and services has been received.
    pub fn addresses_known(&self) -> bool {
        self.0.addresses_known.load(Ordering::Acquire)
    }

    /// Waits until the initial set of workloads and services has been received, or the deadline passes; returns
    /// whether it has.
    pub async fn wait_for_addresses(&self, deadline: Instant) -> bool {
        let mut changes = self.0.local_changes.subscribe();
        loop {
            changes.mark_unchanged();
            if self.addresses_known() {
                return true;
            }
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return false;
            }
        }
    }

    /// Whether a connection bypasses the waypoint of the local workload: see [`MeshTable::bypasses_waypoint`].
    pub fn bypasses_waypoint(&self, local: &Workload, connection: &Connection) -> bool {
        let Connection {
            source, source_ip, ..
        } = connection;
        let table = self.table();
        table.bypasses_waypoint(local, source.as_ref(), *source_ip)
    }

    /// Returns whether layer 7 rules could apply to a connection that bypasses its waypoint: see
    /// [`MeshTable::waypoint_bypass`].
    pub fn waypoint_bypass(
        &self,
        local: &Workload,
        connection: &Connection,
    ) -> Option<WaypointBypass> {
        let Connection {
            source,
            source_ip,
            destination,
        } = connection;
        let table = self.table();
        table.waypoint_bypass(local, source.as_ref(), *source_ip, destination.port())
    }

    /// Evaluates only PeerAuthentication for an inbound connection to a local workload.
    pub fn authenticate(&self, destination: &Workload, connection: &Connection) -> Decision {
        let policies = self.policies();
        policies.evaluate_peer_authentication(destination, connection)
    }

    /// Evaluates all applicable policies for an inbound connection to a local workload.
    pub fn authorize(&self, destination: &Workload, connection: &Connection) -> Decision {
        self.policies().evaluate(destination, connection)
    }

    /// Returns the dry-run policies that would deny the connection if enforced.
    pub fn dry_run_denials(
        &self,
        destination: &Workload,
        connection: &Connection,
    ) -> Vec<PolicyKey> {
        self.policies().dry_run_denials(destination, connection)
    }

    /// Decides like [`Self::authorize`], and returns the evaluation of each policy.
    pub fn explain(&self, destination: &Workload, connection: &Connection) -> Explanation {
        self.policies().explain(destination, connection)
    }

    /// Decides like [`Self::authenticate`], and returns the evaluation of each policy.
    pub fn explain_authentication(
        &self,
        destination: &Workload,
        connection: &Connection,
    ) -> Explanation {
        let policies = self.policies();
        policies.explain_peer_authentication(destination, connection)
    }

    // === local pods ===

    /// Returns the workload record that the control plane published for a local pod. `None` also until the initial set
    /// of policies has been received.
    pub fn local_workload(&self, pod: &PodName) -> Option<Arc<Workload>> {
        if !self.0.policies_known.load(Ordering::Acquire) {
            return None;
        }
        self.table()
            .local_workload(pod)
            .map(|workload| Arc::new(workload.to_model()))
    }

    fn find_local(&self, namespace: &str, name: &str) -> Option<ambit_route::WorkloadRef> {
        self.table()
            .local_workloads()
            .find(|workload| workload.namespace() == namespace && workload.name() == name)
            .cloned()
    }

    /// Waits until [`Self::local_workload`] returns the pod's record, at most until `deadline`. In on-demand mode, it
    /// first requests the record from the control plane.
    pub async fn wait_for_workload(
        &self,
        pod: &PodName,
        deadline: Instant,
    ) -> Option<Arc<Workload>> {
        let mut changes = self.0.local_changes.subscribe();
        let mut demanded = false;
        loop {
            changes.mark_unchanged();
            if let Some(workload) = self.local_workload(pod) {
                return Some(workload);
            }
            if !demanded && self.0.demands.is_some() {
                demanded = true;
                let answer = self.subscribe_and_wait(self.pod_uid(pod), deadline).await;
                if answer.is_err() {
                    return None;
                }
                continue;
            }
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return None;
            }
        }
    }

    /// Builds a pod's record from its enrolment alone, for connections of the pod before the control plane publishes
    /// it. Never authorize connections *to* the pod with it: the policies that select the pod are not known.
    pub fn synthesize_workload(&self, pod: &PodName, ips: &[IpAddr]) -> Workload {
        let config = &self.0.config;
        Workload {
            uid: self.pod_uid(pod).into(),
            name: pod.name.clone(),
            namespace: pod.namespace.clone(),
            workload_ips: ips.iter().copied().map(canonical_ip).collect(),
            network: config.network.clone(),
            protocol: Protocol::Hbone,
            trust_domain: config.trust_domain.clone(),
            service_account: pod.service_account.clone(),
            node: config.node.clone(),
            cluster_id: config.cluster_id.clone(),
            ..Workload::default()
        }
    }

    fn pod_uid(&self, pod: &PodName) -> String {
        format!(
            "{}//Pod/{}/{}",
            self.0.config.cluster_id, pod.namespace, pod.name
        )
    }

    /// Returns a receiver that is notified when connections to a pod must be authorized again: its record, or a policy
    /// that applies to it, has changed.
    pub fn watch_pod(&self, pod: &PodName) -> watch::Receiver<u64> {
        let mut pods = self.0.pod_watchers.lock();
        pods.entry((pod.namespace.clone(), pod.name.clone()))
            .or_default()
            .subscribe()
    }

    /// Returns a receiver that is notified of changes of any workload or service.
    pub fn watch_addresses(&self) -> watch::Receiver<u64> {
        self.0.address_changes.subscribe()
    }

    /// Returns a receiver that is notified of changes of any local workload.
    pub fn watch_local(&self) -> watch::Receiver<u64> {
        self.0.local_changes.subscribe()
    }

    /// Returns the identities of local workloads in the mesh, each with whether a captured workload uses it. Pods
    /// that terminate HBONE themselves fetch their own certificates.
    pub fn local_identities(&self) -> BTreeMap<Identity, bool> {
        let mut identities = BTreeMap::new();
        for workload in self.table().local_workloads() {
            let native = workload.native_tunnel();
            if native || workload.protocol() == Protocol::Hbone {
                *identities.entry(workload.identity()).or_default() |= !native;
            }
        }
        identities
    }
}

fn is_local(table: &MeshTable, change: &WorkloadChange) -> bool {
    change
        .before
        .iter()
        .chain(&change.after)
        .any(|workload| table.is_local(workload))
}
