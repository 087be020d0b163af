//! Tests DNS capture of a pod whose TCP is captured by BPF programs: rules redirect its queries.

use std::net::UdpSocket;

use ambit_sys::{conntrack, datagram, netns::Netns};
use socket2::{Domain, Socket, Type};

use super::*;

const DNS_PORT: u16 = 15053;
const LOOPBACK: [&str; 2] = ["127.0.0.1", "::1"];

/// Pod with the sockets of the proxy's DNS and of its upstream resolver.
struct DnsPod {
    pod: Pod,
    /// The proxy's datagram socket of each family.
    queries: [UdpSocket; 2],
    /// The proxy's listener.
    over_tcp: TcpListener,
    /// Upstream sockets of each family.
    resolver: [UdpSocket; 2],
}

impl DnsPod {
    /// Returns a pod that is captured without its DNS.
    fn new() -> Self {
        let pod = Pod::captured();
        let queries = LOOPBACK.map(|at| {
            let netns = Some(&pod.world.pod);
            let socket = datagram::listen(netns, at == "::1", DNS_PORT, Some(MARK), true);
            with_deadline(socket.unwrap().unwrap())
        });
        let resolver = [PEER4, PEER6].map(|ip| udp(&pod.world.peer, address(ip, 53)));
        Self {
            over_tcp: listen(&pod.world.pod, DNS_PORT),
            pod,
            queries,
            resolver,
        }
    }

    fn set_dns(&self, dns_capture: bool) -> Applied {
        apply(&self.pod.place(), &spec(dns_capture)).unwrap()
    }

    fn client(&self, family: usize) -> UdpSocket {
        udp(&self.pod.world.pod, address(["0.0.0.0", "::"][family], 0))
    }

    fn tracked(&self) -> u64 {
        let count = "cat /proc/sys/net/netfilter/nf_conntrack_count";
        sh(&self.pod.world.pod, count).trim().parse().unwrap()
    }

    fn chains(&self) -> String {
        sh(&self.pod.world.pod, "nft list table inet ambit")
    }
}

fn spec(dns_capture: bool) -> RedirectionSpec {
    RedirectionSpec {
        dns_capture,
        ..with(Backend::Bpf)
    }
}

fn udp(netns: &Netns, at: SocketAddr) -> UdpSocket {
    with_deadline(netns.run(|| UdpSocket::bind(at)).unwrap().unwrap())
}

fn with_deadline(socket: UdpSocket) -> UdpSocket {
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

#[test]
fn queries_keep_their_destination_and_other_tcp_is_not_tracked() {
    let dns = DnsPod::new();
    dns.set_dns(true);
    let mut buffer = [0; 16];
    for (family, (own, peer)) in FAMILIES.into_iter().enumerate() {
        let resolver = address(peer, 53);
        let client = dns.client(family);
        client.send_to(b"1", resolver).unwrap();
        let server = &dns.queries[family];
        let (_, from) = receive(server, &mut buffer);
        let at = server.local_addr().unwrap();
        let asked = conntrack::original_destination(Some(&dns.pod.world.pod), from, at);
        assert_eq!(asked.unwrap(), Some(resolver));
        server.send_to(b"1", from).unwrap();
        assert_eq!(receive(&client, &mut buffer).1, resolver);

        // A process of another cgroup is captured too: a rule redirects it.
        for mut client in [
            dns.pod.connect(resolver).unwrap(),
            connect(&dns.pod.world.pod, resolver).unwrap(),
        ] {
            let mut captured = accept(&dns.over_tcp).0;
            assert_eq!(original_destination(&captured), resolver);
            talk(&mut client, &mut captured);
        }

        let tracked = dns.tracked();
        assert!(tracked > 0);
        let mut out = dns.pod.connect(address(peer, 80)).unwrap();
        talk(&mut out, &mut accept(&dns.pod.proxy.outbound).0);
        let mut inward = connect(&dns.pod.world.peer, address(own, 8080)).unwrap();
        talk(&mut inward, &mut accept(&dns.pod.proxy.inbound).0);
        let mut tunnel = connect(&dns.pod.world.peer, address(own, 15008)).unwrap();
        talk(&mut tunnel, &mut accept(&dns.pod.proxy.tunnel).0);
        assert!(dns.tracked() <= tracked, "{} > {tracked}", dns.tracked());
    }
    assert_eq!(
        observe(&dns.pod.place(), &spec(true)).unwrap().to_string(),
        ""
    );
    assert_eq!(dns.set_dns(true), Applied::Unchanged);
}

#[test]
fn proxys_queries_reach_the_resolver() {
    let dns = DnsPod::new();
    dns.set_dns(true);
    let mut buffer = [0; 16];
    for (family, peer) in [PEER4, PEER6].into_iter().enumerate() {
        let resolver = address(peer, 53);
        let application = dns.client(family);
        application.send_to(b"1", resolver).unwrap();
        let server = &dns.queries[family];
        let (_, from) = receive(server, &mut buffer);
        // From the application's own port, whose entry is translated.
        drop(application);
        let port = from.port();
        let marked = dns.pod.world.pod.run(|| {
            let domain = if family == 1 {
                Domain::IPV6
            } else {
                Domain::IPV4
            };
            let socket = Socket::new(domain, Type::DGRAM, None).unwrap();
            socket.set_mark(MARK).unwrap();
            let any = address(["0.0.0.0", "::"][family], port);
            socket.bind(&any.into()).unwrap();
            UdpSocket::from(socket)
        });
        let upstream = with_deadline(marked.unwrap());
        upstream.send_to(b"2", resolver).unwrap();
        let (_, proxy) = receive(&dns.resolver[family], &mut buffer);
        assert_eq!(&buffer[..1], b"2");
        dns.resolver[family].send_to(b"3", proxy).unwrap();
        assert_eq!(receive(&upstream, &mut buffer), (1, resolver));
    }
}

#[test]
fn open_queries_continue_when_dns_capture_ends() {
    for ends_by_release in [false, true] {
        let dns = DnsPod::new();
        dns.set_dns(true);
        let mut open = [PEER4, PEER6].map(|peer| {
            let client = dns.pod.connect(address(peer, 53)).unwrap();
            [client, accept(&dns.over_tcp).0]
        });
        let mut given = connections(&dns.pod, &listen(&dns.pod.world.pod, 8080), true);
        if ends_by_release {
            release(&dns.pod.world.pod, &dns.pod.pins).unwrap();
        } else {
            dns.set_dns(false);
        }
        talk_all(&mut open);
        talk_all(&mut given);
        let mut buffer = [0; 16];
        for (family, peer) in [PEER4, PEER6].into_iter().enumerate() {
            dns.client(family).send_to(b"4", address(peer, 53)).unwrap();
            receive(&dns.resolver[family], &mut buffer);
            assert_eq!(&buffer[..1], b"4");
        }
        assert!(!dns.chains().contains("redirect"));
        assert_ne!(dns.chains().contains("guard"), ends_by_release);
        if ends_by_release {
            dns.pod.prepare();
        }
        dns.pod.apply();
        assert!(!dns.chains().contains("type nat"));
        talk_all(&mut given);
    }
}

/// DNS capture begins and ends while connections to port 53 are opened: none reaches the resolver itself.
#[test]
fn openings_to_the_resolver_are_captured_at_every_moment() {
    let dns = DnsPod::new();
    let resolver = listen(&dns.pod.world.peer, 53);
    for begins in [true, false, true, false] {
        let mut captured = 0;
        thread::scope(|scope| {
            let changing = scope.spawn(|| dns.set_dns(begins));
            loop {
                let is_over = changing.is_finished();
                for peer in [PEER4, PEER6] {
                    // When capture ends, a guard may refuse an opening that was exempt just before.
                    let opening = dns.pod.connect(address(peer, 53));
                    assert!(opening.is_ok() || !begins, "{opening:?}");
                    captured += usize::from(opening.is_ok());
                }
                if is_over {
                    break;
                }
            }
        });
        assert!(captured > 0);
        let mut accepted = 0;
        for listener in [&dns.over_tcp, &dns.pod.proxy.outbound] {
            listener.set_nonblocking(true).unwrap();
            while listener.accept().is_ok() {
                accepted += 1;
            }
        }
        assert_eq!(accepted, captured);
    }
    nobody(&resolver);
}
