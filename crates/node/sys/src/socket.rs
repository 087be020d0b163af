//! TCP sockets of a pod: created inside its network namespace, used from outside.
//!
//! A socket always belongs to the namespace its thread was in when it was made, so only `socket()`, and
//! for listeners `bind` and `listen`, run inside; everything later, connecting included, runs wherever
//! the caller is. Every socket carries the proxy's mark, by which the pod's redirection exempts it.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
    time::Duration,
};

use socket2::{Domain, SockRef, Socket, TcpKeepalive, Type};
use tokio::net::{TcpSocket, TcpStream};

use crate::netns::Netns;

mod arrival;
mod create;
mod steering;

pub use arrival::bind_to_arrival_interface;
pub use create::SocketError;
use create::new_socket;
pub use steering::{WorkerPosition, steer};

/// Congestion control of connections within the machine. There is no network to congest, only a
/// receiver that advertises its window; the system's default may pace sending (BBR), in small
/// pieces with a timer for each. Reno is in every kernel, and any user may choose it.
const LOCAL_CONGESTION_CONTROL: &[u8] = b"reno";

/// Whether sockets may use foreign addresses (`IP_TRANSPARENT`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Transparent {
    /// Sockets are not transparent.
    Off,
    /// Sockets are transparent if the kernel and the capabilities allow it.
    #[default]
    BestEffort,
    /// Sockets are transparent; a failure is an error.
    Required,
}

/// TCP keepalive settings, which determine when a silent peer counts as dead.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Keepalive {
    /// Idle time before the first probe.
    pub time: Duration,
    /// Interval between two probes.
    pub interval: Duration,
    /// Number of unanswered probes after which the connection is dropped.
    pub retries: u32,
}

/// Socket options of established connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tuning {
    /// Keepalive probes; `None` disables them.
    pub keepalive: Option<Keepalive>,
    /// Timeout of unacknowledged data (`TCP_USER_TIMEOUT`); `None` is the kernel's default.
    pub user_timeout: Option<Duration>,
    /// Whether both ends are on this machine, so that a congestion control without pacing is used.
    pub is_local: bool,
    /// Whether closing resets the connection and drops unsent data (zero `SO_LINGER`), also if the kernel closes it
    /// because the process was killed. [`close_without_reset`] undoes it.
    pub resets: bool,
}

/// Specification of a listening socket on the wildcard or the loopback address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenSpec {
    /// Port to listen on.
    pub port: u16,
    /// Whether to open one dual-stack `[::]` socket, falling back to `0.0.0.0` without IPv6.
    pub ipv6: bool,
    /// Whether to bind the loopback address instead of the wildcard address.
    pub loopback: bool,
    /// Whether several sockets (workers, an old and a new proxy) share the port.
    pub reuse_port: bool,
    /// Whether the socket and its connections may use foreign addresses (`IP_TRANSPARENT`).
    pub transparent: Transparent,
    /// Packet mark of the socket, `SO_MARK`.
    pub mark: Option<u32>,
    /// Length of the accept queue.
    pub backlog: i32,
    /// Socket options that accepted connections inherit.
    pub tuning: Tuning,
}

impl ListenSpec {
    /// Returns the specification of a pod's proxy listener on `port`, with the defaults of Istio's node proxy.
    pub fn for_pod(port: u16, mark: Option<u32>) -> Self {
        Self {
            port,
            ipv6: true,
            loopback: false,
            reuse_port: true,
            transparent: Transparent::BestEffort,
            mark,
            // The kernel limits it to the namespace's `somaxconn`. While a proxy restarts, all
            // openings wait here.
            backlog: 4096,
            tuning: Tuning::default(),
        }
    }
}

/// Listening socket that was opened or inherited.
#[derive(Debug)]
pub struct BoundListener {
    /// Listening socket, set to non-blocking.
    pub listener: std::net::TcpListener,
    /// Whether `IP_TRANSPARENT` was set, so that outbound sockets may spoof their source address too.
    pub transparent: bool,
}

fn option_error(option: &'static str) -> impl FnOnce(io::Error) -> SocketError {
    move |source| SocketError::Option { option, source }
}

/// Opens a listener inside `netns`, or in the caller's namespace.
///
/// # Errors
/// When a required step fails; what `spec` leaves to best effort is not an error.
pub fn listen(netns: Option<&Netns>, spec: &ListenSpec) -> Result<BoundListener, SocketError> {
    in_netns(netns, || {
        if !spec.ipv6 {
            return listen_on(spec, Domain::IPV4);
        }
        match listen_on(spec, Domain::IPV6) {
            // A pod without IPv6: the family is unknown, or disabled so that [::] has no interface.
            Err(SocketError::Create(e)) if is_family_unsupported(&e) => {
                listen_on(spec, Domain::IPV4)
            }
            Err(SocketError::Bind { source, .. })
                if source.kind() == io::ErrorKind::AddrNotAvailable =>
            {
                listen_on(spec, Domain::IPV4)
            }
            result => result,
        }
    })?
}

fn listen_on(spec: &ListenSpec, domain: Domain) -> Result<BoundListener, SocketError> {
    let socket = new_socket(domain)?;
    if let Some(mark) = spec.mark {
        socket.set_mark(mark).map_err(option_error("SO_MARK"))?;
    }
    socket
        .set_reuse_address(true)
        .map_err(option_error("SO_REUSEADDR"))?;
    if spec.reuse_port {
        socket
            .set_reuse_port(true)
            .map_err(option_error("SO_REUSEPORT"))?;
    }
    if domain == Domain::IPV6 {
        socket
            .set_only_v6(false)
            .map_err(option_error("IPV6_V6ONLY"))?;
    }
    let transparent = match spec.transparent {
        Transparent::Off => false,
        Transparent::BestEffort => set_transparent(&socket, domain).is_ok(),
        Transparent::Required => {
            set_transparent(&socket, domain).map_err(option_error("IP_TRANSPARENT"))?;
            true
        }
    };
    apply_tuning_to(SockRef::from(&socket), &spec.tuning).map_err(option_error("TCP options"))?;
    let ip = match (domain == Domain::IPV6, spec.loopback) {
        (true, false) => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        (true, true) => IpAddr::V6(Ipv6Addr::LOCALHOST),
        (false, false) => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        (false, true) => IpAddr::V4(Ipv4Addr::LOCALHOST),
    };
    let addr = SocketAddr::new(ip, spec.port);
    socket
        .bind(&addr.into())
        .map_err(|source| SocketError::Bind { addr, source })?;
    socket
        .listen(spec.backlog)
        .map_err(|source| SocketError::Listen { addr, source })?;
    Ok(BoundListener {
        listener: socket.into(),
        transparent,
    })
}

/// Kind of a socket that another process opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SocketKind {
    /// TCP socket that listens at this address.
    Listener(SocketAddr),
    /// UDP socket bound to this address.
    Datagram(SocketAddr),
}

/// Determines the kind of a socket that another process opened.
///
/// # Errors
/// When it is neither a TCP listener nor a UDP socket.
pub fn socket_kind(socket: impl std::os::fd::AsFd) -> io::Result<SocketKind> {
    let socket = SockRef::from(&socket);
    let not_ours = || io::Error::new(io::ErrorKind::InvalidInput, "neither TCP listener nor UDP");
    let address = socket.local_addr()?.as_socket().ok_or_else(not_ours)?;
    match socket.r#type()? {
        Type::STREAM if socket.is_listener()? => Ok(SocketKind::Listener(address)),
        Type::DGRAM => Ok(SocketKind::Datagram(address)),
        _ => Err(not_ours()),
    }
}

/// Prepares a listening socket that another process opened: sets it to non-blocking, and sets the options that its
/// connections inherit.
///
/// # Errors
/// When an option cannot be set.
pub fn adopt_listener(
    listener: std::net::TcpListener,
    tuning: &Tuning,
) -> Result<BoundListener, SocketError> {
    listener
        .set_nonblocking(true)
        .map_err(option_error("O_NONBLOCK"))?;
    apply_tuning_to(SockRef::from(&listener), tuning).map_err(option_error("TCP options"))?;
    let transparent = SockRef::from(&listener)
        .ip_transparent_v4()
        .map_err(option_error("IP_TRANSPARENT"))?;
    Ok(BoundListener {
        listener,
        transparent,
    })
}

/// Specification of a socket for an outgoing connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct OutboundSpec {
    /// Packet mark of the socket, `SO_MARK`.
    pub mark: Option<u32>,
    /// Source address to bind although it is another host's; replies return by the pod's routes for marked connections.
    /// Must be of the destination's family.
    pub source: Option<IpAddr>,
    /// Socket options of the connection.
    pub tuning: Tuning,
    /// Worker that the source port must select at the destination, if [`steer`] has prepared the listeners there.
    pub worker: Option<WorkerPosition>,
    /// Whether the socket is bound to the loopback interface, so that its packets stay in the pod and the kernel names
    /// that interface as the one that they arrive by.
    pub loopback: bool,
}

/// Creates a socket inside `netns` for connecting to an address of `destination`'s family. If the source cannot be
/// bound, the connection comes from the pod's own address.
///
/// # Errors
/// When the namespace cannot be entered, or the mark, by which the pod's own rules exempt the
/// connection, cannot be set.
pub fn outbound(
    netns: Option<&Netns>,
    destination: SocketAddr,
    spec: &OutboundSpec,
) -> Result<TcpSocket, SocketError> {
    let domain = Domain::for_address(destination);
    let socket = in_netns(netns, || match spec.worker {
        Some(worker) => steering::socket_for_worker(domain, worker),
        None => new_socket(domain),
    })??;
    if let Some(mark) = spec.mark {
        socket.set_mark(mark).map_err(option_error("SO_MARK"))?;
    }
    if spec.loopback {
        socket
            .bind_device(Some(b"lo"))
            .map_err(option_error("SO_BINDTODEVICE"))?;
    }
    let same_family = |source: &IpAddr| source.is_ipv4() == destination.is_ipv4();
    if let Some(source) = spec.source.filter(same_family)
        && let Err(error) = bind_transparent(&socket, domain, source)
    {
        tracing::warn!(%source, %error, "cannot keep the client's address");
    }
    apply_tuning_to(SockRef::from(&socket), &spec.tuning).map_err(option_error("TCP options"))?;
    Ok(TcpSocket::from_std_stream(socket.into()))
}

/// Sets those socket options of an accepted connection that are not inherited from the listener.
///
/// # Errors
/// When the kernel refuses an option, as it does when the peer is already gone.
pub fn apply_tuning(stream: &TcpStream, tuning: &Tuning) -> io::Result<()> {
    apply_tuning_to(SockRef::from(stream), tuning)
}

/// Clears [`Tuning::resets`] of a connection, so that closing it still sends unsent data. Called when the peer has
/// received, or will receive, an end of data.
pub fn close_without_reset(stream: &TcpStream) {
    // Fails only for descriptors that are not sockets.
    let _never = SockRef::from(stream).set_linger(None);
}

/// Enables keepalive probes on a connection; arguments that are `None` leave the kernel's value.
///
/// # Errors
/// When the kernel refuses it.
pub fn keep_alive(
    stream: &TcpStream,
    time: Option<Duration>,
    interval: Option<Duration>,
    retries: Option<u32>,
) -> io::Result<()> {
    let mut params = TcpKeepalive::new();
    if let Some(time) = time {
        params = params.with_time(time);
    }
    if let Some(interval) = interval {
        params = params.with_interval(interval);
    }
    if let Some(retries) = retries {
        params = params.with_retries(retries);
    }
    SockRef::from(stream).set_tcp_keepalive(&params)
}

fn apply_tuning_to(socket: SockRef<'_>, tuning: &Tuning) -> io::Result<()> {
    socket.set_tcp_nodelay(true)?;
    if tuning.resets {
        socket.set_linger(Some(Duration::ZERO))?;
    }
    if let Some(keepalive) = &tuning.keepalive {
        let params = TcpKeepalive::new()
            .with_time(keepalive.time)
            .with_interval(keepalive.interval)
            .with_retries(keepalive.retries);
        socket.set_tcp_keepalive(&params)?;
    }
    if tuning.user_timeout.is_some() {
        socket.set_tcp_user_timeout(tuning.user_timeout)?;
    }
    if tuning.is_local {
        // Optional: a kernel that refuses is not an error.
        if let Err(error) = socket.set_tcp_congestion(LOCAL_CONGESTION_CONTROL) {
            tracing::debug!(%error, "no congestion control of its own for the machine");
        }
    }
    Ok(())
}

/// Sets the packet mark (`SO_MARK`) of an open connection.
///
/// # Errors
/// When the process lacks the capability.
pub fn set_mark(stream: &TcpStream, mark: u32) -> io::Result<()> {
    socket2::SockRef::from(stream).set_mark(mark)
}

/// Returns the original destination of a redirected connection: the address before NAT if it was translated, else its
/// local address.
///
/// # Errors
/// When the socket has no local address any more.
pub fn original_dst(stream: &TcpStream) -> io::Result<SocketAddr> {
    let local = canonical_address(stream.local_addr()?);
    let socket = SockRef::from(stream);
    let original = match local {
        SocketAddr::V4(_) => socket.original_dst_v4(),
        SocketAddr::V6(_) => socket.original_dst_v6(),
    };
    Ok(original
        .ok()
        .and_then(|addr| addr.as_socket())
        .map_or(local, canonical_address))
}

fn canonical_address(addr: SocketAddr) -> SocketAddr {
    SocketAddr::new(addr.ip().to_canonical(), addr.port())
}

fn in_netns<T>(netns: Option<&Netns>, work: impl FnOnce() -> T) -> Result<T, SocketError> {
    match netns {
        Some(netns) => netns.run(work).map_err(SocketError::EnterNetns),
        None => Ok(work()),
    }
}

fn is_family_unsupported(error: &io::Error) -> bool {
    error.raw_os_error() == Some(rustix::io::Errno::AFNOSUPPORT.raw_os_error())
}

fn set_transparent(socket: &Socket, domain: Domain) -> io::Result<()> {
    if domain == Domain::IPV6 {
        socket.set_ip_transparent_v6(true)?;
    }
    // An IPv6 socket that takes IPv4-mapped connections needs both.
    socket.set_ip_transparent_v4(true)
}

fn bind_transparent(socket: &Socket, domain: Domain, source: IpAddr) -> io::Result<()> {
    if domain == Domain::IPV6 {
        socket.set_ip_transparent_v6(true)?;
    } else {
        socket.set_ip_transparent_v4(true)?;
    }
    socket.bind(&SocketAddr::new(source, 0).into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::netns::new_for_test;

    fn spec() -> ListenSpec {
        ListenSpec {
            transparent: Transparent::Off,
            ..ListenSpec::for_pod(0, None)
        }
    }

    #[tokio::test]
    async fn a_dual_stack_listener_takes_ipv4_and_names_the_destination() {
        let listening = listen(None, &spec()).unwrap();
        let port = listening.listener.local_addr().unwrap().port();
        let listener = tokio::net::TcpListener::from_std(listening.listener).unwrap();
        let target = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let socket = outbound(None, target, &OutboundSpec::default()).unwrap();
        let (client, accepted) = tokio::join!(socket.connect(target), listener.accept());
        let (accepted, _) = accepted.unwrap();
        assert!(client.unwrap().nodelay().unwrap());
        let tuning = Tuning {
            keepalive: Some(Keepalive {
                time: Duration::from_secs(180),
                interval: Duration::from_secs(180),
                retries: 9,
            }),
            user_timeout: Some(Duration::from_secs(30)),
            is_local: false,
            resets: false,
        };
        apply_tuning(&accepted, &tuning).unwrap();
        assert_eq!(original_dst(&accepted).unwrap(), target);
    }

    #[tokio::test]
    async fn local_connections_are_not_paced() {
        let tuned = |is_local| Tuning {
            is_local,
            ..Tuning::default()
        };
        let near = ListenSpec {
            tuning: tuned(true),
            ..spec()
        };
        let listener = listen(None, &near).unwrap().listener;
        let port = listener.local_addr().unwrap().port();
        let target = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), port);
        let listener = tokio::net::TcpListener::from_std(listener).unwrap();
        let of = |socket: SockRef<'_>| {
            let name = socket.tcp_congestion().unwrap();
            String::from_utf8(name)
                .unwrap()
                .trim_end_matches('\0')
                .to_owned()
        };
        let systems = std::fs::read_to_string("/proc/sys/net/ipv4/tcp_congestion_control").unwrap();
        for (near, expected) in [(true, "reno"), (false, systems.trim())] {
            let spec = OutboundSpec {
                tuning: tuned(near),
                ..Default::default()
            };
            let socket = outbound(None, target, &spec).unwrap();
            let (client, accepted) = tokio::join!(socket.connect(target), listener.accept());
            assert_eq!(of(SockRef::from(&client.unwrap())), expected);
            assert_eq!(of(SockRef::from(&accepted.unwrap().0)), "reno");
        }
    }

    #[test]
    fn two_listeners_share_a_port() {
        let first = listen(None, &spec()).unwrap();
        let port = first.listener.local_addr().unwrap().port();
        let second = listen(None, &ListenSpec { port, ..spec() }).unwrap();
        assert_eq!(second.listener.local_addr().unwrap().port(), port);
        let alone = ListenSpec {
            port,
            reuse_port: false,
            ..spec()
        };
        assert!(matches!(
            listen(None, &alone),
            Err(SocketError::Bind { .. })
        ));
    }

    #[test]
    fn listener_belongs_to_its_namespace() {
        let ns = new_for_test();
        let first = listen(
            Some(&ns),
            &ListenSpec {
                port: 15001,
                ..spec()
            },
        )
        .unwrap();
        assert!(first.listener.local_addr().unwrap().port() == 15001);
        // The same port, unshared, is free here and in any other namespace.
        let other = new_for_test();
        let alone = ListenSpec {
            port: 15001,
            reuse_port: false,
            ..spec()
        };
        assert!(listen(Some(&other), &alone).is_ok());
        assert!(matches!(
            listen(Some(&ns), &alone),
            Err(SocketError::Bind { .. })
        ));
    }

    #[test]
    fn marks_and_foreign_sources_are_set() {
        let ns = new_for_test();
        let marked = ListenSpec {
            mark: Some(0x539),
            transparent: Transparent::Required,
            ..ListenSpec::for_pod(15008, None)
        };
        let listening = listen(Some(&ns), &marked).unwrap();
        assert!(listening.transparent);
        assert_eq!(SockRef::from(&listening.listener).mark().unwrap(), 0x539);
        for (source, destination) in [("10.9.9.9", "10.0.0.1:80"), ("fd00::9", "[fd00::1]:80")] {
            let source: IpAddr = source.parse().unwrap();
            let spec = OutboundSpec {
                mark: Some(0x539),
                source: Some(source),
                ..Default::default()
            };
            let socket = outbound(Some(&ns), destination.parse().unwrap(), &spec).unwrap();
            assert_eq!(socket.local_addr().unwrap().ip(), source);
        }
    }
}
