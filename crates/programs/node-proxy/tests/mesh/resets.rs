//! Tests that an interrupted connection never looks complete: on any path a reset arrives as a reset, after the data
//! that was sent before it.

use std::{io, net::SocketAddr, time::Duration};

use ambit_model::Action;
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::build;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line};

const SERVER_PORT: u16 = 8080;

/// Closes a connection like a crashing program with unread bytes, which resets it.
fn reset_stream(stream: TcpStream) {
    stream.set_zero_linger().unwrap();
    drop(stream);
}

/// Reads until the connection is reset, and returns the bytes. An end of data, which would look like a complete
/// response, fails the test.
pub(crate) async fn read_until_reset(stream: &mut TcpStream, what: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let reading = tokio::time::timeout(OPERATION_TIMEOUT, stream.read_to_end(&mut bytes));
    match reading.await.unwrap_or_else(|_| panic!("{what}: no end")) {
        Err(error) => assert_eq!(error.kind(), io::ErrorKind::ConnectionReset, "{what}"),
        Ok(_) => panic!("{what}: an end of data after {} bytes", bytes.len()),
    }
    bytes
}

/// Path of connections through the mesh, such as tunnelled or plaintext.
struct ResetPath<'a> {
    name: &'static str,
    client: &'a PodHost,
    to: SocketAddr,
    listener: &'a TcpListener,
}

impl ResetPath<'_> {
    async fn open(&self) -> (TcpStream, TcpStream) {
        let mut near = self.client.connect(self.to).await.unwrap();
        let (mut far, _) = tokio::time::timeout(OPERATION_TIMEOUT, self.listener.accept())
            .await
            .expect("nobody comes")
            .unwrap();
        // The connection is established on both sides.
        far.write_u8(0).await.unwrap();
        near.read_u8().await.unwrap();
        (near, far)
    }
}

/// Checks on one path that resets of the client and of the server arrive, with and without data before them.
async fn assert_resets_arrive(path: &ResetPath<'_>) {
    let name = path.name;
    for from_server in [true, false] {
        // No data was sent before.
        let (near, far) = path.open().await;
        let (first, mut second) = if from_server {
            (far, near)
        } else {
            (near, far)
        };
        reset_stream(first);
        let got = read_until_reset(&mut second, name).await;
        assert!(got.is_empty(), "{name}");

        // A part of a response.
        let (near, far) = path.open().await;
        let (mut first, mut second) = if from_server {
            (far, near)
        } else {
            (near, far)
        };
        first.write_all(&[7; 1000]).await.unwrap();
        reset_stream(first);
        assert_eq!(
            read_until_reset(&mut second, name).await,
            [7; 1000],
            "{name}"
        );

        // The other side has closed its direction already, and waits for the rest.
        let (near, far) = path.open().await;
        let (mut first, mut second) = if from_server {
            (far, near)
        } else {
            (near, far)
        };
        second.shutdown().await.unwrap();
        assert_eq!(first.read(&mut [0; 1]).await.unwrap(), 0, "{name}");
        first.write_all(&[8; 1000]).await.unwrap();
        reset_stream(first);
        assert_eq!(
            read_until_reset(&mut second, name).await,
            [8; 1000],
            "{name}"
        );

        // The resetting side has closed its direction, and receives data.
        let (near, far) = path.open().await;
        let (mut first, mut second) = if from_server {
            (far, near)
        } else {
            (near, far)
        };
        first.write_all(b"complete").await.unwrap();
        first.shutdown().await.unwrap();
        let mut got = [0; 9];
        second.read_exact(&mut got[..8]).await.unwrap();
        assert_eq!(second.read(&mut got).await.unwrap(), 0, "{name}");
        reset_stream(first);
        let sending = async {
            while second.write_all(&[9; 4096]).await.is_ok() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(OPERATION_TIMEOUT, sending)
            .await
            .unwrap_or_else(|_| panic!("{name}: the sender never sees it"));
    }
}

#[tokio::test]
async fn reset_arrives_as_a_reset_on_every_path() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let outside = mesh.pod("outside", "10.9.0.3").await;
    let neighbour = mesh.captured_pod(0, "neighbour", "10.9.0.4").await;
    let listeners = [&server, &outside, &neighbour].map(|pod| pod.listen(SERVER_PORT));
    let ways = [
        ("through two proxies", &client, &server, 0),
        ("in plaintext to a captured pod", &outside, &server, 0),
        ("from a captured pod in plaintext", &client, &outside, 1),
        ("on one node", &client, &neighbour, 2),
    ];
    for (name, client, server, listener) in ways {
        assert_resets_arrive(&ResetPath {
            name,
            client,
            to: SocketAddr::new(server.ip, SERVER_PORT),
            listener: &listeners[listener],
        })
        .await;
    }
}

#[tokio::test]
async fn data_sent_before_a_reset_arrives() {
    const BODY_BYTES: usize = 300_000;
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    let listener = server.listen(SERVER_PORT);
    let path = ResetPath {
        name: "much",
        client: &client,
        to: SocketAddr::new(server.ip, SERVER_PORT),
        listener: &listener,
    };
    for from_server in [true, false] {
        let (near, far) = path.open().await;
        let (mut first, mut second) = if from_server {
            (far, near)
        } else {
            (near, far)
        };
        let reading = async {
            let mut got = vec![0; BODY_BYTES];
            second.read_exact(&mut got).await.unwrap();
            // The other side sees it only now: before, the kernel would drop unsent data.
            second.write_all(b"x").await.unwrap();
            read_until_reset(&mut second, path.name).await
        };
        let sending = async {
            first.write_all(&vec![5; BODY_BYTES]).await.unwrap();
            first.read_u8().await.unwrap();
            first.write_all(b"tail").await.unwrap();
            reset_stream(first);
        };
        let (rest, ()) = tokio::join!(reading, sending);
        assert_eq!(rest, b"tail");
    }
}

#[tokio::test]
async fn policy_and_drain_reset_both_ends() {
    for drained in [false, true] {
        let mut mesh = Mesh::new().await;
        let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
        let outside = mesh.pod("outside", "10.9.0.3").await;
        let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
        let listener = server.listen(SERVER_PORT);
        let mut open = Vec::new();
        for client in [&client, &outside] {
            let path = ResetPath {
                name: "cut",
                client,
                to: SocketAddr::new(server.ip, SERVER_PORT),
                listener: &listener,
            };
            let (mut near, mut far) = path.open().await;
            far.write_all(b"a part").await.unwrap();
            let mut got = [0; 6];
            near.read_exact(&mut got).await.unwrap();
            open.push((near, far));
        }
        let pod = server.pod.clone().unwrap();
        if drained {
            let drain = pod.drain_connections(Some(Duration::from_millis(100)));
            tokio::time::timeout(OPERATION_TIMEOUT, drain)
                .await
                .expect("it never ends");
        } else {
            let nobody = build::from_principal("*");
            mesh.publish(MeshUpdate::Policy(build::policy("p", Action::Deny, nobody)));
            let anonymous = build::policy("q", Action::Allow, build::from_principal("*"));
            mesh.publish(MeshUpdate::Policy(anonymous));
        }
        for (mut near, mut far) in open {
            assert!(read_until_reset(&mut near, "the client").await.is_empty());
            assert!(read_until_reset(&mut far, "the server").await.is_empty());
        }
    }
}

#[tokio::test]
async fn stopped_proxy_resets_both_ends() {
    let mut mesh = Mesh::new().await;
    let client = mesh.captured_pod(0, "client", "10.9.0.1").await;
    let server = mesh.captured_pod(1, "server", "10.9.0.2").await;
    server.serve_echo(SERVER_PORT);
    let listener = server.listen(SERVER_PORT + 1);
    for stopped in [1, 0] {
        let mut near = client
            .connect(SocketAddr::new(server.ip, SERVER_PORT))
            .await
            .unwrap();
        assert_eq!(read_line(&mut near).await.unwrap(), "10.9.0.1");
        let path = ResetPath {
            name: "stopped",
            client: &client,
            to: SocketAddr::new(server.ip, SERVER_PORT + 1),
            listener: &listener,
        };
        let (mut other, mut far) = path.open().await;
        let pods = [&client, &server];
        pods[stopped].pod.as_ref().unwrap().stop_now();
        read_until_reset(&mut near, "the client").await;
        read_until_reset(&mut other, "the other client").await;
        read_until_reset(&mut far, "the server").await;
        if stopped == 1 {
            // The next connection is rejected, by a reset, too.
            return;
        }
    }
}
