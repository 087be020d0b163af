//! TCP sockets of a network namespace: lists and destroys them, and finds connections that the proxy does not carry.

mod unproxied;

use std::io;

use crate::{conntrack::pre_capture, netns::Netns, sock_diag};

pub use crate::sock_diag::{TcpSocket, TcpStateFilter, tcp_sockets};
pub use unproxied::{Direction, UnproxiedSocket, unproxied_sockets};

/// Destroys a socket and its conntrack entry: both ends of the connection see a reset, and later packets belong to no
/// known connection.
///
/// # Errors
/// [`io::ErrorKind::NotFound`] when it is gone already, [`io::ErrorKind::Unsupported`] when the kernel
/// cannot (`CONFIG_INET_DIAG_DESTROY`).
pub fn destroy(netns: &Netns, connection: &TcpSocket) -> io::Result<()> {
    netns.run(|| {
        sock_diag::destroy(connection)?;
        // Otherwise the guards would accept its packets for as long as connection tracking
        // remembers it.
        if let Err(error) = pre_capture::delete_entry(connection) {
            tracing::debug!(%error, "a closed connection is still known to connection tracking");
        }
        Ok(())
    })?
}

#[cfg(test)]
mod tests {
    use std::{
        io::Read,
        net::{TcpListener, TcpStream},
        os::fd::AsFd,
    };

    use super::*;

    fn inode(socket: impl AsFd) -> u64 {
        rustix::fs::fstat(socket).unwrap().st_ino
    }

    #[test]
    fn sockets_are_found_by_state_and_distinguished_by_inode() {
        let here = Netns::current().unwrap();
        for address in ["127.0.0.1:0", "[::1]:0"] {
            let listener = TcpListener::bind(address).unwrap();
            let at = listener.local_addr().unwrap();
            let mut client = TcpStream::connect(at).unwrap();
            let (_server, _) = listener.accept().unwrap();
            let listening = tcp_sockets(&here, TcpStateFilter::Listening).unwrap();
            let ours: Vec<_> = listening.iter().filter(|s| s.local == at).collect();
            assert_eq!(ours.len(), 1);
            assert_eq!(ours[0].inode, inode(&listener));
            let open = tcp_sockets(&here, TcpStateFilter::Established).unwrap();
            let ours = open.iter().find(|s| s.inode == inode(&client)).unwrap();
            assert_eq!(
                (ours.local, ours.remote),
                (client.local_addr().unwrap(), at)
            );
            // Where the kernel supports it, the connection breaks.
            match destroy(&here, ours) {
                Ok(()) => assert!(client.read(&mut [0]).is_err()),
                Err(error) => assert_eq!(error.kind(), io::ErrorKind::Unsupported, "{error}"),
            }
        }
    }
}
