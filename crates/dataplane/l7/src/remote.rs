//! Original client address of a request that arrived through trusted proxies (`x-forwarded-for`).

use std::net::{IpAddr, SocketAddr};

use ambit_model::canonical_ip;
use http::{HeaderMap, HeaderValue};

const X_FORWARDED_FOR: &str = "x-forwarded-for";

/// Returns the remote address (`remoteIpBlocks`, `remote.ip`) of a request that `peer` sent.
///
/// `trusted` is the number of trusted proxies in front of `peer`, an ingress gateway for instance. Each proxy appends
/// the address of its own peer to `x-forwarded-for`, so the last addresses there are those of trusted proxies, and the
/// one before them is the client's (Envoy's `xff_num_trusted_hops`). Addresses further to the left are claims of the
/// client.
///
/// Without trusted proxies, or if the header has too few or invalid addresses, the result is the peer's own address,
/// since any pod can send that header.
pub fn client_address(peer: IpAddr, headers: &HeaderMap, trusted: u32) -> IpAddr {
    if trusted == 0 {
        return peer;
    }
    let lines = headers.get_all(X_FORWARDED_FOR).iter().rev();
    // A line that is not text counts as one entry that is not an address.
    let texts = lines
        .map(HeaderValue::to_str)
        .map(Result::unwrap_or_default);
    let mut entries = texts.flat_map(|line| line.rsplit(','));
    let client = usize::try_from(trusted).ok().and_then(|n| entries.nth(n));
    client.and_then(parse_address).unwrap_or(peer)
}

/// Parses an IP address, with or without a port.
fn parse_address(text: &str) -> Option<IpAddr> {
    let text = text.trim();
    let with_port = || text.parse().map(|address: SocketAddr| address.ip()).ok();
    text.parse().ok().or_else(with_port).map(canonical_ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remote(lines: &[&[u8]], trusted: u32) -> String {
        let mut headers = HeaderMap::new();
        for line in lines {
            headers.append(X_FORWARDED_FOR, HeaderValue::from_bytes(line).unwrap());
        }
        client_address("10.0.0.1".parse().unwrap(), &headers, trusted).to_string()
    }

    #[test]
    fn the_client_is_before_the_trusted_proxies() {
        for (lines, trusted, expected) in [
            (&[&b"1.1.1.1, 2.2.2.2, 3.3.3.3"[..]][..], 1, "2.2.2.2"),
            (&[b"1.1.1.1, 2.2.2.2, 3.3.3.3"], 2, "1.1.1.1"),
            (&[b"1.1.1.1", b"2.2.2.2,3.3.3.3"], 1, "2.2.2.2"),
            (&[b"1.1.1.1", b"2.2.2.2"], 1, "1.1.1.1"),
            (&[b"1.1.1.1:80 ,2.2.2.2"], 1, "1.1.1.1"),
            (&[b"[2001:db8::1]:80,2.2.2.2"], 1, "2001:db8::1"),
            (&[b"2001:db8::1,2.2.2.2"], 1, "2001:db8::1"),
            (&[b"::ffff:1.1.1.1,2.2.2.2"], 1, "1.1.1.1"),
        ] {
            assert_eq!(remote(lines, trusted), expected, "{lines:?} {trusted}");
        }
    }

    #[test]
    fn without_trusted_entry_the_peer_is_the_client() {
        for (lines, trusted) in [
            (&[&b"1.1.1.1, 2.2.2.2"[..]][..], 0),
            (&[b"1.1.1.1, 2.2.2.2"], 2),
            (&[b"1.1.1.1"], 1),
            (&[], 1),
            (&[b"unknown,2.2.2.2"], 1),
            (&[b",2.2.2.2"], 1),
            (&[b"1.1.1.1,2.2.2.2\xff", b"3.3.3.3"], 1),
            (&[b"1.1.1.1"], u32::MAX),
        ] {
            assert_eq!(remote(lines, trusted), "10.0.0.1", "{lines:?} {trusted}");
        }
    }
}
