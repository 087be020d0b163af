//! Pod and peer for tests: two network namespaces joined by a veth pair, a cgroup, and a bpffs, removed on drop.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream},
    os::fd::{AsFd, AsRawFd},
    path::PathBuf,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ambit_bpf::{Capture, Marks, NetnsCookie, Pins, Role, Settings};
pub(crate) use ambit_bpf_testkit::tools;
use ambit_bpf_testkit::{Bpffs, enter_cgroup, new_cgroup, remove_cgroup};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    thread::{LinkNameSpaceType, UnshareFlags, move_into_link_name_space},
};
use socket2::{Domain, Protocol, SockAddr, Socket, Type};

pub(crate) const POD4: &str = "10.9.0.2";
pub(crate) const POD6: &str = "fd00:9::2";
pub(crate) const PEER4: &str = "10.9.0.1";
pub(crate) const PEER6: &str = "fd00:9::1";
/// Addresses outside of both namespaces, which the pod reaches by the peer as its default gateway.
pub(crate) const FAR4: &str = "203.0.113.7";
pub(crate) const FAR6: &str = "2001:db8::7";

pub(crate) const MARKS: Marks = Marks {
    mask: 0xfff,
    proxy: 0x539,
    outbound: 0x222,
    spoofed: 0x111,
};

const DEADLINE: Duration = Duration::from_secs(10);
pub(crate) const SILENCE: Duration = Duration::from_millis(300);

pub(crate) struct World {
    pub(crate) pod: File,
    pub(crate) peer: File,
    pub(crate) cgroup: PathBuf,
    bpffs: Bpffs,
    pub(crate) settings: Settings,
}

/// Place where a socket is made.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// Process of the pod: its network namespace, and its cgroup.
    Pod,
    /// Process that has entered the pod's network namespace only, as `nsenter` and the proxy do.
    Entered,
    /// The peer's network namespace.
    Peer,
    /// Process of the pod's cgroup in the peer's network namespace.
    PodElsewhere,
}

impl World {
    /// Creates pod and peer, with the routes of capture.
    pub(crate) fn new() -> Self {
        let [pod, peer] = [(); 2].map(|()| new_netns());
        let cgroup = new_cgroup();
        let cookie = at_thread(&pod, None, || {
            NetnsCookie::of(stream(Domain::IPV4)).unwrap()
        });
        let world = Self {
            settings: Settings {
                netns: cookie,
                outbound: true,
                inbound: true,
                exempt_dns: false,
                marks: MARKS,
                tunnel_port: 15008,
                addresses: [POD4, POD6].map(|ip| ip.parse().unwrap()).into(),
                probe_v4: "169.254.7.127".parse().unwrap(),
                probe_v6: "fd16:9254:7127:1337:ffff:ffff:ffff:ffff".parse().unwrap(),
                probes: [].into(),
            },
            pod,
            peer,
            cgroup,
            bpffs: Bpffs::new(),
        };
        let peer = format!("/proc/{}/fd/{}", std::process::id(), world.peer.as_raw_fd());
        world.sh(
            Place::Entered,
            &format!("ip link add eth0 type veth peer name eth0 netns {peer}"),
        );
        for (place, v4, v6) in [(Place::Entered, POD4, POD6), (Place::Peer, PEER4, PEER6)] {
            world.sh(
                place,
                &format!(
                    "ip link set lo up; ip link set eth0 up; ip addr add {v4}/24 dev eth0; \
                     ip addr add {v6}/64 dev eth0 nodad"
                ),
            );
        }
        world.sh(
            Place::Entered,
            &format!(
                "ip route add default via {PEER4}; ip route add default via {PEER6}; \
                 echo 1 > /proc/sys/net/ipv4/tcp_fwmark_accept; \
                 for v in 4 6; do \
                   ip -$v rule add pref 32764 fwmark 0x111/0xfff lookup 100; \
                   ip -$v route add local default dev lo table 100; \
                   ip -$v rule add pref 32763 iif lo fwmark 0x222/0xfff lookup 101; \
                 done; \
                 ip -4 route add local default dev lo src {POD4} table 101; \
                 ip -6 route add local default dev lo src {POD6} table 101"
            ),
        );
        // The peer has the far addresses: what is not captured arrives there.
        world.sh(
            Place::Peer,
            &format!("ip addr add {FAR4}/32 dev lo; ip addr add {FAR6}/128 dev lo nodad"),
        );
        world
    }

    /// Creates pod and peer, installs the programs, and enters the proxy's listeners.
    pub(crate) fn captured() -> (Self, Proxy) {
        let world = Self::new();
        let proxy = world.proxy();
        world.install();
        world.enter(&proxy);
        (world, proxy)
    }

    pub(crate) fn pins(&self) -> Pins {
        let pins = Pins::at(self.bpffs.path().join("ambit"));
        pins.create().unwrap();
        pins
    }

    pub(crate) fn capture(&self) -> Capture {
        self.pins().of(self.settings.netns)
    }

    pub(crate) fn install(&self) {
        let cgroup = File::open(&self.cgroup).unwrap();
        self.capture()
            .install(cgroup, &self.pod, &self.settings)
            .unwrap();
    }

    pub(crate) fn proxy(&self) -> Proxy {
        let [outbound, inbound, tunnel] =
            [15001, 15006, 15008].map(|port| self.listen_as_proxy(port));
        Proxy {
            outbound,
            inbound,
            tunnel,
        }
    }

    pub(crate) fn enter(&self, proxy: &Proxy) {
        let mut listeners = self.capture().listeners().unwrap();
        listeners.put(Role::Outbound, 0, &proxy.outbound).unwrap();
        listeners.put(Role::Inbound, 0, &proxy.inbound).unwrap();
        listeners.confirm().unwrap();
    }

    pub(crate) fn at<T: Send>(&self, place: Place, work: impl FnOnce() -> T + Send) -> T {
        let (netns, cgroup) = match place {
            Place::Pod => (&self.pod, Some(&self.cgroup)),
            Place::Entered => (&self.pod, None),
            Place::Peer => (&self.peer, None),
            Place::PodElsewhere => (&self.peer, Some(&self.cgroup)),
        };
        at_thread(netns, cgroup, work)
    }

    /// Runs a shell command. Panics when it fails.
    pub(crate) fn sh(&self, place: Place, command: &str) {
        let output = self.at(place, || {
            Command::new("sh").args(["-ec", command]).output().unwrap()
        });
        let text = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{command}: {text}");
    }

    /// Creates a TCP socket of the address' family.
    pub(crate) fn socket(&self, place: Place, to: SocketAddr) -> Socket {
        self.at(place, || stream(Domain::for_address(to)))
    }

    pub(crate) fn connect(&self, place: Place, to: SocketAddr) -> io::Result<TcpStream> {
        connect(self.socket(place, to), to)
    }

    pub(crate) fn listen(&self, place: Place, port: u16) -> TcpListener {
        self.listen_with(place, port, |_| {})
    }

    fn listen_as_proxy(&self, port: u16) -> TcpListener {
        self.listen_with(Place::Entered, port, |socket| {
            socket.set_mark(MARKS.proxy).unwrap();
            socket.set_ip_transparent_v4(true).unwrap();
            socket.set_ip_transparent_v6(true).unwrap();
        })
    }

    pub(crate) fn listen_with(
        &self,
        place: Place,
        port: u16,
        prepare: impl FnOnce(&Socket) + Send,
    ) -> TcpListener {
        self.at(place, || {
            let socket = stream(Domain::IPV6);
            socket.set_only_v6(false).unwrap();
            socket.set_reuse_address(true).unwrap();
            prepare(&socket);
            socket.bind(&address("::", port).into()).unwrap();
            socket.listen(128).unwrap();
            socket.into()
        })
    }

    /// Connects like the proxy connects to the application: from the client's address.
    pub(crate) fn call_application(
        &self,
        from: SocketAddr,
        to: SocketAddr,
    ) -> io::Result<TcpStream> {
        let socket = self.socket(Place::Entered, to);
        socket.bind_device(Some(b"lo"))?;
        socket.set_mark(MARKS.spoofed)?;
        if from.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
        } else {
            socket.set_ip_transparent_v6(true)?;
        }
        socket.bind(&from.into())?;
        connect(socket, to)
    }
}

impl Drop for World {
    fn drop(&mut self) {
        remove_cgroup(&self.cgroup);
    }
}

pub(crate) struct Proxy {
    pub(crate) outbound: TcpListener,
    pub(crate) inbound: TcpListener,
    pub(crate) tunnel: TcpListener,
}

fn at_thread<T: Send>(
    netns: impl AsFd + Sync,
    cgroup: Option<&PathBuf>,
    work: impl FnOnce() -> T + Send,
) -> T {
    let netns = netns.as_fd();
    thread::scope(|scope| {
        let entered = move || {
            if let Some(cgroup) = cgroup {
                enter_cgroup(cgroup);
            }
            move_into_link_name_space(netns, Some(LinkNameSpaceType::Network)).unwrap();
            work()
        };
        scope.spawn(entered).join().unwrap()
    })
}

fn new_netns() -> File {
    let make = || {
        #[expect(
            deprecated,
            reason = "a thread of its own, and only the network namespace"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
        File::open("/proc/thread-self/ns/net").unwrap()
    };
    thread::spawn(make).join().unwrap()
}

pub(crate) fn stream(domain: Domain) -> Socket {
    Socket::new(domain, Type::STREAM, Some(Protocol::TCP)).unwrap()
}

pub(crate) fn connect(socket: Socket, to: SocketAddr) -> io::Result<TcpStream> {
    connect_within(socket, to, DEADLINE)
}

pub(crate) fn connect_within(
    socket: Socket,
    to: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    socket.connect_timeout(&SockAddr::from(to), timeout)?;
    Ok(socket.into())
}

pub(crate) fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

pub(crate) fn canonical(at: SocketAddr) -> SocketAddr {
    SocketAddr::new(at.ip().to_canonical(), at.port())
}

pub(crate) fn ip_of(text: &str) -> IpAddr {
    text.parse().unwrap()
}

fn accept_within(listener: &TcpListener, timeout: Duration) -> Option<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + timeout;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false).unwrap();
                stream.set_read_timeout(Some(DEADLINE)).unwrap();
                return Some((stream, canonical(from)));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > until {
                    return None;
                }
                let mut fds = [PollFd::new(listener, PollFlags::IN)];
                let wait = Timespec {
                    tv_sec: 0,
                    tv_nsec: 50_000_000,
                };
                poll(&mut fds, Some(&wait)).unwrap();
            }
            Err(error) => panic!("accept: {error}"),
        }
    }
}

#[track_caller]
pub(crate) fn accept(listener: &TcpListener) -> (TcpStream, SocketAddr) {
    accept_within(listener, DEADLINE).expect("nobody connected")
}

#[track_caller]
pub(crate) fn nobody(listener: &TcpListener) {
    assert!(
        accept_within(listener, SILENCE).is_none(),
        "somebody connected where nobody should"
    );
}

/// Checks that bytes pass in both directions.
#[track_caller]
pub(crate) fn talk(a: &mut TcpStream, b: &mut TcpStream) {
    one_way(a, b);
    one_way(b, a);
}

#[track_caller]
fn one_way(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"hello").unwrap();
    let mut read = [0; 5];
    to.set_read_timeout(Some(DEADLINE)).unwrap();
    to.read_exact(&mut read).unwrap();
    assert_eq!(&read, b"hello");
}
