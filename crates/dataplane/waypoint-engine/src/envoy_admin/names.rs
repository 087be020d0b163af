//! Names of clusters and route configurations in the form of Istio's waypoints: `inbound-vip|PORT|http|HOST` for a port
//! of a service that the waypoint serves, `outbound|PORT|SUBSET|HOST` for one that only routes forward to.

use std::collections::HashSet;

use ambit_model::{ArcStr, NamespacedHostname};

/// Name of the cluster without endpoints, to which routes with unusable backends refer.
pub(super) const BLACK_HOLE: &str = "BlackHoleCluster";

/// Name of the internal listener that receives the content of tunnels, and of its cluster.
pub(super) const MAIN_INTERNAL: &str = "main_internal";

/// Envoy filter that proxies the connections of a service port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProxyKind {
    /// HTTP connection manager, for HTTP requests.
    Http,
    /// TCP proxy, for opaque TCP.
    Tcp,
}

impl ProxyKind {
    const fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Tcp => "tcp",
        }
    }
}

/// Service, port, subset and proxy kind by which a cluster is named.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ClusterKey {
    pub(super) service: NamespacedHostname,
    pub(super) port: u16,
    pub(super) subset: Option<ArcStr>,
    pub(super) kind: ProxyKind,
}

/// Names clusters in Istio's form, which depends on whether the waypoint serves the cluster's service.
#[derive(Clone, Debug, Default)]
pub(super) struct ClusterNames {
    served: HashSet<NamespacedHostname>,
}

impl ClusterNames {
    /// Creates the names of clusters for a waypoint that serves these services.
    pub(super) fn new(served: impl IntoIterator<Item = NamespacedHostname>) -> Self {
        let served = served.into_iter().collect();
        Self { served }
    }

    /// Returns the name of a cluster.
    pub(super) fn name_of_cluster(&self, key: &ClusterKey) -> String {
        let ClusterKey {
            service,
            port,
            subset,
            kind,
        } = key;
        let (host, subset) = (&service.hostname, subset.as_deref());
        if !self.served.contains(service) {
            return format!("outbound|{port}|{}|{host}", subset.unwrap_or_default());
        }
        let kind = kind.as_str();
        match subset {
            None => format!("inbound-vip|{port}|{kind}|{host}"),
            Some(subset) => format!("inbound-vip|{port}|{kind}/{subset}|{host}"),
        }
    }
}

/// Returns the name of the route configuration of a service port. With `clients`, it is the configuration for clients
/// of a namespace with consumer routes, otherwise the one for all other clients.
pub(super) fn route_configuration_name(host: &str, port: u16, clients: Option<&str>) -> String {
    let name = format!("inbound-vip|{port}|http|{host}");
    match clients {
        None => name,
        Some(clients) => format!("{name}/clients/{clients}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn served_services_and_others_have_istios_names() {
        let service = |name: &str| NamespacedHostname::new("shop", name);
        let names = ClusterNames::new([service("web")]);
        for (host, subset, kind, expected) in [
            ("web", None, ProxyKind::Http, "inbound-vip|80|http|web"),
            (
                "web",
                Some("v1"),
                ProxyKind::Http,
                "inbound-vip|80|http/v1|web",
            ),
            ("web", None, ProxyKind::Tcp, "inbound-vip|80|tcp|web"),
            ("db", None, ProxyKind::Tcp, "outbound|80||db"),
            ("db", Some("v1"), ProxyKind::Http, "outbound|80|v1|db"),
        ] {
            let name = names.name_of_cluster(&ClusterKey {
                service: service(host),
                port: 80,
                subset: subset.map(ArcStr::from),
                kind,
            });
            assert_eq!(name, expected);
        }
    }
}
