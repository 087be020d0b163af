//! Waypoints of other controllers: Gateways of any other class, which labels may name.
//!
//! The address of such a waypoint is in the Gateway's status, written by its controller. Its identities are not vouched
//! for: they are the accounts of the pods that carry the Gateway's label, as in Istio. So a user who may create pods in
//! the Gateway's namespace may make an account the waypoint's, and what uses the waypoint names these accounts in its
//! condition. Of captured pods under such an account only the endpoints of the Gateway's address are believed to be the
//! waypoint; those that are not captured hold the account's keys themselves.
//!
//! A connection to a pod behind such a waypoint from any other peer is refused rather than redirected to the waypoint:
//! that does not know the header in which node proxies send the original peer, and would take every caller for the pod
//! itself. Services are sent to it by their own labels alone, since it serves no others.

use ambit_k8s_api::{Gateway, Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{
    ArcStr, Destination, GatewayAddress, GatewayName, HBONE_PORT, Identity, NamespacedHostname,
    NetworkAddress,
};

use crate::{
    objects::{gateway::GatewayInput, gateway_address::Address},
    relations::references::Edge,
    view::MeshView,
};

/// A waypoint of another controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// The Gateway's class.
    pub(crate) class: ArcStr,
    /// Where it is.
    pub(crate) at: Destination,
}

impl Foreign {
    /// Where clients go.
    pub(crate) fn address(&self) -> GatewayAddress {
        GatewayAddress {
            destination: self.at.clone(),
            hbone_mtls_port: HBONE_PORT,
        }
    }
}

impl MeshView {
    /// Waypoint of another controller, if the Gateway is that.
    pub(crate) fn foreign(&self, gateway: &GatewayInput) -> Option<Foreign> {
        let address = gateway.address.as_ref();
        let address = address.filter(|_| !self.is_waypoint(gateway))?;
        let at = match address {
            Address::Ip(ip) => Destination::Address(NetworkAddress::new(self.network.clone(), *ip)),
            Address::Host(host) => Destination::Hostname(NamespacedHostname::new(
                gateway.name.namespace.clone(),
                host.clone(),
            )),
        };
        let class = gateway.class.clone();
        Some(Foreign { class, at })
    }

    /// The Gateway of another controller at an address; the first, if several say that they are there.
    pub(crate) fn foreign_at(&self, at: &Destination) -> Option<GatewayName> {
        let address = match at {
            Destination::Address(at) => Address::Ip(at.address),
            Destination::Hostname(name) => Address::Host(name.hostname.clone()),
        };
        let named = self.references.of(Edge::GatewayAddress, &address);
        let gateways = named.filter_map(|key| self.get::<Gateway>(key));
        let there =
            gateways.filter(|one| self.foreign(one).is_some_and(|foreign| foreign.at == *at));
        there.map(|one| one.name.clone()).min()
    }

    /// The identities of another controller's waypoint: those of all pods that say that they are part of it.
    pub(crate) fn foreign_identities(&self, gateway: &GatewayName) -> Vec<Identity> {
        let accounts = self.instances.accounts(gateway).into_iter();
        let trust_domain = &self.config.trust_domain;
        accounts
            .map(|account| Identity::new(trust_domain.clone(), gateway.namespace.clone(), account))
            .collect()
    }

    /// Whether a Service or ServiceEntry is what is found at a Gateway's address.
    pub(crate) fn is_at(&self, key: &ObjectKey, at: &Destination) -> bool {
        match (key.kind, at) {
            (Kind::Service, Destination::Hostname(name)) => {
                let domain = &self.config.cluster_domain;
                key.namespace == name.namespace
                    && self
                        .get::<Service>(key)
                        .is_some_and(|service| service.hostname(domain) == name.hostname)
            }
            (Kind::ServiceEntry, Destination::Hostname(name)) => {
                let entry = self.get::<ServiceEntry>(key);
                key.namespace == name.namespace
                    && entry.is_some_and(|entry| entry.hosts.contains(&name.hostname))
            }
            (_, Destination::Address(at)) => self.addresses.is_owned_by(&at.address, key),
            _ => false,
        }
    }

    /// Whether another controller's waypoint is there: one of which nothing is known but its address is taken to be.
    pub(crate) fn is_foreign_ready(&self, gateway: &GatewayName) -> bool {
        let is_foreign = self
            .gateway(gateway)
            .is_some_and(|found| self.foreign(found).is_some());
        let instances = &self.instances;
        let is_unknown = || instances.accounts(gateway).is_empty();
        is_foreign && (instances.any_claims_ready(gateway) || is_unknown())
    }
}
