//! UDP sockets of a pod: created inside its network namespace and used from outside, like the TCP sockets of
//! [`crate::socket`].

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket},
};

use rustix::io::Errno;
use socket2::{Domain, Protocol, Socket, Type};

use crate::{netns::Netns, socket::SocketError};

/// Opens a socket on the loopback address in `netns` (or the caller's namespace), where redirected datagrams arrive;
/// `None` if the address family is disabled in the namespace.
///
/// # Errors
/// When the socket cannot be made, marked or bound.
pub fn listen(
    netns: Option<&Netns>,
    ipv6: bool,
    port: u16,
    mark: Option<u32>,
    reuse_port: bool,
) -> Result<Option<UdpSocket>, SocketError> {
    let ip: IpAddr = if ipv6 {
        Ipv6Addr::LOCALHOST.into()
    } else {
        Ipv4Addr::LOCALHOST.into()
    };
    let addr = SocketAddr::new(ip, port);
    let socket = match create_socket(netns, addr, mark) {
        Err(SocketError::Create(error)) if is_errno(&error, Errno::AFNOSUPPORT) => return Ok(None),
        made => made?,
    };
    if reuse_port {
        socket
            .set_reuse_port(true)
            .map_err(|source| SocketError::Option {
                option: "SO_REUSEPORT",
                source,
            })?;
    }
    match socket.bind(&addr.into()) {
        Ok(()) => Ok(Some(socket.into())),
        // Disabled, so that loopback has no address of the family.
        Err(error) if is_errno(&error, Errno::ADDRNOTAVAIL) => Ok(None),
        Err(source) => Err(SocketError::Bind { addr, source }),
    }
}

/// Opens a socket in `netns` (or the caller's namespace) on an ephemeral port, ready to be connected to `peer`.
///
/// # Errors
/// When the socket cannot be made or marked.
pub fn outbound(
    netns: Option<&Netns>,
    peer: SocketAddr,
    mark: Option<u32>,
) -> Result<UdpSocket, SocketError> {
    create_socket(netns, peer, mark).map(Into::into)
}

fn create_socket(
    netns: Option<&Netns>,
    of_family: SocketAddr,
    mark: Option<u32>,
) -> Result<Socket, SocketError> {
    let make = || {
        let kind = Type::DGRAM.nonblocking().cloexec();
        Socket::new(Domain::for_address(of_family), kind, Some(Protocol::UDP))
    };
    let socket = match netns {
        Some(netns) => netns.run(make).map_err(SocketError::EnterNetns)?,
        None => make(),
    }
    .map_err(SocketError::Create)?;
    if let Some(mark) = mark {
        socket
            .set_mark(mark)
            .map_err(|source| SocketError::Option {
                option: "SO_MARK",
                source,
            })?;
    }
    Ok(socket)
}

fn is_errno(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::new_for_test;

    #[test]
    fn family_without_loopback_address_is_none() {
        let without_loopback = new_for_test();
        // Loopback is down in a fresh namespace: it has no address of either family.
        let is_there = |ipv6| {
            let listening = listen(Some(&without_loopback), ipv6, 15053, None, false);
            listening.unwrap().is_some()
        };
        assert!(!is_there(true));
        crate::loopback::bring_up(&without_loopback).unwrap();
        assert!(is_there(true) && is_there(false));
        let here = listen(None, false, 0, None, true).unwrap().unwrap();
        let port = here.local_addr().unwrap().port();
        let second = listen(None, false, port, None, true).unwrap().unwrap();
        assert_eq!(second.local_addr().unwrap().port(), port);
        assert!(matches!(
            listen(None, false, port, None, false),
            Err(SocketError::Bind { .. })
        ));
    }
}
