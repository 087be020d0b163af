//! Route table for TLS and TCP connections to one service port: Gateway API's TLSRoute and TCPRoute with a Service as
//! parent.
//!
//! TLSRoutes match the client's SNI: the exact name first, then the longest wildcard, then routes for all names; of
//! several routes the oldest. Connections that match no TLSRoute go to the oldest TCPRoute.

use std::{collections::HashMap, sync::Arc};

use ambit_model::{ArcStr, RouteName, StreamBackend, StreamRoute};
use rand::RngCore;

use crate::weights;

/// TLS and TCP routes of one port of a service.
#[derive(Debug, Default)]
pub struct StreamTable {
    exact_sni: HashMap<ArcStr, Arc<StreamRule>>,
    /// Rules for wildcard names, by the suffix that follows `*.`.
    wildcard_sni: HashMap<ArcStr, Arc<StreamRule>>,
    /// Rule for TLS connections that no hostname rule matches, with any SNI or none.
    any_sni: Option<Arc<StreamRule>>,
    has_tls: bool,
    tcp: Option<Arc<StreamRule>>,
}

/// Rule of a TLSRoute or TCPRoute.
#[derive(Debug)]
pub struct StreamRule {
    /// Name and kind of the route object.
    pub route: RouteName,
    backends: Vec<StreamBackend>,
    /// Reason why connections that match are rejected: a setting of the route is unsupported or invalid.
    pub rejection_reason: Option<ArcStr>,
    /// Whether the route is a consumer route (GAMMA), which the clients' namespace defines for its own connections.
    pub is_consumer_route: bool,
}

/// Protocol of a connection, as its first bytes reveal it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DetectedProtocol<'a> {
    /// TLS, with the SNI of the ClientHello in lower case.
    Tls(Option<&'a str>),
    /// Any protocol other than TLS, or an undetected one.
    Other,
}

impl StreamTable {
    /// Builds the table of a port for clients of a namespace, from routes that are sorted by age and name. For each
    /// kind, consumer routes of that namespace replace producer routes.
    pub fn new(tls: &[StreamRoute], tcp: &[StreamRoute], port: u16, client: Option<&str>) -> Self {
        let mut table = Self::default();
        for route in routes_for_client(tls, port, client) {
            table.has_tls = true;
            let rule = Arc::new(StreamRule::new(route));
            if route.hostnames.is_empty() {
                table.any_sni.get_or_insert_with(|| rule.clone());
            }
            for name in &route.hostnames {
                let (names, name) = match name.strip_prefix("*.") {
                    Some(below) => (&mut table.wildcard_sni, below),
                    None => (&mut table.exact_sni, name.as_str()),
                };
                names.entry(name.into()).or_insert_with(|| rule.clone());
            }
        }
        let first = routes_for_client(tcp, port, client).next();
        table.tcp = first.map(|route| Arc::new(StreamRule::new(route)));
        table
    }

    /// Whether the table has TLS routes, so that the ClientHello must be read.
    pub fn has_tls(&self) -> bool {
        self.has_tls
    }

    /// Whether any route applies to the port.
    pub fn has_routes(&self) -> bool {
        self.has_tls || self.tcp.is_some()
    }

    /// Finds the rule that matches a connection; `None` if none matches.
    pub fn select_rule(&self, opening: DetectedProtocol<'_>) -> Option<&Arc<StreamRule>> {
        let by_name = match opening {
            DetectedProtocol::Tls(Some(name)) => {
                let exact = self.exact_sni.get(name);
                let mut below = name;
                let mut wildcards = std::iter::from_fn(move || {
                    (_, below) = below.split_once('.')?;
                    Some(below)
                });
                exact.or_else(|| wildcards.find_map(|below| self.wildcard_sni.get(below)))
            }
            DetectedProtocol::Tls(None) | DetectedProtocol::Other => None,
        };
        let is_tls = opening != DetectedProtocol::Other;
        let any = self.any_sni.as_ref().filter(|_| is_tls);
        by_name.or(any).or(self.tcp.as_ref())
    }
}

/// Returns the routes of a port that apply to clients of a namespace: its consumer routes, else the producer routes.
fn routes_for_client<'a>(
    routes: &'a [StreamRoute],
    port: u16,
    client: Option<&str>,
) -> impl Iterator<Item = &'a StreamRoute> {
    let of_port = routes
        .iter()
        .filter(move |route| route.ports.is_empty() || route.ports.contains(&port));
    let is_own = |route: &&StreamRoute| client.is_some() && route.clients.as_deref() == client;
    let own = of_port.clone().find(is_own);
    let clients = own.and_then(|route| route.clients.clone());
    of_port.filter(move |route| route.clients == clients)
}

impl StreamRule {
    fn new(route: &StreamRoute) -> Self {
        Self {
            route: route.name.clone(),
            backends: route.backends.clone(),
            rejection_reason: route.unsupported.clone(),
            is_consumer_route: route.clients.is_some(),
        }
    }

    /// Picks a backend by weight; `None` if the rule has no backend with a weight.
    pub fn pick_backend(&self, rng: &mut dyn RngCore) -> Option<&StreamBackend> {
        let weights = self.backends.iter().map(|one| one.weight);
        self.backends
            .get(weights::pick_weighted_index(weights, rng)?)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use ambit_model::NamespacedHostname;
    use rand::{SeedableRng, rngs::StdRng};

    use super::*;

    fn route(name: &str, hostnames: &[&str]) -> StreamRoute {
        StreamRoute {
            name: RouteName {
                name: name.into(),
                ..RouteName::default()
            },
            hostnames: hostnames.iter().map(|one| ArcStr::from(*one)).collect(),
            ..StreamRoute::default()
        }
    }

    fn selected_route(table: &StreamTable, opening: DetectedProtocol<'_>) -> String {
        let rule = table.select_rule(opening);
        rule.map_or_else(|| "none".to_owned(), |rule| rule.route.name.to_string())
    }

    #[test]
    fn the_most_specific_name_wins_and_then_the_oldest() {
        let tls = [
            route("wide", &["*.example"]),
            route("narrow", &["*.shop.example", "other"]),
            route("exact", &["till.shop.example"]),
            route("younger", &["till.shop.example", "*.example"]),
        ];
        let table = StreamTable::new(&tls, &[], 443, None);
        for (name, expected) in [
            (Some("till.shop.example"), "exact"),
            (Some("a.till.shop.example"), "narrow"),
            (Some("cart.shop.example"), "narrow"),
            (Some("shop.example"), "wide"),
            (Some("a.b.example"), "wide"),
            (Some("other"), "narrow"),
            (Some("example"), "none"),
            (Some("till.shop.example.evil"), "none"),
            (Some("evil-example"), "none"),
            (Some(""), "none"),
            (None, "none"),
        ] {
            assert_eq!(
                selected_route(&table, DetectedProtocol::Tls(name)),
                expected,
                "{name:?}"
            );
        }
        assert_eq!(selected_route(&table, DetectedProtocol::Other), "none");
    }

    #[test]
    fn unmatched_names_go_to_the_oldest_tcp_route() {
        let tls = [route("tls", &["a.example"])];
        let tcp = [route("first", &[]), route("second", &[])];
        let table = StreamTable::new(&tls, &tcp, 443, None);
        assert!(table.has_tls());
        assert_eq!(
            selected_route(&table, DetectedProtocol::Tls(Some("a.example"))),
            "tls"
        );
        for opening in [
            DetectedProtocol::Tls(Some("b")),
            DetectedProtocol::Tls(None),
            DetectedProtocol::Other,
        ] {
            assert_eq!(selected_route(&table, opening), "first", "{opening:?}");
        }
        let any = [route("any", &[])];
        let table = StreamTable::new(&any, &tcp, 443, None);
        assert_eq!(selected_route(&table, DetectedProtocol::Tls(None)), "any");
        assert_eq!(selected_route(&table, DetectedProtocol::Other), "first");
    }

    #[test]
    fn routes_are_for_ports_and_clients() {
        let of = |name: &str, ports: &[u16], clients: Option<&str>| StreamRoute {
            ports: ports.to_vec(),
            clients: clients.map(ArcStr::from),
            ..route(name, &[])
        };
        let tcp = [
            of("all", &[], None),
            of("bank", &[80], Some("bank")),
            of("late", &[80], None),
        ];
        let on = |port, client| {
            selected_route(
                &StreamTable::new(&[], &tcp, port, client),
                DetectedProtocol::Other,
            )
        };
        assert_eq!(on(80, Some("bank")), "bank");
        assert_eq!(on(81, Some("bank")), "all");
        assert_eq!(on(80, Some("shop")), "all");
        assert_eq!(on(80, None), "all");
        assert!(!StreamTable::new(&[], &tcp[1..], 81, None).has_routes());
    }

    #[test]
    fn backends_share_connections_by_weight() {
        let backend = |name: &str, weight| StreamBackend {
            service: Ok(NamespacedHostname::new("ns", name)),
            port: 1,
            weight,
        };
        let mut tcp = route("r", &[]);
        let mut rng = StdRng::seed_from_u64(1);
        let rule = StreamRule::new(&tcp);
        assert!(rule.pick_backend(&mut rng).is_none());
        tcp.backends = vec![backend("a", 3), backend("never", 0), backend("b", 1)];
        let rule = StreamRule::new(&tcp);
        let mut shares: BTreeMap<String, u32> = BTreeMap::new();
        for _ in 0..4000 {
            let to = rule
                .pick_backend(&mut rng)
                .unwrap()
                .service
                .clone()
                .unwrap();
            *shares.entry(to.hostname.to_string()).or_default() += 1;
        }
        assert_eq!(shares.keys().collect::<Vec<_>>(), ["a", "b"]);
        assert!((2800..3200).contains(&shares["a"]), "{shares:?}");
    }
}
