//! Tests that a neighbour that sends forged frames bypasses no proxy: not by packets before a connection, not by
//! connecting to a pod for its loopback or another pod's address, not by the source address of kubelet's probes.
//!
//! The neighbour's own network stack opens the connections; rules at its interface change the packets that it sends.
//! (The kernel's treatment of packets of all kinds is tested in `sys/tests/redirection`.)

use std::net::IpAddr;

use ambit_system_tests::{
    CLIENT_AND_SERVER, CommandResponse, IpFamily, LAB_TOOL, Mesh, Options, PrimaryCni,
    built_binary, options, wait_until,
};

const NEIGHBOUR: &str = "legacy/client";
const VICTIM: &str = "shop/server";
const STRICT: &str = "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";

struct FrameFixture {
    mesh: Mesh,
    primary_cni: PrimaryCni,
    /// MAC address of the victim's interface.
    mac: String,
}

impl FrameFixture {
    fn new(primary_cni: PrimaryCni, backend: &str) -> Self {
        let manifests = CLIENT_AND_SERVER.replace("node-2", "node-1")
            + "---
apiVersion: v1
kind: Pod
metadata: {name: on-the-node, namespace: legacy}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]}
";
        let options = Options {
            primary_cni,
            nodes: 1,
            ip_family: IpFamily::Dual,
            env: [("RECONCILE_SECONDS", "2"), ("REDIRECTION_BACKEND", backend)]
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..options()
        };
        let mesh = Mesh::up_with(&manifests, options);
        mesh.wait_until_captured(VICTIM, true);
        let mac = mac_address(&mesh, VICTIM);
        Self {
            mesh,
            primary_cni,
            mac,
        }
    }

    /// Returns the victim's addresses, each with an unused address of the same network.
    fn addresses(&self) -> Vec<(IpAddr, &'static str)> {
        let addresses = self.mesh.pod(VICTIM).ips;
        assert_eq!(addresses.len(), 2);
        let nobody = |ip: &IpAddr| {
            if ip.is_ipv4() {
                "10.244.1.250"
            } else {
                "fd00:10:244:1::fa"
            }
        };
        addresses.iter().map(|ip| (*ip, nobody(ip))).collect()
    }

    fn run_shell(&self, pod: &str, command: &str) -> String {
        self.mesh.run(pod, &["sh", "-ec", command])
    }

    /// Sends a `GET` from the neighbour to an address of the victim or to a name, over IPv4 (`v4`) or IPv6.
    fn get(&self, address: impl std::fmt::Display, v4: bool) -> CommandResponse {
        let tool = built_binary(LAB_TOOL);
        let url = if v4 {
            format!("http://{address}:8080/")
        } else {
            format!("http://[{address}]:8080/")
        };
        let command = [tool.to_str().unwrap(), "get", &url, "--timeout", "3000"];
        let output = self.mesh.client().output(NEIGHBOUR, &command).unwrap();
        CommandResponse {
            code: output.code,
            body: output.stdout + &output.stderr,
        }
    }

    /// Rewrites packets that leave the neighbour for the address `from`: their destination becomes `to`, at the
    /// victim's MAC address.
    fn rewrite_destination(&self, from: &str, to: &str) {
        let (mac, ip) = (&self.mac, if from.contains(':') { "ip6" } else { "ip" });
        self.run_shell(
            NEIGHBOUR,
            &format!(
                "ip neigh replace {from} lladdr {mac} dev eth0
                 nft -f - <<'END'
add table netdev w
delete table netdev w
add table netdev w
add chain netdev w out {{ type filter hook egress device eth0 priority 0; }}
add chain netdev w in {{ type filter hook ingress device eth0 priority 0; }}
add rule netdev w out {ip} daddr {from} {ip} daddr set {to}
add rule netdev w in {ip} saddr {to} {ip} saddr set {from}
END
"
            ),
        );
    }

    fn remove_rewriting(&self) {
        self.run_shell(NEIGHBOUR, "nft delete table netdev w");
    }

    /// Sends the first SYN as a bare ACK with a signature instead of its options, which gets no
    /// response. The retransmission a second later is the SYN.
    fn begin_with_a_signed_ack(&self, victim: IpAddr) {
        let ip = if victim.is_ipv4() { "ip" } else { "ip6" };
        self.run_shell(
            NEIGHBOUR,
            &format!(
                "nft -f - <<'END'
add table netdev w
add chain netdev w out {{ type filter hook egress device eth0 priority 0; }}
add rule netdev w out {ip} daddr {victim} tcp flags syn limit rate 1/day burst 1 packets tcp flags set ack @th,160,16 set 0x1312
END
"
            ),
        );
    }
}

fn mac_address(mesh: &Mesh, pod: &str) -> String {
    let link = mesh.run(pod, &["ip", "-o", "link", "show", "eth0"]);
    let (_, rest) = link.split_once("link/ether ").unwrap();
    rest.split(' ').next().unwrap().to_owned()
}

/// Runs a test with each kind of primary CNI and redirection rules.
fn for_each_network(test: impl Fn(&FrameFixture)) {
    for (primary_cni, backend) in [
        (PrimaryCni::Bridge, "nftables"),
        (PrimaryCni::Bridge, "iptables-nft"),
        (PrimaryCni::Macvlan, "nftables"),
    ] {
        eprintln!("{primary_cni:?} {backend}");
        test(&FrameFixture::new(primary_cni, backend));
    }
}

#[test]
fn neighbours_frames_reach_only_the_proxy() {
    for_each_network(|street| {
        for (victim, nobody) in street.addresses() {
            let v4 = victim.is_ipv4();
            // The victim accepts plaintext, so that a rejection is due to the address.
            street.rewrite_destination(nobody, &victim.to_string());
            assert!(street.get(nobody, v4).ok().contains("plain-marker"));
            let loopback = if v4 { "127.0.0.1" } else { "::ffff:127.0.0.1" };
            street.rewrite_destination(nobody, loopback);
            street.get(nobody, v4).assert_refused();
            // Another pod's address: the victim would be a relay.
            let others = street.mesh.pod("legacy/server").ips;
            let other = others.iter().find(|ip| ip.is_ipv4() == v4).unwrap();
            street.rewrite_destination(nobody, &other.to_string());
            street.get(nobody, v4).assert_refused();
            street.remove_rewriting();
        }

        street.mesh.apply("strict", STRICT);
        let (victim, _) = street.addresses()[0];
        street
            .mesh
            .wait_for_get(NEIGHBOUR, &format!("http://{victim}:8080/"), false);
        for (victim, _) in street.addresses() {
            street.begin_with_a_signed_ack(victim);
            street.get(victim, victim.is_ipv4()).assert_refused();
            street.remove_rewriting();
        }
        // The mesh's own connections continue.
        street
            .mesh
            .get("shop/client", &format!("http://{victim}:8080/"))
            .ok();
    });
}

#[test]
fn probe_source_address_bypasses_nothing() {
    for_each_network(assert_kubelet_address_distrusted);
}

fn assert_kubelet_address_distrusted(street: &FrameFixture) {
    street.mesh.apply("strict", STRICT);
    let (victim, _) = street.addresses()[0];
    street
        .mesh
        .wait_for_get(NEIGHBOUR, &format!("http://{victim}:8080/"), false);
    let neighbour = mac_address(&street.mesh, NEIGHBOUR);
    for (victim, _) in street.addresses() {
        let v4 = victim.is_ipv4();
        let (probe, gateway) = if v4 {
            ("169.254.7.127", "10.244.1.1")
        } else {
            (
                "fd16:9254:7127:1337:ffff:ffff:ffff:ffff",
                "fd00:10:244:1::1",
            )
        };
        let length = if v4 { 32 } else { 128 };
        let nodad = if v4 { "" } else { "nodad" };
        street.run_shell(
            NEIGHBOUR,
            &format!(
                "ip addr add {probe}/{length} dev eth0 {nodad}; \
                 ip route replace {victim}/{length} dev eth0 src {probe}"
            ),
        );
        // As after a neighbour has convinced the victim that it is the gateway.
        street.run_shell(
            VICTIM,
            &format!("ip neigh replace {gateway} lladdr {neighbour} dev eth0"),
        );
        street.get(victim, v4).assert_refused();
        // Nothing else prevents it where the node or the victim's rules allow it.
        let family = if v4 { "ip" } else { "ip6" };
        let (pod, opened) = match street.primary_cni {
            PrimaryCni::Macvlan => (
                VICTIM,
                format!(
                    "nft 'insert rule inet ambit nat-prerouting {family} saddr {probe} accept; \
                     insert rule inet ambit guard-input {family} saddr {probe} accept'"
                ),
            ),
            _ => (
                "legacy/on-the-node",
                "nft delete table bridge ambit-probes".to_owned(),
            ),
        };
        wait_until("the neighbour passes where it is let", || {
            let command = ["sh", "-c", &opened];
            let _repaired = street.mesh.client().output(pod, &command);
            street.get(victim, v4).succeeded()
        });
        street.run_shell(VICTIM, &format!("ip neigh del {gateway} dev eth0"));
        street.run_shell(NEIGHBOUR, &format!("ip addr del {probe}/{length} dev eth0"));
        // The agent restores the rule.
        wait_until("the rules stand again", || {
            let (pod, list) = match street.primary_cni {
                PrimaryCni::Macvlan => (VICTIM, "nft list table inet ambit"),
                _ => ("legacy/on-the-node", "nft list table bridge ambit-probes"),
            };
            let output = street.mesh.client().output(pod, &["sh", "-c", list]);
            let output = output.unwrap();
            // The bridge's rule names the address to drop it, the pod's rules do not name it.
            let on_bridge = street.primary_cni == PrimaryCni::Bridge;
            output.code == 0 && output.stdout.contains(probe) == on_bridge
        });
    }
}
