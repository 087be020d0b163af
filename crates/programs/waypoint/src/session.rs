//! One tunnel that was accepted: who sent it, and for what.

use std::{
    net::IpAddr,
    sync::{Arc, OnceLock},
};

use ambit_l7::{authz::Connection, remote::remote_address};
use ambit_model::{NetworkAddress, Service};
use ambit_route::WorkloadRef;
use ambit_rt::OpenWork;
use ambit_telemetry::{Party, Reporter, SecurityPolicy, ServiceName, TrafficLabels};
use http::HeaderMap;

use crate::{caller::Caller, circle::Passed, target::Target, telling::Telling, waypoint::Shard};

/// See the module.
#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) shard: Arc<Shard>,
    pub(crate) caller: Caller,
    pub(crate) target: Target,
    /// How many waypoints the tunnel has passed.
    pub(crate) passed: Passed,
    /// The caller in metrics, once its record is known.
    source: OnceLock<Arc<Party>>,
    /// Shutdown waits for it.
    #[expect(dead_code, reason = "what it does is to be held")]
    open: OpenWork,
}

impl Session {
    /// What `caller` asks for. `open` is held until it is over.
    pub(crate) fn new(
        shard: Arc<Shard>,
        (caller, target, passed): (Caller, Target, Passed),
        open: OpenWork,
    ) -> Self {
        Self {
            shard,
            caller,
            target,
            passed,
            source: OnceLock::new(),
            open,
        }
    }

    /// What policies judge of a connection that is not HTTP.
    pub(crate) fn connection<'a>(&'a self, sni: Option<&'a str>) -> Connection<'a> {
        Connection {
            source: self.caller.identity.as_ref(),
            source_ip: self.caller.address.ip(),
            remote_ip: self.caller.address.ip(),
            destination: self.target.address(),
            sni,
        }
    }

    /// The address of the original client, behind proxies in front of the mesh that are trusted.
    pub(crate) fn remote_ip(&self, headers: &HeaderMap) -> IpAddr {
        let trusted = self.shard.waypoint.published.gateway().trusted_proxies;
        remote_address(self.caller.address.ip(), headers, trusted)
    }

    /// Asks what is at the caller's address, for metrics; nobody waits for the answer.
    pub(crate) fn learn_caller(&self) {
        let waypoint = self.shard.waypoint.clone();
        let ip = self.caller.address.ip();
        let address = NetworkAddress::new(waypoint.config.network.clone(), ip);
        if !waypoint.state.table().knows_address(&address) {
            ambit_rt::spawn(
                "caller's record",
                async move { waypoint.learn(&address).await },
            );
        }
    }

    /// What is configured to be told of requests to the target.
    pub(crate) fn telling(&self) -> Option<Arc<Telling>> {
        let published = &self.shard.waypoint.published;
        match &self.target {
            Target::Service { served, .. } => {
                published.telling(Some(&served.name), &served.name.namespace)
            }
            Target::Pod { workload, .. } => published.telling(None, workload.namespace()),
        }
    }

    /// A connection to the target, in metrics.
    pub(crate) fn traffic_labels(&self) -> TrafficLabels {
        let destination = match &self.target {
            Target::Service { .. } => None,
            Target::Pod { workload, .. } => {
                Some(Arc::new(Party::destination(&workload.to_model())))
            }
        };
        TrafficLabels {
            reporter: Reporter::Waypoint,
            source: Some(self.source()),
            destination,
            service: self
                .target
                .named()
                .map(|service| ServiceName::from(&**service)),
            security: match self.caller.identity {
                Some(_) => SecurityPolicy::MutualTls,
                None => SecurityPolicy::Unknown,
            },
        }
    }

    /// A connection that goes to a service, in metrics.
    pub(crate) fn traffic_labels_of(&self, service: Option<Arc<Service>>) -> TrafficLabels {
        TrafficLabels {
            service: service.map(|service| ServiceName::from(&*service)),
            ..self.traffic_labels()
        }
    }

    /// The caller in metrics: what is at its address, if it has the identity that the caller has proven. Never
    /// what a header says.
    fn source(&self) -> Arc<Party> {
        if let Some(known) = self.source.get() {
            return known.clone();
        }
        let waypoint = &self.shard.waypoint;
        let Caller { identity, address } = &self.caller;
        let table = waypoint.state.table();
        let found = table.workload_by_ip(&waypoint.config.network, address.ip());
        let is_caller = |workload: &&WorkloadRef| {
            let identity = identity.as_ref();
            identity.is_none_or(|identity| workload.has_identity(identity))
        };
        if let Some(workload) = found.filter(is_caller) {
            let party = || Arc::new(Party::new(&workload.to_model(), identity.clone()));
            return self.source.get_or_init(party).clone();
        }
        Arc::new(Party {
            namespace: identity
                .as_ref()
                .map(|one| one.namespace.clone())
                .unwrap_or_default(),
            principal: identity.clone(),
            ..Party::default()
        })
    }
}
