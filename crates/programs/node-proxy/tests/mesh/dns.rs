//! Tests captured DNS queries: answered from the mesh, or by the pod's resolver.

use std::{
    net::{Ipv4Addr, SocketAddr},
    os::fd::{AsFd, OwnedFd},
};

use ambit_model::{DNS_PORT, PodName};
use ambit_netplan::RedirectionSpec;
use ambit_node_proxy::pod::Pod;
use ambit_sys::{conntrack, redirection};
use ambit_testkit::{build, wait_until};
use tokio::net::UdpSocket;

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost};

const POD: &str = "10.9.0.1";
const RESOLVER: &str = "10.9.0.9";

/// Encodes a query for the A records of `name`, with this id.
fn encode_query(id: u8, name: &str) -> Vec<u8> {
    let mut bytes = vec![0, id, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    for label in name.split('.') {
        bytes.push(u8::try_from(label.len()).unwrap());
        bytes.extend(label.as_bytes());
    }
    bytes.extend([0, 0, 1, 0, 1]);
    bytes
}

/// Sends a query, and returns the last four bytes of the response: the address, if there is one.
async fn send_query(client: &UdpSocket, name: &str) -> [u8; 4] {
    let server: SocketAddr = (RESOLVER.parse::<Ipv4Addr>().unwrap(), 53).into();
    client
        .send_to(&encode_query(7, name), server)
        .await
        .unwrap();
    let mut answer = [0; 512];
    let (len, from) = tokio::time::timeout(OPERATION_TIMEOUT, client.recv_from(&mut answer))
        .await
        .expect("no answer")
        .unwrap();
    assert_eq!(from, server, "the answer seems to be the server's");
    assert_eq!(answer[..2], [0, 7]);
    *answer[..len].last_chunk().unwrap()
}

fn udp_socket(pod: &PodHost, port: u16) -> UdpSocket {
    let bind = || std::net::UdpSocket::bind((Ipv4Addr::UNSPECIFIED, port));
    let socket = pod.host.run(bind).unwrap().unwrap();
    socket.set_nonblocking(true).unwrap();
    UdpSocket::from_std(socket).unwrap()
}

/// Starts the pod's resolver, which answers every query with its sender's address.
fn serve_upstream_resolver(pod: &PodHost) {
    let socket = udp_socket(pod, 53);
    ambit_rt::spawn("resolver", async move {
        let mut buffer = [0; 512];
        loop {
            let (len, client) = socket.recv_from(&mut buffer).await.unwrap();
            let mut answer = buffer[..len].to_vec();
            answer[2] |= 0x80;
            answer[7] = 1;
            answer.extend([0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 5, 0, 4]);
            let std::net::IpAddr::V4(ip) = client.ip() else {
                panic!("asked over IPv6")
            };
            answer.extend(ip.octets());
            socket.send_to(&answer, client).await.unwrap();
        }
    });
}

fn redirect_dns(pod: &PodHost) {
    let spec = RedirectionSpec {
        dns_capture: true,
        ..RedirectionSpec::default()
    };
    redirection::apply(pod.netns(), &spec).unwrap();
}

#[tokio::test]
async fn mesh_names_are_answered_and_others_forwarded() {
    let mut mesh = Mesh::new().await;
    let server = mesh.pod("resolver", RESOLVER).await;
    serve_upstream_resolver(&server);
    let mut client = mesh.captured_pod(0, "client", POD).await;
    mesh.publish_service(build::service("web", &["/10.1.0.1"], &[(80, 80)]));
    redirect_dns(&client);
    let open = udp_socket(&client, 0);
    assert_eq!(send_query(&open, "web").await, [10, 1, 0, 1]);
    // The server sees the pod itself as the sender.
    assert_eq!(send_query(&open, "example.com").await, [10, 9, 0, 1]);
    let metrics = mesh.nodes[0].metrics();
    let labels = "{request_query_type=\"A\",request_protocol=\"udp\",\
                  source_canonical_service=\"client\",source_canonical_revision=\"latest\"}";
    for (family, count) in [
        ("istio_dns_requests_total", 2),
        ("istio_dns_upstream_requests_total", 1),
    ] {
        let line = format!("{family}{labels} {count}\n");
        assert!(metrics.contains(&line), "{line} in {metrics}");
    }

    // A socket that sends a query and closes: the next one may get its port.
    let closed = udp_socket(&client, 0);
    assert_eq!(send_query(&closed, "web").await, [10, 1, 0, 1]);
    let reused = closed.local_addr().unwrap().port();
    drop(closed);

    // The pod leaves: the translated ports are released, and its proxy leaves nothing behind.
    redirection::release(client.netns()).unwrap();
    let pod = client.pod.take().unwrap();
    let ports = [reused, open.local_addr().unwrap().port()];
    ambit_rt::spawn("drain", async move { pod.drain_connections(None).await });
    let listener = (Ipv4Addr::LOCALHOST, DNS_PORT).into();
    for port in ports {
        let from = SocketAddr::new(client.ip, port);
        wait_until("the translation has ended", || {
            conntrack::original_destination(Some(client.netns()), from, listener)
                .unwrap()
                .is_none()
        })
        .await;
    }
    assert_eq!(send_query(&open, "web").await, [10, 9, 0, 1]);
    assert_eq!(
        send_query(&udp_socket(&client, reused), "web").await,
        [10, 9, 0, 1]
    );
}

#[tokio::test]
async fn disabled_dns_capture_forwards_all_queries() {
    let mut mesh = Mesh::with_env(&[("ISTIO_META_DNS_CAPTURE", "false")]).await;
    let server = mesh.pod("resolver", RESOLVER).await;
    serve_upstream_resolver(&server);
    let client = mesh.captured_pod(0, "client", POD).await;
    mesh.publish_service(build::service("web", &["/10.1.0.1"], &[(80, 80)]));
    redirect_dns(&client);
    let open = udp_socket(&client, 0);
    assert_eq!(send_query(&open, "web").await, [10, 9, 0, 1]);
}

#[tokio::test]
async fn pod_without_ipv6_is_served() {
    let mut mesh = Mesh::new().await;
    let mut client = mesh.pod("client", POD).await;
    let off = || std::fs::write("/proc/sys/net/ipv6/conf/all/disable_ipv6", "1");
    // `/proc/sys` shows the namespace of the thread that opens it.
    client.host.run(off).unwrap().unwrap();
    mesh.capture(0, &mut client);
    mesh.publish_service(build::service("web", &["/10.1.0.1"], &[(80, 80)]));
    redirect_dns(&client);
    mesh.pod("resolver", RESOLVER).await;
    assert_eq!(
        send_query(&udp_socket(&client, 0), "web").await,
        [10, 1, 0, 1]
    );
}

/// Checks that a query that waits in the socket while one process ends and the next begins is answered.
#[tokio::test]
async fn handed_over_sockets_keep_their_queries() {
    let mut mesh = Mesh::new().await;
    let client = mesh.pod("client", POD).await;
    let _server = mesh.pod("resolver", RESOLVER).await;
    mesh.publish_service(build::service("web", &["/10.1.0.1"], &[(80, 80)]));
    let open = |inherited: Vec<OwnedFd>| {
        let name = PodName {
            name: "client".into(),
            namespace: "ns".into(),
            service_account: "client".into(),
        };
        let proxy = &mesh.nodes[0].proxy;
        let netns = client.netns().clone();
        Pod::open(proxy, "uid".into(), name, Vec::new(), netns, inherited, 1).unwrap()
    };
    let (_old, listeners) = open(Vec::new());
    redirect_dns(&client);
    let asking = udp_socket(&client, 0);
    let answer = send_query(&asking, "web");
    tokio::pin!(answer);
    tokio::select! {
        biased;
        early = &mut answer => panic!("nobody can have answered {early:?}"),
        () = tokio::task::yield_now() => {}
    }
    let held: Vec<_> = listeners
        .iter()
        .flat_map(|set| set.descriptors())
        .map(|fd| fd.as_fd().try_clone_to_owned().unwrap())
        .collect();
    drop(listeners);
    let (pod, listeners) = open(held);
    pod.serve(&mesh.nodes[0].workers, listeners);
    assert_eq!(answer.await, [10, 1, 0, 1]);
    wait_until("the question is counted", || {
        mesh.nodes[0].metrics().contains("istio_dns_requests_total")
    })
    .await;
}
