//! Services with a `DestinationRule`: the state of load balancing, outlier detection and limits ([`ambit_resilience`])
//! of each requested port, which survives changes of the rule; and the queue of requests that wait for a connection.

use std::{
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_model::{
    ArcStr, DestinationLimits, DestinationPolicy, DestinationSubset, NamespacedHostname,
    WaypointDestination,
};
use ambit_proxy::state::SharedState;
use ambit_resilience::{
    CircuitBreakerLimit, Destination, EndpointCandidate, EndpointOutcome, EndpointState,
    LimitPermit, NoEndpoint, OutlierCause, PickRequest, PickedEndpoint, Topology, hash,
};
use ambit_route::{BackendEndpoint, BackendRequest, Route, RouteError};
use ambit_telemetry::http::HttpMetrics;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::{record_store::to_json, tls_origination::TlsOrigination};

/// State and metrics of the waypoint that destination rules need.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DestinationRuleContext<'a> {
    /// Workloads and services of the mesh.
    pub(crate) state: &'a SharedState,
    pub(crate) metrics: &'a HttpMetrics,
}

/// Key of a port's state: subset, if any, and port number.
type PortKey = (Option<ArcStr>, u16);

/// State of a service with a `DestinationRule` or `BackendTLSPolicy`: its record, and the state of its ports.
#[derive(Debug)]
pub(crate) struct DestinationRuleState {
    record: WaypointDestination,
    ports: Mutex<HashMap<PortKey, Arc<DestinationPort>>>,
}

/// Load-balancing, outlier-detection and limit state of one service port, or of one subset at that port.
#[derive(Debug)]
pub(crate) struct DestinationPort {
    service: NamespacedHostname,
    number: u16,
    /// Endpoints of the subset; `None` for all endpoints.
    members: Option<Arc<SubsetMembers>>,
    destination: Destination<BackendEndpoint>,
    /// Semaphore for connections to the endpoints, if the rule limits them (`maxConnections`).
    connections: Option<ConnectionLimit>,
    /// TLS origination to endpoints, if configured.
    tls: Option<Arc<TlsOrigination>>,
}

/// Workloads of a subset, by uid.
#[derive(Debug)]
struct SubsetMembers {
    uids: BTreeSet<ArcStr>,
    /// Hash of the uids, by which load balancers recognise a changed subset.
    uids_hash: u64,
}

impl SubsetMembers {
    fn from_subset(subset: &DestinationSubset) -> Arc<Self> {
        let mut text = String::new();
        for uid in &subset.workloads {
            text.push_str(uid);
            text.push('\n');
        }
        Arc::new(Self {
            uids: subset.workloads.clone(),
            uids_hash: hash(text.as_bytes()),
        })
    }
}

#[derive(Clone, Debug)]
struct ConnectionLimit {
    max_connections: u32,
    permits: Arc<Semaphore>,
}

impl ConnectionLimit {
    /// Builds the connection limiter of a port. If the limit is unchanged, it reuses `before` with the permits in use.
    fn from_limits(limits: &DestinationLimits, before: Option<&Self>) -> Option<Self> {
        let most = limits.connections;
        if most == 0 {
            return None;
        }
        let before = before
            .filter(|before| before.max_connections == most)
            .cloned();
        Some(before.unwrap_or_else(|| {
            let permits = usize::try_from(most).unwrap_or(Semaphore::MAX_PERMITS);
            Self {
                max_connections: most,
                permits: Arc::new(Semaphore::new(permits.min(Semaphore::MAX_PERMITS))),
            }
        }))
    }
}

impl DestinationRuleState {
    /// Builds the state for a changed record. The ports keep the endpoint states and limits of `before`.
    pub(crate) fn new(record: WaypointDestination, before: Option<&Self>) -> Self {
        let known = before.map(|before| before.ports.lock());
        let ports = known.iter().flat_map(|ports| ports.iter());
        let ports = ports.filter_map(|((subset, number), port)| {
            let (policy, members) = match subset {
                None => (record.policy(*number), None),
                Some(name) => {
                    let subset = record.subsets.get(name)?;
                    (
                        subset.policy(*number),
                        Some(SubsetMembers::from_subset(subset)),
                    )
                }
            };
            let port = Arc::new(port.with_policy(policy.clone(), members));
            Some(((subset.clone(), *number), port))
        });
        Self {
            ports: Mutex::new(ports.collect()),
            record,
        }
    }

    /// Returns the state of a service port, which the first request creates.
    pub(crate) fn port(&self, number: u16) -> Arc<DestinationPort> {
        let mut ports = self.ports.lock();
        let port = ports.entry((None, number));
        let port = port.or_insert_with(|| self.new_port(number, self.record.policy(number), None));
        port.clone()
    }

    /// Returns the state of a subset at a service port; `None` if the rule does not define the subset.
    pub(crate) fn subset(&self, name: &ArcStr, number: u16) -> Option<Arc<DestinationPort>> {
        let subset = self.record.subsets.get(name)?;
        let mut ports = self.ports.lock();
        let port = ports.entry((Some(name.clone()), number));
        let members = || Some(SubsetMembers::from_subset(subset));
        let port = port.or_insert_with(|| self.new_port(number, subset.policy(number), members()));
        Some(port.clone())
    }

    /// Returns the service to which the rule applies.
    pub(crate) fn service(&self) -> &NamespacedHostname {
        &self.record.service
    }

    /// Returns the rule's record as the control plane has published it.
    pub(crate) fn record(&self) -> &WaypointDestination {
        &self.record
    }

    /// Returns the outlier-detection and load state of the endpoints of a service port, or of a subset at that port;
    /// empty before its first request.
    pub(crate) fn endpoint_states(
        &self,
        subset: Option<&ArcStr>,
        number: u16,
        now: Instant,
    ) -> Vec<EndpointState> {
        let port = self.ports.lock().get(&(subset.cloned(), number)).cloned();
        port.map_or_else(Vec::new, |port| port.destination.endpoints(now))
    }

    /// Returns the record with the state of its ports for `/config_dump`.
    pub(crate) fn dump(&self, now: Instant) -> Value {
        let mut ports: Vec<_> = {
            let ports = self.ports.lock();
            ports
                .iter()
                .map(|(key, port)| (key.clone(), port.clone()))
                .collect()
        };
        ports.sort_by(|a, b| a.0.cmp(&b.0));
        let state = |((subset, number), port): &(PortKey, Arc<DestinationPort>)| json!({"port": number, "subset": subset.as_deref(), "endpoints": port.endpoints(now)});
        json!({
            "record": to_json(&self.record),
            "ports": ports.iter().map(state).collect::<Value>(),
        })
    }

    fn new_port(
        &self,
        number: u16,
        policy: &DestinationPolicy,
        members: Option<Arc<SubsetMembers>>,
    ) -> Arc<DestinationPort> {
        Arc::new(DestinationPort {
            service: self.record.service.clone(),
            number,
            members,
            connections: ConnectionLimit::from_limits(&policy.limits, None),
            tls: TlsOrigination::for_destination(policy.tls.as_ref(), None),
            destination: Destination::new(policy.clone(), Instant::now()),
        })
    }
}

/// Reason why a `DestinationRule` permits no upstream for a request or connection.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NoUpstream {
    #[error("{0}")]
    Unsupported(ArcStr),
    #[error("the limit of the DestinationRule is reached: {}", .0.as_str())]
    Overflow(CircuitBreakerLimit),
    #[error("all endpoints of {0} are ejected")]
    AllEndpointsEjected(NamespacedHostname),
    #[error("this waypoint does not choose among endpoints of {0} by the subset {1}")]
    UnusableSubset(String, ArcStr),
    #[error(transparent)]
    Route(#[from] RouteError),
}

/// Endpoint chosen for a request or connection, which counts against the endpoint's limits until it is dropped.
#[derive(Debug)]
pub(crate) struct EndpointLease {
    port: Arc<DestinationPort>,
    picked_endpoint: PickedEndpoint<BackendEndpoint>,
}

impl DestinationPort {
    fn with_policy(&self, policy: DestinationPolicy, members: Option<Arc<SubsetMembers>>) -> Self {
        Self {
            service: self.service.clone(),
            number: self.number,
            members,
            connections: ConnectionLimit::from_limits(&policy.limits, self.connections.as_ref()),
            tls: TlsOrigination::for_destination(policy.tls.as_ref(), self.tls.as_ref()),
            destination: self.destination.with_policy(policy),
        }
    }

    /// Returns the state of the port's endpoints (ejections, active requests) for `/config_dump`.
    fn endpoints(&self, now: Instant) -> Value {
        let all = self.destination.endpoints(now);
        let one = |of: &EndpointState| {
            let rest = of.ejected_for.map(|rest| format!("{}s", rest.as_secs()));
            json!({"uid": of.uid.as_str(), "requests": of.active_requests, "ejectedFor": rest})
        };
        all.iter().map(one).collect()
    }

    pub(crate) fn policy(&self) -> &DestinationPolicy {
        self.destination.policy()
    }

    pub(crate) fn limits(&self) -> &DestinationLimits {
        &self.policy().limits
    }

    /// Returns the TLS origination to endpoints, if configured.
    pub(crate) fn tls(&self) -> Option<&TlsOrigination> {
        self.tls.as_deref()
    }

    /// Checks that Ambit supports all settings of the rule. Otherwise nothing may be sent to the destination.
    pub(crate) fn check_supported(&self) -> Result<(), NoUpstream> {
        let why = self.policy().unsupported.clone();
        why.map_or(Ok(()), |why| Err(NoUpstream::Unsupported(why)))
    }

    fn record_overflow(
        &self,
        rule_context: DestinationRuleContext<'_>,
        limit: CircuitBreakerLimit,
    ) -> NoUpstream {
        let metrics = &rule_context.metrics.destinations;
        metrics.count_overflow(&self.service.hostname, limit.as_str());
        NoUpstream::Overflow(limit)
    }

    /// Takes a slot for a new request within the rule's request limits, or fails with the limit that is reached.
    pub(crate) fn take_request_slot(
        &self,
        rule_context: DestinationRuleContext<'_>,
    ) -> Result<LimitPermit, NoUpstream> {
        let slot = self.destination.limits().acquire_request(self.limits());
        slot.map_err(|limit| self.record_overflow(rule_context, limit))
    }

    /// Takes a slot for a retry within the rule's retry limit or retry budget, or fails with the limit that is reached.
    pub(crate) fn take_retry_slot(
        &self,
        rule_context: DestinationRuleContext<'_>,
    ) -> Result<LimitPermit, NoUpstream> {
        let slot = self.destination.limits().acquire_retry(self.limits());
        slot.map_err(|limit| self.record_overflow(rule_context, limit))
    }

    /// Takes a permit for a connection to the destination without waiting; `None` if the rule does not limit
    /// connections.
    pub(crate) fn try_take_connection(
        &self,
        rule_context: DestinationRuleContext<'_>,
    ) -> Result<Option<OwnedSemaphorePermit>, NoUpstream> {
        let Some(connections) = &self.connections else {
            return Ok(None);
        };
        let permit = connections.permits.clone().try_acquire_owned();
        let permit = permit
            .map_err(|_| self.record_overflow(rule_context, CircuitBreakerLimit::Connections))?;
        Ok(Some(permit))
    }

    /// Waits for a permit for a connection to the destination.
    pub(crate) async fn wait_for_connection(
        &self,
        rule_context: DestinationRuleContext<'_>,
    ) -> Result<Option<OwnedSemaphorePermit>, NoUpstream> {
        let Some(connections) = &self.connections else {
            return Ok(None);
        };
        if let Ok(permit) = connections.permits.clone().try_acquire_owned() {
            return Ok(Some(permit));
        }
        let waiting = self.destination.limits().acquire_pending(self.limits());
        let _waiting = waiting.map_err(|limit| self.record_overflow(rule_context, limit))?;
        // The semaphore is never closed.
        Ok(connections.permits.clone().acquire_owned().await.ok())
    }

    /// Chooses an endpoint. Returns the route to the endpoint, and a lease that counts against its limits. The lease
    /// has no endpoint if the service's own waypoint chooses one.
    pub(crate) fn route(
        self: &Arc<Self>,
        rule_context: DestinationRuleContext<'_>,
        request: BackendRequest<'_>,
        wish: PickRequest<'_>,
    ) -> Result<Option<(Route, EndpointLease)>, NoUpstream> {
        let own = request.waypoint;
        let mut rng = rand::rng();
        let now = Instant::now();
        let table = rule_context.state.table();
        let revision = table.backend_revision(&request, &self.service, &mut rng);
        let Some(revision) = revision else {
            return Ok(None);
        };
        let candidate = |endpoint: BackendEndpoint| EndpointCandidate {
            uid: endpoint.workload.uid().clone(),
            weight: endpoint.weight,
            locality_rank: endpoint.rank,
            topology: Topology {
                locality: endpoint.workload.locality().clone(),
                node: endpoint.workload.node().clone(),
                network: endpoint.workload.network().clone(),
                cluster: endpoint.workload.cluster_id().clone(),
            },
            endpoint,
        };
        let members = self.members.as_deref();
        let revision = revision ^ members.map_or(0, |members| members.uids_hash);
        let is_member = |endpoint: &BackendEndpoint| {
            members.is_none_or(|members| members.uids.contains(endpoint.workload.uid()))
        };
        if !self.destination.is_at_revision(revision) {
            let here = Topology {
                locality: own.locality.clone(),
                node: own.node.clone(),
                network: own.network.clone(),
                cluster: own.cluster_id.clone(),
            };
            self.destination.update(revision, now, &here, || {
                let all = table.backend_endpoints(&request, &self.service, self.number);
                all.into_iter().filter(is_member).map(candidate).collect()
            });
        }
        let none = || RouteError::NoHealthyUpstream {
            service: self.service.clone(),
            port: self.number,
        };
        let chosen = self.destination.pick_endpoint(wish, now, &mut rng);
        let chosen = chosen.map_err(|error| match error {
            NoEndpoint::AllEjected => NoUpstream::AllEndpointsEjected(self.service.clone()),
            NoEndpoint::NoCandidates => none().into(),
        })?;
        let endpoint = chosen.endpoint().ok_or_else(none)?;
        let route = table.route_to_endpoint(&request, &self.service, endpoint, &mut rng)?;
        let port = self.clone();
        Ok(Some((
            route,
            EndpointLease {
                port,
                picked_endpoint: chosen,
            },
        )))
    }
}

impl EndpointLease {
    /// Reports the outcome of a request at an endpoint to outlier detection.
    pub(crate) fn report(
        &self,
        rule_context: DestinationRuleContext<'_>,
        outcome: EndpointOutcome,
    ) {
        let Some(ejection) = self.picked_endpoint.report_outcome(outcome, Instant::now()) else {
            return;
        };
        let (service, endpoint) = (&self.port.service, self.picked_endpoint.uid());
        let (cause, duration) = (ejection.cause.as_str(), ejection.duration);
        tracing::warn!(%service, %endpoint, cause, ?duration, "an endpoint is ejected for errors in a row");
        let metrics = &rule_context.metrics.destinations;
        metrics.count_ejection(&service.hostname, cause);
    }
}

/// Removes the ejection and overflow metrics of a service whose `DestinationRule` was removed.
pub(crate) fn remove_metrics(metrics: &HttpMetrics, service: &NamespacedHostname) {
    let causes = OutlierCause::ALL.map(OutlierCause::as_str);
    let limits = CircuitBreakerLimit::ALL.map(CircuitBreakerLimit::as_str);
    metrics
        .destinations
        .remove_destination(&service.hostname, &causes, &limits);
}

/// Limits a connection attempt to the rule's connect timeout, if the rule sets one.
pub(crate) async fn with_connect_timeout<T>(
    timeout: Option<Duration>,
    connecting: impl Future<Output = T>,
) -> Result<T, Duration> {
    match timeout {
        None => Ok(connecting.await),
        Some(most) => {
            let timed = tokio::time::timeout(most, connecting);
            timed.await.map_err(|_| most)
        }
    }
}
