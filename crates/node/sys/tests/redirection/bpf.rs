//! Tests capture by BPF programs with its routes and guards, on a pod whose application has a cgroup of its own.

mod dns;

use std::{
    fs, io,
    net::{SocketAddr, TcpListener, TcpStream},
    path::PathBuf,
    thread,
    time::{Duration, Instant},
};

use ambit_bpf::{Capture, Role};
use ambit_bpf_testkit::{Bpffs, enter_cgroup, new_cgroup, remove_cgroup};
use ambit_netplan::{Backend, RedirectionSpec, SpecError};
use ambit_sys::redirection::{
    self, Applied, RedirectionError,
    bpf::{BpfPod, apply, apply_rules, observe, prepare, purge, release},
};

use super::{
    cookies::{Forge, OPENED_AT, flood},
    packets::{ACK, RST, SYN, Segment, Sender},
    pods::call_captured_by_programs,
    with,
    world::*,
};

const FAMILIES: [(&str, &str); 2] = [(POD4, PEER4), (POD6, PEER6)];

pub(crate) struct Pod {
    pub(crate) world: World,
    pub(crate) proxy: Proxy,
    pub(crate) cgroup: PathBuf,
    pins: PathBuf,
    _bpffs: Bpffs,
}

impl Pod {
    fn new() -> Self {
        Self::at_cgroup(new_cgroup())
    }

    pub(crate) fn at_cgroup(cgroup: PathBuf) -> Self {
        let world = World::new();
        let bpffs = Bpffs::new();
        let pins = bpffs.path().join("pod");
        let pod = Self {
            proxy: world.proxy(),
            world,
            cgroup,
            pins,
            _bpffs: bpffs,
        };
        pod.prepare();
        pod
    }

    /// Prepares the pod, and enters the proxy's listeners.
    fn prepare(&self) {
        prepare(&self.place(), &with(Backend::Bpf)).unwrap();
        let mut listeners = Capture::at(&self.pins).listeners().unwrap();
        listeners
            .put(Role::Outbound, 0, &self.proxy.outbound)
            .unwrap();
        listeners
            .put(Role::Inbound, 0, &self.proxy.inbound)
            .unwrap();
        listeners.confirm().unwrap();
    }

    fn captured() -> Self {
        let pod = Self::new();
        assert_eq!(pod.apply(), Applied::Installed);
        pod
    }

    pub(crate) fn place(&self) -> BpfPod<'_> {
        BpfPod {
            netns: &self.world.pod,
            cgroup: &self.cgroup,
            pins: &self.pins,
        }
    }

    pub(crate) fn apply(&self) -> Applied {
        apply(&self.place(), &with(Backend::Bpf)).unwrap()
    }

    pub(crate) fn apply_rules(&self) -> Applied {
        apply_rules(&self.world.pod, &self.pins, &with(Backend::Bpf)).unwrap()
    }

    fn differences(&self) -> String {
        observe(&self.place(), &with(Backend::Bpf))
            .unwrap()
            .to_string()
    }

    /// Runs `work` as a process of the pod's cgroup, unlike the thread of a test.
    fn at_application<T: Send>(&self, work: impl FnOnce() -> T + Send) -> T {
        thread::scope(|scope| {
            let joined = || {
                enter_cgroup(&self.cgroup);
                work()
            };
            scope.spawn(joined).join().unwrap()
        })
    }

    pub(crate) fn connect(&self, to: SocketAddr) -> io::Result<TcpStream> {
        self.at_application(|| connect(&self.world.pod, to))
    }

    fn call_application(&self, from: SocketAddr, to: SocketAddr) -> io::Result<TcpStream> {
        call_captured_by_programs(&self.world.pod, from, to)
    }

    /// Returns the number of packets that the rule with this text has counted.
    #[track_caller]
    fn counted(&self, rule: &str) -> u64 {
        let table = sh(&self.world.pod, "nft list table inet ambit");
        let line = table.lines().find(|line| line.contains(rule));
        let line = line.unwrap_or_else(|| panic!("{rule} is not in {table}"));
        let count = line.split("packets ").nth(1).unwrap();
        count.split(' ').next().unwrap().parse().unwrap()
    }
}

impl Drop for Pod {
    fn drop(&mut self) {
        remove_cgroup(&self.cgroup);
    }
}

pub(crate) fn at(stream: &TcpStream) -> SocketAddr {
    let local = stream.local_addr().unwrap();
    SocketAddr::new(local.ip().to_canonical(), local.port())
}

#[test]
fn both_directions_are_captured_and_the_application_is_called() {
    let pod = Pod::captured();
    let application = listen(&pod.world.pod, 8080);
    for (own, peer) in FAMILIES {
        let far = address(peer, 80);
        let mut out = pod.connect(far).unwrap();
        let (mut captured, from) = accept(&pod.proxy.outbound);
        assert_eq!((at(&captured), from), (far, at(&out)));
        talk(&mut out, &mut captured);
        let to = address(own, 8080);
        let mut inward = connect(&pod.world.peer, to).unwrap();
        let (mut captured, from) = accept(&pod.proxy.inbound);
        assert_eq!((at(&captured), from), (to, at(&inward)));
        talk(&mut inward, &mut captured);
        let mut call = pod.call_application(address(peer, 0), to).unwrap();
        let (mut served, from) = accept(&application);
        assert_eq!((at(&served), from), (to, at(&call)));
        talk(&mut call, &mut served);
        let mut tunnel = connect(&pod.world.peer, address(own, 15008)).unwrap();
        talk(&mut tunnel, &mut accept(&pod.proxy.tunnel).0);
        let mut own_call = pod.connect(to).unwrap();
        talk(&mut own_call, &mut accept(&application).0);
        let listener = listen(&pod.world.peer, 81);
        let mut by_proxy = connect_marked(&pod.world.pod, address(peer, 81)).unwrap();
        talk(&mut by_proxy, &mut accept(&listener).0);
    }
    nobody(&application);
}

/// The agent closes connections from before the capture when a pod had no redirection, as after the loss of its plugin.
#[test]
fn pod_without_redirection_is_recognized_with_each_setting() {
    for dns_capture in [false, true] {
        let pod = Pod::new();
        pod.prepare();
        let spec = RedirectionSpec {
            dns_capture,
            ..with(Backend::Bpf)
        };
        assert_eq!(apply(&pod.place(), &spec).unwrap(), Applied::Installed);
        assert_eq!(apply(&pod.place(), &spec).unwrap(), Applied::Unchanged);
    }
}

#[test]
fn every_difference_is_found_and_repaired() {
    let pod = Pod::captured();
    assert_eq!(pod.differences(), "");
    assert_eq!(pod.apply(), Applied::Unchanged);
    let pin = |name: &str| fs::remove_file(pod.pins.join("layout-1").join(name)).unwrap();
    let in_pod = |command: &str| drop(sh(&pod.world.pod, command));
    let cases: [(&str, &dyn Fn()); 9] = [
        ("the BPF programs are missing", &|| pin("steer")),
        ("the BPF programs are missing", &|| pin("connecting_v6")),
        ("the settings of the BPF programs differ", &|| {
            in_pod("ip addr add 10.9.0.99/24 dev eth0");
        }),
        ("the IPv4 outbound policy rule is missing", &|| {
            in_pod("ip rule del pref 32763");
        }),
        ("the IPv6 outbound local route is missing", &|| {
            in_pod("ip -6 route flush table 101");
        }),
        ("guard-output", &|| {
            in_pod("nft flush chain inet ambit guard-output");
        }),
        ("accepted sockets do not inherit marks", &|| {
            in_pod("echo 0 > /proc/sys/net/ipv4/tcp_fwmark_accept");
        }),
        ("resets do not inherit marks", &|| {
            in_pod("echo 0 > /proc/sys/net/ipv4/fwmark_reflect");
        }),
        ("resets do not inherit marks", &|| {
            in_pod("echo 0 > /proc/sys/net/ipv6/fwmark_reflect");
        }),
    ];
    for (expected, damage) in cases {
        damage();
        let found = pod.differences();
        assert!(found.contains(expected), "{expected:?} is not in {found:?}");
        pod.apply();
        assert_eq!(pod.differences(), "", "{expected}");
        drop(pod.connect(address(PEER4, 80)).unwrap());
        drop(accept(&pod.proxy.outbound));
    }
}

/// Another backend tracks the same connections.
#[test]
fn connections_are_not_tracked() {
    let pod = Pod::captured();
    let mut out = pod.connect(address(PEER4, 80)).unwrap();
    talk(&mut out, &mut accept(&pod.proxy.outbound).0);
    let mut inward = connect(&pod.world.peer, address(POD4, 8080)).unwrap();
    talk(&mut inward, &mut accept(&pod.proxy.inbound).0);
    let count = "cat /proc/sys/net/netfilter/nf_conntrack_count 2>/dev/null || echo 0";
    assert_eq!(sh(&pod.world.pod, count).trim(), "0");
    let other = World::new();
    let proxy = other.proxy();
    redirection::apply(&other.pod, &with(Backend::Nftables)).unwrap();
    let _out = connect(&other.pod, address(PEER4, 80)).unwrap();
    let _captured = accept(&proxy.outbound);
    assert_ne!(sh(&other.pod, count).trim(), "0");
}

#[test]
fn process_that_entered_the_namespace_is_refused() {
    let pod = Pod::captured();
    let far = listen(&pod.world.peer, 80);
    for (_, peer) in FAMILIES {
        let refused = connect(&pod.world.pod, address(peer, 80)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
    nobody(&far);
    nobody(&pod.proxy.outbound);
}

/// Programs see sockets that connect, and raw sockets do not.
#[test]
fn openings_of_raw_sockets_do_not_leave_the_pod() {
    let pod = Pod::new();
    sh(
        &pod.world.peer,
        "nft add table inet seen; nft add chain inet seen input '{ type filter hook input priority 0; }'; \
         nft add rule inet seen input tcp dport 80 counter",
    );
    let later = listen(&pod.world.peer, 81);
    let count_after_openings = || {
        for (own, peer) in FAMILIES {
            let opening = Segment::new(address(own, 40_000), address(peer, 80), SYN);
            pod.at_application(|| {
                Sender::new(&pod.world.pod, opening.to.is_ipv4()).send(&opening, ip(peer));
            });
            // Bytes that are sent later are received later.
            drop(connect_marked(&pod.world.pod, address(peer, 81)).unwrap());
            drop(accept(&later));
        }
        let table = sh(&pod.world.peer, "nft list table inet seen");
        let count = table.split("packets ").nth(1).unwrap();
        count.split(' ').next().unwrap().parse::<u32>().unwrap()
    };
    assert_eq!(count_after_openings(), 2, "not captured");
    pod.apply();
    assert_eq!(count_after_openings(), 2);
}

/// Neither an opening nor what follows leaves in plaintext while the routes are missing.
#[test]
fn marked_sockets_never_leave_the_pod() {
    let pod = Pod::captured();
    let far = listen(&pod.world.peer, 80);
    let mut before = pod.connect(address(PEER4, 80)).unwrap();
    let _captured = accept(&pod.proxy.outbound);
    sh(
        &pod.world.pod,
        "ip -4 rule del pref 32763; ip -6 rule del pref 32763",
    );
    for (_, peer) in FAMILIES {
        let refused = pod.connect(address(peer, 80)).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
    }
    nobody(&far);
    let refused = "meta mark & 0x00000fff == 0x00000222";
    let openings = pod.counted(refused);
    assert!(openings >= 2);
    let _reset = io::Write::write(&mut before, b"secret");
    assert!(pod.counted(refused) > openings);
}

#[test]
fn forged_packets_of_captured_connections_are_dropped() {
    let pod = Pod::captured();
    for (count, (own, peer)) in FAMILIES.into_iter().enumerate() {
        let mut client = pod.connect(address(peer, 80)).unwrap();
        let (mut captured, _) = accept(&pod.proxy.outbound);
        let from = address(peer, 80);
        let to = SocketAddr::new(ip(own), client.local_addr().unwrap().port());
        for flags in [ACK, RST, RST | ACK] {
            Sender::new(&pod.world.peer, to.is_ipv4())
                .send(&Segment::new(from, to, flags), ip(own));
        }
        let expected = 3 * (u64::try_from(count).unwrap() + 1);
        let until = Instant::now() + DEADLINE;
        while pod.counted("socket mark") < expected && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(pod.counted("socket mark"), expected);
        talk(&mut client, &mut captured);
    }
}

#[test]
fn packets_from_outside_with_the_pods_own_source_reach_nobody() {
    let pod = Pod::captured();
    let application = listen(&pod.world.pod, 8080);
    sh(
        &pod.world.pod,
        "echo 1 > /proc/sys/net/ipv4/conf/all/accept_local; echo 1 > /proc/sys/net/ipv4/conf/eth0/accept_local",
    );
    for (own, rule) in [(POD4, "ip saddr 10.9.0.2"), (POD6, "ip6 saddr fd00:9::2")] {
        let (from, to) = (address(own, 40_000), address(own, 8080));
        let mut sender = Sender::new(&pod.world.peer, to.is_ipv4());
        let opening = Segment::new(from, to, SYN);
        sender.send(&opening, ip(own));
        let until = Instant::now() + DEADLINE;
        while pod.counted(rule) == 0 && Instant::now() < until {
            thread::yield_now();
        }
        assert_eq!(pod.counted(rule), 1, "{own}");
    }
    nobody(&application);
    nobody(&pod.proxy.inbound);
}

#[test]
fn forged_cookie_opens_no_connection() {
    let forge = Forge::new();
    for (own, peer, nobody_there) in [(POD4, PEER4, "10.9.0.77"), (POD6, PEER6, "fd00:9::77")] {
        let pod = Pod::new();
        let application = listen(&pod.world.pod, 8080);
        let (from, to) = (address(peer, 40_000), address(own, 8080));
        flood(&pod.world, (own, nobody_there), 300);
        pod.apply();
        let ack = Segment {
            seq: OPENED_AT.wrapping_add(1),
            ack: forge.cookie(from, to).wrapping_add(1),
            payload: b"GET / HTTP/1.1\r\n\r\n".to_vec(),
            ..Segment::new(from, to, ACK)
        };
        Sender::new(&pod.world.peer, to.is_ipv4()).send(&ack, to.ip());
        let opened = accept_within(&application, Duration::from_millis(200));
        assert!(opened.is_none(), "{own}");
        nobody(&pod.proxy.inbound);
    }
}

#[test]
fn connections_continue_through_capture_release_and_purge() {
    let pod = Pod::new();
    let (application, far) = (listen(&pod.world.pod, 8080), listen(&pod.world.peer, 80));
    let mut inward = connect(&pod.world.peer, address(POD4, 8080)).unwrap();
    let mut in_served = accept(&application).0;
    let mut outward = pod.connect(address(PEER6, 80)).unwrap();
    let mut out_served = accept(&far).0;
    pod.apply();
    talk(&mut inward, &mut in_served);
    talk(&mut outward, &mut out_served);
    let mut captured = pod.connect(address(PEER4, 80)).unwrap();
    let mut at_proxy = accept(&pod.proxy.outbound).0;
    let mut call = pod
        .call_application(address(PEER4, 0), address(POD4, 8080))
        .unwrap();
    let mut called = accept(&application).0;
    release(&pod.world.pod, &pod.pins).unwrap();
    release(&pod.world.pod, &pod.pins).unwrap();
    for (a, b) in [
        (&mut inward, &mut in_served),
        (&mut outward, &mut out_served),
        (&mut captured, &mut at_proxy),
        (&mut call, &mut called),
    ] {
        talk(a, b);
    }
    drop(pod.connect(address(PEER4, 80)).unwrap());
    drop(accept(&far));
    drop(connect(&pod.world.peer, address(POD4, 8080)).unwrap());
    drop(accept(&application));
    // Tunnels that the proxy still has call the application.
    drop(
        pod.call_application(address(PEER4, 0), address(POD4, 8080))
            .unwrap(),
    );
    drop(accept(&application));
    purge(&pod.world.pod, &pod.pins).unwrap();
    purge(&pod.world.pod, &pod.pins).unwrap();
    talk(&mut inward, &mut in_served);
    talk(&mut outward, &mut out_served);
    assert!(!pod.pins.exists());
    let reflects = "cat /proc/sys/net/ipv[46]/fwmark_reflect";
    assert_eq!(sh(&pod.world.pod, reflects), "0\n0\n");
    for command in ["ip rule", "ip -6 rule", "nft list ruleset"] {
        let left = sh(&pod.world.pod, command);
        assert!(!left.contains("0x222") && !left.contains("0x111") && !left.contains("ambit"));
    }
}

/// Connection of each kind, with both its ends, and the mark of the proxy's call.
fn connections(pod: &Pod, application: &TcpListener, by_bpf: bool) -> Vec<[TcpStream; 2]> {
    let mut pairs = Vec::new();
    for (own, peer) in FAMILIES {
        let far = address(peer, 80);
        let out = pod.connect(far).unwrap();
        let captured = accept(&pod.proxy.outbound).0;
        assert_eq!(at(&captured) == far, by_bpf, "{peer}");
        let to = address(own, 8080);
        let inward = connect(&pod.world.peer, to).unwrap();
        let plaintext = accept(&pod.proxy.inbound).0;
        assert_eq!(at(&plaintext) == to, by_bpf, "{own}");
        let call = if by_bpf {
            pod.call_application(address(peer, 0), to)
        } else {
            connect_spoofed(&pod.world.pod, address(peer, 0), to)
        };
        pairs.extend([
            [out, captured],
            [inward, plaintext],
            [call.unwrap(), accept(application).0],
        ]);
    }
    pairs
}

fn talk_all(pairs: &mut [[TcpStream; 2]]) {
    for [a, b] in pairs {
        talk(a, b);
    }
}

#[test]
fn connections_continue_while_the_backend_changes() {
    let pod = Pod::new();
    let application = listen(&pod.world.pod, 8080);
    redirection::apply(&pod.world.pod, &with(Backend::Nftables)).unwrap();
    let mut translated = connections(&pod, &application, false);
    assert!(matches!(pod.apply(), Applied::Repaired { .. }));
    talk_all(&mut translated);
    let mut given = connections(&pod, &application, true);
    assert_eq!(pod.apply(), Applied::Unchanged);
    talk_all(&mut translated);
    talk_all(&mut given);
    assert!(matches!(pod.apply_rules(), Applied::Repaired { .. }));
    talk_all(&mut translated);
    talk_all(&mut given);
    assert_eq!(pod.apply_rules(), Applied::Unchanged);
    assert!(!pod.pins.exists());
    let mut again = connections(&pod, &application, false);
    for pairs in [&mut translated, &mut given, &mut again] {
        talk_all(pairs);
    }
    pod.prepare();
    pod.apply();
    for pairs in [&mut translated, &mut given, &mut again] {
        talk_all(pairs);
    }
    // The rules of translated connections go with the last of them.
    let translates = || sh(&pod.world.pod, "nft list table inet ambit").contains("type nat");
    assert!(translates());
    drop((translated, again));
    let until = Instant::now() + DEADLINE;
    while translates() && Instant::now() < until {
        pod.apply();
    }
    assert!(!translates());
    talk_all(&mut given);
    drop(connections(&pod, &application, true));
}

/// Neither side's openings reach anybody but the proxy, nor do those of a process of another cgroup.
#[test]
fn openings_are_captured_at_every_moment_of_a_change() {
    let pod = Pod::captured();
    let (application, far) = (listen(&pod.world.pod, 8080), listen(&pod.world.peer, 80));
    thread::scope(|scope| {
        let changing = scope.spawn(|| {
            for _ in 0..10 {
                pod.apply_rules();
                pod.apply_rules();
                pod.prepare();
                pod.apply();
            }
        });
        while !changing.is_finished() {
            for (own, peer) in FAMILIES {
                drop(pod.connect(address(peer, 80)).unwrap());
                drop(accept(&pod.proxy.outbound));
                drop(connect(&pod.world.peer, address(own, 8080)).unwrap());
                drop(accept(&pod.proxy.inbound));
                // Under rules it is captured, under programs refused.
                if let Ok(entered) = connect(&pod.world.pod, address(peer, 80)) {
                    drop(entered);
                    drop(accept(&pod.proxy.outbound));
                }
            }
        }
    });
    nobody(&application);
    nobody(&far);
}

#[test]
fn pod_of_iptables_is_left_to_it() {
    let pod = Pod::new();
    redirection::apply(&pod.world.pod, &with(Backend::IptablesNft)).unwrap();
    let refused = apply(&pod.place(), &with(Backend::Bpf)).unwrap_err();
    let RedirectionError::CapturedBy("iptables-nft") = refused else {
        panic!("{refused}")
    };
    drop(connect(&pod.world.pod, address(PEER4, 80)).unwrap());
    drop(accept(&pod.proxy.outbound));
}

/// Programs would refuse every connection of a pod whose proxy knows nothing of them.
#[test]
fn pod_is_not_captured_before_its_proxy_has_entered_its_listeners() {
    let pod = Pod::new();
    prepare(&pod.place(), &with(Backend::Bpf)).unwrap();
    let refused = apply(&pod.place(), &with(Backend::Bpf)).unwrap_err();
    let RedirectionError::NoProxy { .. } = refused else {
        panic!("{refused}")
    };
    let far = listen(&pod.world.peer, 80);
    drop(pod.connect(address(PEER4, 80)).unwrap());
    drop(accept(&far));
    pod.apply_rules();
    assert!(!pod.pins.exists());
    drop(pod.connect(address(PEER4, 80)).unwrap());
    drop(accept(&pod.proxy.outbound));
}

#[test]
fn pod_with_several_interfaces_is_refused() {
    let pod = Pod::new();
    sh(
        &pod.world.pod,
        "ip link add other type veth peer name another; ip link set other up; ip addr add 10.8.0.1/24 dev other",
    );
    let refused = prepare(&pod.place(), &with(Backend::Bpf)).unwrap_err();
    let RedirectionError::Interfaces(2) = refused else {
        panic!("{refused}")
    };
}

#[test]
fn settings_that_need_translation_are_refused_before_anything_is_changed() {
    let pod = Pod::new();
    let spec = RedirectionSpec {
        virtual_interfaces: vec!["docker0".to_owned()],
        ..with(Backend::Auto)
    };
    let refused = apply(&pod.place(), &spec).unwrap_err();
    let RedirectionError::Spec(SpecError::NeedsTranslation("capture of virtual interfaces")) =
        refused
    else {
        panic!("{refused}")
    };
    assert!(!Capture::at(&pod.pins).is_complete().unwrap());
    assert_eq!(sh(&pod.world.pod, "nft list ruleset"), "");
}
