//! PROXY protocol version 2, as a header of connections in tunnels from a node proxy to a waypoint, and of a waypoint's
//! connections to endpoints if a `DestinationRule` requires it. To endpoints, version 1 can be sent as well.
//!
//! Supports only TCP over IPv4 or IPv6. The TLV 0xD0 contains the client's SPIFFE ID, if known.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const V2_SIGNATURE: [u8; 12] = *b"\r\n\r\n\0\r\nQUIT\n";
const VERSION_2_COMMAND_PROXY: u8 = 0x21;
const TCP_OVER_IPV4: u8 = 0x11;
const TCP_OVER_IPV6: u8 = 0x21;
/// Type of the TLV that contains the client's SPIFFE ID.
const TLV_IDENTITY: u8 = 0xd0;
/// Maximum length of a SPIFFE ID (SPIFFE-ID specification, section 2).
const MAX_IDENTITY_BYTES: usize = 2048;
/// Maximum accepted length of a header after its fixed part, in bytes: more than the addresses and any SPIFFE ID need.
const MAX_DECLARED_LENGTH: usize = 4096;
const FIXED_HEADER_BYTES: usize = 16;

/// Addresses and client identity that a PROXY protocol header describes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProxyHeader {
    /// Address of the client.
    pub source: SocketAddr,
    /// Original destination of the client's connection.
    pub destination: SocketAddr,
    /// SPIFFE ID of the client, if mTLS verified it.
    pub identity: Option<String>,
}

/// Reason why bytes are not an acceptable PROXY v2 header.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseProxyError {
    /// The header is incomplete; more bytes may follow.
    #[error("the PROXY header is not complete")]
    Incomplete,
    /// The signature is missing, or the header is not version 2 with the command PROXY.
    #[error("the bytes do not begin with a PROXY v2 header")]
    NotProxy,
    /// The address family is not TCP over IPv4 or IPv6.
    #[error("the PROXY header's family {0:#04x} is not TCP over IPv4 or IPv6")]
    UnsupportedFamily(u8),
    /// The header declares this length, which exceeds 4 KiB.
    #[error("the PROXY header declares {0} bytes, more than 4096")]
    TooLong(usize),
    /// The addresses or TLVs do not fit the declared length, a SPIFFE ID is repeated, or it is not 1 to 2048 bytes of
    /// text.
    #[error("the PROXY header's contents do not fit its length")]
    Malformed,
}

impl ProxyHeader {
    /// Encodes a header of version 2. If the addresses have different families, both are written as IPv6. An identity
    /// that is too long for the format is omitted.
    pub fn encode(&self) -> Vec<u8> {
        let mut body = Vec::with_capacity(128);
        let family = match (self.source.ip(), self.destination.ip()) {
            (IpAddr::V4(src), IpAddr::V4(dst)) => {
                body.extend(src.octets());
                body.extend(dst.octets());
                TCP_OVER_IPV4
            }
            (src, dst) => {
                body.extend(to_ipv6(src).octets());
                body.extend(to_ipv6(dst).octets());
                TCP_OVER_IPV6
            }
        };
        body.extend(self.source.port().to_be_bytes());
        body.extend(self.destination.port().to_be_bytes());
        let identity = self.identity.as_deref().unwrap_or_default();
        match u16::try_from(identity.len()) {
            Ok(len) if len > 0 && usize::from(len) <= MAX_IDENTITY_BYTES => {
                body.push(TLV_IDENTITY);
                body.extend(len.to_be_bytes());
                body.extend(identity.as_bytes());
            }
            _ => {}
        }
        let mut out = Vec::with_capacity(FIXED_HEADER_BYTES + body.len());
        out.extend(V2_SIGNATURE);
        out.extend([VERSION_2_COMMAND_PROXY, family]);
        // At most 36 bytes of addresses and a TLV bounded above.
        out.extend(u16::try_from(body.len()).unwrap_or(u16::MAX).to_be_bytes());
        out.append(&mut body);
        out
    }

    /// Encodes a header of version 1, which has no identity. If the addresses have different families, both are written
    /// as IPv6.
    pub fn encode_v1(&self) -> String {
        let (source, destination) = (self.source, self.destination);
        let (family, from, to) = match (source.ip(), destination.ip()) {
            (from @ IpAddr::V4(_), to @ IpAddr::V4(_)) => ("TCP4", from, to),
            (from, to) => ("TCP6", to_ipv6(from).into(), to_ipv6(to).into()),
        };
        let (source, destination) = (source.port(), destination.port());
        format!("PROXY {family} {from} {to} {source} {destination}\r\n")
    }

    /// Parses a header of version 2 at the beginning of a stream. Also returns the header's length in bytes.
    ///
    /// # Errors
    ///
    /// [`ParseProxyError::Incomplete`] when more bytes may complete the header, others when none can.
    pub fn parse(bytes: &[u8]) -> Result<(Self, usize), ParseProxyError> {
        let signature = bytes
            .get(..V2_SIGNATURE.len().min(bytes.len()))
            .unwrap_or_default();
        if !V2_SIGNATURE.starts_with(signature) {
            return Err(ParseProxyError::NotProxy);
        }
        let head = bytes
            .get(V2_SIGNATURE.len()..FIXED_HEADER_BYTES)
            .ok_or(ParseProxyError::Incomplete)?;
        let &[command, family, high, low] = head else {
            return Err(ParseProxyError::Incomplete);
        };
        if command != VERSION_2_COMMAND_PROXY {
            return Err(ParseProxyError::NotProxy);
        }
        let length = usize::from(u16::from_be_bytes([high, low]));
        if length > MAX_DECLARED_LENGTH {
            return Err(ParseProxyError::TooLong(length));
        }
        let mut body = bytes
            .get(FIXED_HEADER_BYTES..FIXED_HEADER_BYTES + length)
            .ok_or(ParseProxyError::Incomplete)?;
        let (source, destination) = match family {
            TCP_OVER_IPV4 => (
                IpAddr::from(split_off_bytes::<4>(&mut body)?),
                IpAddr::from(split_off_bytes::<4>(&mut body)?),
            ),
            TCP_OVER_IPV6 => (
                IpAddr::from(split_off_bytes::<16>(&mut body)?),
                IpAddr::from(split_off_bytes::<16>(&mut body)?),
            ),
            other => return Err(ParseProxyError::UnsupportedFamily(other)),
        };
        let source_port = u16::from_be_bytes(split_off_bytes(&mut body)?);
        let destination_port = u16::from_be_bytes(split_off_bytes(&mut body)?);
        let header = Self {
            source: SocketAddr::new(source.to_canonical(), source_port),
            destination: SocketAddr::new(destination.to_canonical(), destination_port),
            identity: parse_identity(body)?,
        };
        Ok((header, FIXED_HEADER_BYTES + length))
    }
}

fn parse_identity(mut tlvs: &[u8]) -> Result<Option<String>, ParseProxyError> {
    let mut identity = None;
    while !tlvs.is_empty() {
        let [kind] = split_off_bytes::<1>(&mut tlvs)?;
        let length = usize::from(u16::from_be_bytes(split_off_bytes(&mut tlvs)?));
        let (value, rest) = tlvs
            .split_at_checked(length)
            .ok_or(ParseProxyError::Malformed)?;
        tlvs = rest;
        if kind == TLV_IDENTITY {
            // Readers would differ about two identities, or an empty one.
            if identity.is_some() || value.is_empty() || value.len() > MAX_IDENTITY_BYTES {
                return Err(ParseProxyError::Malformed);
            }
            let text = std::str::from_utf8(value).map_err(|_| ParseProxyError::Malformed)?;
            identity = Some(text.to_owned());
        }
    }
    Ok(identity)
}

fn split_off_bytes<const N: usize>(bytes: &mut &[u8]) -> Result<[u8; N], ParseProxyError> {
    let (head, rest) = bytes
        .split_first_chunk::<N>()
        .ok_or(ParseProxyError::Malformed)?;
    *bytes = rest;
    Ok(*head)
}

fn to_ipv6(ip: IpAddr) -> Ipv6Addr {
    match ip {
        IpAddr::V4(v4) => Ipv4Addr::to_ipv6_mapped(&v4),
        IpAddr::V6(v6) => v6,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample_header() -> ProxyHeader {
        ProxyHeader {
            source: "10.0.1.5:41234".parse().unwrap(),
            destination: "10.96.0.9:80".parse().unwrap(),
            identity: Some("spiffe://cluster.local/ns/a/sa/client".into()),
        }
    }

    #[test]
    fn the_bytes_are_the_contract_s() {
        let bytes = sample_header().encode();
        assert_eq!(&bytes[..12], b"\r\n\r\n\0\r\nQUIT\n");
        assert_eq!(&bytes[12..16], &[0x21, 0x11, 0, 12 + 3 + 37]);
        assert_eq!(
            &bytes[16..28],
            &[10, 0, 1, 5, 10, 96, 0, 9, 0xa1, 0x12, 0, 80]
        );
        assert_eq!(&bytes[28..31], &[0xd0, 0, 37]);
    }

    #[test]
    fn the_line_of_version_1_names_both_ends() {
        let line = "PROXY TCP4 10.0.1.5 10.96.0.9 41234 80\r\n";
        assert_eq!(sample_header().encode_v1(), line);
        let mixed = ProxyHeader {
            source: "[fd00::1]:7".parse().unwrap(),
            ..sample_header()
        };
        let line = "PROXY TCP6 fd00::1 ::ffff:10.96.0.9 7 80\r\n";
        assert_eq!(mixed.encode_v1(), line);
    }

    #[test]
    fn a_header_is_read_from_a_stream() {
        let mut bytes = sample_header().encode();
        let length = bytes.len();
        for cut in 0..length {
            assert_eq!(
                ProxyHeader::parse(&bytes[..cut]),
                Err(ParseProxyError::Incomplete)
            );
        }
        bytes.extend(b"GET /");
        assert_eq!(ProxyHeader::parse(&bytes), Ok((sample_header(), length)));
    }

    #[test]
    fn hostile_lengths_are_refused() {
        let mut bytes = sample_header().encode();
        bytes[14] = 0xff;
        assert!(matches!(
            ProxyHeader::parse(&bytes),
            Err(ParseProxyError::TooLong(_))
        ));
        let mut bytes = sample_header().encode();
        bytes[29] = 0xff;
        assert_eq!(ProxyHeader::parse(&bytes), Err(ParseProxyError::Malformed));
        assert_eq!(
            ProxyHeader::parse(b"GET / HTTP/1.1"),
            Err(ParseProxyError::NotProxy)
        );
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(tail in prop::collection::vec(any::<u8>(), 0..120)) {
            let mut bytes = V2_SIGNATURE.to_vec();
            bytes.extend(&tail);
            let _any = ProxyHeader::parse(&bytes);
            let _any = ProxyHeader::parse(&tail);
        }

        #[test]
        fn encoded_values_parse_to_themselves(
            source in any::<SocketAddr>(), destination in any::<SocketAddr>(), named in any::<bool>()
        ) {
            let canonical =
                |a: SocketAddr| SocketAddr::new(a.ip().to_canonical(), a.port());
            let header = ProxyHeader {
                source: canonical(source),
                destination: canonical(destination),
                identity: named.then(|| "spiffe://td/ns/a/sa/b".into()),
            };
            let bytes = header.encode();
            prop_assert_eq!(ProxyHeader::parse(&bytes), Ok((header, bytes.len())));
        }
    }
}
