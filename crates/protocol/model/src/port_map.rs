//! Mapping of service ports to target ports.

use std::{collections::BTreeMap, ops::Index};

/// Target ports by service port, of a service or of one of its endpoints. Keeps the order of the message
/// (`istio.workload.PortList`), so that every encoder produces the same bytes and thus the same version. A service port
/// may occur twice, for TCP and UDP; lookups return the last entry.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortMap(Vec<(u16, u16)>);

impl PortMap {
    /// Returns a map without ports.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Returns the target port of a service port.
    pub fn get(&self, port: &u16) -> Option<&u16> {
        let mut latest_first = self.0.iter().rev();
        latest_first
            .find(|(service, _)| service == port)
            .map(|(_, target)| target)
    }

    /// Iterates over service ports and target ports in the order of the message.
    pub fn iter(&self) -> impl Iterator<Item = (&u16, &u16)> {
        self.0.iter().map(|(service, target)| (service, target))
    }

    /// Returns the target ports by service port, each service port once.
    pub fn sorted(&self) -> BTreeMap<u16, u16> {
        self.0.iter().copied().collect()
    }

    /// Whether the map has no ports.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl Index<&u16> for PortMap {
    type Output = u16;

    #[expect(clippy::expect_used, reason = "what indexing means")]
    fn index(&self, port: &u16) -> &u16 {
        self.get(port).expect("a port of the map")
    }
}

impl FromIterator<(u16, u16)> for PortMap {
    fn from_iter<I: IntoIterator<Item = (u16, u16)>>(ports: I) -> Self {
        Self(ports.into_iter().collect())
    }
}

impl<const N: usize> From<[(u16, u16); N]> for PortMap {
    fn from(ports: [(u16, u16); N]) -> Self {
        Self(ports.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_is_preserved_and_the_last_duplicate_applies() {
        let ports = PortMap::from([(443, 8443), (53, 5353), (53, 53)]);
        assert_eq!(ports.iter().next(), Some((&443, &8443)));
        assert_eq!((ports[&53], ports.get(&80)), (53, None));
    }
}
