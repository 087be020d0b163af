//! `forwarded` header of a tunnel: the original client, and the service that it addressed.
//!
//! Format: `for="ip:port"` or `for="ip:port";host=<service hostname>`, IPv6 in brackets. The host is used only as a
//! telemetry label.

use std::{fmt, net::SocketAddr};

use arcstr::ArcStr;

use crate::authority::{Authority, parse_host};

/// Maximum length of an accepted header, in bytes.
const MAX_FORWARDED_BYTES: usize = 1024;

/// Original client of a tunnel, and the service that it addressed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Forwarded {
    /// Address of the original client.
    pub client: SocketAddr,
    /// Host name of the service that the client addressed, if any.
    pub host: Option<ArcStr>,
}

/// Reason why a `forwarded` header is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ParseForwardedError {
    /// The header is longer than 1 KiB.
    #[error("the forwarded header is too long")]
    TooLong,
    /// The header has no `for=` with an address.
    #[error("the forwarded header names no client address")]
    NoClient,
    /// The value of `host=` is not a DNS name.
    #[error("the forwarded header's host is not a DNS name")]
    BadHost,
}

impl Forwarded {
    /// Parses a header. Of several elements (a chain of proxies), the first applies, since the client's proxy added it.
    ///
    /// # Errors
    ///
    /// When there is no client address, or the host is not a DNS name.
    pub fn parse(bytes: &[u8]) -> Result<Self, ParseForwardedError> {
        if bytes.len() > MAX_FORWARDED_BYTES {
            return Err(ParseForwardedError::TooLong);
        }
        let text = std::str::from_utf8(bytes).map_err(|_| ParseForwardedError::NoClient)?;
        let element = text.split(',').next().unwrap_or_default();
        let (mut client, mut host) = (None, None);
        for pair in element.split(';') {
            let Some((key, value)) = pair.split_once('=') else {
                continue;
            };
            let value = unquote(value.trim());
            match key.trim() {
                key if key.eq_ignore_ascii_case("for") => client = parse_client(value),
                key if key.eq_ignore_ascii_case("host") => {
                    host = Some(parse_host(value).map_err(|_| ParseForwardedError::BadHost)?);
                }
                _ => {}
            }
        }
        Ok(Self {
            client: client.ok_or(ParseForwardedError::NoClient)?,
            host,
        })
    }
}

impl fmt::Display for Forwarded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "for=\"{}\"", self.client)?;
        match &self.host {
            Some(host) => write!(f, ";host={host}"),
            None => Ok(()),
        }
    }
}

fn unquote(value: &str) -> &str {
    value
        .strip_prefix('"')
        .and_then(|v| v.strip_suffix('"'))
        .unwrap_or(value)
}

fn parse_client(value: &str) -> Option<SocketAddr> {
    match Authority::parse(value.as_bytes()) {
        Ok(Authority::Ip(addr)) => Some(addr),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn header_is_encoded_by_the_contract() {
        let client = "10.0.1.5:41234".parse().unwrap();
        let host = Some("svc.b.svc.cluster.local".into());
        assert_eq!(
            Forwarded { client, host }.to_string(),
            "for=\"10.0.1.5:41234\";host=svc.b.svc.cluster.local"
        );
        let client = "[::1]:80".parse().unwrap();
        assert_eq!(
            Forwarded { client, host: None }.to_string(),
            "for=\"[::1]:80\""
        );
    }

    #[test]
    fn the_first_element_counts() {
        let read = Forwarded::parse(b"For=1.2.3.4:5;Host=\"A.b\", for=6.7.8.9:1").unwrap();
        assert_eq!(read.client, "1.2.3.4:5".parse().unwrap());
        assert_eq!(read.host.as_deref(), Some("a.b"));
    }

    #[test]
    fn other_forms_are_refused() {
        for text in [
            "",
            "for=",
            "for=unknown",
            "host=a.b",
            "for=\"1.2.3.4\"",
            "for=1.2.3.4:0",
        ] {
            assert_eq!(
                Forwarded::parse(text.as_bytes()),
                Err(ParseForwardedError::NoClient)
            );
        }
        let bad_host = Forwarded::parse(b"for=1.2.3.4:5;host=a b");
        assert_eq!(bad_host, Err(ParseForwardedError::BadHost));
    }

    proptest! {
        #[test]
        fn parsing_arbitrary_bytes_never_panics(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            if let Ok(forwarded) = Forwarded::parse(&bytes) {
                let text = forwarded.to_string();
                prop_assert_eq!(Forwarded::parse(text.as_bytes()), Ok(forwarded));
            }
        }
    }
}
