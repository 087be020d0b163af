//! Pod and peer for tests: two anonymous network namespaces joined by a veth pair, removed on drop.

use std::{
    fs::File,
    io::{self, Read, Write},
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket},
    os::fd::AsRawFd,
    process::Command,
    thread,
    time::{Duration, Instant},
};

use ambit_sys::netns::Netns;
use rustix::thread::UnshareFlags;
use socket2::{Domain, Protocol, SockRef, Socket, Type};

use super::pods;

/// Timeout of every operation in these tests.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) const POD4: &str = "10.9.0.2";
pub(crate) const POD6: &str = "fd00:9::2";
pub(crate) const PEER4: &str = "10.9.0.1";
pub(crate) const PEER6: &str = "fd00:9::1";
pub(crate) const MARK: u32 = 0x539;

pub(crate) struct World {
    pub(crate) pod: Netns,
    pub(crate) peer: Netns,
}

pub(crate) fn new_netns() -> Netns {
    std::thread::spawn(|| {
        #[expect(
            deprecated,
            reason = "a thread of its own, and only the network namespace"
        )]
        rustix::thread::unshare(UnshareFlags::NEWNET).unwrap();
        Netns::from_fd(File::open("/proc/thread-self/ns/net").unwrap().into()).unwrap()
    })
    .join()
    .unwrap()
}

/// Runs a shell command inside the namespace, and returns its output. Panics when it fails.
pub(crate) fn sh(netns: &Netns, command: &str) -> String {
    let output = netns
        .run(|| Command::new("sh").args(["-ec", command]).output())
        .unwrap()
        .unwrap();
    assert!(
        output.status.success(),
        "{command}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8(output.stdout).unwrap()
}

impl World {
    pub(crate) fn new() -> Self {
        let (pod, peer) = (new_netns(), new_netns());
        let file = File::from(rustix::io::fcntl_dupfd_cloexec(&peer, 0).unwrap());
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        sh(
            &pod,
            &format!("ip link add eth0 type veth peer name eth0 netns {path}"),
        );
        for (netns, v4, v6) in [(&pod, POD4, POD6), (&peer, PEER4, PEER6)] {
            sh(
                netns,
                &format!(
                    "ip link set lo up; ip link set eth0 up; ip addr add {v4}/24 dev eth0; \
                     ip addr add {v6}/64 dev eth0 nodad"
                ),
            );
        }
        sh(
            &pod,
            &format!("ip route add default via {PEER4}; ip route add default via {PEER6}"),
        );
        Self { pod, peer }
    }

    /// Opens the three listening sockets of the pod's proxy: outbound, inbound plaintext and tunnel.
    pub(crate) fn proxy(&self) -> Proxy {
        let proxy = Proxy {
            outbound: listen_as_proxy(&self.pod, 15001),
            inbound: listen_as_proxy(&self.pod, 15006),
            tunnel: listen_as_proxy(&self.pod, 15008),
        };
        pods::remember_proxy(&self.pod, &proxy.outbound, &proxy.inbound);
        proxy
    }
}

impl Drop for World {
    fn drop(&mut self) {
        pods::forget(&self.pod);
    }
}

pub(crate) struct Proxy {
    pub(crate) outbound: TcpListener,
    pub(crate) inbound: TcpListener,
    pub(crate) tunnel: TcpListener,
}

/// Opens a listening socket as an application does.
pub(crate) fn listen(netns: &Netns, port: u16) -> TcpListener {
    let socket = pods::socket(netns, Domain::IPV6).unwrap();
    listen_with(socket, port, |_| Ok(()))
}

/// Opens a listening socket like the node proxy's: dual stack, marked, transparent.
fn listen_as_proxy(netns: &Netns, port: u16) -> TcpListener {
    let socket = netns
        .run(|| Socket::new(Domain::IPV6, Type::STREAM, Some(Protocol::TCP)))
        .unwrap()
        .unwrap();
    listen_with(socket, port, |socket| {
        socket.set_mark(MARK)?;
        socket.set_ip_transparent_v4(true)?;
        socket.set_ip_transparent_v6(true)
    })
}

fn listen_with(
    socket: Socket,
    port: u16,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> TcpListener {
    socket.set_only_v6(false).unwrap();
    socket.set_reuse_address(true).unwrap();
    prepare(&socket).unwrap();
    let address = SocketAddr::new("::".parse().unwrap(), port).into();
    // A program that another test starts holds an earlier listener of this port until it has replaced its process.
    let until = Instant::now() + DEADLINE;
    while let Err(error) = socket.bind(&address) {
        assert_eq!(error.kind(), io::ErrorKind::AddrInUse, "{error}");
        assert!(Instant::now() < until, "port {port} stays in use");
        thread::yield_now();
    }
    socket.listen(128).unwrap();
    socket.into()
}

pub(crate) fn address(ip: &str, port: u16) -> SocketAddr {
    SocketAddr::new(ip.parse().unwrap(), port)
}

pub(crate) fn connect(netns: &Netns, to: SocketAddr) -> io::Result<TcpStream> {
    connect_with(netns, to, DEADLINE, |_| Ok(()))
}

pub(crate) fn connect_marked(netns: &Netns, to: SocketAddr) -> io::Result<TcpStream> {
    connect_with(netns, to, DEADLINE, |socket| socket.set_mark(MARK))
}

/// Connects to the application as the proxy does: from the client's address, with the packet mark.
pub(crate) fn connect_spoofed(
    netns: &Netns,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<TcpStream> {
    connect_with(netns, to, Duration::from_secs(2), |socket| {
        socket.set_mark(MARK)?;
        if from.is_ipv4() {
            socket.set_ip_transparent_v4(true)?;
            socket.set_freebind_v4(true)?;
        } else {
            socket.set_ip_transparent_v6(true)?;
            socket.set_freebind_v6(true)?;
        }
        socket.bind(&from.into())
    })
}

pub(crate) fn connect_from(
    netns: &Netns,
    from: SocketAddr,
    to: SocketAddr,
) -> io::Result<TcpStream> {
    connect_with(netns, to, DEADLINE, |socket| socket.bind(&from.into()))
}

pub(crate) fn connect_with(
    netns: &Netns,
    to: SocketAddr,
    timeout: Duration,
    prepare: impl FnOnce(&Socket) -> io::Result<()>,
) -> io::Result<TcpStream> {
    let socket =
        netns.run(|| Socket::new(Domain::for_address(to), Type::STREAM, Some(Protocol::TCP)))??;
    prepare(&socket)?;
    connect_socket(socket, to, timeout)
}

pub(crate) fn connect_socket(
    socket: Socket,
    to: SocketAddr,
    timeout: Duration,
) -> io::Result<TcpStream> {
    socket.connect_timeout(&to.into(), timeout)?;
    Ok(socket.into())
}

/// Accepts the next connection; `None` if none arrives before the timeout.
pub(crate) fn accept_within(
    listener: &TcpListener,
    timeout: Duration,
) -> Option<(TcpStream, SocketAddr)> {
    listener.set_nonblocking(true).unwrap();
    let until = Instant::now() + timeout;
    loop {
        match listener.accept() {
            Ok((stream, from)) => {
                stream.set_nonblocking(false).unwrap();
                return Some((
                    stream,
                    SocketAddr::new(from.ip().to_canonical(), from.port()),
                ));
            }
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                if Instant::now() > until {
                    return None;
                }
                let mut fds = [rustix::event::PollFd::new(
                    listener,
                    rustix::event::PollFlags::IN,
                )];
                let wait = rustix::event::Timespec {
                    tv_sec: 0,
                    tv_nsec: 50_000_000,
                };
                rustix::event::poll(&mut fds, Some(&wait)).unwrap();
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
    listener.set_nonblocking(true).unwrap();
    assert!(
        listener.accept().is_err(),
        "somebody connected where nobody should"
    );
}

/// Returns the destination before any translation.
pub(crate) fn original_destination(stream: &TcpStream) -> SocketAddr {
    let socket = SockRef::from(stream);
    let original = socket
        .original_dst_v4()
        .or_else(|_| socket.original_dst_v6());
    let address = match original {
        Ok(address) => address.as_socket().unwrap(),
        // BPF programs translate none.
        Err(_) => stream.local_addr().unwrap(),
    };
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

/// Repeats a call on a socket that has a timeout, when it is interrupted: the kernel does not restart such a call after
/// a signal or a freeze of the cgroup (`signal(7)`).
#[track_caller]
pub(crate) fn uninterrupted<T>(mut call: impl FnMut() -> io::Result<T>) -> T {
    loop {
        match call() {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            result => return result.unwrap(),
        }
    }
}

/// Receives a datagram; returns its length and sender.
#[track_caller]
pub(crate) fn receive(socket: &UdpSocket, buffer: &mut [u8]) -> (usize, SocketAddr) {
    uninterrupted(|| socket.recv_from(buffer))
}

/// Checks that bytes sent in both directions of a connection arrive.
#[track_caller]
pub(crate) fn talk(a: &mut TcpStream, b: &mut TcpStream) {
    for stream in [&*a, &*b] {
        stream.set_read_timeout(Some(DEADLINE)).unwrap();
    }
    assert_delivers(a, b);
    assert_delivers(b, a);
}

#[track_caller]
fn assert_delivers(from: &mut TcpStream, to: &mut TcpStream) {
    from.write_all(b"hello").unwrap();
    let mut buffer = [0; 5];
    to.read_exact(&mut buffer).unwrap();
    assert_eq!(&buffer, b"hello");
}

pub(crate) fn ip(text: &str) -> IpAddr {
    text.parse().unwrap()
}
