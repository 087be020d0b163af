//! Tests captured DNS from the server's side: the original destination of a query, and sockets that outlive the
//! capture.

use std::net::UdpSocket;

use ambit_netplan::RedirectionSpec;
use ambit_sys::{
    conntrack, datagram,
    redirection::{apply, release},
};

use super::{BACKENDS, with, world::*};

const LOOPBACK: [(&str, &str); 2] = [("127.0.0.1", PEER4), ("::1", PEER6)];

fn with_read_timeout(socket: UdpSocket) -> UdpSocket {
    socket.set_nonblocking(false).unwrap();
    socket.set_read_timeout(Some(DEADLINE)).unwrap();
    socket
}

#[test]
fn dns_query_keeps_its_destination_and_its_socket_after_capture() {
    for backend in BACKENDS {
        for (loopback, peer) in LOOPBACK {
            let world = World::new();
            let ipv6 = loopback == "::1";
            let listen = |netns, port| {
                let socket = datagram::listen(Some(netns), ipv6, port, Some(MARK), true);
                with_read_timeout(socket.unwrap().unwrap())
            };
            let server = listen(&world.pod, 15053);
            let resolver = with_read_timeout(
                world
                    .peer
                    .run(|| UdpSocket::bind(address(peer, 53)))
                    .unwrap()
                    .unwrap(),
            );
            let client = world
                .pod
                .run(|| UdpSocket::bind(address(if ipv6 { "::" } else { "0.0.0.0" }, 0)))
                .unwrap()
                .unwrap();
            let client = with_read_timeout(client);
            let captured = RedirectionSpec {
                dns_capture: true,
                ..with(backend)
            };
            let mut buffer = [0; 16];

            // The first query is sent before the capture; its answer arrives after it.
            client.send_to(b"0", address(peer, 53)).unwrap();
            let (_, asked_by) = receive(&resolver, &mut buffer);
            apply(&world.pod, &captured).unwrap();
            resolver.send_to(b"0", asked_by).unwrap();
            assert_eq!(receive(&client, &mut buffer).0, 1, "{backend}");

            let client = world
                .pod
                .run(|| UdpSocket::bind(address(if ipv6 { "::" } else { "0.0.0.0" }, 0)))
                .unwrap()
                .unwrap();
            let client = with_read_timeout(client);
            client.send_to(b"1", address(peer, 53)).unwrap();
            let (_, from) = receive(&server, &mut buffer);
            let at = server.local_addr().unwrap();
            assert_eq!(
                conntrack::original_destination(Some(&world.pod), from, at).unwrap(),
                Some(address(peer, 53)),
                "{backend}"
            );
            // A port that no flow has.
            let nobody = std::net::SocketAddr::new(from.ip(), 9);
            let unknown = conntrack::original_destination(Some(&world.pod), nobody, at);
            assert_eq!(unknown.unwrap(), None, "{backend}");
            server.send_to(b"1", from).unwrap();
            assert_eq!(
                receive(&client, &mut buffer).1,
                address(peer, 53),
                "{backend}"
            );

            // The pod leaves the mesh: translation of the open socket ends on request, not of
            // closed ones alone.
            release(&world.pod).unwrap();
            let forget = |sockets| {
                conntrack::delete_redirected_entries(&world.pod, at, &[from.port()], sockets)
                    .unwrap();
            };
            forget(conntrack::UdpSocketSelection::Closed);
            client.send_to(b"2", address(peer, 53)).unwrap();
            receive(&server, &mut buffer);
            forget(conntrack::UdpSocketSelection::All);
            client.send_to(b"3", address(peer, 53)).unwrap();
            let (_, from) = receive(&resolver, &mut buffer);
            assert_eq!(&buffer[..1], b"3", "{backend}");
            resolver.send_to(b"3", from).unwrap();
            assert_eq!(receive(&client, &mut buffer).0, 1, "{backend}");
        }
    }
}
