//! Interface that an accepted connection arrived by.

// The lint reports no code of a macro of another crate, and `forbid` no exception: nix's macros have the system calls.
use std::{io, net::SocketAddr, os::fd::AsFd};

use nix::{
    libc,
    sys::socket::{getsockopt, setsockopt, sockopt::GetStruct},
};
use socket2::SockRef;

/// Length of the answer to `IP_PKTOPTIONS`: a header of 16 bytes and `struct in_pktinfo` of 12, aligned to 8.
const PACKET_OPTIONS_BYTES: usize = 32;
/// Offset of the interface's index in that answer.
const INTERFACE_OFFSET: usize = 16;

/// Binds an accepted TCP connection to the interface that its opening arrived by, so that it takes no packets of
/// another one: a second socket of the same addresses and ports may be bound to that.
///
/// # Errors
/// When the kernel does not tell the interface, or refuses.
pub fn bind_to_arrival_interface(connection: impl AsFd) -> io::Result<()> {
    let interface = arrival_interface(&connection)?;
    Ok(setsockopt(
        &connection,
        option::BindToInterface,
        &interface,
    )?)
}

/// Returns the index of the interface that the opening of an accepted TCP connection arrived by. The kernel keeps it
/// where sockets of other protocols have the interface for multicast.
fn arrival_interface(connection: &impl AsFd) -> io::Result<i32> {
    let unknown = || io::Error::new(io::ErrorKind::NotFound, "its interface is not known");
    let local = SockRef::from(connection).local_addr()?.as_socket();
    let index = match local {
        Some(SocketAddr::V6(_)) => getsockopt(connection, option::InterfaceV6)?,
        Some(SocketAddr::V4(_)) => {
            setsockopt(connection, option::PacketInfoV4, &1)?;
            let answer = getsockopt(connection, option::PacketOptionsV4)?;
            let index = answer.get(INTERFACE_OFFSET..).and_then(<[u8]>::first_chunk);
            i32::from_ne_bytes(*index.ok_or_else(unknown)?)
        }
        None => 0,
    };
    if index > 0 { Ok(index) } else { Err(unknown()) }
}

mod option {
    use super::{GetStruct, PACKET_OPTIONS_BYTES, libc};

    /// Socket option `SO_BINDTOIFINDEX`.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct BindToInterface;
    nix::setsockopt_impl!(
        BindToInterface,
        libc::SOL_SOCKET,
        libc::SO_BINDTOIFINDEX,
        i32,
        nix::sys::socket::sockopt::SetStruct<'_, i32>
    );

    /// Socket option `IPV6_MULTICAST_IF`.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct InterfaceV6;
    nix::getsockopt_impl!(
        InterfaceV6,
        libc::IPPROTO_IPV6,
        libc::IPV6_MULTICAST_IF,
        i32,
        GetStruct<i32>
    );

    /// Socket option `IP_PKTINFO`, without which the next one answers nothing.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct PacketInfoV4;
    nix::setsockopt_impl!(
        PacketInfoV4,
        libc::IPPROTO_IP,
        libc::IP_PKTINFO,
        i32,
        nix::sys::socket::sockopt::SetStruct<'_, i32>
    );

    /// Socket option `IP_PKTOPTIONS`.
    #[derive(Clone, Copy, Debug)]
    pub(super) struct PacketOptionsV4;
    nix::getsockopt_impl!(
        PacketOptionsV4,
        libc::IPPROTO_IP,
        libc::IP_PKTOPTIONS,
        [u8; PACKET_OPTIONS_BYTES],
        GetStruct<[u8; PACKET_OPTIONS_BYTES]>
    );
}

#[cfg(test)]
mod tests {
    use std::net::{TcpListener, TcpStream};

    use super::*;

    #[test]
    fn accepted_connections_are_bound_to_their_interface() {
        for (listen, connect) in [
            ("127.0.0.1:0", "127.0.0.1"),
            ("[::]:0", "127.0.0.1"),
            ("[::]:0", "::1"),
        ] {
            let listener = TcpListener::bind(listen).unwrap();
            let port = listener.local_addr().unwrap().port();
            let client = TcpStream::connect((connect, port)).unwrap();
            let (accepted, _) = listener.accept().unwrap();
            assert_eq!(arrival_interface(&accepted).unwrap(), 1, "{listen}");
            bind_to_arrival_interface(&accepted).unwrap();
            let device = SockRef::from(&accepted).device().unwrap();
            assert_eq!(device.as_deref(), Some(&b"lo"[..]), "{listen}");
            assert!(arrival_interface(&client).is_err(), "it was not accepted");
        }
    }
}
