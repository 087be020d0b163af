//! Steers a connection between two pods of a node to the proxy worker that opened it.
//!
//! The kernel distributes new connections over the listeners that share a port by a hash of its own, so both ends of a
//! tunnel within a node are on one worker only by chance, and one worker may have most of the work. The BPF program of
//! this module selects the listener by the connection's source port, and a worker opens such tunnels from a port that
//! selects itself. Connections from elsewhere are distributed evenly, as before.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener},
};

use nix::{
    libc::{sock_filter, sock_fprog},
    sys::socket::{setsockopt, sockopt::AttachReusePortCbpf},
};
use socket2::{Domain, Socket};

use super::create::{SocketError, new_socket};

/// Maximum source ports that are tried to find one that selects the worker; otherwise the kernel chooses the port.
const MAX_PORT_ATTEMPTS: usize = 64;

/// Position of a proxy worker among the workers that share a listening port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WorkerPosition {
    /// Index of the worker's listener among those that share the port, in the order in which they began to listen.
    pub index: usize,
    /// Number of workers that share the port.
    pub count: usize,
}

impl WorkerPosition {
    /// Whether the BPF program of [`steer`] selects this worker for connections from source port `port`. The last bit
    /// is ignored: ports that the kernel chooses are mostly even for `connect`, and odd otherwise.
    fn is_selected_by_port(self, port: u16) -> bool {
        usize::from(port >> 1) % self.count.max(1) == self.index
    }
}

/// Attaches a BPF program to the listeners that share this one's port: the source port of a connection selects one of
/// the first `workers` listeners.
///
/// # Errors
/// When the kernel refuses the program.
pub fn steer(listener: &TcpListener, workers: usize) -> io::Result<()> {
    let mut program = steering_program(u32::try_from(workers.max(1)).unwrap_or(1));
    let program = sock_fprog {
        len: u16::try_from(program.len()).unwrap_or_default(),
        filter: program.as_mut_ptr(),
    };
    Ok(setsockopt(listener, AttachReusePortCbpf, &program)?)
}

/// Builds the classic BPF program that selects a worker. It reads the source port of the TCP header behind an IPv4
/// header without options or an IPv6 header without extensions; for any other packet the worker is arbitrary.
fn steering_program(workers: u32) -> [sock_filter; 9] {
    /// Base of offsets into the network header, `SKF_NET_OFF`.
    const SKF_NET_OFF: u32 = 0xfff0_0000;
    const LOAD_BYTE: u16 = 0x30;
    const LOAD_HALF: u16 = 0x28;
    const SHIFT_RIGHT: u16 = 0x74;
    const MODULO: u16 = 0x94;
    const JUMP_IF_EQUAL: u16 = 0x15;
    const JUMP: u16 = 0x05;
    const RETURN: u16 = 0x16;
    let plain = |code, k| sock_filter {
        code,
        jt: 0,
        jf: 0,
        k,
    };
    let version_is_6 = sock_filter {
        code: JUMP_IF_EQUAL,
        jt: 2,
        jf: 0,
        k: 6,
    };
    [
        plain(LOAD_BYTE, SKF_NET_OFF),
        plain(SHIFT_RIGHT, 4),
        version_is_6,
        plain(LOAD_HALF, SKF_NET_OFF + 20),
        plain(JUMP, 1),
        plain(LOAD_HALF, SKF_NET_OFF + 40),
        plain(SHIFT_RIGHT, 1),
        plain(MODULO, workers),
        plain(RETURN, 0),
    ]
}

/// Creates a socket bound to a port that selects `worker`, if one is found within [`MAX_PORT_ATTEMPTS`].
pub(super) fn socket_for_worker(
    domain: Domain,
    worker: WorkerPosition,
) -> Result<Socket, SocketError> {
    let any: IpAddr = match domain {
        Domain::IPV6 => Ipv6Addr::UNSPECIFIED.into(),
        _ => Ipv4Addr::UNSPECIFIED.into(),
    };
    let addr = SocketAddr::new(any, 0);
    for _ in 0..MAX_PORT_ATTEMPTS {
        let socket = new_socket(domain)?;
        // When ports run out, `connect` fails, or shares one that is used for other peers.
        if socket.bind(&addr.into()).is_err() {
            break;
        }
        let port = socket.local_addr().ok().and_then(|at| at.as_socket());
        if port.is_some_and(|at| worker.is_selected_by_port(at.port())) {
            return Ok(socket);
        }
    }
    new_socket(domain)
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;
    use crate::socket::{ListenSpec, Transparent, listen};

    #[test]
    fn worker_gets_connections_that_it_opens() {
        let count = 3;
        let mut spec = ListenSpec {
            transparent: Transparent::Off,
            ..ListenSpec::for_pod(0, None)
        };
        let mut listeners = Vec::new();
        for _ in 0..count {
            let listener = listen(None, &spec).unwrap().listener;
            spec.port = listener.local_addr().unwrap().port();
            listeners.push(listener);
        }
        steer(&listeners[0], count).unwrap();
        for ip in ["127.0.0.1", "::1"] {
            let peer = SocketAddr::new(ip.parse().unwrap(), spec.port);
            for (index, listener) in listeners.iter().enumerate() {
                for _ in 0..8 {
                    let socket = socket_for_worker(
                        Domain::for_address(peer),
                        WorkerPosition { index, count },
                    )
                    .unwrap();
                    socket.set_nonblocking(false).unwrap();
                    socket.connect(&peer.into()).unwrap();
                    let mine = socket.local_addr().unwrap().as_socket().unwrap();
                    let (mut accepted, from) = listener.accept().unwrap();
                    assert_eq!(from.port(), mine.port());
                    drop(socket);
                    assert_eq!(accepted.read(&mut [0]).unwrap(), 0);
                }
            }
        }
    }

    #[test]
    fn connections_of_others_reach_every_worker() {
        let count = 2;
        let mut spec = ListenSpec {
            transparent: Transparent::Off,
            ..ListenSpec::for_pod(0, None)
        };
        let first = listen(None, &spec).unwrap().listener;
        spec.port = first.local_addr().unwrap().port();
        let listeners = [first, listen(None, &spec).unwrap().listener];
        steer(&listeners[0], count).unwrap();
        let opened: Vec<_> = (0..64)
            .map(|_| std::net::TcpStream::connect(("127.0.0.1", spec.port)).unwrap())
            .collect();
        let mut taken =
            listeners.map(|listener| std::iter::from_fn(|| listener.accept().ok()).count());
        taken.sort_unstable();
        assert_eq!(taken.iter().sum::<usize>(), opened.len());
        assert!(taken[0] > 0, "{taken:?}");
    }
}
