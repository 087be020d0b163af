//! Filters of flow events as query parameters: `refused`, `plaintext`, `from`, `to`, `namespace`, `confined`.

use std::{fmt, str::FromStr};

use crate::{Flow, Peer, ServiceName, Transport};

/// Maximum number of namespaces in one filter.
const MAX_NAMESPACES: usize = 1024;

/// Filter that selects flow events for a reader. The default selects all events.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// Whether only refusals and failures are selected.
    pub only_refused: bool,
    /// Whether only plaintext traffic is selected.
    pub only_plaintext: bool,
    /// Filter on the client; `None` selects every client.
    pub client: Option<PeerFilter>,
    /// Filter on the server or service; `None` selects every server.
    pub server: Option<PeerFilter>,
    /// Namespaces, of which the client, server or service must be in one; every namespace is selected if empty.
    pub namespaces: Vec<String>,
    /// Whether the reader may read only `namespaces`, see [`Flow::reduced_to_namespaces`]. If `namespaces` is empty,
    /// the reader sees no events.
    pub confined: bool,
}

/// Client, server or service that a filter matches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PeerFilter {
    /// All clients, servers and services in a namespace: `shop/`.
    Namespace(String),
    /// Workload, owner of workloads (a Deployment), or service with a name: `shop/orders`, or `orders` in any
    /// namespace.
    Name(Option<String>, String),
    /// Workloads with a SPIFFE ID: `spiffe://…`.
    Identity(String),
    /// Client or server with an IP address.
    Address(std::net::IpAddr),
}

/// Error of a query parameter that is not a valid filter.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// The parameter's name is unknown.
    UnknownParameter(String),
    /// The value of `from` or `to` names no workload or service.
    EmptyValue(String),
    /// The filter has more than `MAX_NAMESPACES` namespaces.
    TooManyNamespaces,
}

impl fmt::Display for FilterError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::UnknownParameter(name) => write!(
                f,
                "unknown parameter {name:?}: use refused, plaintext, from, to, namespace or confined"
            ),
            Self::EmptyValue(text) => write!(
                f,
                "{text:?} names no workload: use NAMESPACE/NAME, NAMESPACE/, NAME, an address or a SPIFFE id"
            ),
            Self::TooManyNamespaces => write!(f, "more than {MAX_NAMESPACES} namespaces"),
        }
    }
}

impl std::error::Error for FilterError {}

impl FromStr for PeerFilter {
    type Err = FilterError;

    fn from_str(text: &str) -> Result<Self, FilterError> {
        if text.starts_with("spiffe://") {
            return Ok(Self::Identity(text.to_owned()));
        }
        if let Ok(address) = text.parse() {
            return Ok(Self::Address(address));
        }
        match text.split_once('/') {
            Some(("", _)) => Err(FilterError::EmptyValue(text.to_owned())),
            Some((namespace, "")) => Ok(Self::Namespace(namespace.to_owned())),
            Some((namespace, name)) => Ok(Self::Name(Some(namespace.to_owned()), name.to_owned())),
            None if text.is_empty() => Err(FilterError::EmptyValue(text.to_owned())),
            None => Ok(Self::Name(None, text.to_owned())),
        }
    }
}

impl fmt::Display for PeerFilter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Namespace(namespace) => write!(f, "{namespace}/"),
            Self::Name(Some(namespace), name) => write!(f, "{namespace}/{name}"),
            Self::Name(None, name) => f.write_str(name),
            Self::Identity(identity) => f.write_str(identity),
            Self::Address(address) => address.fmt(f),
        }
    }
}

impl PeerFilter {
    fn matches(&self, peer: &Peer, service: Option<&ServiceName>) -> bool {
        match self {
            Self::Namespace(value) => {
                peer.namespace.as_ref() == Some(value)
                    || service.is_some_and(|service| service.namespace == *value)
            }
            Self::Name(namespace, name) => {
                let is_within =
                    |of: Option<&String>| namespace.is_none() || namespace.as_ref() == of;
                let is_workload = [&peer.workload, &peer.owner]
                    .into_iter()
                    .flatten()
                    .any(|one| one == name);
                is_workload && is_within(peer.namespace.as_ref())
                    || service.is_some_and(|service| {
                        (service.name == *name || service.hostname == *name)
                            && is_within(Some(&service.namespace))
                    })
            }
            Self::Identity(value) => peer.identity.as_ref() == Some(value),
            Self::Address(value) => {
                let address = peer.address.as_deref();
                address
                    .and_then(|address| address.parse::<std::net::SocketAddr>().ok())
                    .is_some_and(|address| address.ip() == *value)
            }
        }
    }
}

impl Filter {
    /// Parses percent-decoded query parameters.
    ///
    /// # Errors
    ///
    /// When a parameter is unknown, or its value names no workload.
    pub fn from_parameters<'a>(
        parameters: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> Result<Self, FilterError> {
        let mut filter = Self::default();
        for (name, value) in parameters {
            match name {
                "refused" => filter.only_refused = value != "false",
                "plaintext" => filter.only_plaintext = value != "false",
                "from" => filter.client = Some(value.parse()?),
                "to" => filter.server = Some(value.parse()?),
                "confined" => filter.confined = value != "false",
                "namespace" if filter.namespaces.len() == MAX_NAMESPACES => {
                    return Err(FilterError::TooManyNamespaces);
                }
                "namespace" => filter.namespaces.push(value.to_owned()),
                _ => return Err(FilterError::UnknownParameter(name.to_owned())),
            }
        }
        Ok(filter)
    }

    /// Returns the filter as query parameters, not percent-encoded.
    pub fn parameters(&self) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if self.only_refused {
            all.push(("refused", "true".to_owned()));
        }
        if self.only_plaintext {
            all.push(("plaintext", "true".to_owned()));
        }
        all.extend(self.client.iter().map(|party| ("from", party.to_string())));
        all.extend(self.server.iter().map(|party| ("to", party.to_string())));
        all.extend(self.namespaces.iter().map(|one| ("namespace", one.clone())));
        if self.confined {
            all.push(("confined", "true".to_owned()));
        }
        all
    }

    /// Whether an event matches the filter.
    pub fn matches(&self, flow: &Flow) -> bool {
        match self.confined {
            false => self.matches_criteria(flow),
            // Filters the event as the reader sees it: otherwise a filter could reveal what is left
            // out.
            true => {
                flow.concerns_namespaces(&self.namespaces)
                    && self.matches_criteria(&flow.reduced_to_namespaces(&self.namespaces))
            }
        }
    }

    fn matches_criteria(&self, flow: &Flow) -> bool {
        let is_named = |namespace: Option<&String>| {
            namespace.is_some_and(|namespace| self.namespaces.contains(namespace))
        };
        let is_within = self.namespaces.is_empty()
            || is_named(flow.source.namespace.as_ref())
            || is_named(flow.destination.namespace.as_ref())
            || is_named(flow.service.as_ref().map(|service| &service.namespace));
        is_within
            && (!self.only_refused || flow.event.is_refusal())
            && (!self.only_plaintext || flow.transport == Transport::Plaintext)
            && self
                .client
                .as_ref()
                .is_none_or(|party| party.matches(&flow.source, None))
            && self
                .server
                .as_ref()
                .is_none_or(|party| party.matches(&flow.destination, flow.service.as_ref()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{FlowEventKind, Reporter, ReporterKind};

    fn flow() -> Flow {
        let reporter = Reporter {
            kind: ReporterKind::Source,
            pod: String::new(),
            namespace: String::new(),
            node: String::new(),
        };
        Flow {
            source: Peer {
                workload: Some("web-5f-x".to_owned()),
                owner: Some("web".to_owned()),
                namespace: Some("shop".to_owned()),
                identity: Some("spiffe://td/ns/shop/sa/web".to_owned()),
                address: Some("10.0.0.1:4000".to_owned()),
            },
            destination: Peer {
                namespace: Some("data".to_owned()),
                address: Some("[fd00::2]:80".to_owned()),
                ..Peer::default()
            },
            service: Some(ServiceName {
                name: "db".to_owned(),
                namespace: "store".to_owned(),
                hostname: "db.store.svc.cluster.local".to_owned(),
            }),
            transport: Transport::Hbone,
            ..Flow::new(FlowEventKind::Opened, reporter)
        }
    }

    #[test]
    fn parties_are_matched_by_names_that_users_know() {
        for (name, value, expected) in [
            ("from", "web", true),
            ("from", "shop/web", true),
            ("from", "shop/web-5f-x", true),
            ("from", "data/web", false),
            ("from", "shop/", true),
            ("from", "data/", false),
            ("from", "spiffe://td/ns/shop/sa/web", true),
            ("from", "spiffe://td/ns/shop/sa/we", false),
            ("from", "10.0.0.1", true),
            ("from", "10.0.0.11", false),
            // A service is a server.
            ("from", "db", false),
            ("to", "db", true),
            ("to", "store/db", true),
            ("to", "data/db", false),
            ("to", "db.store.svc.cluster.local", true),
            ("to", "store/", true),
            ("to", "data/", true),
            ("to", "fd00::2", true),
            ("to", "web", false),
            ("namespace", "shop", true),
            ("namespace", "store", true),
            ("namespace", "data", true),
            ("namespace", "sho", false),
            ("refused", "true", false),
            ("refused", "false", true),
            ("plaintext", "", false),
        ] {
            let filter = Filter::from_parameters([(name, value)]).unwrap();
            assert_eq!(filter.matches(&flow()), expected, "{name}={value}");
        }
    }

    #[test]
    fn filter_survives_its_parameters() {
        let filter = Filter {
            only_refused: true,
            only_plaintext: true,
            client: Some("shop/".parse().unwrap()),
            server: Some("10.0.0.1".parse().unwrap()),
            namespaces: vec!["a".to_owned(), "b".to_owned()],
            confined: true,
        };
        let parameters = filter.parameters();
        let parameters = parameters
            .iter()
            .map(|(name, value)| (*name, value.as_str()));
        assert_eq!(Filter::from_parameters(parameters), Ok(filter));
    }

    #[test]
    fn invalid_filters_are_refused_by_name() {
        for (name, value) in [("from", ""), ("to", "/web"), ("form", "web")] {
            let error = Filter::from_parameters([(name, value)]).unwrap_err();
            assert!(error.to_string().contains('"'), "{error}");
        }
        let many = vec![("namespace", "a"); MAX_NAMESPACES + 1];
        assert_eq!(
            Filter::from_parameters(many),
            Err(FilterError::TooManyNamespaces)
        );
    }
}
