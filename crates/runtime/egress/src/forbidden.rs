//! Addresses that may not be called on behalf of objects in any cluster.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Reason why an address may not be called on behalf of objects.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ForbiddenAddress {
    /// The address is a loopback, unspecified, multicast or broadcast address.
    #[error("{0} is a loopback, unspecified, multicast or broadcast address")]
    LocalOrMulticast(IpAddr),
    /// The address is link-local, as nodes and metadata services have.
    #[error("{0} is an address of the node's own network (link-local)")]
    LinkLocal(IpAddr),
    /// The address is that of a cloud's metadata service.
    #[error("{0} is an address of a cloud's metadata service")]
    Metadata(IpAddr),
    /// The address is one that the mesh assigns to hosts without an address.
    #[error("{0} is an address that the mesh gives to hosts")]
    MeshAssigned(IpAddr),
    /// The address is that of the API server or of a node.
    #[error("{0} is an address of the API server or of a node")]
    Cluster(IpAddr),
}

/// Addresses of clouds' metadata services outside of link-local ranges.
const METADATA_ADDRESSES: [IpAddr; 7] = [
    // Alibaba Cloud.
    v4(100, 100, 100, 200),
    // Azure: the wire server.
    v4(168, 63, 129, 16),
    // Oracle Cloud: the older address, and the IPv6 address.
    v4(192, 0, 0, 192),
    v6([0xfd00, 0xc1, 0, 0, 0, 0, 0xa9fe, 0xa9fe]),
    // Akamai (Linode).
    v6([0xfd00, 0xa9fe, 0xa9fe, 0, 0, 0, 0, 1]),
    // Google Cloud.
    v6([0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254]),
    // Scaleway.
    v6([0xfd00, 0x42, 0, 0, 0, 0, 0, 0x42]),
];

const fn v4(a: u8, b: u8, c: u8, d: u8) -> IpAddr {
    IpAddr::V4(Ipv4Addr::new(a, b, c, d))
}

const fn v6(segments: [u16; 8]) -> IpAddr {
    let [a, b, c, d, e, f, g, h] = segments;
    IpAddr::V6(Ipv6Addr::new(a, b, c, d, e, f, g, h))
}

/// Returns the reason why an address is forbidden in every cluster, if it is.
pub(crate) fn forbidden_reason(ip: IpAddr) -> Option<ForbiddenAddress> {
    embedded_addresses(ip)
        .into_iter()
        .flatten()
        .find_map(|meant| match_special_range(ip, meant))
}

fn match_special_range(ip: IpAddr, meant: IpAddr) -> Option<ForbiddenAddress> {
    let is_own = meant.is_loopback() || meant.is_unspecified() || meant.is_multicast();
    let (is_own, is_link_local, is_assigned) = match meant {
        IpAddr::V4(v4) => (
            // `This network` (RFC 791): Linux treats it as the machine itself.
            is_own || v4.is_broadcast() || v4.octets().first() == Some(&0),
            v4.is_link_local(),
            v4.octets().starts_with(&[240, 240]),
        ),
        IpAddr::V6(v6) => (
            is_own,
            // With the site-local addresses of RFC 3879.
            v6.segments()
                .first()
                .is_some_and(|first| first & 0xff80 == 0xfe80),
            v6.segments().starts_with(&[0x2001, 2, 0]),
        ),
    };
    // Amazon's services for instances: metadata, and the agent of pod identities.
    let is_amazon = matches!(meant, IpAddr::V6(v6) if v6.segments().starts_with(&[0xfd00, 0xec2]));
    if is_amazon || METADATA_ADDRESSES.contains(&meant) {
        Some(ForbiddenAddress::Metadata(ip))
    } else if is_own {
        Some(ForbiddenAddress::LocalOrMulticast(ip))
    } else if is_link_local {
        Some(ForbiddenAddress::LinkLocal(ip))
    } else if is_assigned {
        Some(ForbiddenAddress::MeshAssigned(ip))
    } else {
        None
    }
}

/// Returns an address, and the IPv4 addresses that it embeds: mapped and compatible ones (RFC 4291), translated ones
/// (RFC 2765, RFC 6052, RFC 8215), those of 6to4 (RFC 3056), Teredo (RFC 4380) and ISATAP (RFC 5214).
pub fn embedded_addresses(ip: IpAddr) -> [Option<IpAddr>; 3] {
    let IpAddr::V6(v6) = ip else {
        return [Some(ip), None, None];
    };
    let octets = v6.octets();
    let at = |places: [usize; 4]| {
        let byte = |place: usize| octets.get(place).copied().unwrap_or_default();
        let [a, b, c, d] = places.map(byte);
        Some(IpAddr::V4(Ipv4Addr::new(a, b, c, d)))
    };
    let last = [12, 13, 14, 15];
    let embedded = match v6.segments() {
        // Loopback and unspecified embed no IPv4 address.
        [0, 0, 0, 0, 0, 0, 0, 0 | 1] => None,
        [0, 0, 0, 0, 0, 0 | 0xffff, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => at(last),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] => at(last),
        // The prefix has 48 bits; one byte behind it is reserved.
        [0x64, 0xff9b, 1, ..] => {
            return [Some(ip), at([6, 7, 9, 10]), at(last)];
        }
        [0x2002, ..] => at([2, 3, 4, 5]),
        [0x2001, 0, ..] => {
            let client = octets
                .last_chunk::<4>()
                .map(|bytes| bytes.map(|byte| !byte));
            let client = client.map(|bytes| IpAddr::V4(Ipv4Addr::from(bytes)));
            return [Some(ip), at([4, 5, 6, 7]), client];
        }
        [_, _, _, _, 0 | 0x200, 0x5efe, ..] => at(last),
        _ => None,
    };
    [Some(ip), embedded, None]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forbidden_addresses_are_refused_in_every_spelling() {
        let forbidden = [
            "127.0.0.1",
            "127.255.255.254",
            "0.0.0.0",
            "0.1.2.3",
            "224.0.0.1",
            "239.255.255.255",
            "255.255.255.255",
            "169.254.169.254",
            "169.254.170.2",
            "169.254.170.23",
            "169.254.0.1",
            "100.100.100.200",
            "168.63.129.16",
            "192.0.0.192",
            "240.240.0.7",
            "::",
            "::1",
            "fe80::1",
            "fe80::a9fe:a9fe",
            "febf::1",
            "fec0::1",
            "ff02::1",
            "fd00:ec2::254",
            "fd00:ec2::23",
            "fd00:c1::a9fe:a9fe",
            "fd00:a9fe:a9fe::1",
            "fd20:ce::254",
            "fd00:42::42",
            "2001:2::7",
            // IPv4-mapped, -compatible and -translated.
            "::ffff:127.0.0.1",
            "::ffff:169.254.169.254",
            "::ffff:7f00:1",
            "::127.0.0.1",
            "::169.254.169.254",
            "::ffff:0:169.254.169.254",
            // NAT64, of both prefixes.
            "64:ff9b::169.254.169.254",
            "64:ff9b::7f00:1",
            "64:ff9b:1:a9fe:00a9:fe00::",
            "64:ff9b:1::169.254.169.254",
            // 6to4, Teredo's server and client, ISATAP.
            "2002:7f00:1::",
            "2002:a9fe:a9fe::1",
            "2001:0:a9fe:a9fe::1",
            "2001:0:4136:e378:8000:63bf:5601:5601",
            "2001:db8::5efe:169.254.169.254",
            "2001:db8::200:5efe:127.0.0.1",
        ];
        for text in forbidden {
            let ip = text.parse().unwrap();
            assert!(forbidden_reason(ip).is_some(), "{text}");
        }
    }

    #[test]
    fn other_addresses_may_be_called() {
        let allowed = [
            "1.1.1.1",
            "10.0.0.1",
            "100.100.100.201",
            "169.253.255.255",
            "172.16.0.1",
            "192.0.2.1",
            "192.168.1.1",
            "2001:db8::1",
            "2606:4700::1111",
            "fd00::1",
            "64:ff9b::1.1.1.1",
            "2002:101:101::1",
            "::ffff:10.0.0.1",
            "2001:db8::5efe:10.0.0.1",
        ];
        for text in allowed {
            assert_eq!(forbidden_reason(text.parse().unwrap()), None, "{text}");
        }
    }
}
