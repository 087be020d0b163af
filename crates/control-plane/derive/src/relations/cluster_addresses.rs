//! Addresses of the API server and of nodes, which neither waypoints nor the control plane call on behalf of objects.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
};

/// Whether a Service is the API server's, `default/kubernetes`.
pub(crate) fn is_api_server(namespace: &str, service: &str) -> bool {
    (namespace, service) == ("default", "kubernetes")
}

/// Addresses of the API server and of nodes, each with the number of objects that have it: pods have their node's
/// addresses, and the Service `default/kubernetes` the API server's.
#[derive(Debug, Default)]
pub(crate) struct ClusterAddresses(BTreeMap<IpAddr, usize>);

impl ClusterAddresses {
    /// Replaces the addresses of one object. Returns whether the set of all addresses changed.
    pub(crate) fn replace(&mut self, old: &BTreeSet<IpAddr>, new: &BTreeSet<IpAddr>) -> bool {
        let mut differs = false;
        for ip in new.difference(old) {
            let count = self.0.entry(*ip).or_default();
            differs |= *count == 0;
            *count += 1;
        }
        for ip in old.difference(new) {
            if let Some(count) = self.0.get_mut(ip) {
                *count -= 1;
                if *count == 0 {
                    self.0.remove(ip);
                    differs = true;
                }
            }
        }
        differs
    }

    /// Returns the addresses of the API server and of all nodes.
    pub(crate) fn all(&self) -> BTreeSet<IpAddr> {
        self.0.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_known_as_long_as_an_object_names_it() {
        let of = |ips: &[&str]| ips.iter().map(|ip| ip.parse().unwrap()).collect();
        let (none, one, other) = (of(&[]), of(&["10.0.0.1"]), of(&["10.0.0.1", "10.0.0.2"]));
        let mut all = ClusterAddresses::default();
        assert!(all.replace(&none, &one));
        assert!(!all.replace(&none, &one));
        assert!(all.replace(&one, &other));
        assert_eq!(all.all(), other);
        assert!(all.replace(&other, &none));
        assert_eq!(all.all(), one);
        assert!(all.replace(&one, &none));
        assert_eq!(all.all(), none);
    }
}
