//! Services whose attachments (policies, tokens, limits, plugins, telemetry) apply to a tunnel's target.
//!
//! A request to a service has the attachments of that service. A request to a pod has those of every service that
//! forwards to the requested port: kube-proxy, the DNS records of a headless service and a caller's own choice all end
//! in a pod's address, and objects attached to the service apply to them, too. Only services of the pod's own namespace
//! count, and those with a ReferenceGrant there: an endpoint with the address of another tenant's pod adds nothing to
//! requests there.
//!
//! Requests that the waypoint of a service sends to a pod behind another waypoint have been authorized for that
//! service.

use std::{net::SocketAddr, slice};

use ambit_l7::authz::{Scope, ServicePort};
use ambit_model::NamespacedHostname;

/// Attachments (policies, tokens, limits, plugins, telemetry) that apply to the requests in one tunnel.
#[derive(Debug)]
pub(crate) enum Attachments {
    /// Attachments of requests to a service.
    Service {
        /// Name of the requested service.
        service: NamespacedHostname,
        /// Requested port of the service.
        port: u16,
    },
    /// Attachments of requests to a pod, collected from the services that forward to it.
    Pod {
        /// Requested port of the pod.
        port: u16,
        /// Service ports that forward to the pod's port.
        ports: Vec<ServicePort>,
        /// Distinct services to which the service ports in `ports` belong.
        services: Vec<NamespacedHostname>,
    },
}

impl Attachments {
    /// Returns the attachments of a request to a pod, from the service ports that forward to the requested port.
    pub(crate) fn for_pod(address: SocketAddr, ports: Vec<ServicePort>) -> Self {
        let mut services: Vec<_> = ports.iter().map(|port| port.service.clone()).collect();
        services.sort_unstable();
        services.dedup();
        Self::Pod {
            port: address.port(),
            ports,
            services,
        }
    }

    /// Returns the scope (service, or service ports of a pod) by which authorization policies for the requests are
    /// selected.
    pub(crate) fn scope(&self) -> Scope<'_> {
        match self {
            Self::Service { service, .. } => Scope::Service(service),
            Self::Pod { ports, .. } => Scope::Pod(ports),
        }
    }

    /// Returns the services whose attachments apply, each once, sorted by name.
    pub(crate) fn services(&self) -> &[NamespacedHostname] {
        match self {
            Self::Service { service, .. } => slice::from_ref(service),
            Self::Pod { services, .. } => services,
        }
    }

    /// Returns the ports at which the requests arrive: the requested port, and for a pod also the ports of the services
    /// that forward to it, each with its service.
    pub(crate) fn ports(&self) -> impl Iterator<Item = (Option<&NamespacedHostname>, u16)> {
        let (own, ports) = match self {
            Self::Service { service, port } => ((Some(service), *port), &[][..]),
            Self::Pod { port, ports, .. } => ((None, *port), ports.as_slice()),
        };
        let of_services = ports.iter();
        let of_services = of_services.map(|port| (Some(&port.service), port.address.port()));
        std::iter::once(own).chain(of_services)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn port(service: &str, port: u16) -> ServicePort {
        ServicePort {
            service: NamespacedHostname::new("ns", service),
            address: ([10, 96, 0, 1], port).into(),
        }
    }

    #[test]
    fn services_and_ports_of_a_pod_are_listed_once() {
        let address = ([10, 0, 0, 1], 8080).into();
        let ports = vec![port("b", 80), port("a", 80), port("b", 81)];
        let attachments = Attachments::for_pod(address, ports);
        let services: Vec<_> = attachments
            .services()
            .iter()
            .map(|one| &one.hostname)
            .collect();
        assert_eq!(services, ["a", "b"]);
        let ports: Vec<_> = attachments
            .ports()
            .map(|(service, port)| (service.map(|one| one.hostname.as_str()), port))
            .collect();
        let expected = [
            (None, 8080),
            (Some("b"), 80),
            (Some("a"), 80),
            (Some("b"), 81),
        ];
        assert_eq!(ports, expected);
    }
}
