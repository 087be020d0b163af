//! Tests that the rules in the node's namespace exempt kubelet's probes of enrolled pods, and no other connections.

use std::{
    net::IpAddr,
    os::{fd::AsRawFd, unix::fs::MetadataExt},
    time::Duration,
};

use ambit_netplan::{Backend, Cgroup, HostMember, HostSpec, ProbePorts};
use ambit_sys::redirection::{Applied, host};

use super::{BACKENDS, world::*};

fn host_spec_of(backend: Backend) -> HostSpec {
    HostSpec {
        backend,
        ..HostSpec::default()
    }
}

fn member(address: &str, uid: &str) -> HostMember {
    HostMember {
        ip: ip(address),
        port: Some(8080),
        uid: uid.into(),
    }
}

fn only_ports(ports: &[u16]) -> ProbePorts {
    ProbePorts::Only(ports.to_vec())
}

#[test]
fn the_nodes_own_calls_to_enrolled_pods_get_the_probe_address() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = host_spec_of(backend);
        // Here the peer plays the node.
        sh(&world.peer, "ip addr add 10.9.0.7/24 dev eth0");
        let app = listen(&world.pod, 8080);
        assert_eq!(
            host::ensure_rules(&world.peer, &spec).unwrap(),
            Applied::Installed,
            "{backend}"
        );
        let seen = |to: &str| {
            let _client = connect(&world.peer, address(to, 8080)).unwrap();
            accept(&app).1.ip()
        };
        assert_eq!(seen(POD4), ip(PEER4), "{backend}: not enrolled yet");
        host::upsert_pod(
            &world.peer,
            &spec,
            "uid-1",
            &[ip(POD4), ip(POD6)],
            &only_ports(&[8080]),
        )
        .unwrap();
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
    // iptables accepts only users that exist in the user namespace, which may have only one.
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
                ..host_spec_of(backend)
            };
            host::upsert_pod(
                &world.peer,
                &spec,
                "uid-1",
                &[ip(POD4)],
                &only_ports(&[8080]),
            )
            .unwrap();
            let _client = connect(&world.peer, address(POD4, 8080)).unwrap();
            assert_eq!(accept(&app).1.ip(), expected, "{backend}");
        }
    }
}

#[test]
fn late_removal_of_a_pod_keeps_members_of_the_next_one() {
    for backend in BACKENDS {
        let node = new_netns();
        sh(&node, "ip link set lo up");
        let spec = host_spec_of(backend);
        host::set_members(
            &node,
            &spec,
            &[member("10.0.0.1", "pod-a"), member("fd00::1", "pod-a")],
        )
        .unwrap();
        host::upsert_pod(
            &node,
            &spec,
            "pod-b",
            &[ip("10.0.0.1")],
            &only_ports(&[8080]),
        )
        .unwrap();
        host::remove_pod(&node, &spec, "pod-a").unwrap();
        assert_eq!(
            host::members(&node, &spec).unwrap(),
            [member("10.0.0.1", "pod-b")],
            "{backend}"
        );
        assert_eq!(
            host::ensure_rules(&node, &spec).unwrap(),
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
        let spec = host_spec_of(backend);
        host::upsert_pod(&node, &spec, "u", &[ip("10.0.0.1")], &only_ports(&[8080])).unwrap();
        let count = everything()
            .lines()
            .filter(|l| l.contains("SNAT") || l.contains("snat"))
            .count();
        assert_eq!(
            count,
            if backend == Backend::Nftables { 2 } else { 1 },
            "{backend}"
        );
        host::remove_rules(&node).unwrap();
        host::remove_rules(&node).unwrap();
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
    host::upsert_pod(
        &node,
        &host_spec_of(Backend::Nftables),
        "7d0c-uid",
        &[ip("10.0.0.1")],
        &only_ports(&[8080]),
    )
    .unwrap();
    let shown = sh(&node, "nft list set inet ambit-probes probe-ports-v4");
    assert!(
        shown.contains("10.0.0.1 . 8080 comment \"7d0c-uid\""),
        "{shown}"
    );
}

#[test]
fn a_damaged_node_rule_is_repaired_and_members_stay() {
    let node = new_netns();
    let spec = host_spec_of(Backend::Nftables);
    host::upsert_pod(&node, &spec, "u", &[ip("10.0.0.1")], &only_ports(&[8080])).unwrap();
    sh(&node, "nft flush chain inet ambit-probes nat-postrouting");
    let applied = host::ensure_rules(&node, &spec).unwrap();
    assert!(matches!(applied, Applied::Repaired { .. }), "{applied:?}");
    assert_eq!(
        host::members(&node, &spec).unwrap(),
        [member("10.0.0.1", "u")]
    );
    assert_eq!(
        host::ensure_rules(&node, &spec).unwrap(),
        Applied::Unchanged
    );
}

/// Checks that no other sender can use the source address of kubelet's probes, which bypass the
/// proxy, neither over the node nor on a bridge.
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
        let call = |from: &ambit_sys::netns::Netns, probe: IpAddr, timeout: Duration| {
            let to = address(
                if probe.is_ipv4() {
                    "10.9.0.2"
                } else {
                    "fd00:9::2"
                },
                8080,
            );
            let source = std::net::SocketAddr::new(probe, 0);
            connect_with(from, to, timeout, |socket| socket.bind(&source.into()))
        };
        // Without our rules each of the neighbour's calls would be a probe.
        for probe in probes {
            call(&neighbour, probe, Duration::from_secs(10)).unwrap();
            assert_eq!(accept(&app).1.ip(), probe);
        }
        host::upsert_pod(
            &node,
            &host_spec_of(backend),
            "uid-1",
            &[ip("10.9.0.2"), ip("fd00:9::2")],
            &only_ports(&[8080]),
        )
        .unwrap();
        for probe in probes {
            for from in [&neighbour, &remote] {
                let refused = call(from, probe, Duration::from_millis(400));
                assert!(refused.is_err(), "{backend} {probe}");
            }
        }
        nobody(&app);
        // The node's own connections are unchanged.
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

/// Returns the source addresses that a pod observes when the node connects to two of its ports, over both address
/// families.
fn seen_by_pod(world: &World, ports: [u16; 2]) -> Vec<(u16, IpAddr)> {
    let mut seen = Vec::new();
    for port in ports {
        let app = listen(&world.pod, port);
        for to in [POD4, POD6] {
            let _client = connect(&world.peer, address(to, port)).unwrap();
            seen.push((port, accept(&app).1.ip()));
        }
    }
    seen
}

const PROBE_ADDRESSES: [IpAddr; 2] = [
    IpAddr::V4(ambit_netplan::probes::V4),
    IpAddr::V6(ambit_netplan::probes::V6),
];

#[test]
fn only_calls_to_probe_ports_get_the_probe_address() {
    for backend in BACKENDS {
        let world = World::new();
        let (spec, ips) = (host_spec_of(backend), [ip(POD4), ip(POD6)]);
        host::upsert_pod(
            &world.peer,
            &spec,
            "uid-1",
            &ips,
            &only_ports(&[8080, 8090]),
        )
        .unwrap();
        let [v4, v6] = PROBE_ADDRESSES;
        assert_eq!(
            seen_by_pod(&world, [8080, 9090]),
            [(8080, v4), (8080, v6), (9090, ip(PEER4)), (9090, ip(PEER6))],
            "{backend}"
        );
        // A pod without probes, and one whose every port is exempt.
        host::upsert_pod(&world.peer, &spec, "uid-1", &ips, &only_ports(&[])).unwrap();
        assert_eq!(
            seen_by_pod(&world, [8080, 9090])[0].1,
            ip(PEER4),
            "{backend}"
        );
        host::upsert_pod(&world.peer, &spec, "uid-1", &ips, &ProbePorts::All).unwrap();
        assert_eq!(
            seen_by_pod(&world, [8080, 9090]),
            [(8080, v4), (8080, v6), (9090, v4), (9090, v6)],
            "{backend}"
        );
    }
}

#[test]
fn exempt_connections_are_counted() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = host_spec_of(backend);
        assert_eq!(
            host::exempted_connections(&world.peer, &spec).unwrap(),
            0,
            "{backend}"
        );
        host::upsert_pod(
            &world.peer,
            &spec,
            "uid-1",
            &[ip(POD4), ip(POD6)],
            &only_ports(&[8080]),
        )
        .unwrap();
        seen_by_pod(&world, [8080, 9090]);
        assert_eq!(
            host::exempted_connections(&world.peer, &spec).unwrap(),
            2,
            "{backend}"
        );
    }
}

/// Creates the node's rules as an earlier agent wrote them, without ports: every port of a pod is exempt, for every
/// user.
fn leave_rules_of_an_earlier_agent(node: &ambit_sys::netns::Netns, backend: Backend) {
    let script = match backend {
        Backend::Nftables => format!(
            r#"nft -f - <<'END'
table inet ambit-probes {{
	set probes-v4 {{
		type ipv4_addr
		elements = {{ {POD4} comment "uid-1" }}
	}}
	set probes-v6 {{
		type ipv6_addr
		elements = {{ {POD6} comment "uid-1" }}
	}}
	chain nat-postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		meta nfproto ipv4 meta l4proto tcp tcp flags & (syn | ack) == syn meta skuid != 4294967295 ip daddr @probes-v4 snat ip to {}
		meta nfproto ipv6 meta l4proto tcp tcp flags & (syn | ack) == syn meta skuid != 4294967295 ip6 daddr @probes-v6 snat ip6 to {}
	}}
}}
END
"#,
            PROBE_ADDRESSES[0], PROBE_ADDRESSES[1]
        ),
        other => {
            let variant = other.name().trim_start_matches("iptables-");
            [
                ("iptables", POD4, 32, PROBE_ADDRESSES[0]),
                ("ip6tables", POD6, 128, PROBE_ADDRESSES[1]),
            ]
            .map(|(program, pod, length, probe)| {
                format!(
                    "{program}-{variant} -t nat -N AMBIT_POSTRT; \
                     {program}-{variant} -t nat -A AMBIT_POSTRT -d {pod}/{length} -p tcp -m tcp \
                     --tcp-flags SYN,ACK SYN -m owner --socket-exists -m comment --comment uid-1 \
                     -j SNAT --to-source {probe}; \
                     {program}-{variant} -t nat -I POSTROUTING 1 -j AMBIT_POSTRT\n"
                )
            })
            .concat()
        }
    };
    sh(node, &script);
}

#[test]
fn probes_stay_exempt_while_a_new_agent_takes_over() {
    for backend in BACKENDS {
        let world = World::new();
        let spec = host_spec_of(backend);
        leave_rules_of_an_earlier_agent(&world.peer, backend);
        let [v4, v6] = PROBE_ADDRESSES;
        let all = [(8080, v4), (8080, v6), (9090, v4), (9090, v6)];
        assert_eq!(seen_by_pod(&world, [8080, 9090]), all, "{backend}: before");
        // The new agent has started, and knows no pod yet.
        let applied = host::ensure_rules(&world.peer, &spec).unwrap();
        assert!(matches!(applied, Applied::Repaired { .. }), "{backend}");
        assert_eq!(seen_by_pod(&world, [8080, 9090]), all, "{backend}");
        // The new agent knows this pod.
        host::upsert_pod(
            &world.peer,
            &spec,
            "uid-1",
            &[ip(POD4), ip(POD6)],
            &only_ports(&[8080]),
        )
        .unwrap();
        assert_eq!(
            seen_by_pod(&world, [8080, 9090]),
            [(8080, v4), (8080, v6), (9090, ip(PEER4)), (9090, ip(PEER6))],
            "{backend}"
        );
        assert_eq!(
            host::ensure_rules(&world.peer, &spec).unwrap(),
            Applied::Unchanged,
            "{backend}"
        );
    }
}

#[test]
fn rules_of_the_previous_backend_exempt_nothing() {
    for (before, after) in [
        (Backend::Nftables, Backend::IptablesNft),
        (Backend::IptablesNft, Backend::IptablesLegacy),
        (Backend::IptablesLegacy, Backend::Nftables),
    ] {
        let world = World::new();
        let ips = [ip(POD4), ip(POD6)];
        host::upsert_pod(
            &world.peer,
            &host_spec_of(before),
            "uid-1",
            &ips,
            &ProbePorts::All,
        )
        .unwrap();
        let members = ips.map(|ip| HostMember {
            ip,
            port: Some(8080),
            uid: "uid-1".into(),
        });
        host::set_members(&world.peer, &host_spec_of(after), &members).unwrap();
        let [v4, v6] = PROBE_ADDRESSES;
        assert_eq!(
            seen_by_pod(&world, [8080, 9090]),
            [(8080, v4), (8080, v6), (9090, ip(PEER4)), (9090, ip(PEER6))],
            "{before} to {after}"
        );
    }
}

/// Cgroup v2 hierarchy, mounted for this test alone.
struct Cgroups(std::path::PathBuf);

impl Cgroups {
    fn mount() -> Self {
        let root = std::env::temp_dir().join(format!("cgroups-{}", std::process::id()));
        std::fs::create_dir_all(&root).unwrap();
        let flags = rustix::mount::MountFlags::empty();
        rustix::mount::mount("none", &root, "cgroup2", flags, None).unwrap();
        Self(root)
    }

    /// Creates a cgroup, and returns it with its path.
    fn create(&self, name: &str) -> (Cgroup, std::path::PathBuf) {
        let path = self.0.join(format!("{name}-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let id = std::fs::metadata(&path).unwrap().ino();
        (Cgroup { level: 1, id }, path)
    }
}

impl Drop for Cgroups {
    fn drop(&mut self) {
        for name in ["kubelet", "pods"] {
            let path = self.0.join(format!("{name}-{}", std::process::id()));
            std::fs::remove_dir(path).ok();
        }
        rustix::mount::unmount(&self.0, rustix::mount::UnmountFlags::DETACH).ok();
        std::fs::remove_dir(&self.0).ok();
    }
}

#[test]
fn only_calls_of_kubelets_cgroup_are_probes() {
    let world = World::new();
    let cgroups = Cgroups::mount();
    let (kubelet, of_kubelet) = cgroups.create("kubelet");
    let (_, of_pods) = cgroups.create("pods");
    let spec = HostSpec {
        kubelet_cgroup: Some(kubelet),
        ..host_spec_of(Backend::Nftables)
    };
    let ips = [ip(POD4), ip(POD6)];
    host::upsert_pod(&world.peer, &spec, "uid-1", &ips, &only_ports(&[8080])).unwrap();
    assert_eq!(
        host::ensure_rules(&world.peer, &spec).unwrap(),
        Applied::Unchanged
    );
    let app = listen(&world.pod, 8080);
    for (cgroup, expected) in [
        (&of_kubelet, PROBE_ADDRESSES),
        (&of_pods, [ip(PEER4), ip(PEER6)]),
    ] {
        for (to, expected) in [POD4, POD6].into_iter().zip(expected) {
            let enter = format!("echo $$ > {}/cgroup.procs", cgroup.display());
            sh(
                &world.peer,
                &format!("{enter}; exec bash -c 'exec 3<>/dev/tcp/{to}/8080'"),
            );
            assert_eq!(accept(&app).1.ip(), expected, "{}", cgroup.display());
        }
    }
}

#[test]
fn unreadable_cgroup_exempts_nobody() {
    let world = World::new();
    for backend in [Backend::Nftables, Backend::IptablesNft] {
        let spec = HostSpec {
            kubelet_cgroup: Some(Cgroup::NONE),
            ..host_spec_of(backend)
        };
        let ips = [ip(POD4), ip(POD6)];
        host::upsert_pod(&world.peer, &spec, "uid-1", &ips, &only_ports(&[8080])).unwrap();
        assert_eq!(
            host::ensure_rules(&world.peer, &spec).unwrap(),
            Applied::Unchanged,
            "{backend}"
        );
        let app = listen(&world.pod, 8080);
        for (to, expected) in [(POD4, ip(PEER4)), (POD6, ip(PEER6))] {
            sh(
                &world.peer,
                &format!("exec bash -c 'exec 3<>/dev/tcp/{to}/8080'"),
            );
            assert_eq!(accept(&app).1.ip(), expected, "{backend}");
        }
        host::remove_rules(&world.peer).unwrap();
    }
}
