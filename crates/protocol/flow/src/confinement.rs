//! Restricts flow events for users who may read only some namespaces.
//!
//! Such a reader sees the events of proxies that act for workloads in these namespaces. Of the peers of these
//! workloads, the reader sees only the attributes that the traffic itself reveals to them.

use crate::{Flow, Peer, ReporterKind};

impl Flow {
    /// Whether the reporting proxy acts for a workload in one of `namespaces`, or for an external service of one. The
    /// client's node proxy acts for the client; the server's node proxy and a waypoint act for the server.
    pub fn concerns_namespaces(&self, namespaces: &[String]) -> bool {
        let is_readable = |namespace: &String| namespaces.contains(namespace);
        let destination = self.destination.namespace.as_ref();
        match self.reporter.kind {
            ReporterKind::Source => self.source.namespace.as_ref().is_some_and(is_readable),
            ReporterKind::Destination => destination.is_some_and(is_readable),
            // The namespace of the server decides before the service's: an object of one namespace may name addresses
            // of another.
            ReporterKind::Waypoint => {
                let service = self.service.as_ref().map(|service| &service.namespace);
                destination.or(service).is_some_and(is_readable)
            }
        }
    }

    /// Returns the event as readers of `namespaces` may see it, for events that [concern
    /// them](Self::concerns_namespaces). Of peers in other namespaces only attributes that the traffic reveals remain:
    /// a client's namespace, identity and address; a server's namespace, and its address if the client called it
    /// directly.
    #[must_use]
    pub fn reduced_to_namespaces(&self, namespaces: &[String]) -> Self {
        let is_foreign = |peer: &Peer| {
            let namespace = peer.namespace.as_ref();
            namespace.is_some_and(|namespace| !namespaces.contains(namespace))
        };
        let mut flow = self.clone();
        if is_foreign(&self.source) {
            flow.source.workload = None;
            flow.source.owner = None;
        }
        if is_foreign(&self.destination) {
            flow.destination = Peer {
                namespace: self.destination.namespace.clone(),
                address: match self.service {
                    Some(_) => None,
                    None => self.destination.address.clone(),
                },
                ..Peer::default()
            };
        }
        flow
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Filter, FlowEventKind, Reporter, ServiceName};

    fn peer(namespace: Option<&str>, name: &str) -> Peer {
        Peer {
            workload: Some(format!("{name}-1")),
            owner: Some(name.to_owned()),
            namespace: namespace.map(ToOwned::to_owned),
            identity: Some(format!("spiffe://td/ns/x/sa/{name}")),
            address: Some("10.0.0.1:80".to_owned()),
        }
    }

    fn flow(
        kind: ReporterKind,
        source: Option<&str>,
        destination: Option<&str>,
        service: Option<&str>,
    ) -> Flow {
        let reporter = Reporter {
            kind,
            pod: "proxy-1".to_owned(),
            namespace: "theirs".to_owned(),
            node: "node-1".to_owned(),
        };
        Flow {
            source: peer(source, "client"),
            destination: peer(destination, "server"),
            service: service.map(|namespace| ServiceName {
                name: "server".to_owned(),
                namespace: namespace.to_owned(),
                hostname: format!("server.{namespace}.svc.cluster.local"),
            }),
            ..Flow::new(FlowEventKind::Opened, reporter)
        }
    }

    fn own_namespaces() -> Vec<String> {
        vec!["mine".to_owned()]
    }

    #[test]
    fn every_reporter_and_party_decides_for_its_own_side() {
        let namespaces = [None, Some("mine"), Some("theirs")];
        let kinds = [
            ReporterKind::Source,
            ReporterKind::Destination,
            ReporterKind::Waypoint,
        ];
        for kind in kinds {
            for source in namespaces {
                for destination in namespaces {
                    for service in namespaces {
                        let expected = match kind {
                            ReporterKind::Source => source == Some("mine"),
                            ReporterKind::Destination => destination == Some("mine"),
                            ReporterKind::Waypoint => match destination {
                                Some(namespace) => namespace == "mine",
                                None => service == Some("mine"),
                            },
                        };
                        let flow = flow(kind, source, destination, service);
                        let filter = Filter {
                            namespaces: own_namespaces(),
                            confined: true,
                            ..Filter::default()
                        };
                        assert_eq!(filter.matches(&flow), expected, "{flow:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn confined_reader_without_namespaces_reads_nothing() {
        let filter = Filter {
            confined: true,
            ..Filter::default()
        };
        let flow = flow(ReporterKind::Source, Some("mine"), None, None);
        assert!(!filter.matches(&flow));
        assert!(Filter::default().matches(&flow));
    }

    #[test]
    fn names_of_foreign_workloads_are_left_out() {
        let called = flow(
            ReporterKind::Destination,
            Some("theirs"),
            Some("mine"),
            Some("mine"),
        );
        let confined = called.reduced_to_namespaces(&own_namespaces());
        assert_eq!(confined.source.name(), None);
        assert_eq!(confined.source.namespace.as_deref(), Some("theirs"));
        assert_eq!(confined.source.identity, called.source.identity);
        assert_eq!(confined.source.address, called.source.address);
        assert_eq!(confined.destination, called.destination);

        let calls = flow(
            ReporterKind::Source,
            Some("mine"),
            Some("theirs"),
            Some("theirs"),
        );
        let confined = calls.reduced_to_namespaces(&own_namespaces());
        assert_eq!(confined.source, calls.source);
        let namespace = Peer {
            namespace: Some("theirs".to_owned()),
            ..Peer::default()
        };
        assert_eq!(confined.destination, namespace);
        assert_eq!(confined.service, calls.service);
    }

    #[test]
    fn filters_do_not_match_omitted_attributes() {
        let called = flow(
            ReporterKind::Destination,
            Some("theirs"),
            Some("mine"),
            Some("mine"),
        );
        for (from, is_found) in [("theirs/client", false), ("theirs/", true)] {
            let mut filter = Filter {
                namespaces: own_namespaces(),
                client: Some(from.parse().unwrap()),
                ..Filter::default()
            };
            assert!(filter.matches(&called), "{from}");
            filter.confined = true;
            assert_eq!(filter.matches(&called), is_found, "{from}");
        }
    }

    #[test]
    fn address_that_the_client_called_itself_stays() {
        let calls = flow(ReporterKind::Source, Some("mine"), Some("theirs"), None);
        let confined = calls.reduced_to_namespaces(&own_namespaces());
        assert_eq!(confined.destination.address, calls.destination.address);
        assert_eq!(confined.destination.identity, None);
        assert_eq!(confined.destination.name(), None);
    }

    #[test]
    fn own_and_outside_traffic_is_shown_in_full() {
        for destination in [Some("mine"), None] {
            let flow = flow(ReporterKind::Source, Some("mine"), destination, None);
            assert_eq!(flow.reduced_to_namespaces(&own_namespaces()), flow);
        }
    }
}
