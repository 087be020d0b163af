//! Tests that Ambit takes over a pod that Istio's agent has captured: the agent's rules are removed, its connections
//! continue.
//!
//! The rules equal those of Istio's agent in each of its three variants: iptables-nft, iptables-legacy and nftables.

use std::{
    net::{SocketAddr, TcpStream},
    sync::atomic::{AtomicBool, Ordering},
};

use ambit_netplan::RedirectionSpec;
use ambit_sys::redirection::{Applied, apply, observe, release};

use super::world::*;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AgentBackend {
    IptablesNft,
    IptablesLegacy,
    Nftables,
}

const BACKENDS: [AgentBackend; 3] = [
    AgentBackend::IptablesNft,
    AgentBackend::IptablesLegacy,
    AgentBackend::Nftables,
];

/// Rule of another program, added to each standard table that Istio's agent also uses; it must stay.
const OTHER_PROGRAMS_RULE: &str = "-d 10.99.0.1/32 -j RETURN";

fn iptables_text(v6: bool) -> String {
    let (loopback, probe) = if v6 {
        ("::1/128", "fd16:9254:7127:1337:ffff:ffff:ffff:ffff/128")
    } else {
        ("127.0.0.1/32", "169.254.7.127/32")
    };
    let not_proxy = "-m mark ! --mark 0x539/0xfff";
    format!(
        "*mangle
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -m connmark --mark 0x111/0xfff -j CONNMARK --restore-mark --nfmask 0xffffffff --ctmask 0xffffffff
-A ISTIO_PRERT -m mark --mark 0x539/0xfff -j CONNMARK --set-xmark 0x111/0xfff
COMMIT
*nat
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -d {probe} -p tcp -m tcp -j ACCEPT
-A ISTIO_OUTPUT ! -o lo -p udp -m udp --dport 53 {not_proxy} -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT ! -d {loopback} -p tcp -m tcp --dport 53 {not_proxy} -j REDIRECT --to-ports 15053
-A ISTIO_OUTPUT -p tcp -m mark --mark 0x111/0xfff -j ACCEPT
-A ISTIO_OUTPUT ! -d {loopback} -o lo -j ACCEPT
-A ISTIO_OUTPUT ! -d {loopback} -p tcp {not_proxy} -j REDIRECT --to-ports 15001
-A ISTIO_PRERT -s {probe} -p tcp -m tcp -j ACCEPT
-A ISTIO_PRERT ! -d {loopback} -p tcp -m tcp ! --dport 15008 {not_proxy} -j REDIRECT --to-ports 15006
COMMIT
*raw
:ISTIO_OUTPUT - [0:0]
:ISTIO_PRERT - [0:0]
-A PREROUTING -j ISTIO_PRERT
-A OUTPUT -j ISTIO_OUTPUT
-A ISTIO_OUTPUT -p udp -m udp --dport 53 -m mark --mark 0x539/0xfff -j CT --zone 1
-A ISTIO_PRERT -p udp -m udp --sport 53 {not_proxy} -j CT --zone 1
COMMIT
"
    )
}

const ISTIO_NFTABLES: &str = "table inet istio-ambient-nat {
  chain prerouting { type nat hook prerouting priority -100; jump istio-prerouting
  }
  chain output { type nat hook output priority -100; jump istio-output
  }
  chain istio-prerouting {
    ip saddr 169.254.7.127 meta l4proto tcp counter accept
    ip daddr != 127.0.0.1 tcp dport != 15008 mark and 0xfff != 0x539 counter redirect to :15006
    ip6 daddr != ::1 tcp dport != 15008 mark and 0xfff != 0x539 counter redirect to :15006
  }
  chain istio-output {
    meta l4proto tcp mark and 0xfff == 0x111 counter accept
    oifname lo ip daddr != 127.0.0.1 counter accept
    oifname lo ip6 daddr != ::1 counter accept
    ip daddr != 127.0.0.1 meta l4proto tcp mark and 0xfff != 0x539 counter redirect to :15001
    ip6 daddr != ::1 meta l4proto tcp mark and 0xfff != 0x539 counter redirect to :15001
  }
}
table inet istio-ambient-mangle {
  chain prerouting { type filter hook prerouting priority -150; jump istio-prerouting
  }
  chain output { type route hook output priority -150; jump istio-output
  }
  chain istio-prerouting {
    meta mark and 0xfff == 0x539 counter ct mark set ct mark and 0xfffff000 or 0x111
  }
  chain istio-output {
    ct mark and 0xfff == 0x111 counter meta mark set ct mark
  }
}
table inet istio-ambient-raw {
  chain prerouting { type filter hook prerouting priority -300; jump istio-prerouting
  }
  chain output { type filter hook output priority -300; jump istio-output
  }
  chain istio-prerouting {
    udp sport 53 mark and 0xfff != 0x539 counter ct zone set 1
  }
  chain istio-output {
    udp dport 53 mark and 0xfff == 0x539 counter ct zone set 1
  }
}
";

impl AgentBackend {
    /// Returns the variant of iptables that the agent uses; `None` for nftables.
    fn variant(self) -> Option<&'static str> {
        match self {
            Self::IptablesNft => Some("nft"),
            Self::IptablesLegacy => Some("legacy"),
            Self::Nftables => None,
        }
    }

    fn apply_istio_rules(self, world: &World) {
        for family in ["-4", "-6"] {
            sh(
                &world.pod,
                &format!(
                    "ip {family} rule add pref 32764 fwmark 0x111/0xfff lookup 100; \
                     ip {family} route add local default dev lo table 100"
                ),
            );
        }
        let Some(variant) = self.variant() else {
            sh(
                &world.pod,
                &format!("nft -f - <<'END'\n{ISTIO_NFTABLES}END"),
            );
            return;
        };
        for (program, v6) in [("iptables", false), ("ip6tables", true)] {
            let text = iptables_text(v6);
            sh(
                &world.pod,
                &format!("{program}-{variant}-restore --noflush <<'END'\n{text}END"),
            );
        }
    }

    /// Adds rules and chains of other programs beside those of Istio's agent.
    fn add_other_rules(self, world: &World) {
        if let Some(variant) = self.variant() {
            for table in ["nat", "mangle", "raw"] {
                let program = format!("iptables-{variant} -t {table}");
                sh(
                    &world.pod,
                    &format!("{program} -A OUTPUT {OTHER_PROGRAMS_RULE}"),
                );
                sh(&world.pod, &format!("{program} -N OTHERS"));
            }
        }
    }

    fn other_rules(self, world: &World) -> Vec<String> {
        let Some(variant) = self.variant() else {
            return Vec::new();
        };
        let saved = sh(&world.pod, &format!("iptables-{variant}-save"));
        let lines = saved
            .lines()
            .filter(|line| line.contains("10.99.0.1") || line.contains("OTHERS"));
        lines
            .map(|line| line.split(" [").next().unwrap().to_owned())
            .collect()
    }
}

/// Returns the lines of the pod's rules that still contain `istio`.
fn remaining_istio_rules(world: &World) -> Vec<String> {
    let all = sh(
        &world.pod,
        "nft -s list ruleset 2>/dev/null; iptables-legacy-save; ip6tables-legacy-save; \
         iptables-nft-save; ip6tables-nft-save",
    );
    let lines = all.lines().map(str::to_owned);
    lines
        .filter(|line| line.to_lowercase().contains("istio"))
        .collect()
}

/// Open connections of a pod, made under the rules of Istio's agent.
struct OpenConnections {
    pairs: Vec<(&'static str, TcpStream, TcpStream)>,
}

impl OpenConnections {
    fn establish(backend: AgentBackend, world: &World, proxy: &Proxy) -> Self {
        let (server, app) = (listen(&world.peer, 80), listen(&world.pod, 8080));
        let mut pairs = Vec::new();
        // No pre-capture connections: that agent's rules break them.
        backend.apply_istio_rules(world);
        let proxied = connect_marked(&world.pod, address(PEER4, 80)).unwrap();
        pairs.push(("the proxy's own", proxied, accept(&server).0));
        for (pod, peer) in [(POD4, PEER4), (POD6, PEER6)] {
            let out = connect(&world.pod, address(peer, 80)).unwrap();
            let (accepted, _) = accept(&proxy.outbound);
            assert_eq!(original_destination(&accepted), address(peer, 80));
            pairs.push(("outbound", out, accepted));
            let inbound = connect(&world.peer, address(pod, 8080)).unwrap();
            let (accepted, from) = accept(&proxy.inbound);
            pairs.push(("inbound", inbound, accepted));
            // The proxy calls the application with the client's address.
            let client = SocketAddr::new(from.ip(), 0);
            let leg = connect_spoofed(&world.pod, client, address(pod, 8080)).unwrap();
            pairs.push(("to the application", leg, accept(&app).0));
            let tunnel = connect(&world.peer, address(pod, 15008)).unwrap();
            pairs.push(("tunnel", tunnel, accept(&proxy.tunnel).0));
        }
        Self { pairs }
    }

    #[track_caller]
    fn assert_all_alive(&mut self, what: &str) {
        for (name, a, b) in &mut self.pairs {
            eprintln!("{what}: {name}");
            talk(a, b);
        }
    }
}

#[test]
fn foreign_rules_go_after_ours_are_applied() {
    for backend in BACKENDS {
        let world = World::new();
        let proxy = world.proxy();
        let mut open = OpenConnections::establish(backend, &world, &proxy);
        backend.add_other_rules(&world);
        let others = backend.other_rules(&world);
        open.assert_all_alive("before");
        let spec = RedirectionSpec {
            dns_capture: true,
            ..RedirectionSpec::default()
        };
        assert!(!observe(&world.pod, &spec).unwrap().nothing_found);

        let applied = apply(&world.pod, &spec).unwrap();
        // Unlike an uncaptured pod, whose connections may have to be broken.
        let Applied::Repaired { what } = applied else {
            panic!("{backend:?}: {applied:?}");
        };
        assert!(
            what.to_string().contains("Istio's agent"),
            "{backend:?}: {what}"
        );
        assert_eq!(remaining_istio_rules(&world), [""; 0], "{backend:?}");
        assert_eq!(backend.other_rules(&world), others, "{backend:?}");
        assert_eq!(observe(&world.pod, &spec).unwrap().items, [""; 0]);
        assert_eq!(apply(&world.pod, &spec).unwrap(), Applied::Unchanged);
        open.assert_all_alive("taken over");
        let mut new = connect(&world.pod, address(PEER4, 80)).unwrap();
        talk(&mut new, &mut accept(&proxy.outbound).0);

        release(&world.pod).unwrap();
        assert_eq!(remaining_istio_rules(&world), [""; 0], "{backend:?}");
        open.assert_all_alive("released");
    }
}

#[test]
fn pod_may_leave_the_mesh_before_its_takeover() {
    for backend in BACKENDS {
        let world = World::new();
        let proxy = world.proxy();
        let mut open = OpenConnections::establish(backend, &world, &proxy);
        backend.add_other_rules(&world);
        let others = backend.other_rules(&world);
        release(&world.pod).unwrap();
        assert_eq!(remaining_istio_rules(&world), [""; 0], "{backend:?}");
        assert_eq!(backend.other_rules(&world), others, "{backend:?}");
        open.assert_all_alive("released");
        let server = listen(&world.peer, 81);
        let mut direct = connect(&world.pod, address(PEER4, 81)).unwrap();
        talk(&mut direct, &mut accept(&server).0);
    }
}

#[test]
fn takeover_never_leaves_the_pod_uncaptured() {
    for backend in BACKENDS {
        let world = World::new();
        let _proxy = world.proxy();
        backend.apply_istio_rules(&world);
        let server = listen(&world.peer, 80);
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let clients = [PEER4, PEER6].map(|peer| {
                let (world, done) = (&world, &done);
                scope.spawn(move || {
                    // Some connections before and after; fewer than the listener's queue holds.
                    let mut open = Vec::new();
                    while !done.load(Ordering::Relaxed) && open.len() < 60 {
                        open.push(connect(&world.pod, address(peer, 80)).unwrap());
                    }
                    open.len()
                })
            });
            apply(&world.pod, &RedirectionSpec::default()).unwrap();
            done.store(true, Ordering::Relaxed);
            for client in clients {
                assert!(client.join().unwrap() > 0);
            }
        });
        nobody(&server);
        assert_eq!(remaining_istio_rules(&world), [""; 0], "{backend:?}");
    }
}

#[test]
fn sidecar_rules_with_the_same_names_stay() {
    let world = World::new();
    let text = "*nat\n:ISTIO_OUTPUT - [0:0]\n:ISTIO_REDIRECT - [0:0]\n-A OUTPUT -p tcp -j ISTIO_OUTPUT\n\
        -A ISTIO_OUTPUT -j ISTIO_REDIRECT\nCOMMIT\n";
    for variant in ["nft", "legacy"] {
        sh(
            &world.pod,
            &format!("iptables-{variant}-restore --noflush <<'END'\n{text}END"),
        );
    }
    let before = remaining_istio_rules(&world);
    for backend in super::BACKENDS {
        apply(&world.pod, &super::with(backend)).unwrap();
    }
    release(&world.pod).unwrap();
    assert_eq!(remaining_istio_rules(&world), before);
}
