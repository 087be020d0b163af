//! Tests services in another network: nested tunnels (double HBONE) through that network's gateway.

use std::{net::SocketAddr, sync::Arc};

use ambit_hbone::{Settings, server, tls};
use ambit_model::{Action, GatewayAddress, GatewayDestination, Service};
use ambit_proxy::state::MeshUpdate;
use ambit_testkit::{Pki, build};
use http::HeaderMap;
use tokio::{
    io::{AsyncWriteExt, copy_bidirectional},
    net::TcpStream,
};

use crate::fixture::{Mesh, OPERATION_TIMEOUT, PodHost, read_line, read_until_end};

const WEB_HOSTNAME: &str = "web.ns.svc.cluster.local";
/// Address of the service, as the client's network knows it.
const SERVICE: &str = "10.9.0.200:80";
const REMOTE_NETWORK: &str = "far";

/// Starts a gateway, which terminates the outer tunnels and forwards the inner ones to the pod `behind`, which alone
/// can decrypt them.
fn serve_gateway(pki: Arc<Pki>, pod: &PodHost, behind: SocketAddr) {
    let listener = pod.listen(15008);
    let netns = pod.netns().clone();
    ambit_rt::spawn("gateway", async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (pki, netns) = (pki.clone(), netns.clone());
            ambit_rt::spawn("gateway connection", async move {
                let cert = pki.cert(&build::identity("ns", "gw"));
                let config = cert.server_config().unwrap();
                let stream = tls::accept(stream, config, OPERATION_TIMEOUT)
                    .await
                    .unwrap();
                let (settings, never) = (Settings::default(), std::future::pending());
                let serving = server::serve(stream, &settings, never, |incoming| {
                    assert_eq!(
                        incoming.target().unwrap().to_string(),
                        format!("{WEB_HOSTNAME}:80")
                    );
                    let mut outer = incoming.accept(HeaderMap::new()).unwrap().into_io();
                    let socket =
                        ambit_sys::socket::outbound(Some(&netns), behind, &Default::default())
                            .unwrap();
                    ambit_rt::spawn("gateway tunnel", async move {
                        let mut inner: TcpStream = socket.connect(behind).await.unwrap();
                        let _ended = copy_bidirectional(&mut outer, &mut inner).await;
                    });
                });
                let _ended = serving.await;
            });
        }
    });
}

/// Creates a mesh; returns it with a client and with a server in another network, behind a gateway.
async fn set_up(pki: Arc<Pki>) -> (Mesh, PodHost, PodHost) {
    let mut mesh = Mesh::with_pki(pki.clone(), &[]).await;
    let client = mesh.pod("client", "10.9.0.1").await;
    let server = mesh.pod("web", "10.9.0.2").await;
    let gw = mesh.pod("gw", "10.9.0.3").await;
    serve_gateway(pki, &gw, SocketAddr::new(server.ip, 15008));
    let endpoint = |mut workload: ambit_model::Workload| {
        let service = format!("ns/{WEB_HOSTNAME}").parse().unwrap();
        workload.services.insert(service, [(80, 8080)].into());
        workload
    };
    let web = Service {
        subject_alt_names: vec!["spiffe://cluster.local/ns/ns/sa/web".into()],
        ..build::service("web", &["/10.9.0.200"], &[(80, 8080)])
    };
    // The client's node knows the gateway, the server's node knows the pod.
    let here = &mesh.nodes[0];
    here.publish_all([
        build::workload("client", &["10.9.0.1"]),
        ambit_model::Workload {
            network: REMOTE_NETWORK.into(),
            ..build::workload("gw", &["10.9.0.3"])
        },
        endpoint(ambit_model::Workload {
            uid: "far/SplitHorizonWorkload/gw/ns/web".into(),
            network: REMOTE_NETWORK.into(),
            network_gateway: Some(GatewayAddress {
                destination: GatewayDestination::Address(build::network_address("far/10.9.0.3")),
                hbone_mtls_port: 15008,
            }),
            workload_ips: Vec::new(),
            ..build::workload("far-web", &[])
        }),
    ]);
    mesh.nodes[1].publish_all([endpoint(build::workload("web", &["10.9.0.2"]))]);
    mesh.publish_service(web);
    let (mut client, mut server) = (client, server);
    mesh.capture(0, &mut client);
    mesh.capture(1, &mut server);
    server.serve_echo(8080);
    (mesh, client, server)
}

async fn exchange_lines(client: &PodHost) -> TcpStream {
    let mut stream = client.connect(SERVICE.parse().unwrap()).await.unwrap();
    read_line(&mut stream).await.unwrap();
    stream.write_all(b"hello\n").await.unwrap();
    assert_eq!(read_line(&mut stream).await.unwrap(), "hello");
    stream
}

#[tokio::test]
async fn other_networks_service_sees_the_clients_identity() {
    let (mesh, client, _server) = set_up(Arc::new(Pki::new())).await;
    let _open = exchange_lines(&client).await;
    // The server's proxy knows the caller, and does not mistake it for the gateway.
    let deny = |principal| build::policy("p", Action::Deny, build::from_principal(principal));
    let far = &mesh.nodes[1];
    far.publish(MeshUpdate::Policy(deny("cluster.local/ns/ns/sa/gw")));
    let _open_too = exchange_lines(&client).await;
    far.publish(MeshUpdate::Policy(deny("cluster.local/ns/ns/sa/client")));
    let mut denied = client.connect(SERVICE.parse().unwrap()).await.unwrap();
    assert!(
        read_until_end(&mut denied)
            .await
            .unwrap_or_default()
            .is_empty()
    );
}

#[tokio::test]
async fn tunnel_ends_when_the_servers_certificate_is_revoked() {
    let (pki, crls) = Pki::with_crls();
    let pki = Arc::new(pki);
    let (mesh, client, _server) = set_up(pki.clone()).await;
    let mut stream = exchange_lines(&client).await;
    let identity = build::identity("ns", "web");
    let in_use = mesh.nodes[1].proxy.certificates.get(&identity).await;
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("ca-crl.pem");
    std::fs::write(&path, pki.revoke(&[&in_use.unwrap()])).unwrap();
    crls.load(&path).unwrap();
    let left = read_until_end(&mut stream).await;
    assert!(left.as_ref().map_or(true, Vec::is_empty), "{left:?}");
    ambit_testkit::wait_until("the metrics name the reason", || {
        let metrics = mesh.nodes[0].metrics();
        metrics.contains("response_flags=\"CERT_REVOKED\"")
    })
    .await;
}
