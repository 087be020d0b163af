//! Guard against calls to forbidden addresses, with the cluster's own addresses and the administrator's exceptions.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc};

use ipnet::IpNet;
use parking_lot::RwLock;

use crate::forbidden::{ForbiddenAddress, embedded_addresses, forbidden_reason};

/// Decides which addresses may be called on behalf of objects. Clones share its settings.
#[derive(Clone, Debug, Default)]
pub struct Guard(Arc<RwLock<GuardedRanges>>);

#[derive(Debug, Default)]
struct GuardedRanges {
    /// Exceptions that the administrator sets for this process.
    process_exceptions: Vec<IpNet>,
    mesh_exceptions: Vec<IpNet>,
    /// Addresses of the API server and of the nodes.
    cluster: BTreeSet<IpAddr>,
}

impl GuardedRanges {
    fn allows(&self, ip: IpAddr) -> bool {
        let canonical = ip.to_canonical();
        let mut nets = self.process_exceptions.iter().chain(&self.mesh_exceptions);
        nets.any(|net| net.contains(&canonical))
    }
}

/// Error of a text that is not a list of IP addresses and prefixes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is neither an IP address nor a prefix")]
pub struct ParseNetsError(pub String);

/// Parses IP addresses and prefixes, separated by commas.
///
/// # Errors
///
/// Returns the first part that is neither.
pub fn parse_nets(text: &str) -> Result<Vec<IpNet>, ParseNetsError> {
    let parts = text.split(',').map(str::trim);
    let net = |part: &str| {
        let ip = part.parse::<IpAddr>().map(IpNet::from);
        ip.or_else(|_| part.parse())
            .map_err(|_| ParseNetsError(part.to_owned()))
    };
    parts.filter(|part| !part.is_empty()).map(net).collect()
}

impl Guard {
    /// Creates a guard with the administrator's exceptions.
    pub fn new(allowed: Vec<IpNet>) -> Self {
        let guard = Self::default();
        guard.set_exceptions(allowed);
        guard
    }

    /// Replaces the administrator's exceptions for this process.
    pub fn set_exceptions(&self, allowed: Vec<IpNet>) {
        self.0.write().process_exceptions = allowed;
    }

    /// Replaces the administrator's exceptions for the mesh, and the addresses of the API server
    /// and of the nodes.
    pub fn update(&self, allowed: Vec<IpNet>, cluster: BTreeSet<IpAddr>) {
        let mut known = self.0.write();
        known.mesh_exceptions = allowed;
        known.cluster = cluster;
    }

    /// Returns whether the administrator's exceptions contain an address.
    pub fn is_allowed(&self, ip: IpAddr) -> bool {
        self.0.read().allows(ip)
    }

    /// Checks that an address may be called.
    ///
    /// # Errors
    ///
    /// Returns the reason why it may not.
    pub fn check(&self, ip: IpAddr) -> Result<(), ForbiddenAddress> {
        let known = self.0.read();
        if known.allows(ip) {
            return Ok(());
        }
        if let Some(forbidden) = forbidden_reason(ip) {
            return Err(forbidden);
        }
        let mut meant = embedded_addresses(ip).into_iter().flatten();
        if meant.any(|one| known.cluster.contains(&one)) {
            return Err(ForbiddenAddress::Cluster(ip));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(guard: &Guard, ip: &str) -> Result<(), ForbiddenAddress> {
        guard.check(ip.parse().unwrap())
    }

    #[test]
    fn nodes_and_the_api_server_are_forbidden_once_they_are_known() {
        let guard = Guard::default();
        assert_eq!(check(&guard, "10.0.0.7"), Ok(()));
        let nodes = ["10.0.0.7", "2001:db8::7"].map(|ip| ip.parse().unwrap());
        guard.update(Vec::new(), nodes.into());
        for node in [
            "10.0.0.7",
            "::ffff:10.0.0.7",
            "64:ff9b::10.0.0.7",
            "2001:db8::7",
        ] {
            let ip = node.parse().unwrap();
            assert_eq!(
                guard.check(ip),
                Err(ForbiddenAddress::Cluster(ip)),
                "{node}"
            );
        }
        assert_eq!(check(&guard, "10.0.0.8"), Ok(()));
        guard.update(vec!["127.0.0.9/32".parse().unwrap()], BTreeSet::new());
        assert_eq!(check(&guard, "127.0.0.9"), Ok(()));
        assert_eq!(check(&guard, "10.0.0.7"), Ok(()));
    }

    #[test]
    fn the_administrators_exceptions_pass() {
        let guard = Guard::new(parse_nets("127.0.0.2, 169.254.20.0/24,,fd00:ec2::254").unwrap());
        guard.update(Vec::new(), ["10.0.0.7".parse().unwrap()].into());
        for (ip, may) in [
            ("127.0.0.2", true),
            ("::ffff:127.0.0.2", true),
            ("127.0.0.3", false),
            ("169.254.20.10", true),
            ("169.254.169.254", false),
            ("fd00:ec2::254", true),
            // An exception applies to the address in the form in which it is called.
            ("64:ff9b::127.0.0.2", false),
            ("10.0.0.7", false),
        ] {
            assert_eq!(check(&guard, ip).is_ok(), may, "{ip}");
        }
        assert_eq!(parse_nets(""), Ok(Vec::new()));
        assert_eq!(
            parse_nets("10.0.0.1,x"),
            Err(ParseNetsError("x".to_owned()))
        );
    }
}
