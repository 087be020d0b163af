//! Session of one accepted tunnel: its caller, target, attachments and budgets.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use ambit_l7::{authz::Connection, remote::client_address};
use ambit_model::{NetworkAddress, Service};
use ambit_route::WorkloadRef;
use ambit_rt::OpenWork;
use ambit_telemetry::{Reporter, SecurityPolicy, ServiceName, TrafficLabels, WorkloadLabels};
use http::HeaderMap;
use parking_lot::Mutex;

use crate::{
    attachment_lookup,
    attachments::Attachments,
    call_initiator::CallInitiator,
    caller::Caller,
    fair_share::FairShare,
    hops::Hops,
    in_flight_checks::{CheckPermit, CheckService},
    memory::ConnectionMemory,
    names,
    target::Target,
    telemetry_config::TelemetryConfig,
    waypoint::Shard,
};

/// Error of a request for a host below a wildcard, if the caller's namespace and the wildcard's namespace resolve it to
/// different services: the attachments of one service would be bypassed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "{host} is one service for the caller's namespace and another for that of the wildcard that was called: call it by its own name"
)]
pub(crate) struct MisdirectedHost {
    host: String,
}

/// State of one accepted tunnel: caller, target, attachments and budgets.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shard: Arc<Shard>,
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// Number of waypoints that the connection has passed before this one.
    pub(crate) hops: Hops,
    /// Memory budget of the requests in the tunnel.
    pub(crate) memory: ConnectionMemory,
    /// CPU share to which the tasks of the tunnel's connection are charged.
    pub(crate) share: FairShare,
    /// Attachments (policies, limits, plugins) that apply to the tunnel's requests, and the configuration revision at
    /// which they were looked up.
    attachments: Mutex<(u64, Arc<Attachments>)>,
    /// Metric labels of the caller, set once the caller's workload record is known.
    source_labels: OnceLock<Arc<WorkloadLabels>>,
    /// Id of the tunnel in flow events, assigned by the first event.
    tunnel_id: OnceLock<u64>,
    /// Guard that delays the process's shutdown until the session ends.
    shutdown_guard: Arc<OpenWork>,
}

/// CONNECT request of a client, with its resolved caller and target.
#[derive(Debug)]
pub(crate) struct TunnelRequest {
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// Number of waypoints that the connection has passed before this one.
    pub(crate) hops: Hops,
}

impl Session {
    /// Creates the session of a tunnel. Shutdown waits for `open` until the session ends.
    pub(crate) fn new(shard: Arc<Shard>, request: TunnelRequest, open: OpenWork) -> Self {
        let TunnelRequest {
            caller,
            target,
            hops,
        } = request;
        let waypoint = &shard.waypoint;
        let memory = &waypoint.memory;
        let memory = memory.connection(caller.identity.as_ref(), caller.address.ip());
        let share = shard
            .shares
            .for_caller(caller.identity.as_ref(), caller.address.ip());
        let revision = waypoint.published.revision();
        let attachments = Arc::new(attachment_lookup::find(waypoint, &target, &caller));
        Self {
            memory,
            share,
            attachments: Mutex::new((revision, attachments)),
            shard,
            caller,
            target,
            hops,
            source_labels: OnceLock::new(),
            tunnel_id: OnceLock::new(),
            shutdown_guard: Arc::new(open),
        }
    }

    /// Returns a new session for a host below the wildcard of the tunnel's target, if the host has a more specific
    /// service: its routes and attachments apply instead, whichever address was called.
    pub(crate) fn for_host(&self, host: &str) -> Result<Option<Self>, MisdirectedHost> {
        let Some(service) = self.more_specific_service(host)? else {
            return Ok(None);
        };
        let Some(target) = self.target.for_service(&self.shard.waypoint, service) else {
            return Ok(None);
        };
        let Self { shard, caller, .. } = self;
        let waypoint = &shard.waypoint;
        let revision = waypoint.published.revision();
        let attachments = Arc::new(attachment_lookup::find(waypoint, &target, caller));
        Ok(Some(Self {
            shard: shard.clone(),
            caller: caller.clone(),
            target,
            hops: self.hops,
            memory: self.memory.clone(),
            share: self.share.clone(),
            attachments: Mutex::new((revision, attachments)),
            source_labels: self.source_labels.clone(),
            tunnel_id: self.tunnel_id.clone(),
            shutdown_guard: self.shutdown_guard.clone(),
        }))
    }

    /// Returns the id of the tunnel in flow events.
    pub(crate) fn tunnel_id(&self) -> u64 {
        let flows = self.shard.waypoint.metrics.flows();
        *self.tunnel_id.get_or_init(|| flows.next_connection_id())
    }

    /// Finds the most specific service for a host below the wildcard of the tunnel's target; `None` if it is the
    /// wildcard itself. It must be the same for the wildcard's namespace and for the caller's.
    pub(crate) fn more_specific_service(
        &self,
        host: &str,
    ) -> Result<Option<Arc<Service>>, MisdirectedHost> {
        let Some(wildcard) = self.target.service_record() else {
            return Ok(None);
        };
        let Some(names) = names::more_specific_names(&wildcard.hostname, host) else {
            return Ok(None);
        };
        let names: Vec<_> = names.collect();
        let waypoint = &self.shard.waypoint;
        let table = waypoint.state.table();
        let is_served = |service: &Service| {
            waypoint
                .published
                .service(&service.namespaced_hostname())
                .is_some()
        };
        let seen_in = |namespace: &str| {
            let find = |name| table.service_by_hostname_where(name, namespace, is_served);
            names.iter().find_map(|name| find(name)).cloned()
        };
        let of_wildcard = seen_in(&wildcard.namespace);
        let of_caller = seen_in(self.caller.namespace().unwrap_or_default());
        match (of_wildcard, of_caller) {
            (Some(one), Some(other)) if !Arc::ptr_eq(&one, &other) => Err(MisdirectedHost {
                host: host.to_owned(),
            }),
            (one, other) => Ok(one.or(other)),
        }
    }

    /// Returns the attachments that currently apply to the tunnel's requests, found again when the configuration has
    /// changed.
    pub(crate) fn attachments(&self) -> Arc<Attachments> {
        let waypoint = &self.shard.waypoint;
        let mut known = self.attachments.lock();
        if self.depends_on_pod_services() {
            let revision = waypoint.published.revision();
            if known.0 != revision {
                let found = attachment_lookup::find(waypoint, &self.target, &self.caller);
                *known = (revision, Arc::new(found));
            }
        }
        known.1.clone()
    }

    /// Returns the name of a policy, JWT rule, plugin or rate limit of the target that needs HTTP requests; `None` if
    /// there is none.
    pub(crate) fn object_requiring_http(&self) -> Option<String> {
        let published = &self.shard.waypoint.published;
        published.object_requiring_http(&self.attachments())
    }

    /// Whether the attachments depend on which services select a pod.
    fn depends_on_pod_services(&self) -> bool {
        match &self.target {
            Target::Pod { .. } => true,
            Target::Service { service, .. } => attachment_lookup::is_headless(service),
        }
    }

    /// Returns the caller's identity, address and memory budget, for calls that its requests cause.
    pub(crate) fn initiator(&self) -> CallInitiator {
        CallInitiator {
            identity: self.caller.identity.clone(),
            ip: self.caller.address.ip(),
            memory: self.memory.clone(),
        }
    }

    /// Takes a permit for a check of one of the caller's requests; `None` at a limit of checks in flight.
    pub(crate) fn begin_check(&self, service: CheckService) -> Option<CheckPermit> {
        let Caller {
            identity, address, ..
        } = &self.caller;
        let checks = &self.shard.checks;
        checks.acquire(identity.as_ref(), address.ip(), service)
    }

    /// Returns the attributes of the tunnel's connection that policies match.
    pub(crate) fn connection_attributes<'a>(&'a self, sni: Option<&'a str>) -> Connection<'a> {
        Connection {
            source: self.caller.identity.as_ref(),
            source_ip: self.caller.address.ip(),
            remote_ip: self.caller.address.ip(),
            destination: self.target.address(),
            sni,
        }
    }

    /// Returns the address of the original client, which trusted proxies in front of the mesh report in
    /// `x-forwarded-for`.
    pub(crate) fn remote_ip(&self, headers: &HeaderMap) -> IpAddr {
        let trusted = self.shard.waypoint.published.gateway().trusted_proxies;
        client_address(self.caller.address.ip(), headers, trusted)
    }

    /// Requests the workload record at the caller's address for metric labels, without waiting for it.
    pub(crate) fn request_caller_record(&self) {
        let waypoint = self.shard.waypoint.clone();
        let ip = self.caller.address.ip();
        let address = NetworkAddress::new(waypoint.config.network.clone(), ip);
        if !waypoint.state.table().has_address(&address) {
            ambit_rt::spawn("caller's record", async move {
                waypoint.request_record(&address).await
            });
        }
    }

    /// Returns the telemetry configuration of the tunnel's target.
    pub(crate) fn telemetry_config(&self) -> Option<Arc<TelemetryConfig>> {
        let namespace = match &self.target {
            Target::Service { served, .. } => &served.name.namespace,
            Target::Pod { workload, .. } => workload.namespace(),
        };
        let published = &self.shard.waypoint.published;
        published.telemetry_config(self.attachments().services(), namespace)
    }

    /// Returns the metric labels of a connection or request to the tunnel's target.
    pub(crate) fn traffic_labels(&self) -> TrafficLabels {
        let destination = match &self.target {
            Target::Service { .. } => None,
            Target::Pod { workload, .. } => {
                Some(Arc::new(WorkloadLabels::destination(&workload.to_model())))
            }
        };
        TrafficLabels {
            reporter: Reporter::Waypoint,
            source: Some(self.source_labels()),
            destination,
            service: self
                .target
                .service_record()
                .map(|service| ServiceName::from(&**service)),
            security: match self.caller.identity {
                Some(_) => SecurityPolicy::MutualTls,
                None => SecurityPolicy::Unknown,
            },
        }
    }

    /// Returns the metric labels of a connection to a service.
    pub(crate) fn traffic_labels_for(&self, service: Option<Arc<Service>>) -> TrafficLabels {
        TrafficLabels {
            service: service.map(|service| ServiceName::from(&*service)),
            ..self.traffic_labels()
        }
    }

    /// Returns the metric labels of the caller: those of the workload at its address, if that has the caller's verified
    /// identity. Headers are not trusted for them.
    fn source_labels(&self) -> Arc<WorkloadLabels> {
        if let Some(known) = self.source_labels.get() {
            return known.clone();
        }
        let waypoint = &self.shard.waypoint;
        let Caller {
            identity, address, ..
        } = &self.caller;
        let table = waypoint.state.table();
        let found = table.workload_by_ip(&waypoint.config.network, address.ip());
        let is_caller = |workload: &&WorkloadRef| {
            let identity = identity.as_ref();
            identity.is_none_or(|identity| workload.has_identity(identity))
        };
        if let Some(workload) = found.filter(is_caller) {
            let party = || Arc::new(WorkloadLabels::new(&workload.to_model(), identity.clone()));
            return self.source_labels.get_or_init(party).clone();
        }
        Arc::new(WorkloadLabels {
            namespace: identity
                .as_ref()
                .map(|one| one.namespace.clone())
                .unwrap_or_default(),
            principal: identity.clone(),
            ..WorkloadLabels::default()
        })
    }
}
