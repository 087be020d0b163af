//! Connections of the application, with every way to open one.

use std::{io::Read, net::SocketAddr, os::fd::AsFd, process::Command};

use socket2::{Domain, Protocol, SockRef, Socket, Type};

use crate::world::{
    FAR4, FAR6, MARKS, PEER4, POD4, POD6, Place, Proxy, SILENCE, World, accept, address, canonical,
    connect, connect_within, ip_of, nobody, talk, tools,
};

/// Flag of `sendto` that connects (`MSG_FASTOPEN`).
const FAST_OPEN: i32 = 0x2000_0000;

/// Checks that the proxy gets the connection of `client` to `to`, and that it carries bytes.
#[track_caller]
fn assert_captured(proxy: &Proxy, client: impl Into<std::net::TcpStream>, to: SocketAddr) {
    let mut client = client.into();
    let (mut captured, from) = accept(&proxy.outbound);
    assert_eq!(canonical(captured.local_addr().unwrap()), to);
    assert_eq!(from, canonical(client.local_addr().unwrap()));
    assert_eq!(canonical(client.peer_addr().unwrap()), to);
    let own = if to.is_ipv4() { POD4 } else { POD6 };
    assert_eq!(from.ip(), ip_of(own));
    talk(&mut client, &mut captured);
}

#[test]
fn proxy_gets_connections_with_both_their_addresses() {
    let (world, proxy) = World::captured();
    for ip in [FAR4, FAR6, PEER4] {
        let to = address(ip, 80);
        let client = world.connect(Place::Pod, to).unwrap();
        assert_captured(&proxy, client, to);
    }
}

#[test]
fn ipv4_connection_of_an_ipv6_socket_is_captured() {
    let (world, proxy) = World::captured();
    let socket = world.socket(Place::Pod, address(FAR6, 80));
    let client = connect(socket, address(&format!("::ffff:{FAR4}"), 80)).unwrap();
    assert_captured(&proxy, client, address(FAR4, 80));
}

#[test]
fn non_blocking_and_bound_sockets_are_captured() {
    let (world, proxy) = World::captured();
    for (ip, own) in [(FAR4, POD4), (FAR6, POD6)] {
        let to = address(ip, 443);
        let socket = world.socket(Place::Pod, to);
        socket.bind(&address(own, 4321).into()).unwrap();
        socket.set_nonblocking(true).unwrap();
        drop(socket.connect(&to.into()).unwrap_err());
        let (captured, from) = accept(&proxy.outbound);
        assert_eq!(from, address(own, 4321));
        assert_eq!(canonical(captured.local_addr().unwrap()), to);
    }
}

#[test]
fn socket_bound_to_an_interface_is_captured() {
    let (world, proxy) = World::captured();
    for ip in [FAR4, FAR6] {
        let to = address(ip, 80);
        let socket = world.socket(Place::Pod, to);
        socket.bind_device(Some(b"eth0")).unwrap();
        assert_captured(&proxy, connect(socket, to).unwrap(), to);
    }
}

#[test]
fn marks_of_the_application_do_not_bypass_and_their_other_bits_stay() {
    let (world, proxy) = World::captured();
    let to = address(FAR4, 80);
    let socket = world.socket(Place::Pod, to);
    socket.set_mark(0xab_0111).unwrap();
    let client = connect(socket, to).unwrap();
    let mark = SockRef::from(&client).mark().unwrap();
    assert_eq!(mark, 0xab_0000 | MARKS.outbound);
    assert_captured(&proxy, client, to);
}

#[test]
fn fast_open_is_captured() {
    let (world, proxy) = World::captured();
    world.sh(Place::Entered, "echo 3 > /proc/sys/net/ipv4/tcp_fastopen");
    for ip in [FAR4, FAR6] {
        let to = address(ip, 80);
        let socket = world.socket(Place::Pod, to);
        let sent = socket.send_to_with_flags(b"early", &to.into(), FAST_OPEN);
        assert_eq!(sent.unwrap(), 5);
        let (mut captured, _) = accept(&proxy.outbound);
        assert_eq!(canonical(captured.local_addr().unwrap()), to);
        let mut early = [0; 5];
        captured.read_exact(&mut early).unwrap();
        assert_eq!(&early, b"early");
    }
}

#[test]
fn connections_of_io_uring_are_captured() {
    let (world, proxy) = World::captured();
    // Operations run in the thread that submits them, in a worker of the kernel's, or in a polling one.
    for mode in ["inline", "worker", "thread"] {
        for ip in [FAR4, FAR6] {
            let run = || {
                Command::new(tools())
                    .args(["uring", mode, ip, "80"])
                    .output()
            };
            let output = world.at(Place::Pod, run).unwrap();
            let text = String::from_utf8_lossy(&output.stderr);
            assert!(output.status.success(), "{mode} {ip}: {text}");
            let (mut captured, _) = accept(&proxy.outbound);
            let local = canonical(captured.local_addr().unwrap());
            assert_eq!(local, address(ip, 80), "{mode}");
            let mut early = [0; 5];
            captured.read_exact(&mut early).unwrap();
            assert_eq!(&early, b"early");
        }
    }
}

#[test]
fn multipath_tcp_is_captured() {
    let (world, proxy) = World::captured();
    let multipath = || Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::from(262)));
    let Ok(socket) = world.at(Place::Pod, multipath) else {
        eprintln!("the kernel has no MPTCP");
        return;
    };
    // An option set on the socket is one that it copies to its subflows later.
    socket.set_tcp_nodelay(true).unwrap();
    let to = address(FAR4, 80);
    assert_captured(&proxy, connect(socket, to).unwrap(), to);
}

#[test]
fn connections_of_the_pod_to_itself_are_not_captured() {
    let (world, proxy) = World::captured();
    let listener = world.listen(Place::Pod, 8080);
    for ip in [POD4, POD6, "127.0.0.1", "127.1.2.3", "::1", "0.0.0.0", "::"] {
        let to = address(ip, 8080);
        let mut client = world.connect(Place::Pod, to).unwrap();
        assert_eq!(SockRef::from(&client).mark().unwrap(), 0);
        talk(&mut client, &mut accept(&listener).0);
    }
    nobody(&proxy.outbound);
    nobody(&proxy.inbound);
}

#[test]
fn socket_that_connects_again_to_the_pod_itself_is_released() {
    let (world, proxy) = World::captured();
    let listener = world.listen(Place::Pod, 8080);
    let far = address(FAR4, 80);
    let socket = world.socket(Place::Pod, far);
    socket.connect(&far.into()).unwrap();
    drop(accept(&proxy.outbound));
    rustix::net::connect_unspec(&socket).unwrap();
    let client = connect(socket, address(POD4, 8080)).unwrap();
    assert_eq!(SockRef::from(&client).mark().unwrap(), 0);
    talk(&mut client.try_clone().unwrap(), &mut accept(&listener).0);
}

#[test]
fn connections_from_before_the_capture_continue() {
    let world = World::new();
    let far = world.listen(Place::Peer, 80);
    let proxy = world.proxy();
    let mut before = world.connect(Place::Pod, address(FAR4, 80)).unwrap();
    let mut accepted = accept(&far).0;
    world.install();
    world.enter(&proxy);
    talk(&mut before, &mut accepted);
    let to = address(FAR4, 80);
    assert_captured(&proxy, world.connect(Place::Pod, to).unwrap(), to);
    talk(&mut before, &mut accepted);
}

#[test]
fn captured_connections_continue_after_the_release() {
    let (world, proxy) = World::captured();
    let far = world.listen(Place::Peer, 80);
    let mut captured = world.connect(Place::Pod, address(FAR4, 80)).unwrap();
    let mut at_proxy = accept(&proxy.outbound).0;
    world.capture().pause().unwrap();
    talk(&mut captured, &mut at_proxy);
    let mut after = world.connect(Place::Pod, address(FAR4, 80)).unwrap();
    talk(&mut after, &mut accept(&far).0);
    world.capture().remove().unwrap();
    talk(&mut captured, &mut at_proxy);
}

#[test]
fn connection_without_a_proxy_is_refused_and_reaches_nobody() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 8080);
    let far = world.listen(Place::Peer, 8080);
    drop(proxy);
    for ip in [FAR4, FAR6] {
        let refused = world.connect(Place::Pod, address(ip, 8080)).unwrap_err();
        assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    }
    nobody(&application);
    nobody(&far);
}

/// The proxy may end between the mark and the opening.
#[test]
fn marked_opening_without_a_proxy_reaches_nobody() {
    let (world, proxy) = World::captured();
    let application = world.listen(Place::Pod, 8080);
    let far = world.listen(Place::Peer, 8080);
    drop(proxy);
    for ip in [FAR4, FAR6] {
        let to = address(ip, 8080);
        let socket = world.socket(Place::Entered, to);
        socket.set_mark(MARKS.outbound).unwrap();
        connect_within(socket, to, SILENCE).unwrap_err();
    }
    nobody(&application);
    nobody(&far);
}

#[test]
fn only_the_pods_namespace_and_cgroup_are_captured() {
    let (world, proxy) = World::captured();
    let far = world.listen(Place::Peer, 80);
    for place in [Place::Entered, Place::PodElsewhere] {
        let client = world.connect(place, address(FAR4, 80)).unwrap();
        assert_eq!(SockRef::from(&client).mark().unwrap(), 0);
        drop(accept(&far));
    }
    let socket = world.socket(Place::Pod, address(FAR4, 80));
    socket.set_mark(MARKS.proxy).unwrap();
    drop(connect(socket, address(FAR4, 80)).unwrap());
    drop(accept(&far));
    nobody(&proxy.outbound);
}

#[test]
fn datagrams_are_not_captured() {
    let (world, _proxy) = World::captured();
    let bind = |at: &'static str| move || std::net::UdpSocket::bind(at).unwrap();
    let far = world.at(Place::Peer, bind("0.0.0.0:53"));
    let client = world.at(Place::Pod, bind("0.0.0.0:0"));
    client.connect(address(FAR4, 53)).unwrap();
    client.send(b"query").unwrap();
    let mut query = [0; 5];
    far.set_read_timeout(Some(std::time::Duration::from_secs(5)))
        .unwrap();
    far.recv_from(&mut query).unwrap();
    assert_eq!(SockRef::from(&client.as_fd()).mark().unwrap(), 0);
}
