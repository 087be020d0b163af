//! Tests the effects of the rules on connections, with every backend and both address families.

use std::{
    net::{IpAddr, SocketAddr, UdpSocket},
    sync::atomic::{AtomicBool, Ordering},
    time::Instant,
};

use ambit_netplan::{Backend, ProbePorts, RedirectionSpec};
use ambit_sys::{
    redirection::{self, Applied},
    socket::bind_to_arrival_interface,
};
use socket2::SockRef;

use super::{
    BACKENDS, BACKENDS_AND_BPF,
    pods::{apply, call_application, connect, release, use_backend},
    with,
    world::{
        DEADLINE, MARK, PEER4, PEER6, POD4, POD6, World, accept, accept_within, address,
        connect_from, connect_marked, ip, listen, nobody, original_destination, receive, sh, talk,
    },
};

/// Addresses of the pod and the peer in each address family.
const FAMILIES: [(&str, &str); 2] = [(POD4, PEER4), (POD6, PEER6)];

fn for_each_setup(test: impl FnMut(Backend, &str, &str)) {
    for_each_setup_of(&BACKENDS_AND_BPF, test);
}

/// Calls `test` for the backends that translate addresses: BPF programs refuse settings that need it.
fn for_each_setup_of_rules(test: impl FnMut(Backend, &str, &str)) {
    for_each_setup_of(&BACKENDS, test);
}

fn for_each_setup_of(backends: &[Backend], mut test: impl FnMut(Backend, &str, &str)) {
    for backend in backends {
        for (pod, peer) in FAMILIES {
            test(*backend, pod, peer);
        }
    }
}

#[test]
fn outbound_openings_reach_the_proxy_and_marked_sockets_escape() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        let proxy = world.proxy();
        let (server, local) = (listen(&world.peer, 80), listen(&world.pod, 8080));
        apply(&world.pod, &with(backend)).unwrap();

        let mut client = connect(&world.pod, address(peer, 80)).unwrap();
        let (mut captured, from) = accept(&proxy.outbound);
        assert_eq!(
            original_destination(&captured),
            address(peer, 80),
            "{backend}"
        );
        assert_eq!(from.ip(), ip(pod), "{backend}");
        talk(&mut client, &mut captured);
        nobody(&server);

        let mut direct = connect_marked(&world.pod, address(peer, 80)).unwrap();
        let (mut served, from) = accept(&server);
        assert_eq!(from.ip(), ip(pod), "{backend}");
        talk(&mut direct, &mut served);

        // Connections of the pod to itself are not captured, neither by loopback nor by its own
        // address; nor are the proxy's without a spoofed source.
        let loopback = if pod == POD4 { "127.0.0.1" } else { "::1" };
        for own in [loopback, pod] {
            let to = address(own, 8080);
            for client in [connect(&world.pod, to), connect_marked(&world.pod, to)] {
                let (mut served, _) = accept(&local);
                talk(&mut client.unwrap(), &mut served);
            }
        }
        nobody(&proxy.outbound);
        nobody(&proxy.inbound);
    });
}

#[test]
fn inbound_plaintext_reaches_the_proxy_and_tunnels_are_untouched() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        let proxy = world.proxy();
        let app = listen(&world.pod, 8080);
        apply(&world.pod, &with(backend)).unwrap();

        let mut client = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut captured, from) = accept(&proxy.inbound);
        assert_eq!(
            original_destination(&captured),
            address(pod, 8080),
            "{backend}"
        );
        assert_eq!(from.ip(), ip(peer), "{backend}");
        talk(&mut client, &mut captured);
        nobody(&app);

        let mut client = connect(&world.peer, address(pod, 15008)).unwrap();
        let (mut tunnel, _) = accept(&proxy.tunnel);
        assert_eq!(tunnel.local_addr().unwrap().ip().to_canonical(), ip(pod));
        talk(&mut client, &mut tunnel);
    });
}

#[test]
fn probes_reach_the_application_directly_from_the_node() {
    for_each_setup(|backend, pod, _| {
        let world = World::new();
        let proxy = world.proxy();
        let app = listen(&world.pod, 8080);
        let (probe, length) = if pod == POD4 {
            (IpAddr::from(ambit_netplan::probes::V4), 32)
        } else {
            (IpAddr::from(ambit_netplan::probes::V6), 128)
        };
        sh(
            &world.peer,
            &format!("ip addr add {probe}/{length} dev lo nodad"),
        );
        apply(&world.pod, &with(backend)).unwrap();
        let from = SocketAddr::new(probe, 0);
        let mut client = connect_from(&world.peer, from, address(pod, 8080)).unwrap();
        let (mut served, seen) = accept(&app);
        assert_eq!(seen.ip(), probe, "{backend}");
        talk(&mut client, &mut served);
        nobody(&proxy.inbound);

        for interfaces in [vec![], vec!["eth1".to_owned()]] {
            let unseen = RedirectionSpec {
                probe_interfaces: interfaces,
                ..with(backend)
            };
            apply(&world.pod, &unseen).unwrap();
            let from = SocketAddr::new(probe, 0);
            let mut client = connect_from(&world.peer, from, address(pod, 8080)).unwrap();
            let (mut captured, _) = accept(&proxy.inbound);
            talk(&mut client, &mut captured);
            nobody(&app);
        }
    });
}

#[test]
fn the_probe_address_reaches_probe_ports_only() {
    for_each_setup(|backend, pod, _| {
        let world = World::new();
        let proxy = world.proxy();
        let (probed, other) = (listen(&world.pod, 8080), listen(&world.pod, 9090));
        let (probe, length) = if pod == POD4 {
            (IpAddr::from(ambit_netplan::probes::V4), 32)
        } else {
            (IpAddr::from(ambit_netplan::probes::V6), 128)
        };
        sh(
            &world.peer,
            &format!("ip addr add {probe}/{length} dev lo nodad"),
        );
        let spec = RedirectionSpec {
            probe_ports: ProbePorts::Only(vec![8081, 8080]),
            ..with(backend)
        };
        apply(&world.pod, &spec).unwrap();
        assert_eq!(apply(&world.pod, &spec).unwrap(), Applied::Unchanged);
        let from = SocketAddr::new(probe, 0);
        let mut client = connect_from(&world.peer, from, address(pod, 8080)).unwrap();
        let (mut served, _) = accept(&probed);
        talk(&mut client, &mut served);
        nobody(&proxy.inbound);
        let mut client = connect_from(&world.peer, from, address(pod, 9090)).unwrap();
        let (mut captured, _) = accept(&proxy.inbound);
        talk(&mut client, &mut captured);
        nobody(&other);
    });
}

#[test]
fn pre_capture_connections_continue() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        let proxy = world.proxy();
        let (server, app) = (listen(&world.peer, 80), listen(&world.pod, 8080));
        let mut out = connect(&world.pod, address(peer, 80)).unwrap();
        let (mut out_served, _) = accept(&server);
        let mut inward = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut in_served, _) = accept(&app);
        // One connection that is not accepted yet, and one that is idle until after the capture.
        let mut waiting = connect(&world.pod, address(peer, 80)).unwrap();
        talk(&mut inward, &mut in_served);

        apply(&world.pod, &with(backend)).unwrap();
        for _ in 0..3 {
            talk(&mut out, &mut out_served);
            talk(&mut in_served, &mut inward);
        }
        let (mut waiting_served, _) = accept(&server);
        talk(&mut waiting_served, &mut waiting);
        nobody(&proxy.outbound);
        nobody(&proxy.inbound);
        // The next connection is captured.
        let _client = connect(&world.pod, address(peer, 80)).unwrap();
        accept(&proxy.outbound);
        nobody(&server);
    });
}

#[test]
fn connections_in_the_proxy_survive_release_and_new_ones_go_direct() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        let proxy = world.proxy();
        let (server, app) = (listen(&world.peer, 80), listen(&world.pod, 8080));
        apply(&world.pod, &with(backend)).unwrap();
        let mut out = connect(&world.pod, address(peer, 80)).unwrap();
        let (mut out_proxied, _) = accept(&proxy.outbound);
        let mut inward = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut in_proxied, from) = accept(&proxy.inbound);
        let mut leg = call_application(
            &world.pod,
            SocketAddr::new(from.ip(), 0),
            address(pod, 8080),
        )
        .unwrap();
        let (mut leg_served, _) = accept(&app);
        talk(&mut out, &mut out_proxied);

        release(&world.pod).unwrap();
        for _ in 0..3 {
            talk(&mut out, &mut out_proxied);
            talk(&mut in_proxied, &mut inward);
            talk(&mut leg, &mut leg_served);
        }
        let mut direct = connect(&world.pod, address(peer, 80)).unwrap();
        let (mut served, _) = accept(&server);
        talk(&mut direct, &mut served);
        let mut direct = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut served, _) = accept(&app);
        talk(&mut direct, &mut served);
        nobody(&proxy.outbound);
        nobody(&proxy.inbound);

        // After enrolling again, direct connections continue and new ones are captured.
        apply(&world.pod, &with(backend)).unwrap();
        talk(&mut direct, &mut served);
        talk(&mut out, &mut out_proxied);
        let _client = connect(&world.pod, address(peer, 80)).unwrap();
        accept(&proxy.outbound);
    });
}

#[test]
fn released_pod_is_still_reached_through_its_proxy() {
    for_each_setup_of_rules(|backend, pod, peer| {
        let world = World::new();
        let app = listen(&world.pod, 8080);
        // As where settings are read-only.
        let spec = RedirectionSpec {
            mark_accepted_sockets: false,
            ..with(backend)
        };
        apply(&world.pod, &spec).unwrap();
        release(&world.pod).unwrap();
        let client = SocketAddr::new(ip(peer), 0);
        let mut leg = call_application(&world.pod, client, address(pod, 8080)).unwrap();
        let (mut served, from) = accept(&app);
        assert_eq!(from.ip(), ip(peer), "{backend}");
        talk(&mut leg, &mut served);
    });
}

#[test]
fn application_sees_the_clients_address_and_replies_arrive() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        use_backend(&world.pod, backend);
        let proxy = world.proxy();
        let app = listen(&world.pod, 8080);
        apply(&world.pod, &with(backend)).unwrap();
        let mut client = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut captured, from) = accept(&proxy.inbound);
        if backend == Backend::Bpf {
            // The proxy binds it too, since its call may have the same addresses and ports, on another interface.
            bind_to_arrival_interface(&captured).unwrap();
        }
        talk(&mut client, &mut captured);
        // Any port, and then the client's own, which the kernel might also have chosen.
        for port in [0, from.port()] {
            let from = SocketAddr::new(from.ip(), port);
            let mut leg = call_application(&world.pod, from, address(pod, 8080))
                .unwrap_or_else(|error| panic!("{backend} from {from}: {error}"));
            let (mut served, seen) = accept(&app);
            assert_eq!(seen.ip(), ip(peer), "{backend}");
            talk(&mut leg, &mut served);
            talk(&mut client, &mut captured);
        }
        // A closed port is refused at once, not after a timeout.
        let refused = call_application(&world.pod, SocketAddr::new(ip(peer), 0), address(pod, 9));
        assert_eq!(
            refused.unwrap_err().kind(),
            std::io::ErrorKind::ConnectionRefused,
            "{backend}"
        );
        nobody(&proxy.inbound);
    });
}

#[test]
fn ingress_bypass_exempts_plaintext_but_not_tunnels() {
    for_each_setup(|backend, pod, peer| {
        let world = World::new();
        let proxy = world.proxy();
        let app = listen(&world.pod, 8080);
        apply(
            &world.pod,
            &RedirectionSpec {
                ingress_bypass: true,
                ..with(backend)
            },
        )
        .unwrap();
        let mut client = connect(&world.peer, address(pod, 8080)).unwrap();
        let (mut served, _) = accept(&app);
        talk(&mut client, &mut served);
        let _tunnel = connect(&world.peer, address(pod, 15008)).unwrap();
        accept(&proxy.tunnel);
        let mut leg =
            call_application(&world.pod, SocketAddr::new(ip(peer), 0), address(pod, 8080)).unwrap();
        let (mut served, _) = accept(&app);
        talk(&mut leg, &mut served);
        let _out = connect(&world.pod, address(peer, 80)).unwrap();
        accept(&proxy.outbound);
    });
}

#[test]
fn connections_from_virtual_interfaces_are_outbound() {
    for_each_setup_of_rules(|backend, pod, _| {
        let world = World::new();
        let proxy = world.proxy();
        let spec = RedirectionSpec {
            virtual_interfaces: vec!["eth0".into()],
            ..with(backend)
        };
        apply(&world.pod, &spec).unwrap();
        for port in [8080, 15008] {
            let _client = connect(&world.peer, address(pod, port)).unwrap();
            let (captured, _) = accept(&proxy.outbound);
            assert_eq!(
                original_destination(&captured),
                address(pod, port),
                "{backend}"
            );
        }
    });
}

#[test]
fn replies_arrive_whether_or_not_sockets_inherit_the_mark() {
    for_each_setup_of_rules(|backend, pod, peer| {
        for mark_accepted_sockets in [false, true] {
            let world = World::new();
            let (plain, own_mark) = (listen(&world.pod, 8080), listen(&world.pod, 8081));
            SockRef::from(&own_mark).set_mark(0x77).unwrap();
            apply(
                &world.pod,
                &RedirectionSpec {
                    mark_accepted_sockets,
                    ..with(backend)
                },
            )
            .unwrap();
            let from = SocketAddr::new(ip(peer), 0);
            for (listener, port, inherited) in [
                (&plain, 8080, if mark_accepted_sockets { 0x111 } else { 0 }),
                (&own_mark, 8081, 0x77),
            ] {
                let mut leg = call_application(&world.pod, from, address(pod, port)).unwrap();
                let (mut served, seen) = accept(listener);
                assert_eq!(seen.ip(), ip(peer));
                assert_eq!(
                    SockRef::from(&served).mark().unwrap(),
                    inherited,
                    "{backend}"
                );
                talk(&mut leg, &mut served);
            }
        }
    });
}

#[test]
fn connections_to_tunnel_ports_of_others_are_captured() {
    for_each_setup(|backend, _, peer| {
        let world = World::new();
        let proxy = world.proxy();
        apply(&world.pod, &with(backend)).unwrap();
        let mut client = connect(&world.pod, address(peer, 15008)).unwrap();
        let (mut captured, _) = accept(&proxy.outbound);
        talk(&mut client, &mut captured);
    });
}

#[test]
fn dns_queries_reach_the_proxy_and_its_own_reach_the_resolver() {
    for_each_setup_of_rules(|backend, pod, peer| {
        let world = World::new();
        let (wildcard, loopback) = if pod == POD4 {
            ("0.0.0.0", "127.0.0.1")
        } else {
            ("::", "::1")
        };
        let bind = |netns: &ambit_sys::netns::Netns, ip: &str, port| {
            // A program another test starts at this moment holds a closed socket until its exec.
            let until = Instant::now() + DEADLINE;
            let socket = loop {
                match netns.run(|| UdpSocket::bind(address(ip, port))).unwrap() {
                    Ok(socket) => break socket,
                    Err(error) => assert!(Instant::now() < until, "{ip} {port}: {error}"),
                }
            };
            socket.set_read_timeout(Some(DEADLINE)).unwrap();
            socket
        };
        let (captured, resolver) = (
            bind(&world.pod, loopback, 15053),
            bind(&world.peer, wildcard, 53),
        );
        let tcp = listen(&world.pod, 15053);
        SockRef::from(&captured).set_mark(MARK).unwrap();
        apply(
            &world.pod,
            &RedirectionSpec {
                dns_capture: true,
                ..with(backend)
            },
        )
        .unwrap();

        let mut buffer = [0; 16];
        let client = bind(&world.pod, wildcard, 0);
        let port = client.local_addr().unwrap().port();
        client.send_to(b"who", address(peer, 53)).unwrap();
        let (_, from) = receive(&captured, &mut buffer);
        captured.send_to(b"it", from).unwrap();
        let (_, from) = receive(&client, &mut buffer);
        assert_eq!(
            from,
            address(peer, 53),
            "{backend}: the answer seems to be the resolver's"
        );
        drop(client);

        // The proxy queries from the port that the client just had: the query must not count as the
        // client's.
        let upstream = bind(&world.pod, wildcard, port);
        SockRef::from(&upstream).set_mark(MARK).unwrap();
        upstream.send_to(b"who", address(peer, 53)).unwrap();
        let (_, from) = receive(&resolver, &mut buffer);
        assert_eq!(from, address(pod, port), "{backend}");
        resolver.send_to(b"it", from).unwrap();
        assert_eq!(
            receive(&upstream, &mut buffer).1,
            address(peer, 53),
            "{backend}"
        );

        let _client = connect(&world.pod, address(peer, 53)).unwrap();
        accept(&tcp);
    });
}

/// Checks that no connection bypasses the proxy while rules are repaired, changed and moved between backends.
#[test]
fn nothing_escapes_while_rules_change() {
    let world = World::new();
    let proxy = world.proxy();
    let (server, app) = (listen(&world.peer, 80), listen(&world.pod, 8080));
    redirection::apply(&world.pod, &with(Backend::Nftables)).unwrap();
    let done = AtomicBool::new(false);
    let open = |from: &ambit_sys::netns::Netns, to, captured: &std::net::TcpListener| {
        let mut opened = 0;
        while !done.load(Ordering::Relaxed) {
            connect(from, to).unwrap();
            accept_within(captured, DEADLINE).expect("it escaped");
            opened += 1;
        }
        opened
    };
    std::thread::scope(|scope| {
        let outward = scope.spawn(|| open(&world.pod, address(PEER4, 80), &proxy.outbound));
        let inward = scope.spawn(|| open(&world.peer, address(POD4, 8080), &proxy.inbound));
        for round in 0..60 {
            let backend = match round % 6 {
                0 => Backend::IptablesNft,
                2 => Backend::IptablesLegacy,
                _ => Backend::Nftables,
            };
            let changed = RedirectionSpec {
                dns_capture: round % 2 == 0,
                ipv6: round % 3 == 0,
                ..with(backend)
            };
            redirection::apply(&world.pod, &changed).unwrap();
            if backend == Backend::Nftables && round % 4 == 3 {
                sh(
                    &world.pod,
                    "nft add chain inet ambit extra; nft add rule inet ambit nat-output counter",
                );
                redirection::apply(&world.pod, &changed).unwrap();
            }
        }
        done.store(true, Ordering::Relaxed);
        assert!(outward.join().unwrap() > 50 && inward.join().unwrap() > 50);
    });
    nobody(&server);
    nobody(&app);
}
