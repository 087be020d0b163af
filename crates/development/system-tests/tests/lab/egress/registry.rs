//! Tests of `outboundTrafficPolicy` REGISTRY_ONLY: captured pods reach no address that the mesh
//! does not know.

use ambit_system_tests::{CLIENT_AND_SERVER, LabNetns, Mesh, options, wait_until};

use crate::egress::outside::{ADDRESS_PREFIX, listen};

const PORT: u16 = 8090;

fn entry(ip: &str) -> String {
    format!(
        "
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: outside, namespace: shop}}
spec:
  hosts: [named.outside.example]
  addresses: [{ADDRESS_PREFIX}.6]
  location: MESH_EXTERNAL
  resolution: STATIC
  ports: [{{number: 80, name: tcp, protocol: TCP, targetPort: {PORT}}}]
  endpoints: [{{address: {ip}}}]
"
    )
}

/// Sends a request from a pod to an address, and returns the response; empty if the connection is rejected.
fn ask(mesh: &Mesh, pod: &str, to: &str) -> String {
    let Ok(mut connection) = mesh.dial(pod, to.parse().unwrap()) else {
        return String::new();
    };
    connection
        .send_raw(b"hello\n", |text| text.contains("outside"))
        .unwrap_or_default()
}

#[test]
fn unknown_destinations_are_rejected_also_after_a_restart() {
    let mut options = options();
    options.env.insert(
        "AMBIT_OUTBOUND_TRAFFIC_POLICY".to_owned(),
        "REGISTRY_ONLY".to_owned(),
    );
    let mesh = Mesh::up_with(CLIENT_AND_SERVER, options);
    let node = LabNetns::Node("node-2".to_owned());
    listen(&mesh, node, PORT, |mut stream| {
        let mut received = [0; 6];
        std::io::Read::read_exact(&mut stream, &mut received)?;
        std::io::Write::write_all(&mut stream, b"outside")
    });
    let ip = mesh.node_ip("node-2").to_string();
    let direct = format!("{ip}:{PORT}");

    // The server runs, and an uncaptured pod reaches it.
    assert_eq!(ask(&mesh, "legacy/client", &direct), "outside");
    assert_eq!(ask(&mesh, "shop/client", &direct), "");
    wait_until("the access log has the reason", || {
        let why = "outboundTrafficPolicy is REGISTRY_ONLY";
        mesh.access_log().contains(why)
    });
    // Addresses that the mesh knows are still reached, in the mesh and outside of it.
    let server = mesh.service_address("server.shop.svc", 80);
    mesh.get("shop/client", &format!("http://{server}/")).ok();
    let legacy = mesh.ip("legacy/server");
    mesh.get("shop/client", &format!("http://{legacy}:8080/"))
        .ok();

    mesh.kill("proxy", Some("node-1"));
    mesh.wait_for_get("shop/client", &format!("http://{server}/"), true);
    assert_eq!(ask(&mesh, "shop/client", &direct), "");

    mesh.apply("entry", &entry(&ip));
    wait_until("the entry is a way out", || {
        ask(&mesh, "shop/client", &format!("{ADDRESS_PREFIX}.6:80")) == "outside"
    });
    mesh.remove("entry");
    wait_until("the way out is closed", || {
        ask(&mesh, "shop/client", &format!("{ADDRESS_PREFIX}.6:80")).is_empty()
    });
}
