//! The node's namespace: one rule, the pods it is for, and nothing else.

use std::net::IpAddr;

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
