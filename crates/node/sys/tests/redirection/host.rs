//! The node's namespace: the rules for probes, the pods they are for, and nothing else.

use std::{net::IpAddr, os::fd::AsRawFd, time::Duration};

use ambit_netplan::{Backend, HostMember, HostSpec};
use ambit_sys::redirection::{Applied, host};

use super::{BACKENDS, world::*};

fn with(backend: Backend) -> HostSpec {
    HostSpec {
        backend,
        ..HostSpec::default()
    }
}

fn member(address: &str, uid: &str) -> HostMember {
    HostMember {
        ip: ip(address),
        uid: uid.into(),
    }
}

#[test]
fn the_nodes_own_calls_to_enrolled_pods_get_the_probe_address() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = with(backend);
        // Here the peer plays the node.
        sh(&world.peer, "ip addr add 10.9.0.7/24 dev eth0");
        let app = listen(&world.pod, 8080);
        assert_eq!(
            host::ensure(&world.peer, &spec).unwrap(),
            Applied::Installed,
            "{backend}"
        );
        let seen = |to: &str| {
            let _client = connect(&world.peer, address(to, 8080)).unwrap();
            accept(&app).1.ip()
        };
        assert_eq!(seen(POD4), ip(PEER4), "{backend}: not enrolled yet");
        host::upsert(&world.peer, &spec, "uid-1", &[ip(POD4), ip(POD6)]).unwrap();
        assert_eq!(
            seen(POD4),
            IpAddr::from(ambit_netplan::probes::V4),
            "{backend}"
        );
        assert_eq!(
            seen(POD6),
            IpAddr::from(ambit_netplan::probes::V6),
            "{backend}"
        );
        host::remove_pod(&world.peer, &spec, "uid-1").unwrap();
        assert_eq!(seen(POD4), ip(PEER4), "{backend}");
        assert_eq!(seen(POD6), ip(PEER6), "{backend}");
    }
}

#[test]
fn only_the_named_users_calls_are_probes() {
    // iptables takes only users that exist in the user namespace, of which there may be one.
    let others = std::fs::read_to_string("/proc/self/uid_map")
        .unwrap()
        .contains("4294967295");
    for backend in BACKENDS
        .into_iter()
        .filter(|b| others || *b == Backend::Nftables)
    {
        let world = World::new();
        let app = listen(&world.pod, 8080);
        for (uid, expected) in [
            (0, IpAddr::from(ambit_netplan::probes::V4)),
            (4242, ip(PEER4)),
        ] {
            let spec = HostSpec {
                kubelet_uid: Some(uid),
                ..with(backend)
            };
            host::upsert(&world.peer, &spec, "uid-1", &[ip(POD4)]).unwrap();
            let _client = connect(&world.peer, address(POD4, 8080)).unwrap();
            assert_eq!(accept(&app).1.ip(), expected, "{backend}");
        }
    }
}

#[test]
fn members_belong_to_pods_and_a_late_removal_takes_nothing_from_the_next() {
    for backend in BACKENDS {
        let node = new_netns();
        sh(&node, "ip link set lo up");
        let spec = with(backend);
        host::set_members(
            &node,
            &spec,
            &[member("10.0.0.1", "pod-a"), member("fd00::1", "pod-a")],
        )
        .unwrap();
        host::upsert(&node, &spec, "pod-b", &[ip("10.0.0.1")]).unwrap();
        host::remove_pod(&node, &spec, "pod-a").unwrap();
        assert_eq!(
            host::members(&node, &spec).unwrap(),
            [member("10.0.0.1", "pod-b")],
            "{backend}"
        );
        assert_eq!(
            host::ensure(&node, &spec).unwrap(),
            Applied::Unchanged,
            "{backend}"
        );
        host::set_members(&node, &spec, &[member("10.0.0.2", "0b5f-uid")]).unwrap();
        assert_eq!(
            host::members(&node, &spec).unwrap(),
            [member("10.0.0.2", "0b5f-uid")]
        );
    }
}

#[test]
fn nothing_but_the_one_rule_is_added_and_removal_leaves_nothing() {
    for backend in BACKENDS {
        let node = new_netns();
        let everything = || {
            sh(
                &node,
                "nft list ruleset; iptables-legacy-save; ip6tables-legacy-save; ip rule; ip -6 rule; ip route show table all",
            )
        };
        sh(&node, "ip link set lo up; iptables-nft -A INPUT -j ACCEPT");
        let spec = with(backend);
        host::upsert(&node, &spec, "u", &[ip("10.0.0.1")]).unwrap();
        let count = everything()
            .lines()
            .filter(|l| l.contains("SNAT") || l.contains("snat"))
            .count();
        assert_eq!(
            count,
            if backend == Backend::Nftables { 2 } else { 1 },
            "{backend}"
        );
        host::remove(&node).unwrap();
        host::remove(&node).unwrap();
        let after = everything();
        assert!(
            !after.to_lowercase().contains("ambit") && after.contains("accept"),
            "{after}"
        );
        assert_eq!(host::members(&node, &spec).unwrap(), []);
    }
}

#[test]
fn comments_are_as_nft_shows_them() {
    let node = new_netns();
    host::upsert(
        &node,
        &with(Backend::Nftables),
        "7d0c-uid",
        &[ip("10.0.0.1")],
    )
    .unwrap();
    let shown = sh(&node, "nft list set inet ambit-probes probes-v4");
    assert!(shown.contains("10.0.0.1 comment \"7d0c-uid\""), "{shown}");
}

#[test]
fn a_damaged_node_rule_is_repaired_and_members_stay() {
    let node = new_netns();
    let spec = with(Backend::Nftables);
    host::upsert(&node, &spec, "u", &[ip("10.0.0.1")]).unwrap();
    sh(&node, "nft flush chain inet ambit-probes nat-postrouting");
    let applied = host::ensure(&node, &spec).unwrap();
    assert!(matches!(applied, Applied::Repaired { .. }), "{applied:?}");
    assert_eq!(
        host::members(&node, &spec).unwrap(),
        [member("10.0.0.1", "u")]
    );
    assert_eq!(host::ensure(&node, &spec).unwrap(), Applied::Unchanged);
}

/// Kubelet's probes bypass the proxy; no other sender can use their address, neither over the node nor
/// on a bridge.
#[test]
fn nobody_but_the_node_has_the_address_of_its_probes() {
    for backend in BACKENDS {
        // The node, with a bridge of a pod and a neighbour, and another node.
        let (node, pod, neighbour, remote) = (new_netns(), new_netns(), new_netns(), new_netns());
        let path = |netns: &ambit_sys::netns::Netns| {
            let id = rustix::io::fcntl_dupfd_cloexec(netns, 0).unwrap();
            let path = format!("/proc/{}/fd/{}", std::process::id(), id.as_raw_fd());
            (id, path)
        };
        sh(
            &node,
            "ip link set lo up; ip link add br0 type bridge; ip link set br0 up",
        );
        for (port, other) in [("pod0", &pod), ("near0", &neighbour), ("far0", &remote)] {
            let (_open, path) = path(other);
            sh(
                &node,
                &format!(
                    "ip link add {port} type veth peer name eth0 netns {path}; ip link set {port} up"
                ),
            );
            sh(other, "ip link set lo up; ip link set eth0 up");
        }
        sh(
            &node,
            "ip link set pod0 master br0; ip link set near0 master br0; \
             ip addr add 10.9.0.1/24 dev br0; ip addr add fd00:9::1/64 dev br0 nodad; \
             ip addr add 10.8.0.1/24 dev far0; ip addr add fd00:8::1/64 dev far0 nodad; \
             echo 1 > /proc/sys/net/ipv4/ip_forward; echo 1 > /proc/sys/net/ipv6/conf/all/forwarding; \
             for f in /proc/sys/net/ipv4/conf/*/rp_filter; do echo 0 > $f; done; \
             ip route add 169.254.7.127 dev br0; ip -6 route add fd16:9254:7127:1337:ffff:ffff:ffff:ffff dev br0",
        );
        sh(
            &pod,
            "ip addr add 10.9.0.2/24 dev eth0; ip addr add fd00:9::2/64 dev eth0 nodad; \
             ip route add default via 10.9.0.1; ip route add default via fd00:9::1; \
             ip route add 169.254.7.127 dev eth0; ip -6 route add fd16:9254:7127:1337:ffff:ffff:ffff:ffff dev eth0",
        );
        let pretender = |netns, address, dev: &str, via: &str| {
            sh(
                netns,
                &format!(
                    "{address} ip addr add 169.254.7.127/32 dev {dev}; \
                     ip addr add fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128 dev {dev} nodad; \
                     ip route add 10.9.0.0/24 {via} dev {dev} 2>/dev/null || true; \
                     ip -6 route add fd00:9::/64 {} dev {dev} 2>/dev/null || true",
                    via.replace("10.8.0.1", "fd00:8::1"),
                ),
            );
        };
        pretender(
            &neighbour,
            "ip addr add 10.9.0.3/24 dev eth0; ip addr add fd00:9::3/64 dev eth0 nodad;",
            "eth0",
            "",
        );
        pretender(
            &remote,
            "ip addr add 10.8.0.2/24 dev eth0; ip addr add fd00:8::2/64 dev eth0 nodad;",
            "eth0",
            "via 10.8.0.1",
        );
        let app = listen(&pod, 8080);
        let probes = [
            IpAddr::from(ambit_netplan::probes::V4),
            IpAddr::from(ambit_netplan::probes::V6),
        ];
        let call = |from: &ambit_sys::netns::Netns, probe: IpAddr| {
            let to = address(
                if probe.is_ipv4() {
                    "10.9.0.2"
                } else {
                    "fd00:9::2"
                },
                8080,
            );
            let source = std::net::SocketAddr::new(probe, 0);
            connect_with(from, to, Duration::from_millis(400), |socket| {
                socket.bind(&source.into())
            })
        };
        // Without our rules each of the neighbour's calls would be a probe.
        for probe in probes {
            call(&neighbour, probe).unwrap();
            assert_eq!(accept(&app).1.ip(), probe);
        }
        host::upsert(
            &node,
            &with(backend),
            "uid-1",
            &[ip("10.9.0.2"), ip("fd00:9::2")],
        )
        .unwrap();
        for probe in probes {
            for from in [&neighbour, &remote] {
                assert!(call(from, probe).is_err(), "{backend} {probe}");
            }
        }
        nobody(&app);
        // The node's own are what they were.
        sh(
            &node,
            "ip route del 169.254.7.127 dev br0; ip -6 route del fd16:9254:7127:1337:ffff:ffff:ffff:ffff dev br0",
        );
        sh(
            &pod,
            "ip route del 169.254.7.127 dev eth0; ip -6 route del fd16:9254:7127:1337:ffff:ffff:ffff:ffff dev eth0",
        );
        for (to, probe) in [("10.9.0.2", probes[0]), ("fd00:9::2", probes[1])] {
            let _client = connect(&node, address(to, 8080)).unwrap();
            assert_eq!(accept(&app).1.ip(), probe, "{backend}");
        }
    }
}
