//! Tests that whatever packets arrive, the application of a captured pod gets connections only from its proxy, and
//! opens connections only through it.
//!
//! A generator sends every combination of flags in every wrapping, then random sequences, from a
//! neighbour's raw socket; after each the neighbour (or the application, in the other direction)
//! opens an ordinary connection with the same addresses and ports. Most of these packets matter
//! only because of their effect on connection tracking, so everything is tried with connection
//! tracking as capture sets it, as it is where settings are read-only, disabled, and with entries
//! that expire at once.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    time::{Duration, Instant, SystemTime},
};

use ambit_netplan::Backend;
use ambit_sys::{
    netns::Netns,
    redirection::{Applied, observe},
};
use socket2::{Domain, SockRef};

use super::{
    BACKENDS, BACKENDS_AND_BPF,
    packets::{ACK, FIN, RST, SYN, Segment, Sender, Wrapping},
    pods::{apply, connect, release, socket, use_backend},
    with,
    world::{
        PEER4, PEER6, POD4, POD6, Proxy, World, accept, address, connect_from, connect_marked, ip,
        listen, nobody, original_destination, sh, talk,
    },
};

const APP_PORT: u16 = 8080;
const SERVER_PORT: u16 = 80;
/// Timeout of a connection attempt: long enough for a connection that is accepted at all.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(20);

/// Connection tracking settings in the pod under attack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ConntrackMode {
    /// Connection tracking has the settings that capture makes.
    CaptureSettings,
    /// Connection tracking has the kernel's defaults, as where settings are read-only.
    KernelDefaults,
    /// Connection tracking is disabled for the packets (`notrack`), by a rule of another program.
    Disabled,
    /// Conntrack entries expire after a second, and are deleted between the attack and the connection.
    ShortLived,
}

/// Pseudo-random number generator (SplitMix64).
struct Rng(u64);

impl Rng {
    fn next_below(&mut self, below: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ z >> 30).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ z >> 27).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ z >> 31) % u64::try_from(below).unwrap()).unwrap()
    }

    fn choose<T: Clone>(&mut self, list: &[T]) -> T {
        list[self.next_below(list.len())].clone()
    }
}

/// Returns TCP options: signature (MD5), window scale, timestamps, fast open, multipath, and one that is truncated.
fn tcp_options() -> [Vec<u8>; 7] {
    let mut md5 = vec![19, 18];
    md5.resize(18, 9);
    [
        vec![],
        md5,
        vec![2, 4, 5, 180, 3, 3, 7],
        vec![8, 10, 0, 0, 0, 9, 0, 0, 0, 0],
        vec![34, 2],
        vec![30, 12, 0x01, 0x81, 1, 2, 3, 4, 5, 6, 7, 8],
        vec![19, 40, 1],
    ]
}

/// Packet that the attacker sends before it opens an ordinary connection.
#[derive(Clone, Debug)]
struct AttackPacket {
    flags: u8,
    options: Vec<u8>,
    payload: usize,
    good_checksum: bool,
    wrapping: Wrapping,
    seq: u32,
}

impl AttackPacket {
    fn segment(&self, from: SocketAddr, to: SocketAddr) -> Segment {
        Segment {
            seq: self.seq,
            ack: self.seq,
            options: self.options.clone(),
            payload: vec![b'x'; self.payload],
            good_checksum: self.good_checksum,
            wrapping: self.wrapping,
            ..Segment::new(from, to, self.flags)
        }
    }

    fn random(dice: &mut Rng) -> Self {
        let flags = [SYN, ACK, SYN | ACK, FIN | ACK, RST, SYN | FIN, 0];
        let any = u8::try_from(dice.next_below(256)).unwrap();
        Self {
            flags: if dice.next_below(3) == 0 {
                any
            } else {
                dice.choose(&flags)
            },
            options: dice.choose(&tcp_options()),
            payload: dice.choose(&[0, 0, 1, 700]),
            good_checksum: dice.next_below(5) != 0,
            wrapping: dice.choose(&Wrapping::ALL),
            seq: u32::try_from(dice.next_below(1 << 32)).unwrap(),
        }
    }
}

/// Generates attack sequences: all flags in every wrapping and with every option, then random ones.
fn attack_sequences(dice: &mut Rng, random: usize) -> Vec<Vec<AttackPacket>> {
    let mut all = Vec::new();
    for flags in 0..64u8 {
        all.push((
            flags,
            Wrapping::ALL[usize::from(flags) % Wrapping::ALL.len()],
            tcp_options()[1].clone(),
        ));
    }
    for wrapping in Wrapping::ALL {
        for flags in [SYN, ACK, SYN | ACK, ACK | FIN, RST, RST | ACK] {
            for option in tcp_options() {
                all.push((flags, wrapping, option));
            }
        }
    }
    let enumerated = all.into_iter().map(|(flags, wrapping, options)| {
        vec![AttackPacket {
            flags,
            options,
            payload: 0,
            good_checksum: true,
            wrapping,
            seq: 1,
        }]
    });
    let mut out: Vec<_> = enumerated.collect();
    for _ in 0..random {
        let length = 1 + dice.next_below(4);
        out.push((0..length).map(|_| AttackPacket::random(dice)).collect());
    }
    out
}

/// Captured pod, with a neighbour and a server that attack it.
struct AttackedPod {
    world: World,
    proxy: Proxy,
    apps: [TcpListener; 2],
    server: TcpListener,
    sender: Sender,
    pod: IpAddr,
    peer: IpAddr,
    tracking: ConntrackMode,
}

impl AttackedPod {
    fn new(backend: Backend, (pod, peer): (&str, &str), tracking: ConntrackMode) -> Self {
        let world = World::new();
        use_backend(&world.pod, backend);
        let proxy = world.proxy();
        // One listener on all addresses, one on the pod's own.
        let apps = [
            listen(&world.pod, APP_PORT),
            world
                .pod
                .run(|| TcpListener::bind(address(pod, APP_PORT + 1)))
                .unwrap()
                .unwrap(),
        ];
        let server = listen(&world.peer, SERVER_PORT);
        apply(&world.pod, &with(backend)).unwrap();
        match tracking {
            ConntrackMode::CaptureSettings => {}
            ConntrackMode::KernelDefaults => drop(sh(
                &world.pod,
                "echo 1 > /proc/sys/net/netfilter/nf_conntrack_tcp_loose",
            )),
            ConntrackMode::Disabled => drop(sh(
                &world.pod,
                "nft 'add table inet theirs; \
                 add chain inet theirs in { type filter hook prerouting priority -300; }; \
                 add chain inet theirs out { type filter hook output priority -300; }; \
                 add rule inet theirs in notrack; add rule inet theirs out notrack'",
            )),
            ConntrackMode::ShortLived => drop(sh(
                &world.pod,
                "cd /proc/sys/net/netfilter; for t in nf_conntrack_tcp_timeout_*; do echo 1 > $t; done; \
                 echo 1 > nf_conntrack_tcp_loose",
            )),
        }
        let sender = Sender::new(&world.peer, pod == POD4);
        Self {
            world,
            proxy,
            apps,
            server,
            sender,
            pod: ip(pod),
            peer: ip(peer),
            tracking,
        }
    }

    /// Connects from `from` to `to`; an error unless the connection is established at once.
    fn try_connect(
        &self,
        netns: &Netns,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<TcpStream> {
        let socket = socket(netns, Domain::for_address(to))?;
        socket.set_reuse_address(true)?;
        socket.set_linger(Some(Duration::ZERO))?;
        socket.bind(&from.into())?;
        socket.connect_timeout(&to.into(), CONNECT_TIMEOUT)?;
        Ok(socket.into())
    }

    fn flush_if_short_lived(&self) {
        if self.tracking == ConntrackMode::ShortLived {
            flush_tracking(&self.world.pod);
        }
    }

    /// Sends the attack packets from a neighbour, then connects from the neighbour to the pod. Returns whether the
    /// connection reached the application, past the proxy.
    fn attack_inbound(&mut self, shots: &[AttackPacket], port: u16, app: u16) -> bool {
        let (from, to) = (
            SocketAddr::new(self.peer, port),
            SocketAddr::new(self.pod, app),
        );
        for shot in shots {
            self.sender.send(&shot.segment(from, to), self.pod);
        }
        self.flush_if_short_lived();
        // Once more, from the port of the proxy's last connection.
        (0..2).any(|_| {
            let client = self.try_connect(&self.world.peer, from, to);
            self.reset_proxied();
            let reached = self.apps.iter().any(|app| app.accept().is_ok());
            drop(client);
            reached
        })
    }

    /// Sends the attack packets from a server, then connects to the server from the application. Returns whether the
    /// connection reached the server, past the proxy.
    fn attack_outbound(&mut self, shots: &[AttackPacket], port: u16) -> bool {
        let (from, to) = (
            SocketAddr::new(self.pod, port),
            SocketAddr::new(self.peer, SERVER_PORT),
        );
        for shot in shots {
            self.sender.send(&shot.segment(to, from), self.pod);
        }
        self.flush_if_short_lived();
        (0..2).any(|_| {
            let client = self.try_connect(&self.world.pod, from, to);
            self.reset_proxied();
            let reached = self.server.accept().is_ok();
            drop(client);
            reached
        })
    }

    /// Accepts and resets the connections that wait at the proxy's listeners.
    fn reset_proxied(&self) {
        for listener in [
            &self.proxy.inbound,
            &self.proxy.outbound,
            &self.proxy.tunnel,
        ] {
            while let Ok((stream, _)) = listener.accept() {
                let _gone = SockRef::from(&stream).set_linger(Some(Duration::ZERO));
            }
        }
    }

    fn set_listeners_nonblocking(&self) {
        let proxies = [
            &self.proxy.inbound,
            &self.proxy.outbound,
            &self.proxy.tunnel,
        ];
        let ours = self.apps.iter().chain([&self.server]);
        for listener in ours.chain(proxies) {
            listener.set_nonblocking(true).unwrap();
        }
    }

    /// Runs all attacks, and describes the first one that bypasses the proxy.
    fn run_attacks(&mut self, dice: &mut Rng, random: usize) -> Option<String> {
        self.set_listeners_nonblocking();
        let mut port = 2000;
        for shots in attack_sequences(dice, random) {
            port += 1;
            if self.attack_inbound(&shots, port, APP_PORT + u16::from(port % 3 == 0)) {
                return Some(format!("inward from port {port} after {shots:?}"));
            }
            if self.attack_outbound(&shots, port) {
                return Some(format!("outward from port {port} after {shots:?}"));
            }
        }
        None
    }
}

/// Deletes all conntrack entries of a namespace.
fn flush_tracking(netns: &Netns) {
    use rustix::net::{
        AddressFamily, SendFlags, SocketFlags, SocketType, netlink, send, socket_with,
    };
    let mut message = Vec::new();
    message.extend(20u32.to_ne_bytes());
    message.extend((1u16 << 8 | 2).to_ne_bytes());
    message.extend(1u16.to_ne_bytes());
    message.resize(20, 0);
    let socket = netns.run(|| {
        let protocol = Some(netlink::NETFILTER);
        socket_with(
            AddressFamily::NETLINK,
            SocketType::RAW,
            SocketFlags::CLOEXEC,
            protocol,
        )
    });
    send(socket.unwrap().unwrap(), &message, SendFlags::empty()).unwrap();
}

fn seed() -> u64 {
    let seed = match std::env::var("HOSTILE_SEED") {
        Ok(text) => text.parse().unwrap(),
        Err(_) => SystemTime::UNIX_EPOCH.elapsed().unwrap().as_secs(),
    };
    eprintln!("HOSTILE_SEED={seed}");
    seed
}

const FAMILIES: [(&str, &str); 2] = [(POD4, PEER4), (POD6, PEER6)];
const TRACKING: [ConntrackMode; 4] = [
    ConntrackMode::CaptureSettings,
    ConntrackMode::KernelDefaults,
    ConntrackMode::Disabled,
    ConntrackMode::ShortLived,
];

#[test]
fn whatever_packets_arrive_openings_go_through_the_proxy() {
    let mut dice = Rng(seed());
    for backend in BACKENDS_AND_BPF {
        for family in FAMILIES {
            for tracking in TRACKING {
                let mut siege = AttackedPod::new(backend, family, tracking);
                let started = Instant::now();
                let found = siege.run_attacks(&mut dice, 150);
                assert_eq!(found, None, "{backend} {family:?} {tracking:?}");
                eprintln!("{backend} {family:?} {tracking:?}: {:?}", started.elapsed());
                // Connections of the pod still go to the proxy.
                if tracking != ConntrackMode::Disabled {
                    flush_tracking(&siege.world.pod);
                    let to = SocketAddr::new(siege.pod, APP_PORT);
                    let _client = connect(&siege.world.peer, to).unwrap();
                    accept(&siege.proxy.inbound);
                }
            }
        }
    }
}

#[test]
fn the_generator_sends_a_stray_ack_in_49_variants() {
    let sequences = attack_sequences(&mut Rng(1), 0);
    let is_ack =
        |shots: &&Vec<AttackPacket>| matches!(shots.as_slice(), [shot] if shot.flags == ACK);
    let variants: std::collections::BTreeSet<_> = sequences
        .iter()
        .filter(is_ack)
        .map(|shots| (format!("{:?}", shots[0].wrapping), shots[0].options.clone()))
        .collect();
    assert_eq!(variants.len(), Wrapping::ALL.len() * tcp_options().len());
    assert_eq!(variants.len(), 49);
}

/// Checks the generator of attacks itself: without the guard chains it finds a bypass of the redirects at once.
#[test]
fn generator_finds_a_bypass_without_guards() {
    for family in FAMILIES {
        let mut siege = AttackedPod::new(Backend::Nftables, family, ConntrackMode::KernelDefaults);
        for guard in ["input", "forward", "output"] {
            sh(
                &siege.world.pod,
                &format!("nft delete chain inet ambit guard-{guard}"),
            );
        }
        siege.set_listeners_nonblocking();
        let ack = AttackPacket {
            flags: ACK,
            options: tcp_options()[1].clone(),
            payload: 0,
            good_checksum: true,
            wrapping: Wrapping::Plain,
            seq: 1,
        };
        assert!(
            siege.attack_inbound(std::slice::from_ref(&ack), 1500, APP_PORT),
            "{family:?}"
        );
        assert!(siege.attack_outbound(&[ack], 1501), "{family:?}");
        let found = siege.run_attacks(&mut Rng(1), 0);
        assert!(found.is_some(), "{family:?}");
    }
}

/// Checks that a late or repeated segment is not answered with a reset, which would end the proxy's
/// connection.
#[test]
fn segments_outside_the_window_are_accepted() {
    for (pod, peer) in FAMILIES {
        let world = World::new();
        let server = listen(&world.peer, SERVER_PORT);
        apply(&world.pod, &with(Backend::Nftables)).unwrap();
        let mut client = connect_marked(&world.pod, address(peer, SERVER_PORT)).unwrap();
        let (mut served, from) = accept(&server);
        let late = Segment {
            seq: 1,
            ack: 1,
            payload: vec![b'x'; 100],
            ..Segment::new(address(peer, SERVER_PORT), from, ACK)
        };
        Sender::new(&world.peer, pod == POD4).send(&late, ip(pod));
        talk(&mut client, &mut served);
        let guard = sh(&world.pod, "nft list chain inet ambit guard-input");
        let refused = guard.lines().filter(|line| line.contains("reject"));
        for rule in refused {
            assert!(rule.contains("counter packets 0 "), "{pod}: {guard}");
        }
        let liberal = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal";
        assert_eq!(sh(&world.pod, liberal).trim(), "1");
        release(&world.pod).unwrap();
        assert_eq!(sh(&world.pod, liberal).trim(), "0");
    }
}

/// Checks that a neighbour that spoofs a client's address cannot cause the rejection of that client's next connection.
#[test]
fn stray_packets_do_not_block_connections_of_others() {
    for backend in BACKENDS {
        for family in FAMILIES {
            let mut siege = AttackedPod::new(backend, family, ConntrackMode::CaptureSettings);
            let (from, to) = (
                SocketAddr::new(siege.peer, 3000),
                SocketAddr::new(siege.pod, APP_PORT),
            );
            let stray = Segment {
                options: tcp_options()[1].clone(),
                ..Segment::new(from, to, ACK)
            };
            siege.sender.send(&stray, siege.pod);
            let mut client = connect_from(&siege.world.peer, from, to).unwrap();
            let (mut captured, _) = accept(&siege.proxy.inbound);
            talk(&mut client, &mut captured);
            let loose = "cat /proc/sys/net/netfilter/nf_conntrack_tcp_loose";
            assert_eq!(sh(&siege.world.pod, loose).trim(), "0");
            release(&siege.world.pod).unwrap();
            assert_eq!(sh(&siege.world.pod, loose).trim(), "1");
        }
    }
}

/// Checks that a connecting application does not take a SYN for a response (simultaneous open).
#[test]
fn simultaneous_opens_do_not_connect() {
    for backend in BACKENDS_AND_BPF {
        for family in FAMILIES {
            let mut siege = AttackedPod::new(backend, family, ConntrackMode::KernelDefaults);
            // The proxy does not respond.
            sh(
                &siege.world.pod,
                "nft 'add table inet mute; add chain inet mute in { type filter hook input priority -400; }; \
                 add rule inet mute in iif lo tcp dport { 15001, 80 } drop'",
            );
            let (from, to) = (
                SocketAddr::new(siege.pod, 4000),
                SocketAddr::new(siege.peer, SERVER_PORT),
            );
            let socket = socket(&siege.world.pod, Domain::for_address(to)).unwrap();
            socket.set_nonblocking(true).unwrap();
            socket.bind(&from.into()).unwrap();
            let _in_progress = socket.connect(&to.into());
            for flags in [SYN, ACK, SYN | ACK, SYN] {
                siege.sender.send(&Segment::new(to, from, flags), siege.pod);
            }
            assert!(socket.peer_addr().is_err(), "{backend} {family:?}");
        }
    }
}

/// Checks that a pod captured under the rules of an earlier version gets the guard chains without losing a connection.
#[test]
fn a_pod_captured_without_guards_gets_them_and_keeps_its_connections() {
    for family in FAMILIES {
        let mut siege = AttackedPod::new(Backend::Nftables, family, ConntrackMode::KernelDefaults);
        let spec = with(Backend::Nftables);
        for guard in ["input", "forward", "output"] {
            sh(
                &siege.world.pod,
                &format!("nft delete chain inet ambit guard-{guard}"),
            );
        }
        let to = SocketAddr::new(siege.pod, APP_PORT);
        let mut client = connect(&siege.world.peer, to).unwrap();
        let (mut captured, _) = accept(&siege.proxy.inbound);
        let mut out = connect(&siege.world.pod, SocketAddr::new(siege.peer, SERVER_PORT)).unwrap();
        let (mut out_captured, _) = accept(&siege.proxy.outbound);
        // A connection that connection tracking picked up in its middle, like a pre-capture one.
        siege.set_listeners_nonblocking();
        let from = SocketAddr::new(siege.peer, 5000);
        let stray = Segment {
            options: tcp_options()[1].clone(),
            ..Segment::new(from, to, ACK)
        };
        siege.sender.send(&stray, siege.pod);
        let mut around = connect_from(&siege.world.peer, from, to).unwrap();
        let (mut around_served, _) = accept(&siege.apps[0]);

        assert!(!observe(&siege.world.pod, &spec).unwrap().is_empty());
        let applied = apply(&siege.world.pod, &spec).unwrap();
        assert!(matches!(applied, Applied::Repaired { .. }), "{applied:?}");
        talk(&mut client, &mut captured);
        talk(&mut out, &mut out_captured);
        talk(&mut around, &mut around_served);
        assert_eq!(siege.run_attacks(&mut Rng(2), 10), None);
    }
}

/// Makes connections of the neighbour to `pretended` arrive at the pod with the destination `target`.
fn rewrite_destination(siege: &AttackedPod, pretended: &str, target: &str) {
    let link = sh(&siege.world.pod, "ip -o link show eth0");
    let mac = link.split_once("link/ether ").unwrap().1;
    let mac = mac.split(' ').next().unwrap();
    let prefix = if siege.pod.is_ipv4() { "ip" } else { "ip6" };
    sh(
        &siege.world.peer,
        &format!(
            "ip neigh replace {pretended} lladdr {mac} dev eth0; \
             nft 'add table netdev w; delete table netdev w; add table netdev w; \
             add chain netdev w out {{ type filter hook egress device eth0 priority 0; }}; \
             add chain netdev w in {{ type filter hook ingress device eth0 priority 0; }}; \
             add rule netdev w out {prefix} daddr {pretended} {prefix} daddr set {target}; \
             add rule netdev w in {prefix} saddr {target} {prefix} saddr set {pretended}'"
        ),
    );
}

/// Checks that, without inbound capture, a neighbour cannot reach loopback addresses or addresses of other hosts
/// through a pod.
#[test]
fn inbound_plaintext_is_accepted_for_the_pods_addresses_only() {
    const TARGETS: [[&str; 4]; 2] = [
        ["127.0.0.1", "127.9.9.9", "10.9.0.200", "224.0.0.1"],
        ["::1", "::ffff:127.0.0.1", "fd00:9::200", "ff02::1"],
    ];
    for backend in BACKENDS_AND_BPF {
        for ((pod, peer), targets) in FAMILIES.into_iter().zip(TARGETS) {
            let siege = AttackedPod::new(backend, (pod, peer), ConntrackMode::CaptureSettings);
            siege.set_listeners_nonblocking();
            let pretended = if pod == POD4 {
                "10.9.0.99"
            } else {
                "fd00:9::99"
            };
            let open = |port| {
                let from = SocketAddr::new(ip(peer), 0);
                siege.try_connect(&siege.world.peer, from, address(pretended, port))
            };
            rewrite_destination(&siege, pretended, pod);
            let _captured = open(APP_PORT).unwrap();
            accept(&siege.proxy.inbound);
            sh(
                &siege.world.pod,
                "echo 1 > /proc/sys/net/ipv4/ip_forward; \
                 echo 1 > /proc/sys/net/ipv6/conf/all/forwarding",
            );
            for route_localnet in [0, 1] {
                let setting = "/proc/sys/net/ipv4/conf/eth0/route_localnet";
                sh(
                    &siege.world.pod,
                    &format!("echo {route_localnet} > {setting}"),
                );
                for target in targets {
                    rewrite_destination(&siege, pretended, target);
                    for port in [APP_PORT, 15006, 15008] {
                        assert!(open(port).is_err(), "{backend} {target}:{port}");
                    }
                    let proxy = [&siege.proxy.inbound, &siege.proxy.tunnel];
                    for listener in siege.apps.iter().chain(proxy) {
                        nobody(listener);
                    }
                }
            }
            if backend == Backend::Nftables {
                // With a redirect of all destinations, a bypass is possible in this way.
                sh(
                    &siege.world.pod,
                    "nft 'delete chain inet ambit guard-input; flush chain inet ambit nat-prerouting; \
                     add rule inet ambit nat-prerouting meta l4proto tcp redirect to :15006'",
                );
                for target in [targets[1], targets[2]] {
                    rewrite_destination(&siege, pretended, target);
                    open(APP_PORT).unwrap();
                    let (redirected, _) = accept(&siege.proxy.inbound);
                    let original = original_destination(&redirected);
                    assert_eq!(original.ip(), ip(target).to_canonical());
                }
            }
        }
    }
}
