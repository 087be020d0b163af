//! Connects to hosts that objects of the cluster name.

use std::{io, net::SocketAddr};

use tokio::net::{TcpStream, lookup_host};

use crate::{ForbiddenAddress, Guard};

/// Error of connecting to a host that an object names.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// The host name could not be resolved.
    #[error("{host} cannot be resolved")]
    Resolve {
        /// Host as the object names it.
        host: String,
        /// Cause of the error.
        #[source]
        error: io::Error,
    },
    /// All addresses of the host are forbidden by the guard.
    #[error("{host} has no address that may be called: {forbidden}")]
    Forbidden {
        /// Host as the object names it.
        host: String,
        /// Address of the host that was checked last, and the reason why it is forbidden.
        #[source]
        forbidden: ForbiddenAddress,
    },
    /// None of the host's addresses accepted a connection.
    #[error("cannot connect to {host}")]
    Connect {
        /// Host as the object names it.
        host: String,
        /// Cause of the error.
        #[source]
        error: io::Error,
    },
}

/// Connects to a port of a host: a name, or an address in any form that the system's resolver accepts. Addresses are
/// checked after the host was resolved, and only the checked ones are connected to. The caller sets the timeout.
///
/// # Errors
///
/// When the host cannot be resolved, has no address that may be called, or none that accepts the connection.
pub async fn connect(guard: &Guard, host: &str, port: u16) -> Result<TcpStream, ConnectError> {
    let allowed = resolve(guard, host, port).await?;
    connect_to(host, &allowed).await
}

/// Resolves a host to the addresses that the guard allows, of which there is at least one. The caller sets the
/// timeout.
///
/// # Errors
///
/// When the host cannot be resolved, or has no address that may be called.
pub async fn resolve(
    guard: &Guard,
    host: &str,
    port: u16,
) -> Result<Vec<SocketAddr>, ConnectError> {
    let named = || host.to_owned();
    let found = lookup_host((host, port)).await;
    let found = found.map_err(|error| ConnectError::Resolve {
        host: named(),
        error,
    })?;
    let mut allowed: Vec<SocketAddr> = Vec::new();
    let mut refused = None;
    for address in found {
        match guard.check(address.ip()) {
            Ok(()) => allowed.push(address),
            Err(forbidden) => refused = Some(forbidden),
        }
    }
    if let (Some(forbidden), true) = (refused, allowed.is_empty()) {
        return Err(ConnectError::Forbidden {
            host: named(),
            forbidden,
        });
    }
    Ok(allowed)
}

/// Connects to one of the addresses that a host was [resolved](resolve) to. The caller sets the timeout.
///
/// # Errors
///
/// When no address accepts the connection.
pub async fn connect_to(host: &str, addresses: &[SocketAddr]) -> Result<TcpStream, ConnectError> {
    let stream = TcpStream::connect(addresses).await;
    stream.map_err(|error| ConnectError::Connect {
        host: host.to_owned(),
        error,
    })
}

#[cfg(test)]
mod tests {
    use tokio::net::TcpListener;

    use super::*;

    #[tokio::test]
    async fn every_spelling_of_a_forbidden_host_is_refused() {
        let guard = Guard::default();
        for host in [
            "127.0.0.1",
            "::1",
            "localhost",
            "2130706433",
            "0x7f000001",
            "0177.0.0.1",
            "127.1",
            "0",
            "::ffff:127.0.0.1",
            "2852039166",
            "0xa9.0xfe.0xa9.0xfe",
            "169.254.169.254",
            "fe80::a9fe:a9fe",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::",
        ] {
            let error = connect(&guard, host, 9).await.unwrap_err();
            // A text that the system does not resolve is not a host.
            let is_refused = matches!(
                error,
                ConnectError::Forbidden { .. } | ConnectError::Resolve { .. }
            );
            assert!(is_refused, "{host}: {error}");
        }
    }

    #[tokio::test]
    async fn an_exception_is_connected_to() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        let guard = Guard::new(vec!["127.0.0.1/32".parse().unwrap()]);
        for host in ["127.0.0.1", "2130706433"] {
            let stream = connect(&guard, host, port).await.unwrap();
            assert_eq!(stream.peer_addr().unwrap().port(), port, "{host}");
        }
        // Other addresses are not called.
        let other = connect(&guard, "127.0.0.2", port).await.unwrap_err();
        assert!(matches!(other, ConnectError::Forbidden { .. }), "{other}");
    }
}
