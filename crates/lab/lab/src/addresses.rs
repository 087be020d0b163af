//! Addresses of nodes, pods and services of a lab. They are the same in every lab, since each lab has networks of its
//! own. The module performs no I/O.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

use crate::IpFamily;

/// Derives the addresses of a lab's nodes, pods and services in the selected address families, IPv4 first.
#[derive(Clone, Copy, Debug)]
pub(crate) struct AddressPlan {
    pub(crate) family: IpFamily,
}

impl AddressPlan {
    /// Returns addresses on the fabric, the network between the nodes: host 1 is the lab itself, host 2 the control
    /// plane (part 0), and nodes are in part 1.
    fn fabric(self, host: u8, part: u8) -> Vec<IpNet> {
        self.select_families(
            (Ipv4Addr::new(172, 18, part, host), 16),
            (
                Ipv6Addr::new(0xfd00, 0x172, 0x18, 0, 0, 0, part.into(), host.into()),
                64,
            ),
        )
    }

    /// Returns the addresses of the lab's own namespace on the fabric.
    pub(crate) fn lab_addresses(self) -> Vec<IpNet> {
        self.fabric(1, 0)
    }

    /// Returns the addresses of the control plane on the fabric.
    pub(crate) fn control_plane_addresses(self) -> Vec<IpNet> {
        self.fabric(2, 0)
    }

    /// Returns the addresses of a node on the fabric; nodes count from 1.
    pub(crate) fn node_addresses(self, number: u8) -> Vec<IpNet> {
        self.fabric(number, 1)
    }

    /// Returns the networks of a node's pods.
    pub(crate) fn pod_networks(self, number: u8) -> Vec<IpNet> {
        self.select_families(
            (Ipv4Addr::new(10, 244, number, 0), 24),
            (
                Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 0),
                64,
            ),
        )
    }

    /// Returns the node's addresses in its pod networks, which are the pods' gateways, with the networks' prefix
    /// length.
    pub(crate) fn pod_gateways(self, number: u8) -> Vec<IpNet> {
        self.select_families(
            (Ipv4Addr::new(10, 244, number, 1), 24),
            (
                Ipv6Addr::new(0xfd00, 0x10, 0x244, number.into(), 0, 0, 0, 1),
                64,
            ),
        )
    }

    /// Returns the virtual addresses of the service with this index.
    pub(crate) fn service_addresses(self, index: u16) -> Vec<IpAddr> {
        let [high, low] = index.to_be_bytes();
        let nets = self.select_families(
            (Ipv4Addr::new(10, 96, high, low), 32),
            (Ipv6Addr::new(0xfd00, 0x10, 0x96, 0, 0, 0, 0, index), 128),
        );
        nets.iter().map(IpNet::addr).collect()
    }

    fn select_families(self, v4: (Ipv4Addr, u8), v6: (Ipv6Addr, u8)) -> Vec<IpNet> {
        let v4 = Ipv4Net::new(v4.0, v4.1)
            .ok()
            .filter(|_| self.family.has_ipv4())
            .map(IpNet::V4);
        let v6 = Ipv6Net::new(v6.0, v6.1)
            .ok()
            .filter(|_| self.family.has_ipv6())
            .map(IpNet::V6);
        v4.into_iter().chain(v6).collect()
    }
}

/// Returns the default route in the family of `address`.
pub(crate) fn default_route(address: IpAddr) -> IpNet {
    match address {
        IpAddr::V4(_) => IpNet::V4(Ipv4Net::default()),
        IpAddr::V6(_) => IpNet::V6(Ipv6Net::default()),
    }
}

/// Returns the network that has only `address`, with the longest prefix.
pub(crate) fn host_route(address: IpAddr) -> IpNet {
    IpNet::from(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_family_gets_its_own_setting() {
        let texts = |family| {
            let plan = AddressPlan { family };
            (plan.node_addresses(2), plan.pod_networks(2))
                .0
                .iter()
                .map(ToString::to_string)
                .collect::<Vec<_>>()
        };
        assert_eq!(texts(IpFamily::Ipv4), ["172.18.1.2/16"]);
        assert_eq!(texts(IpFamily::Ipv6), ["fd00:172:18::1:2/64"]);
        assert_eq!(
            texts(IpFamily::Dual),
            ["172.18.1.2/16", "fd00:172:18::1:2/64"]
        );
        let plan = AddressPlan {
            family: IpFamily::Dual,
        };
        assert_eq!(plan.service_addresses(300)[0].to_string(), "10.96.1.44");
        assert_eq!(plan.pod_networks(2)[1].to_string(), "fd00:10:244:2::/64");
    }
}
