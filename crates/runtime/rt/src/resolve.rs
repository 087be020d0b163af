//! Resolves host names by `/etc/hosts` and the servers in `/etc/resolv.conf`.
//!
//! The C library's resolver is not used: it blocks a thread for each name, and loads modules that a statically linked
//! program does not have.

use std::{io, net::IpAddr, time::Instant};

use hickory_resolver::TokioResolver;

/// Resolves a host to its addresses, in the order of the system's settings. An address resolves to itself.
///
/// Each call reads the system's settings, so that changes take effect.
///
/// # Errors
///
/// Returns the resolver's error; `NotFound` when the name has no address.
pub async fn lookup_host(host: &str) -> io::Result<Vec<IpAddr>> {
    if let Ok(address) = host.parse() {
        return Ok(vec![address]);
    }
    Ok(lookup_name(host).await?.0)
}

/// Resolves a name to its addresses, and returns the time until which the response may be cached.
///
/// # Errors
///
/// As for [`lookup_host`].
pub async fn lookup_name(host: &str) -> io::Result<(Vec<IpAddr>, Instant)> {
    let resolver = TokioResolver::builder_tokio()
        .and_then(|builder| builder.build())
        .map_err(io::Error::other)?;
    let answer = resolver.lookup_ip(host).await.map_err(|error| {
        let kind = if error.is_no_records_found() || error.is_nx_domain() {
            io::ErrorKind::NotFound
        } else {
            io::ErrorKind::Other
        };
        io::Error::new(kind, error)
    })?;
    Ok((answer.iter().collect(), answer.valid_until()))
}

#[cfg(test)]
mod tests {
    use crate::testing::within;

    use super::*;

    #[tokio::test]
    async fn addresses_resolve_to_themselves() {
        within(async {
            for address in ["10.0.0.1", "fd00::1"] {
                let found = lookup_host(address).await.unwrap();
                assert_eq!(found, [address.parse::<IpAddr>().unwrap()]);
            }
        })
        .await;
    }

    #[tokio::test]
    async fn names_of_the_hosts_file_are_known() {
        within(async {
            let found = lookup_host("localhost").await.unwrap();
            assert!(!found.is_empty());
            assert!(found.iter().all(IpAddr::is_loopback), "{found:?}");
        })
        .await;
    }

    #[tokio::test]
    async fn a_name_that_cannot_be_is_an_error() {
        within(async {
            assert!(lookup_host("no such name..").await.is_err());
        })
        .await;
    }
}
