//! Attributes of connections that layer 4 and layer 7 policies compare.

use std::net::{IpAddr, SocketAddr};

use ambit_model::{
    Identity, ServiceAccountMatch, StringMatch, canonical_ip, canonical_socket_address,
};
use ipnet::IpNet;

/// Source and destination of a connection, in the form that policies compare. Without a source identity, matches on
/// principal, namespace, service account and trust domain fail.
#[derive(Clone, Copy, Debug)]
pub struct Attributes<'a> {
    source: Option<&'a Identity>,
    source_ip: IpAddr,
    destination: SocketAddr,
}

impl<'a> Attributes<'a> {
    /// Creates the attributes of a connection from a source with its verified identity, if it has one. IPv4-mapped
    /// addresses become IPv4 addresses.
    pub fn new(source: Option<&'a Identity>, source_ip: IpAddr, destination: SocketAddr) -> Self {
        Self {
            source,
            source_ip: canonical_ip(source_ip),
            destination: canonical_socket_address(destination),
        }
    }

    /// Replaces the destination address.
    pub fn set_destination(&mut self, destination: SocketAddr) {
        self.destination = canonical_socket_address(destination);
    }

    /// Whether the source's principal, `td/ns/NAMESPACE/sa/ACCOUNT`, matches.
    pub fn has_principal(&self, pattern: &StringMatch) -> bool {
        self.source.is_some_and(|id| {
            let (trust_domain, account) = (&id.trust_domain, &id.service_account);
            pattern.matches_concatenated([trust_domain, "/ns/", &id.namespace, "/sa/", account])
        })
    }

    /// Whether the namespace in the source's identity matches the pattern.
    pub fn has_namespace(&self, pattern: &StringMatch) -> bool {
        self.source.is_some_and(|id| pattern.matches(&id.namespace))
    }

    /// Whether the source's identity has this service account, in any trust domain.
    pub fn has_account(&self, account: &ServiceAccountMatch) -> bool {
        self.source.is_some_and(|id| {
            account.namespace == id.namespace && account.service_account == id.service_account
        })
    }

    /// Whether the service account of the source's identity, as `NAMESPACE/ACCOUNT`, matches the pattern.
    pub fn has_account_text(&self, pattern: &StringMatch) -> bool {
        self.source.is_some_and(|id| {
            pattern.matches_concatenated([&id.namespace, "/", &id.service_account])
        })
    }

    /// Whether the trust domain of the source's identity matches the pattern.
    pub fn has_trust_domain(&self, pattern: &StringMatch) -> bool {
        self.source
            .is_some_and(|id| pattern.matches(&id.trust_domain))
    }

    /// Whether the source address is in this CIDR range.
    pub fn matches_source_range(&self, range: &IpNet) -> bool {
        range.contains(&self.source_ip)
    }

    /// Whether the destination address is in this CIDR range.
    pub fn matches_destination_range(&self, range: &IpNet) -> bool {
        range.contains(&self.destination.ip())
    }

    /// Whether the destination port is `port`.
    pub fn matches_destination_port(&self, port: u16) -> bool {
        self.destination.port() == port
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mapped_addresses_are_compared_as_ipv4() {
        let mapped = "::ffff:10.0.0.1".parse().unwrap();
        let mut attributes = Attributes::new(None, mapped, (mapped, 80).into());
        let range = "10.0.0.0/24".parse().unwrap();
        assert!(
            attributes.matches_source_range(&range) && attributes.matches_destination_range(&range)
        );
        attributes.set_destination("[::ffff:10.1.0.1]:81".parse().unwrap());
        assert!(
            !attributes.matches_destination_range(&range)
                && attributes.matches_destination_range(&"10.1.0.1/32".parse().unwrap())
        );
        assert!(
            attributes.matches_destination_port(81) && !attributes.matches_destination_port(80)
        );
    }

    #[test]
    fn identity_patterns_never_match_without_identity() {
        let ip = IpAddr::from([10, 0, 0, 1]);
        let attributes = Attributes::new(None, ip, (ip, 80).into());
        for pattern in [StringMatch::Presence, StringMatch::Exact("".into())] {
            assert!(!attributes.has_principal(&pattern));
            assert!(!attributes.has_namespace(&pattern));
            assert!(!attributes.has_account_text(&pattern));
            assert!(!attributes.has_trust_domain(&pattern));
        }
        let account = ServiceAccountMatch {
            namespace: "".into(),
            service_account: "".into(),
        };
        assert!(!attributes.has_account(&account));
    }
}
