//! Evaluation of recorded calls twice: with the current policies, and with the rehearsed ones. Pure.

mod by_metrics;

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ambit_authz::{Connection, DecisionReason, Explanation, PolicyOutcome, PolicySet};
use ambit_derive::{Delta, Index, MeshConfig, PodDirectory, Severity};
use ambit_k8s_api::{Object, ObjectEvent, ObjectKey, labels};
use ambit_l7::authz::{self as l7, Scope, ServicePort};
use ambit_model::{
    Action, Authorization, GatewayName, HttpPolicy, Identity, IsWaypointRecord, NamespacedHostname,
    PolicyKey, Protocol, Service, WaypointGateway, WaypointRecord, WaypointRecordKey,
    WaypointService, Workload, WorkloadUid,
};

use super::{
    at_waypoint::WaypointPolicies,
    counted_calls::{CallCounter, CountedCalls},
    decision::CallDecision,
    observed::{ObservedCall, Observer, Request, WaypointCall},
    readings::{self, CallSource},
    report::{CallRow, Report},
};

/// Mesh with the current policies, and with the rehearsed ones added; both decide about recorded calls.
pub(crate) struct PolicyTest {
    current: PolicyMesh,
    rehearsed: PolicyMesh,
    /// Problems that the control plane's code has with the policies to rehearse.
    notes: Vec<String>,
}

impl PolicyTest {
    /// Creates the mesh of `objects`, and a second one with `policies` added.
    pub(crate) fn new(
        config: MeshConfig,
        objects: Vec<ObjectEvent>,
        policies: Vec<ObjectEvent>,
        enforce_dry_run: bool,
    ) -> Self {
        let config = MeshConfig {
            dry_run_policies: true,
            ..config
        };
        let mut index = Index::new(config);
        let mut pods = PodDirectory::default();
        for event in &objects {
            index.handle(event, &mut pods);
        }
        let mut records = MeshRecords::default();
        records.update(index.flush());
        let now = PolicyMesh::new(&records);
        let marked = objects.iter().filter(|_| enforce_dry_run);
        let enforced: Vec<_> = marked.chain(&policies).collect();
        for event in enforced {
            let event = match enforce_dry_run {
                true => without_dry_run(event),
                false => event.clone(),
            };
            index.handle(&event, &mut pods);
        }
        records.update(index.flush());
        let rehearsed = |event: &ObjectEvent| match event {
            ObjectEvent::Applied { object, .. } => Some(object.key()),
            ObjectEvent::Invalid { .. } | ObjectEvent::Deleted(_) => None,
        };
        let keys: BTreeSet<ObjectKey> = policies.iter().filter_map(rehearsed).collect();
        let problems = index.problems();
        let notes = problems.filter(|problem| keys.contains(&problem.object));
        let notes = notes.map(|problem| match problem.severity {
            Severity::Error => format!("error: {problem}"),
            Severity::Warning => format!("note: {problem}"),
        });
        Self {
            current: now,
            rehearsed: PolicyMesh::new(&records),
            notes: notes.collect(),
        }
    }

    /// Reports on all recorded `lines`, and on the counted calls that exceed the number of lines between the same two
    /// peers: counters may begin earlier than logs.
    pub(crate) fn report(&self, lines: &[ObservedCall], counted: &[CountedCalls]) -> Report {
        let mut report = Report {
            notes: self.notes.clone(),
            ..Report::default()
        };
        for seen in lines {
            let row = CallRow {
                from: self.rehearsed.describe_client(seen),
                to: self.rehearsed.describe_server(seen),
                what: describe_call(seen),
                times: 1,
                ..CallRow::default()
            };
            report.add(row, self.current.decide(seen), self.rehearsed.decide(seen));
        }
        let mut logged: BTreeMap<_, usize> = BTreeMap::new();
        for pair in lines
            .iter()
            .filter_map(|seen| self.rehearsed.pair_of_observed(seen))
        {
            *logged.entry(pair).or_default() += 1;
        }
        for one in counted {
            let pair = PolicyMesh::pair_of_counted(one);
            let of_pair = pair.map_or(0, |pair| {
                let logged = logged.iter().filter(|(logged, _)| logged.covers(&pair));
                logged.map(|(_, times)| times).sum()
            });
            let times = one.count.saturating_sub(of_pair);
            if times == 0 {
                continue;
            }
            let (from, to) = describe_parties(one);
            let row = CallRow {
                from,
                to,
                what: match one.counter {
                    CallCounter::PodConnections | CallCounter::WaypointConnections => {
                        "connections, by metrics"
                    }
                    CallCounter::WaypointRequests => "requests, by metrics",
                }
                .to_owned(),
                times,
                ..CallRow::default()
            };
            let (now, then) = (
                self.current.decide_counted(one),
                self.rehearsed.decide_counted(one),
            );
            report.add(row, now, then);
        }
        report.count();
        report
    }
}

/// Describes caller and server of a counted call for display.
fn describe_parties(counted: &CountedCalls) -> (String, String) {
    let named = |of: &Option<(String, String)>| match of {
        Some((namespace, name)) => format!("{namespace}/{name}"),
        None => "an unknown caller".to_owned(),
    };
    let from = match &counted.identity {
        Some(identity) => identity.to_string(),
        None => format!("{} (plaintext)", named(&counted.source_workload)),
    };
    let service = counted.service.as_ref();
    let to = match service.filter(|_| counted.counter != CallCounter::PodConnections) {
        Some((namespace, _, name)) => format!("{namespace}/{name}"),
        None => named(&counted.destination_workload),
    };
    (from, to)
}

/// Returns an AuthorizationPolicy without its dry-run annotation, and any other object unchanged.
fn without_dry_run(event: &ObjectEvent) -> ObjectEvent {
    let mut event = event.clone();
    if let ObjectEvent::Applied {
        object: Object::AuthorizationPolicy(policy),
        ..
    } = &mut event
    {
        let policy = Arc::make_mut(policy);
        if let Some(annotations) = policy.metadata.annotations.as_mut() {
            annotations.remove(labels::DRY_RUN);
        }
    }
    event
}

fn describe_call(call: &ObservedCall) -> String {
    match &call.observer {
        Observer::NodeProxy => format!("port {}", call.to.port()),
        Observer::Waypoint(WaypointCall {
            request: Some(request),
            ..
        }) => format!("{} {}", request.method, request.path),
        Observer::Waypoint(_) => format!("port {}", call.to.port()),
    }
}

/// Records that the control plane derives from the objects, limited to those that decide about calls.
#[derive(Default)]
struct MeshRecords {
    workloads: BTreeMap<WorkloadUid, Arc<Workload>>,
    services: BTreeMap<NamespacedHostname, Arc<Service>>,
    policies: BTreeMap<PolicyKey, Arc<Authorization>>,
    waypoint_records: BTreeMap<WaypointRecordKey, Arc<WaypointRecord>>,
}

impl MeshRecords {
    fn update(&mut self, delta: Delta) {
        apply_changes(&mut self.workloads, delta.workloads);
        apply_changes(&mut self.policies, delta.policies);
        apply_changes(&mut self.waypoint_records, delta.waypoint_records);
        for (name, record) in delta.services {
            match record {
                Some(record) => self.services.insert(name, Arc::new(record.service.clone())),
                None => self.services.remove(&name),
            };
        }
    }

    /// Returns the records of type `R` of all waypoints, each with its waypoint.
    fn waypoint_records<R: IsWaypointRecord>(&self) -> impl Iterator<Item = (&GatewayName, &R)> {
        let all = self.waypoint_records.iter();
        all.filter_map(|(key, record)| Some((&key.gateway, R::from_record(record)?)))
    }
}

fn apply_changes<N: Ord, R>(records: &mut BTreeMap<N, Arc<R>>, changed: Vec<(N, Option<Arc<R>>)>) {
    for (name, record) in changed {
        match record {
            Some(record) => records.insert(name, record),
            None => records.remove(&name),
        };
    }
}

/// Records of a mesh with one set of policies, indexed for the evaluation of calls.
struct PolicyMesh {
    by_address: HashMap<IpAddr, Arc<Workload>>,
    services: Vec<Arc<Service>>,
    waypoint_services: BTreeSet<(GatewayName, NamespacedHostname)>,
    gateways: BTreeMap<GatewayName, WaypointGateway>,
    policies: PolicySet,
    waypoint_policies: BTreeMap<GatewayName, WaypointPolicies>,
    /// Node proxies' policies for calls known only from metrics, which lack ports and addresses: the interpretation
    /// that allows the most, and the one that allows the least.
    metric_policies: [PolicySet; 2],
    metric_waypoint_policies: BTreeMap<GatewayName, WaypointPolicies>,
}

impl PolicyMesh {
    fn new(records: &MeshRecords) -> Self {
        let mut policies = PolicySet::default();
        let mut by_metrics = [PolicySet::default(), PolicySet::default()];
        for policy in records.policies.values() {
            policies.insert(Authorization::clone(policy));
            let admits = policy.action == Action::Allow;
            let [most, least] = &mut by_metrics;
            most.insert(readings::pod_policy(policy, admits));
            least.insert(readings::pod_policy(policy, !admits));
        }
        let at_waypoints = |knowledge: CallSource| {
            let mut all = BTreeMap::<_, WaypointPolicies>::new();
            for (gateway, policy) in records.waypoint_records::<HttpPolicy>() {
                let at = all.entry(gateway.clone());
                at.or_insert_with(|| WaypointPolicies::new(knowledge))
                    .insert(policy);
            }
            all
        };
        let addresses = |workload: &Arc<Workload>| {
            let each = workload.workload_ips.clone().into_iter();
            let workload = Arc::clone(workload);
            each.map(move |ip| (ip, Arc::clone(&workload)))
        };
        let services = records.waypoint_records::<WaypointService>();
        let services = services.map(|(gateway, one)| (gateway.clone(), one.service.clone()));
        let settings = records.waypoint_records::<WaypointGateway>();
        let settings = settings.map(|(gateway, one)| (gateway.clone(), one.clone()));
        Self {
            by_address: records.workloads.values().flat_map(addresses).collect(),
            services: records.services.values().cloned().collect(),
            waypoint_services: services.collect(),
            gateways: settings.collect(),
            policies,
            metric_policies: by_metrics,
            waypoint_policies: at_waypoints(CallSource::AccessLogs),
            metric_waypoint_policies: at_waypoints(CallSource::Metrics),
        }
    }

    fn pod(&self, ip: IpAddr) -> Option<&Arc<Workload>> {
        self.by_address.get(&ip.to_canonical())
    }

    /// Describes the caller of a recorded call for display.
    fn describe_client(&self, call: &ObservedCall) -> String {
        match (&call.identity, self.pod(call.from.ip())) {
            (Some(identity), _) => identity.to_string(),
            (None, Some(pod))
                if pod.protocol == Protocol::Hbone && call.observer != Observer::NodeProxy =>
            {
                pod.identity().to_string()
            }
            (None, Some(pod)) => format!("{}/{} (plaintext)", pod.namespace, pod.name),
            (None, None) => call.from.ip().to_string(),
        }
    }

    /// Describes the called service or pod for display.
    fn describe_server(&self, call: &ObservedCall) -> String {
        match (self.service(call), self.pod(call.to.ip())) {
            (Some(service), _) => format!("{}/{}", service.namespace, service.name),
            (None, Some(pod)) => format!("{}/{}", pod.namespace, pod.name),
            (None, None) => call.to.to_string(),
        }
    }

    /// Returns the service that was the destination of a call recorded by a waypoint.
    fn service(&self, call: &ObservedCall) -> Option<&Arc<Service>> {
        let Observer::Waypoint(at) = &call.observer else {
            return None;
        };
        let ip = call.to.ip().to_canonical();
        let has_address =
            |service: &&Arc<Service>| service.vips.iter().any(|vip| vip.address == ip);
        let is_named = |service: &&Arc<Service>| {
            at.host
                .as_deref()
                .is_some_and(|host| *service.hostname == *host)
        };
        let mut all = self.services.iter();
        all.clone().find(has_address).or_else(|| all.find(is_named))
    }

    fn decide(&self, call: &ObservedCall) -> CallDecision {
        match &call.observer {
            Observer::NodeProxy => self.decide_at_pod(call),
            Observer::Waypoint(at) => self.decide_at_waypoint(call, at),
        }
    }

    /// Decides about a call like the node proxy of the called pod. A connection that bypasses the pod's waypoint is
    /// redirected to the waypoint, so that only PeerAuthentication applies at the pod.
    fn decide_at_pod(&self, call: &ObservedCall) -> CallDecision {
        let Some(pod) = self.pod(call.to.ip()) else {
            return undecided_for_address("the pod that was called", call.to.ip());
        };
        if pod.protocol != Protocol::Hbone {
            return CallDecision::Allowed;
        }
        let connection = Connection {
            source: call.identity.clone(),
            source_ip: call.from.ip(),
            destination: call.to,
        };
        let must_pass_waypoint = Self::must_pass_waypoint(pod, call.identity.as_ref());
        let explanation = match must_pass_waypoint {
            true => self.policies.explain_peer_authentication(pod, &connection),
            false => self.policies.explain(pod, &connection),
        };
        decision_from_explanation(&explanation)
    }

    /// Whether a connection from `source` bypasses the pod's enforced waypoint, and so must be redirected to it.
    fn must_pass_waypoint(pod: &Workload, source: Option<&Identity>) -> bool {
        let waypoint = pod.endpoint_waypoint.as_ref().filter(|one| one.enforce);
        waypoint.is_some_and(|waypoint| {
            source.is_none_or(|source| !waypoint.identities.contains(source))
        })
    }

    /// Decides about a call like the waypoint of the called service or pod.
    fn decide_at_waypoint(&self, seen: &ObservedCall, at: &WaypointCall) -> CallDecision {
        let Some(caller) = self.pod(seen.from.ip()) else {
            return undecided_for_address("the caller", seen.from.ip());
        };
        let identity = (caller.protocol == Protocol::Hbone).then(|| caller.identity());
        if at.request.as_ref().is_some_and(Request::is_truncated) {
            return CallDecision::Undecided(
                "the log holds only the beginning of the path".to_owned(),
            );
        }
        let service = self.service(seen);
        let host = service.map(|service| {
            NamespacedHostname::new(service.namespace.clone(), service.hostname.clone())
        });
        let gateways: Vec<GatewayName> = match &host {
            Some(host) => {
                let of_it = self
                    .waypoint_services
                    .iter()
                    .filter(|(_, served)| served == host);
                of_it.map(|(gateway, _)| gateway.clone()).collect()
            }
            None => self.waypoint_of_pod(seen.to.ip()).into_iter().collect(),
        };
        if gateways.is_empty() {
            return CallDecision::Undecided(format!("no waypoint is before {} now", seen.to));
        }
        let connection = l7::Connection {
            source: identity.as_ref(),
            source_ip: seen.from.ip(),
            remote_ip: seen.from.ip(),
            destination: seen.to,
            sni: at.sni.as_deref(),
        };
        let none = WaypointPolicies::new(CallSource::AccessLogs);
        // Of several (a canary) the one that refuses counts.
        for gateway in &gateways {
            let policies = self.waypoint_policies.get(gateway).unwrap_or(&none);
            let pod = self.pod(seen.to.ip());
            let ports = pod.map(|pod| self.service_ports(gateway, pod, seen.to));
            let ports = ports.unwrap_or_default();
            let scope = host.as_ref().map_or(Scope::Pod(&ports), Scope::Service);
            let decision = policies.decide(scope, &connection, at.request.as_ref());
            if decision != CallDecision::Allowed {
                return decision;
            }
        }
        CallDecision::Allowed
    }

    /// Returns the service ports whose attached policies apply when a waypoint handles a request to a pod's own
    /// address; for an unknown port (0), all service ports of the pod.
    fn service_ports(
        &self,
        gateway: &GatewayName,
        pod: &Workload,
        to: SocketAddr,
    ) -> Vec<ServicePort> {
        let settings = self.gateways.get(gateway);
        if settings.is_some_and(|settings| settings.policies_only_for_services) {
            return Vec::new();
        }
        let is_served = |name: &NamespacedHostname| {
            name.namespace == pod.namespace
                && self
                    .waypoint_services
                    .contains(&(gateway.clone(), name.clone()))
        };
        let services = pod.services.iter().filter(|(name, _)| is_served(name));
        let ports = services.flat_map(|(name, ports)| {
            let leading = ports.iter();
            let leading = leading.filter(|(_, target)| to.port() == 0 || **target == to.port());
            leading.map(move |(port, _)| (name, *port))
        });
        let port = |(name, port): (&NamespacedHostname, u16)| {
            let mut services = self.services.iter();
            let service = services.find(|one| one.namespaced_hostname() == *name);
            let vip = service.and_then(|service| service.vips.first());
            ServicePort {
                service: name.clone(),
                address: SocketAddr::new(vip.map_or_else(|| to.ip(), |vip| vip.address), port),
            }
        };
        ports.map(port).collect()
    }

    fn waypoint_of_pod(&self, ip: IpAddr) -> Option<GatewayName> {
        Self::waypoint_of(self.pod(ip)?)
    }

    fn waypoint_of(pod: &Workload) -> Option<GatewayName> {
        let waypoint = pod.endpoint_waypoint.as_ref()?;
        // Its account has its name.
        let identity = waypoint.identities.first()?;
        Some(GatewayName::new(
            identity.namespace.clone(),
            identity.service_account.clone(),
        ))
    }
}

fn undecided_for_address(party: &str, ip: IpAddr) -> CallDecision {
    CallDecision::Undecided(format!("{party}, {ip}, is no pod that is known now"))
}

fn decision_from_explanation(explanation: &Explanation) -> CallDecision {
    let decision = &explanation.decision;
    if decision.allowed {
        return CallDecision::Allowed;
    }
    let by = decision.decided_by.as_ref();
    let of_it = explanation
        .policies
        .iter()
        .find(|evaluation| Some(&evaluation.policy) == by);
    let allowing: Vec<_> = explanation
        .policies
        .iter()
        .filter(|evaluation| evaluation.action == Action::Allow && !evaluation.dry_run)
        .map(|evaluation| evaluation.policy.to_string())
        .collect();
    let by = by.map_or_else(|| allowing.join(", "), ToString::to_string);
    let why = match (&decision.reason, of_it.map(|evaluation| evaluation.outcome)) {
        (DecisionReason::Denied, Some(PolicyOutcome::Matches { rule })) => {
            format!("rule {} of a DENY policy matches", rule + 1)
        }
        (DecisionReason::NoAllowPolicyMatched, _) => {
            "no rule of these ALLOW policies matches".to_owned()
        }
        _ => decision.to_string(),
    };
    CallDecision::Refused { by, why }
}
