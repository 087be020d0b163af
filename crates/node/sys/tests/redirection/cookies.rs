//! Tests forged SYN cookies, which an application's listener never sent.
//!
//! Their secret belongs to the kernel, not to a namespace: anyone who can create namespaces on the
//! node can compute valid cookies for the addresses and ports of others. A listener that has lately
//! overflowed makes a connection of a bare ACK with such a cookie, without any opening that the
//! redirects or the guards could see.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    time::Duration,
};

use ambit_netplan::Backend;
use ambit_sys::tcp_sockets::{TcpStateFilter, destroy, unproxied_sockets};
use socket2::{Domain, Protocol, Socket, Type};

use super::{
    BACKENDS_AND_BPF,
    packets::{ACK, SYN, Segment, Sender},
    pods::{apply, purge, use_backend},
    with,
    world::*,
};

const APP: u16 = 8080;
const FAMILIES: [(&str, &str, &str); 2] = [(POD4, PEER4, "10.9.0.77"), (POD6, PEER6, "fd00:9::77")];
/// Initial sequence number of the SYN that the sender of a forged ACK claims to have sent.
pub(crate) const OPENED_AT: u32 = 7000;

/// Namespaces with the addresses of the victim and of its neighbour, in which the kernel answers every SYN with a
/// cookie.
pub(crate) struct Forge {
    world: World,
    _listener: TcpListener,
}

impl Forge {
    pub(crate) fn new() -> Self {
        let world = World::new();
        sh(&world.pod, "echo 2 > /proc/sys/net/ipv4/tcp_syncookies");
        let listener = listen(&world.pod, APP);
        Self {
            world,
            _listener: listener,
        }
    }

    pub(crate) fn cookie(&self, from: SocketAddr, to: SocketAddr) -> u32 {
        let domain = Domain::for_address(from);
        let kind = Type::RAW;
        let mut answers = self
            .world
            .peer
            .run(|| Socket::new(domain, kind, Some(Protocol::TCP)))
            .unwrap()
            .unwrap();
        answers.set_read_timeout(Some(DEADLINE)).unwrap();
        let opening = Segment {
            seq: OPENED_AT,
            ..Segment::new(from, to, SYN)
        };
        Sender::new(&self.world.peer, from.is_ipv4()).send(&opening, to.ip());
        let mut packet = [0; 128];
        loop {
            let length = uninterrupted(|| answers.read(&mut packet));
            // IPv6 raw sockets do not return the header.
            let header = if from.is_ipv4() { 20 } else { 0 };
            let tcp = &packet[header..length];
            if tcp[13] & 0x3f == SYN | ACK && tcp[2..4] == from.port().to_be_bytes() {
                return u32::from_be_bytes(tcp[4..8].try_into().unwrap());
            }
        }
    }
}

/// A captured pod whose application has a listener that overflowed before the capture.
struct Overflowed {
    world: World,
    proxy: Proxy,
    app: TcpListener,
    from: SocketAddr,
    to: SocketAddr,
    /// Pre-capture connection of the application: client and server socket.
    open: Option<(TcpStream, TcpStream)>,
}

/// Sends SYN packets from an address that does not exist, and ignores the responses.
pub(crate) fn flood(world: &World, (pod, nobody): (&str, &str), number: u16) {
    let mut sender = Sender::new(&world.peer, pod == POD4);
    for port in 1..=number {
        let opening = Segment::new(address(nobody, port), address(pod, APP), SYN);
        sender.send(&opening, ip(pod));
    }
}

impl Overflowed {
    fn new(backend: Backend, family: (&str, &str, &str), own: bool) -> Self {
        Self::with(backend, family, own, |_| None)
    }

    /// Creates the pod, and calls `before` before its listener overflows.
    fn with(
        backend: Backend,
        (pod, peer, nobody): (&str, &str, &str),
        own: bool,
        before: impl FnOnce(&Self) -> Option<(TcpStream, TcpStream)>,
    ) -> Self {
        let world = World::new();
        use_backend(&world.pod, backend);
        let proxy = world.proxy();
        let app = if own {
            world
                .pod
                .run(|| TcpListener::bind(address(pod, APP)))
                .unwrap()
                .unwrap()
        } else {
            listen(&world.pod, APP)
        };
        let mut overflowed = Self {
            world,
            proxy,
            app,
            from: address(peer, 40_000),
            to: address(pod, APP),
            open: None,
        };
        overflowed.open = before(&overflowed);
        flood(&overflowed.world, (pod, nobody), 300);
        apply(&overflowed.world.pod, &with(backend)).unwrap();
        overflowed
    }

    fn send_ack(&self, cookie: u32) {
        let ack = Segment {
            seq: OPENED_AT.wrapping_add(1),
            ack: cookie.wrapping_add(1),
            payload: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            ..Segment::new(self.from, self.to, ACK)
        };
        Sender::new(&self.world.peer, self.to.is_ipv4()).send(&ack, self.to.ip());
    }

    fn app_has_a_connection(&self) -> bool {
        accept_within(&self.app, Duration::from_millis(100)).is_some()
    }
}

#[test]
fn a_forged_cookie_opens_no_connection() {
    let forge = Forge::new();
    for backend in BACKENDS_AND_BPF {
        for family in FAMILIES {
            for own in [false, true] {
                let pod = Overflowed::new(backend, family, own);
                pod.send_ack(forge.cookie(pod.from, pod.to));
                assert!(!pod.app_has_a_connection(), "{backend} {family:?} {own}");
                nobody(&pod.proxy.inbound);
            }
        }
    }
}

/// Checks that a flood of openings does not lock clients out: the proxy's own listeners still send
/// cookies.
#[test]
fn a_flood_of_openings_does_not_close_the_proxy() {
    for backend in BACKENDS_AND_BPF {
        for (pod, peer, nobody) in FAMILIES {
            let world = World::new();
            let proxy = world.proxy();
            apply(&world.pod, &with(backend)).unwrap();
            flood(&world, (pod, nobody), 1000);
            let mut client = connect(&world.peer, address(pod, APP)).unwrap();
            let (mut captured, from) = accept(&proxy.inbound);
            assert_eq!(from.ip(), ip(peer), "{backend}");
            talk(&mut client, &mut captured);
        }
    }
}

/// Checks that a forged cookie does not reopen a closed pre-capture connection.
#[test]
fn a_forged_cookie_does_not_reopen_a_closed_connection() {
    let forge = Forge::new();
    for backend in BACKENDS_AND_BPF {
        for family in FAMILIES {
            let pod = Overflowed::with(backend, family, false, |pod| {
                let client = connect_from(&pod.world.peer, pod.from, pod.to).unwrap();
                Some((client, accept(&pod.app).0))
            });
            assert!(pod.open.is_some());
            let open = unproxied_sockets(&pod.world.pod, MARK, TcpStateFilter::Open).unwrap();
            for connection in &open {
                destroy(&pod.world.pod, &connection.socket).unwrap();
            }
            pod.send_ack(forge.cookie(pod.from, pod.to));
            assert!(!pod.app_has_a_connection(), "{backend} {family:?}");
        }
    }
}

/// Checks that pre-capture connections continue, idle or half open, though connection tracking has
/// not seen them.
#[test]
fn pre_capture_connections_continue_with_cookies() {
    for backend in BACKENDS_AND_BPF {
        for (pod, peer, _) in FAMILIES {
            let world = World::new();
            let proxy = world.proxy();
            let (app, server) = (listen(&world.pod, APP), listen(&world.peer, 80));
            let mut inward = connect(&world.peer, address(pod, APP)).unwrap();
            let (mut in_served, _) = accept(&app);
            let mut outward = connect(&world.pod, address(peer, 80)).unwrap();
            let (mut out_served, _) = accept(&server);
            // The client's reply to the pod's packet is lost.
            sh(
                &world.peer,
                "nft 'add table inet lose; add chain inet lose out { type filter hook output priority 0; }; \
                 add rule inet lose out tcp dport 8080 tcp flags & (syn | ack) == ack drop'",
            );
            let mut half = connect(&world.peer, address(pod, APP)).unwrap();
            assert!(app.accept().is_err());
            apply(&world.pod, &with(backend)).unwrap();
            sh(&world.peer, "nft delete table inet lose");
            talk(&mut inward, &mut in_served);
            talk(&mut out_served, &mut outward);
            half.write_all(b"x").unwrap();
            let (mut half_served, _) = accept(&app);
            half_served.read_exact(&mut [0]).unwrap();
            talk(&mut half, &mut half_served);
            // Once more, after the rules were removed.
            purge(&world.pod).unwrap();
            talk(&mut inward, &mut in_served);
            apply(&world.pod, &with(backend)).unwrap();
            talk(&mut in_served, &mut inward);
            talk(&mut outward, &mut out_served);
            nobody(&proxy.inbound);
        }
    }
}
