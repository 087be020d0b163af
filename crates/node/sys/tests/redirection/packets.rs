//! Sends TCP packets that no kernel would send, from a raw socket in a namespace.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use ambit_sys::netns::Netns;
use socket2::{Domain, Protocol, Socket, Type};

pub(crate) const FIN: u8 = 0x01;
pub(crate) const SYN: u8 = 0x02;
pub(crate) const RST: u8 = 0x04;
pub(crate) const ACK: u8 = 0x10;

/// Protocol number of raw sockets whose sender provides the IP header, `IPPROTO_RAW`.
const IPPROTO_RAW: i32 = 255;
const IPPROTO_TCP: u8 = 6;
const IPPROTO_FRAGMENT: u8 = 44;

/// Form in which a TCP segment is sent: whole, fragmented or wrapped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wrapping {
    /// The segment is one packet without fragments or extension headers.
    Plain,
    /// The segment is in two fragments; the first ends before the flags.
    TinyFragments,
    /// The segment is in overlapping fragments, which the kernel drops.
    OverlappingFragments,
    /// The first fragment is sent without the remaining ones.
    LoneFragment,
    /// The segment follows IPv6 hop-by-hop, destination and routing headers (IPv4: options).
    ExtensionHeaders,
    /// The segment follows an authentication header without a security association.
    AuthenticationHeader,
    /// The segment is quoted by an ICMP error, as a segment in the other direction.
    QuotedInIcmpError,
}

impl Wrapping {
    pub(crate) const ALL: [Self; 7] = [
        Self::Plain,
        Self::TinyFragments,
        Self::OverlappingFragments,
        Self::LoneFragment,
        Self::ExtensionHeaders,
        Self::AuthenticationHeader,
        Self::QuotedInIcmpError,
    ];
}

#[derive(Clone, Debug)]
pub(crate) struct Segment {
    pub(crate) from: SocketAddr,
    pub(crate) to: SocketAddr,
    pub(crate) flags: u8,
    pub(crate) seq: u32,
    pub(crate) ack: u32,
    /// TCP options, which the encoder pads to 32-bit words.
    pub(crate) options: Vec<u8>,
    pub(crate) payload: Vec<u8>,
    pub(crate) good_checksum: bool,
    pub(crate) wrapping: Wrapping,
}

impl Segment {
    pub(crate) fn new(from: SocketAddr, to: SocketAddr, flags: u8) -> Self {
        Self {
            from,
            to,
            flags,
            seq: 1,
            ack: 1,
            options: Vec::new(),
            payload: Vec::new(),
            good_checksum: true,
            wrapping: Wrapping::Plain,
        }
    }

    fn encode_tcp(&self) -> Vec<u8> {
        let mut options = self.options.clone();
        options.resize(options.len().next_multiple_of(4), 0);
        let words = u8::try_from((20 + options.len()) / 4).unwrap();
        let mut out = Vec::new();
        out.extend(self.from.port().to_be_bytes());
        out.extend(self.to.port().to_be_bytes());
        out.extend(self.seq.to_be_bytes());
        out.extend(self.ack.to_be_bytes());
        out.extend([words << 4, self.flags, 0x20, 0, 0, 0, 0, 0]);
        out.extend(options);
        out.extend(&self.payload);
        let mut pseudo = Vec::new();
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(a), IpAddr::V4(b)) => {
                pseudo.extend(a.octets());
                pseudo.extend(b.octets());
            }
            (IpAddr::V6(a), IpAddr::V6(b)) => {
                pseudo.extend(a.octets());
                pseudo.extend(b.octets());
            }
            _ => panic!("two families"),
        }
        pseudo.extend([0, IPPROTO_TCP]);
        pseudo.extend(u16::try_from(out.len()).unwrap().to_be_bytes());
        pseudo.extend(&out);
        let sum = checksum(&pseudo) ^ u16::from(!self.good_checksum);
        out[16..18].copy_from_slice(&sum.to_be_bytes());
        out
    }

    /// Encodes the segment as packets for the wire, IP headers included.
    fn packets(&self, id: u16) -> Vec<Vec<u8>> {
        if self.wrapping == Wrapping::QuotedInIcmpError {
            return vec![self.icmp_error()];
        }
        let bytes = self.encode_tcp();
        let whole = [(0, 0, bytes.len())];
        let tiny = [(0, 0, 8), (8, 8, bytes.len())];
        // The second fragment begins inside the first, with other bytes.
        let overlap = [(0, 0, 16), (8, 0, bytes.len())];
        let pieces: &[(usize, usize, usize)] = match self.wrapping {
            Wrapping::TinyFragments => &tiny,
            Wrapping::OverlappingFragments => &overlap,
            Wrapping::LoneFragment => &tiny[..1],
            _ => &whole,
        };
        let fragmented = pieces != whole;
        let last = pieces.len() - 1;
        let more = |n: usize| n < last || self.wrapping == Wrapping::LoneFragment;
        pieces
            .iter()
            .enumerate()
            .map(|(n, (offset, from, to))| {
                let part = &bytes[*from..*to];
                let fragment = fragmented.then(|| (*offset, more(n), id));
                match (self.from.ip(), self.to.ip()) {
                    (IpAddr::V4(a), IpAddr::V4(b)) => self.ipv4_packet(a, b, part, fragment),
                    (IpAddr::V6(a), IpAddr::V6(b)) => self.ipv6_packet(a, b, part, fragment),
                    _ => panic!("two families"),
                }
            })
            .collect()
    }

    /// Encodes an ICMP error ("fragmentation needed" or "packet too big") about this segment in the other direction.
    fn icmp_error(&self) -> Vec<u8> {
        let quoted = Self {
            from: self.to,
            to: self.from,
            wrapping: Wrapping::Plain,
            ..self.clone()
        };
        let mut quoted = quoted.packets(1).remove(0);
        match (self.from.ip(), self.to.ip()) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let length = u16::try_from(quoted.len()).unwrap();
                quoted[2..4].copy_from_slice(&length.to_be_bytes());
                let sum = checksum(&quoted[..20]);
                quoted[10..12].copy_from_slice(&sum.to_be_bytes());
                let mut icmp = vec![3, 4, 0, 0, 0, 0, 2, 64];
                icmp.extend(quoted);
                let sum = checksum(&icmp);
                icmp[2..4].copy_from_slice(&sum.to_be_bytes());
                let mut out = self.ipv4_packet(from, to, &icmp, None);
                out[9] = 1;
                out
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let mut icmp = vec![2, 0, 0, 0, 0, 0, 5, 0];
                icmp.extend(quoted);
                let mut pseudo = Vec::new();
                pseudo.extend(from.octets());
                pseudo.extend(to.octets());
                pseudo.extend(u32::try_from(icmp.len()).unwrap().to_be_bytes());
                pseudo.extend([0, 0, 0, 58]);
                pseudo.extend(&icmp);
                let sum = checksum(&pseudo);
                icmp[2..4].copy_from_slice(&sum.to_be_bytes());
                let mut out = self.ipv6_packet(from, to, &icmp, None);
                out[6] = 58;
                out
            }
            _ => panic!("two families"),
        }
    }

    fn ipv4_packet(
        &self,
        from: Ipv4Addr,
        to: Ipv4Addr,
        part: &[u8],
        fragment: Option<(usize, bool, u16)>,
    ) -> Vec<u8> {
        let (mut options, mut protocol, mut before) = (Vec::new(), IPPROTO_TCP, Vec::new());
        match self.wrapping {
            // Router alert and padding.
            Wrapping::ExtensionHeaders => options.extend([0x94, 4, 0, 0, 1, 1, 1, 0]),
            Wrapping::AuthenticationHeader => {
                protocol = 51;
                before = authentication_header(IPPROTO_TCP);
            }
            _ => {}
        }
        let (offset, more, id) = fragment.unwrap_or((0, false, 0));
        let place = u16::try_from(offset / 8).unwrap() | if more { 0x2000 } else { 0 };
        let words = u8::try_from(5 + options.len() / 4).unwrap();
        // The kernel fills in length and checksum.
        let mut out = vec![0x40 | words, 0, 0, 0];
        out.extend(id.to_be_bytes());
        out.extend(place.to_be_bytes());
        out.extend([64, protocol, 0, 0]);
        out.extend(from.octets());
        out.extend(to.octets());
        out.extend(options);
        out.extend(before);
        out.extend(part);
        out
    }

    fn ipv6_packet(
        &self,
        from: Ipv6Addr,
        to: Ipv6Addr,
        part: &[u8],
        fragment: Option<(usize, bool, u16)>,
    ) -> Vec<u8> {
        let (mut next, mut before) = (IPPROTO_TCP, Vec::new());
        match (self.wrapping, fragment) {
            (_, Some((offset, more, id))) => {
                next = IPPROTO_FRAGMENT;
                let place = u16::try_from(offset).unwrap() | u16::from(more);
                before.extend([IPPROTO_TCP, 0]);
                before.extend(place.to_be_bytes());
                before.extend([0, 0]);
                before.extend(id.to_be_bytes());
            }
            (Wrapping::ExtensionHeaders, None) => {
                next = 0;
                // Hop-by-hop, destination options, and a routing header without further hops.
                before.extend([60, 0, 1, 4, 0, 0, 0, 0]);
                before.extend([43, 0, 1, 4, 0, 0, 0, 0]);
                before.extend([IPPROTO_TCP, 0, 4, 0, 0, 0, 0, 0]);
            }
            (Wrapping::AuthenticationHeader, None) => {
                next = 51;
                before = authentication_header(IPPROTO_TCP);
            }
            _ => {}
        }
        let length = u16::try_from(before.len() + part.len()).unwrap();
        let mut out = vec![0x60, 0, 0, 0];
        out.extend(length.to_be_bytes());
        out.extend([next, 64]);
        out.extend(from.octets());
        out.extend(to.octets());
        out.extend(before);
        out.extend(part);
        out
    }
}

fn authentication_header(next: u8) -> Vec<u8> {
    let mut out = vec![next, 4, 0, 0];
    out.resize(24, 7);
    out
}

fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = bytes
        .chunks(2)
        .map(|pair| u32::from(pair[0]) << 8 | u32::from(pair.get(1).copied().unwrap_or(0)))
        .sum();
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !u16::try_from(sum).unwrap()
}

/// Raw packet socket of a namespace.
pub(crate) struct Sender {
    socket: Socket,
    id: u16,
}

impl Sender {
    pub(crate) fn new(netns: &Netns, v4: bool) -> Self {
        let domain = if v4 { Domain::IPV4 } else { Domain::IPV6 };
        let socket = netns
            .run(|| Socket::new(domain, Type::RAW, Some(Protocol::from(IPPROTO_RAW))))
            .unwrap()
            .unwrap();
        Self { socket, id: 0 }
    }

    /// Sends a segment to the link-layer address of `via`, whatever its destination. Packets that the kernel refuses to
    /// send are skipped.
    pub(crate) fn send(&mut self, segment: &Segment, via: IpAddr) {
        self.id = self.id.wrapping_add(1).max(1);
        for packet in segment.packets(self.id) {
            let _refused = self
                .socket
                .send_to(&packet, &SocketAddr::new(via, 0).into());
        }
    }
}
