//! Tests of a labelled Gateway of another controller: a captured pod acts as its waypoint, whose node proxy accepts
//! tunnels for the waypoint's services and passes them to the pod.

use std::{fmt::Write as _, fs, net::IpAddr};

use ambit_system_tests::{CLIENT_AND_SERVER, Mesh, wait_until};

const GATEWAY: &str = "
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: far, namespace: shop, labels: {istio.io/waypoint-for: all}}
spec:
  gatewayClassName: example-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
";

/// Waypoint of another controller, whose pod responds to every request with its environment.
const FOREIGN_WAYPOINT: &str = "
---
apiVersion: v1
kind: Service
metadata: {name: far, namespace: shop}
spec:
  clusterIP: 10.96.0.90
  selector: {gateway.networking.k8s.io/gateway-name: far}
  ports: [{name: mesh, port: 15008}]
---
apiVersion: v1
kind: Pod
metadata: {name: far, namespace: shop, labels: {gateway.networking.k8s.io/gateway-name: far}}
spec:
  nodeName: node-1
  serviceAccountName: gateway
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, far, --text, far-text]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: named, namespace: shop, labels: {istio.io/use-waypoint: far}}
spec:
  clusterIP: 10.96.0.91
  selector: {app: server}
  ports: [{name: http, port: 8080}]
";

/// Starts a mesh of [`CLIENT_AND_SERVER`] with the other controller's waypoint in front of the pod `server`.
fn start_with_foreign_waypoint() -> (Mesh, IpAddr) {
    let bound = CLIENT_AND_SERVER.replace(
        "{name: server, namespace: shop, labels: {app: server}}",
        "{name: server, namespace: shop, labels: {app: server, istio.io/use-waypoint: far}}",
    );
    let address = "status: {addresses: [{type: IPAddress, value: 10.96.0.90}]}";
    let mesh = Mesh::up(&format!("{bound}\n---{GATEWAY}{address}{FOREIGN_WAYPOINT}"));
    let server = mesh.ip("shop/server");
    (mesh, server)
}

fn wait_until_answered_by(mesh: &Mesh, client: &str, url: &str, by: &str) {
    wait_until(&format!("{url} is answered by {by} for {client}"), || {
        let answer = mesh.get(client, url);
        answer.succeeded() && answer.body.contains(by)
    });
}

#[test]
fn label_to_a_foreign_gateway_is_followed() {
    let (mesh, server) = start_with_foreign_waypoint();
    let direct = format!("http://{server}:8080/");
    // Through a bound service, through a bound pod, and through an unbound service with that pod.
    for url in ["http://named.shop:8080/", &direct, "http://server.shop/"] {
        wait_until_answered_by(&mesh, "shop/client", url, "far-text");
    }
    // `ambit waypoint list` shows it as it is written.
    let gateways = mesh.client().status().unwrap().gateways;
    let far = gateways.iter().find(|one| one["metadata"]["name"] == "far");
    let address = &far.unwrap()["status"]["addresses"][0]["value"];
    assert_eq!(address, "10.96.0.90");
    // Only the waypoint delivers.
    wait_until_answered_by(&mesh, "shop/far", &direct, "plain-marker");
    wait_until("who does not come through it is refused", || {
        !mesh.get("legacy/client", &direct).succeeded()
    });
    let log = mesh.access_log();
    assert!(
        log.contains("cannot receive the original peer of this connection"),
        "{log}"
    );
    // Unbound targets are unchanged.
    let legacy = format!("http://{}:8080/", mesh.ip("legacy/server"));
    wait_until_answered_by(&mesh, "shop/client", &legacy, "legacy-server");
}

#[test]
fn waypoint_without_address_or_pods_blocks_until_it_returns() {
    let (mesh, server) = start_with_foreign_waypoint();
    let direct = format!("http://{server}:8080/");
    let named = "http://named.shop:8080/";
    for url in [named, &direct] {
        wait_until_answered_by(&mesh, "shop/client", url, "far-text");
    }
    // If two files define an object, the first by name applies.
    mesh.apply("gateway", &format!("{GATEWAY}status: {{addresses: []}}\n"));
    for url in [named, &direct] {
        wait_until(&format!("{url} is refused"), || {
            !mesh.get("shop/client", url).succeeded()
        });
    }
    mesh.remove("gateway");
    for url in [named, &direct] {
        wait_until_answered_by(&mesh, "shop/client", url, "far-text");
    }
}

/// Returns a script that runs nginx, which reads caller and destination from the PROXY header,
/// reports them, and forwards the request.
fn nginx_script(scratch: &std::path::Path) -> String {
    let config = scratch.join("nginx.conf");
    let scratch = scratch.display();
    let text = format!(
        "worker_processes 1; daemon off; error_log /dev/null; pid {scratch}/nginx.pid; user root;
events {{}}
http {{ access_log off;
  server {{
    listen 15088 proxy_protocol;
    location = /who {{ return 200 \"$proxy_protocol_addr asks for $proxy_protocol_server_addr:$proxy_protocol_server_port\\n\"; }}
    location / {{ proxy_pass http://$proxy_protocol_server_addr:$proxy_protocol_server_port; }}
  }} }}\n"
    );
    fs::write(&config, text).unwrap();
    config.display().to_string()
}

#[test]
fn proxy_without_hbone_is_a_waypoint_behind_its_node_proxy() {
    let scratch = tempfile::tempdir().unwrap();
    let bound = CLIENT_AND_SERVER.replace(
        "{name: server, namespace: shop, labels: {app: server}}",
        "{name: server, namespace: shop, labels: {app: server, istio.io/use-waypoint: far}}",
    );
    let gateway = GATEWAY.replace(
        "labels: {istio.io/waypoint-for: all}",
        "labels: {istio.io/waypoint-for: all}, annotations: {ambient.istio.io/waypoint-inbound-binding: PROXY/15088}",
    );
    let serves = "[$LAB_TOOL, serve, --port, '8080', --name, far, --text, far-text]";
    let nginx = format!("[nginx, -c, {}]", nginx_script(scratch.path()));
    let foreign = FOREIGN_WAYPOINT.replace(serves, &nginx);
    let foreign = foreign.replace("{port: 8080}", "{port: 15088}");
    let mut manifests = format!("{bound}\n---{gateway}");
    writeln!(
        manifests,
        "status: {{addresses: [{{type: IPAddress, value: 10.96.0.90}}]}}{foreign}"
    )
    .unwrap();
    let mesh = Mesh::up(&manifests);
    let (client, server) = (mesh.ip("shop/client"), mesh.ip("shop/server"));
    for asked in [format!("{server}:8080"), "10.96.0.91:8080".to_owned()] {
        let line = format!("{client} asks for {asked}");
        wait_until_answered_by(&mesh, "shop/client", &format!("http://{asked}/who"), &line);
    }
    // The waypoint delivers under its own identity.
    let direct = format!("http://{server}:8080/");
    wait_until_answered_by(&mesh, "shop/client", &direct, "plain-marker");
    let far = mesh.ip("shop/far");
    wait_until_answered_by(&mesh, "shop/client", &direct, &format!("called by {far}"));
}
