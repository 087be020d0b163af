//! Authority of a CONNECT request: `ip:port`, `[v6]:port` or `hostname:port`.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    str::FromStr,
};

use arcstr::ArcStr;

/// Maximum length of a DNS name in bytes (RFC 1035).
const MAX_HOST_BYTES: usize = 253;

/// Destination in the authority of a CONNECT request. Proxies send [`Authority::Ip`], except to a network gateway.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Authority {
    /// IP address and port; IPv4-mapped addresses become IPv4.
    Ip(SocketAddr),
    /// Host name in lower case, and port.
    Host {
        /// Lower-case name without a trailing dot.
        host: ArcStr,
        /// Port of the authority, never 0.
        port: u16,
    },
}

/// Reason why bytes are not a valid authority.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseAuthorityError {
    /// The authority has no `:port` at its end.
    #[error("the authority has no port")]
    NoPort,
    /// The port is not a number from 1 to 65535.
    #[error("the authority's port is not a number from 1 to 65535")]
    BadPort,
    /// The text in brackets is not an IPv6 address.
    #[error("the authority's bracketed part is not an IPv6 address")]
    BadIpv6,
    /// The host is neither an address nor a DNS name.
    #[error("the authority's host is neither an address nor a DNS name")]
    BadHost,
}

impl Authority {
    /// Parses an authority. User info, percent-encoding, zones and port 0 are rejected.
    ///
    /// # Errors
    ///
    /// When the bytes are not exactly of one of the three forms.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseAuthorityError> {
        let colon = bytes
            .iter()
            .rposition(|b| *b == b':')
            .ok_or(ParseAuthorityError::NoPort)?;
        let (host, port) = bytes.split_at(colon);
        let port = parse_port(port.get(1..).unwrap_or_default())?;
        if let Some(rest) = host.strip_prefix(b"[") {
            let inner = rest
                .strip_suffix(b"]")
                .ok_or(ParseAuthorityError::BadIpv6)?;
            let text = std::str::from_utf8(inner).map_err(|_| ParseAuthorityError::BadIpv6)?;
            let ip = Ipv6Addr::from_str(text).map_err(|_| ParseAuthorityError::BadIpv6)?;
            return Ok(Self::Ip(SocketAddr::new(
                IpAddr::V6(ip).to_canonical(),
                port,
            )));
        }
        let text = std::str::from_utf8(host).map_err(|_| ParseAuthorityError::BadHost)?;
        if let Ok(ip) = Ipv4Addr::from_str(text) {
            return Ok(Self::Ip(SocketAddr::new(IpAddr::V4(ip), port)));
        }
        Ok(Self::Host {
            host: parse_host(text)?,
            port,
        })
    }

    /// Returns the port of the authority.
    pub fn port(&self) -> u16 {
        match self {
            Self::Ip(addr) => addr.port(),
            Self::Host { port, .. } => *port,
        }
    }
}

impl From<SocketAddr> for Authority {
    fn from(addr: SocketAddr) -> Self {
        Self::Ip(SocketAddr::new(addr.ip().to_canonical(), addr.port()))
    }
}

impl fmt::Display for Authority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(addr) => addr.fmt(f),
            Self::Host { host, port } => write!(f, "{host}:{port}"),
        }
    }
}

fn parse_port(digits: &[u8]) -> Result<u16, ParseAuthorityError> {
    if digits.is_empty() || digits.len() > 5 || !digits.iter().all(u8::is_ascii_digit) {
        return Err(ParseAuthorityError::BadPort);
    }
    let port = digits
        .iter()
        .fold(0u32, |n, d| n * 10 + u32::from(d - b'0'));
    match u16::try_from(port) {
        Ok(0) | Err(_) => Err(ParseAuthorityError::BadPort),
        Ok(port) => Ok(port),
    }
}

/// Parses a DNS name as Kubernetes Services and ServiceEntries use it: labels of letters, digits, `-` and `_`. Rejects
/// a name whose last label has only digits, since some resolvers take such a text for an address (`127.1`,
/// `010.0.0.1`).
pub(crate) fn parse_host(text: &str) -> Result<ArcStr, ParseAuthorityError> {
    let text = text.strip_suffix('.').unwrap_or(text);
    if text.is_empty() || text.len() > MAX_HOST_BYTES {
        return Err(ParseAuthorityError::BadHost);
    }
    let good_label = |label: &str| {
        !label.is_empty()
            && label.len() <= 63
            && label
                .bytes()
                .all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_')
    };
    let last_is_number = text
        .rsplit('.')
        .next()
        .is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    if last_is_number || !text.split('.').all(good_label) {
        return Err(ParseAuthorityError::BadHost);
    }
    Ok(text.to_ascii_lowercase().into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn the_three_forms_are_read() {
        for (text, expected) in [
            ("10.0.0.1:80", Authority::Ip("10.0.0.1:80".parse().unwrap())),
            (
                "[fd00::1]:8080",
                Authority::Ip("[fd00::1]:8080".parse().unwrap()),
            ),
            (
                "[::ffff:10.0.0.1]:1",
                Authority::Ip("10.0.0.1:1".parse().unwrap()),
            ),
            (
                "Echo.default.svc.cluster.local:80",
                Authority::Host {
                    host: "echo.default.svc.cluster.local".into(),
                    port: 80,
                },
            ),
        ] {
            assert_eq!(Authority::parse(text.as_bytes()), Ok(expected), "{text}");
        }
    }

    #[test]
    fn everything_else_is_refused() {
        for text in [
            "",
            ":",
            ":80",
            "10.0.0.1",
            "10.0.0.1:",
            "10.0.0.1:0",
            "10.0.0.1:65536",
            "10.0.0.1:+80",
            "10.0.0.1: 80",
            "fd00::1:80",
            "[fd00::1%eth0]:80",
            "[fd00::1]80",
            "[10.0.0.1]:80",
            "user@host:80",
            "a b:80",
            "a..b:80",
            "127.1:80",
            "010.0.0.1:80",
            "%31:80",
            "http://a:80",
            "host:80/",
            "-:80:",
            "h\0st:80",
            "h\u{e9}:80",
        ] {
            assert!(Authority::parse(text.as_bytes()).is_err(), "{text:?}");
        }
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            if let Ok(authority) = Authority::parse(&bytes) {
                prop_assert_eq!(Authority::parse(authority.to_string().as_bytes()), Ok(authority));
            }
        }

        #[test]
        fn encoded_values_parse_to_themselves(ip in any::<IpAddr>(), port in 1u16..) {
            let authority = Authority::from(SocketAddr::new(ip, port));
            prop_assert_eq!(Authority::parse(authority.to_string().as_bytes()), Ok(authority));
        }
    }
}
