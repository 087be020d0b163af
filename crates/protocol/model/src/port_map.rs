//! Service port to target port.

use std::{collections::BTreeMap, ops::Index};

/// Service port to target port of a service or of one of its endpoints, in the order in which they are
/// sent (`istio.workload.PortList`): any encoder gives a record the same bytes, and so the same version.
/// A number may occur twice, for TCP and UDP; the last one counts, as in a map.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct PortMap(Vec<(u16, u16)>);

impl PortMap {
    /// A map without ports.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// The target port of a service port.
    pub fn get(&self, port: &u16) -> Option<&u16> {
        let mut latest_first = self.0.iter().rev();
        latest_first
            .find(|(service, _)| service == port)
            .map(|(_, target)| target)
    }

    /// Service ports and target ports as they are sent.
    pub fn iter(&self) -> impl Iterator<Item = (&u16, &u16)> {
        self.0.iter().map(|(service, target)| (service, target))
    }

    /// Every service port once, by number.
    pub fn sorted(&self) -> BTreeMap<u16, u16> {
        self.0.iter().copied().collect()
    }

    /// Whether there are none.
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
    fn order_stays_and_the_last_of_a_number_counts() {
        let ports = PortMap::from([(443, 8443), (53, 5353), (53, 53)]);
        assert_eq!(ports.iter().next(), Some((&443, &8443)));
        assert_eq!((ports[&53], ports.get(&80)), (53, None));
    }
}
