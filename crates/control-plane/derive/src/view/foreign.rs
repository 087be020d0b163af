//! Waypoints of other controllers: Gateways of other classes, which labels may name.
//!
//! The address of such a waypoint is in the Gateway's status, which its controller writes. Nothing vouches for its
//! identities: they are the service accounts of the pods with the Gateway's label, as in Istio. A user who may create
//! pods in the Gateway's namespace can thus add an account to the waypoint; the condition of objects that use the
//! waypoint therefore lists the accounts. Of captured pods with such an account, proxies accept only the endpoints of
//! the Gateway's address as the waypoint; pods that are not captured hold the keys of the account themselves.
//!
//! A connection to a pod behind such a waypoint from any other client is refused rather than redirected to the
//! waypoint, which does not know the header in which node proxies send the original client, and would mistake every
//! client for the pod. Only the labels of services send their traffic to it, since it serves no other services.

use ambit_k8s_api::{Gateway, Kind, ObjectKey, Service, ServiceEntry};
use ambit_model::{
    ArcStr, GatewayAddress, GatewayDestination, GatewayName, HBONE_PORT, Identity,
    NamespacedHostname, NetworkAddress,
};

use crate::{
    objects::{gateway::GatewayInput, gateway_address::Address},
    relations::references::ReferenceKind,
    view::MeshView,
};

/// Class and address of another controller's waypoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ForeignWaypoint {
    /// Class of the Gateway.
    pub(crate) class: ArcStr,
    /// IP address or host name at which clients reach the waypoint.
    pub(crate) destination: GatewayDestination,
}

impl ForeignWaypoint {
    /// Returns the address that clients connect to, with the HBONE port.
    pub(crate) fn address(&self) -> GatewayAddress {
        GatewayAddress {
            destination: self.destination.clone(),
            hbone_mtls_port: HBONE_PORT,
        }
    }
}

impl MeshView {
    /// Returns class and address of a Gateway that belongs to another controller; `None` for our own waypoints and
    /// without an address.
    pub(crate) fn foreign_waypoint(&self, gateway: &GatewayInput) -> Option<ForeignWaypoint> {
        let address = gateway.address.as_ref();
        let address = address.filter(|_| !self.is_waypoint(gateway))?;
        let at = match address {
            Address::Ip(ip) => {
                GatewayDestination::Address(NetworkAddress::new(self.network.clone(), *ip))
            }
            Address::Host(host) => GatewayDestination::Hostname(NamespacedHostname::new(
                gateway.name.namespace.clone(),
                host.clone(),
            )),
        };
        let class = gateway.class.clone();
        Some(ForeignWaypoint {
            class,
            destination: at,
        })
    }

    /// Returns another controller's Gateway by its address; the first by name if several have the same address.
    pub(crate) fn foreign_gateway_at(&self, at: &GatewayDestination) -> Option<GatewayName> {
        let address = match at {
            GatewayDestination::Address(at) => Address::Ip(at.address),
            GatewayDestination::Hostname(name) => Address::Host(name.hostname.clone()),
        };
        let named = self
            .references
            .referrers(ReferenceKind::GatewayAddress, &address);
        let gateways = named.filter_map(|key| self.get::<Gateway>(key));
        let there = gateways.filter(|one| {
            self.foreign_waypoint(one)
                .is_some_and(|foreign| foreign.destination == *at)
        });
        there.map(|one| one.name.clone()).min()
    }

    /// Returns the identities of another controller's waypoint: the service accounts of the pods with the Gateway's
    /// label.
    pub(crate) fn foreign_identities(&self, gateway: &GatewayName) -> Vec<Identity> {
        let accounts = self.instances.accounts(gateway).into_iter();
        let trust_domain = &self.config.trust_domain;
        accounts
            .map(|account| Identity::new(trust_domain.clone(), gateway.namespace.clone(), account))
            .collect()
    }

    /// Whether a Gateway's address belongs to a Service or ServiceEntry, or is a host of it.
    pub(crate) fn owns_gateway_address(&self, key: &ObjectKey, at: &GatewayDestination) -> bool {
        match (key.kind, at) {
            (Kind::Service, GatewayDestination::Hostname(name)) => {
                let domain = &self.config.cluster_domain;
                key.namespace == name.namespace
                    && self
                        .get::<Service>(key)
                        .is_some_and(|service| service.hostname(domain) == name.hostname)
            }
            (Kind::ServiceEntry, GatewayDestination::Hostname(name)) => {
                let entry = self.get::<ServiceEntry>(key);
                key.namespace == name.namespace
                    && entry.is_some_and(|entry| entry.hosts.contains(&name.hostname))
            }
            (_, GatewayDestination::Address(at)) => self.addresses.is_owned_by(&at.address, key),
            _ => false,
        }
    }

    /// Whether another controller's waypoint is ready: a pod with the Gateway's label is ready, or no pod has the label
    /// and the Gateway has an address.
    pub(crate) fn is_foreign_ready(&self, gateway: &GatewayName) -> bool {
        let is_foreign = self
            .gateway(gateway)
            .is_some_and(|found| self.foreign_waypoint(found).is_some());
        let instances = &self.instances;
        let is_unknown = || instances.accounts(gateway).is_empty();
        is_foreign && (instances.any_labelled_ready(gateway) || is_unknown())
    }
}
