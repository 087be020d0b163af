//! Settings of a pod's programs, and their encoding in the programs' maps.

use std::{
    collections::BTreeSet,
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
};

use crate::{CaptureError, NetnsCookie};

/// Number of 32-bit words in `struct settings` of the programs.
pub(crate) const WORDS: usize = 17;
/// Capacity of the programs' map of addresses.
const MAX_ADDRESSES: usize = 256;
/// Capacity of the programs' map of probes.
const MAX_PROBES: usize = 4096;

const CAPTURE_OUTBOUND: u32 = 1;
const CAPTURE_INBOUND: u32 = 2;
const EXEMPT_DNS: u32 = 4;

/// Settings of a pod's programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Network namespace of the pod; `connect` in another one is not captured.
    pub netns: NetnsCookie,
    /// Whether sockets that connect from now on are marked.
    pub outbound: bool,
    /// Whether openings from outside are given to the proxy.
    pub inbound: bool,
    /// Whether sockets that connect to port 53 are not marked, because rules redirect them.
    pub exempt_dns: bool,
    /// Packet marks of the pod's rules.
    pub marks: Marks,
    /// Port of the proxy's tunnels, whose openings are not given to the plaintext listener.
    pub tunnel_port: u16,
    /// Addresses of the pod itself.
    pub addresses: BTreeSet<IpAddr>,
    /// Source address of exempt IPv4 probes.
    pub probe_v4: Ipv4Addr,
    /// Source address of exempt IPv6 probes.
    pub probe_v6: Ipv6Addr,
    /// Interfaces and ports of exempt probes.
    pub probes: BTreeSet<Probe>,
}

/// Packet marks that the programs read and write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marks {
    /// Bits that the marks use; the others are preserved.
    pub mask: u32,
    /// Mark of the proxy's sockets, which are not captured.
    pub proxy: u32,
    /// Mark of captured sockets of the application.
    pub outbound: u32,
    /// Mark of the proxy's connections to the application from the client's address.
    pub spoofed: u32,
}

/// Interface and port of exempt probes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Probe {
    /// Index of the interface that probes arrive on.
    pub interface: u32,
    /// Destination port of probes; `None`: every port.
    pub port: Option<u16>,
}

/// Contents of the programs' maps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Encoded {
    pub(crate) settings: [u32; WORDS],
    pub(crate) addresses: BTreeSet<[u32; 4]>,
    pub(crate) probes: BTreeSet<[u32; 2]>,
}

impl Settings {
    /// Encodes the settings as the programs read them, with the checksum of their object file.
    pub(crate) fn encode(&self, object: u32) -> Result<Encoded, CaptureError> {
        limit("addresses", self.addresses.len(), MAX_ADDRESSES)?;
        limit("probe ports", self.probes.len(), MAX_PROBES)?;
        let flag = |on, flag| if on { flag } else { 0 };
        let [v4, v6] = [self.probe_v4.into(), self.probe_v6.into()].map(words);
        let low = u32::try_from(self.netns.0 & u64::from(u32::MAX)).unwrap_or_default();
        let high = u32::try_from(self.netns.0 >> 32).unwrap_or_default();
        let mut settings = [0; WORDS];
        let values = [
            flag(self.outbound, CAPTURE_OUTBOUND)
                | flag(self.inbound, CAPTURE_INBOUND)
                | flag(self.exempt_dns, EXEMPT_DNS),
            object,
            low,
            high,
            self.marks.mask,
            self.marks.proxy,
            self.marks.outbound,
            self.marks.spoofed,
            u32::from(self.tunnel_port),
        ];
        for (word, value) in settings
            .iter_mut()
            .zip(values.into_iter().chain(v4).chain(v6))
        {
            *word = value;
        }
        let probe = |probe: &Probe| [probe.interface, u32::from(probe.port.unwrap_or(0))];
        Ok(Encoded {
            settings,
            addresses: self.addresses.iter().map(|ip| words(*ip)).collect(),
            probes: self.probes.iter().map(probe).collect(),
        })
    }
}

fn limit(what: &'static str, count: usize, limit: usize) -> Result<(), CaptureError> {
    if count <= limit {
        return Ok(());
    }
    Err(CaptureError::TooMany { what, count, limit })
}

/// Returns an address as the programs compare it: IPv6, or mapped IPv4, in network byte order.
fn words(ip: IpAddr) -> [u32; 4] {
    let ip = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped(),
        IpAddr::V6(ip) => ip,
    };
    let bits = ip.to_bits();
    [96, 64, 32, 0].map(|shift| {
        let word = u32::try_from(bits >> shift & u128::from(u32::MAX)).unwrap_or_default();
        word.to_be()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_in_network_order_and_ipv4_is_mapped() {
        let encoded = words("10.1.2.3".parse().unwrap());
        let bytes: Vec<_> = encoded.iter().flat_map(|word| word.to_ne_bytes()).collect();
        assert_eq!(bytes, [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 255, 255, 10, 1, 2, 3]);
        let encoded = words("fd00::1".parse().unwrap());
        assert_eq!(encoded[0].to_ne_bytes(), [0xfd, 0, 0, 0]);
        assert_eq!(encoded[3].to_ne_bytes(), [0, 0, 0, 1]);
    }

    #[test]
    fn excess_addresses_are_an_error() {
        assert!(limit("addresses", MAX_ADDRESSES, MAX_ADDRESSES).is_ok());
        let error = limit("addresses", 257, MAX_ADDRESSES).unwrap_err();
        assert_eq!(
            error.to_string(),
            "the pod has 257 addresses; capture by BPF has room for 256"
        );
    }
}
