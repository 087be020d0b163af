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

use std::net::IpAddr;

use ambit_k8s_api::{
    Gateway, Kind, ObjectKey, Service, ServiceEntry, gateway::GatewayAddress as StatusAddress,
    is_dns_name,
};
use ambit_model::{
    ArcStr, Destination, GatewayAddress, GatewayName, HBONE_PORT, Identity, NamespacedHostname,
    NetworkAddress,
};
use serde::Deserialize;
use serde_json::Value;

use super::{MeshView, gateway_address::Address, kind::MeshKind, references::Edge};

/// A Gateway as understood.
type GatewayInput = <Gateway as MeshKind>::Input;

/// Address that a Gateway's controller gives: a host name, else the first address. Unknown types of addresses are left
/// out.
pub(super) fn address(status: &Value) -> Option<Address> {
    let all = Vec::<StatusAddress>::deserialize(status.get("addresses")?).ok()?;
    let of_type = |wanted: &'static str| {
        let all = all.iter();
        all.filter(move |one| one.type_.as_deref().unwrap_or("IPAddress") == wanted)
    };
    let mut names = of_type("Hostname").filter(|one| is_dns_name(&one.value, 253));
    let name = names
        .next()
        .map(|one| Address::Host(one.value.as_str().into()));
    let mut ips = of_type("IPAddress").filter_map(|one| one.value.parse::<IpAddr>().ok());
    name.or_else(|| Some(Address::Ip(ips.next()?.to_canonical())))
}

/// A waypoint of another controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Foreign {
    /// The Gateway's class.
    pub(super) class: ArcStr,
    /// Where it is.
    pub(super) at: Destination,
}

impl Foreign {
    /// Where clients go.
    pub(super) fn address(&self) -> GatewayAddress {
        GatewayAddress {
            destination: self.at.clone(),
            hbone_mtls_port: HBONE_PORT,
        }
    }
}

impl MeshView {
    /// Waypoint of another controller, if the Gateway is that.
    pub(super) fn foreign(&self, gateway: &GatewayInput) -> Option<Foreign> {
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
    pub(super) fn foreign_at(&self, at: &Destination) -> Option<GatewayName> {
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
    pub(super) fn foreign_identities(&self, gateway: &GatewayName) -> Vec<Identity> {
        let accounts = self.instances.accounts(gateway).into_iter();
        let trust_domain = &self.config.trust_domain;
        accounts
            .map(|account| Identity::new(trust_domain.clone(), gateway.namespace.clone(), account))
            .collect()
    }

    /// Whether a Service or ServiceEntry is what is found at a Gateway's address.
    pub(super) fn is_at(&self, key: &ObjectKey, at: &Destination) -> bool {
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
    pub(super) fn is_foreign_ready(&self, gateway: &GatewayName) -> bool {
        let is_foreign = self
            .gateway(gateway)
            .is_some_and(|found| self.foreign(found).is_some());
        let instances = &self.instances;
        let is_unknown = || instances.accounts(gateway).is_empty();
        is_foreign && (instances.any_claims_ready(gateway) || is_unknown())
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_name_goes_before_addresses_and_what_is_neither_is_left_out() {
        let host = |name: &str| Some(Address::Host(name.into()));
        let ip = |text: &str| Some(Address::Ip(text.parse().unwrap()));
        for (addresses, expected) in [
            (
                json!([{"value": "10.0.0.1"}, {"value": "10.0.0.2"}]),
                ip("10.0.0.1"),
            ),
            (
                json!([{"type": "IPAddress", "value": "fd00::1"}]),
                ip("fd00::1"),
            ),
            (json!([{"value": "::ffff:10.0.0.1"}]), ip("10.0.0.1")),
            (
                json!([{"value": "10.0.0.1"}, {"type": "Hostname", "value": "wp.shop.svc.cluster.local"}]),
                host("wp.shop.svc.cluster.local"),
            ),
            (
                json!([{"type": "Hostname", "value": "not a name"}, {"value": "10.0.0.1"}]),
                ip("10.0.0.1"),
            ),
            (
                json!([{"type": "example.com/vip", "value": "10.0.0.9"}]),
                None,
            ),
            (json!([{"value": "nothing"}, {"value": ""}]), None),
            (json!([]), None),
            (json!("10.0.0.1"), None),
            (json!([{"type": 1, "value": "10.0.0.1"}]), None),
        ] {
            let status = json!({"addresses": addresses});
            assert_eq!(address(&status), expected, "{status}");
        }
        assert_eq!(address(&Value::Null), None);
    }
}
