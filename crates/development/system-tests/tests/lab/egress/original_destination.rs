//! Tests of ServiceEntries with `resolution: NONE`: the waypoint authorizes the request, and
//! connects to the original destination.

use std::{
    io::{Read as _, Write as _},
    net::{Ipv4Addr, SocketAddr},
};

use ambit_system_tests::{LabNetns, Mesh, answer_ok, read_head, wait_until};

use crate::egress::outside::{listen, start_mesh, start_waypoint, waypoint_access_log};

const HTTP_PORT: u16 = 8080;
const TCP_PORT: u16 = 8091;

/// Returns a ServiceEntry with these addresses, which the waypoint serves.
fn service_entry(name: &str, addresses: &str, port: &str) -> String {
    format!(
        "
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata:
  name: {name}
  namespace: shop
  labels: {{istio.io/use-waypoint: out, istio.io/use-waypoint-namespace: egress}}
spec:
  hosts: [{name}.example]
  addresses: [{addresses}]
  location: MESH_EXTERNAL
  resolution: NONE
  ports: [{port}]
"
    )
}

fn deny_policy(entry: &str, rule: &str) -> String {
    format!(
        "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: {entry}, namespace: shop}}\n\
         spec:\n  action: DENY\n  targetRefs: [{{group: networking.istio.io, kind: ServiceEntry, name: {entry}}}]\n  \
         rules: [{rule}]\n"
    )
}

/// Runs two servers in the waypoint's own pod: an HTTP server, and a TCP server that sends first. Both report the
/// destination address of each connection. Returns the pod's name.
fn serve(mesh: &Mesh) -> String {
    let pods = mesh.client().status().unwrap().pods;
    let pod = pods.iter().find(|pod| pod.namespace == "egress").unwrap();
    let pod = format!("egress/{}", pod.name);
    let place = || LabNetns::Pod(pod.clone());
    listen(mesh, place(), HTTP_PORT, |mut stream| {
        let ip = stream.local_addr()?.ip();
        while read_head(&mut stream)?.is_some() {
            answer_ok(&mut stream, &format!("this is {ip}\n"))?;
        }
        Ok(())
    });
    listen(mesh, place(), TCP_PORT, |mut stream| {
        let ip = stream.local_addr()?.ip();
        stream.write_all(ip.to_string().as_bytes())?;
        let mut reader = stream.try_clone()?;
        std::io::copy(&mut reader, &mut stream).map(drop)
    });
    pod
}

/// Assigns an address to a pod that only the pod itself can reach.
fn add_address(mesh: &Mesh, pod: &str, ip: Ipv4Addr) {
    let add = ["ip", "address", "add", &format!("{ip}/32"), "dev", "lo"];
    let added = mesh.client().output(pod, &add).unwrap();
    assert_eq!(added.code, 0, "{}", added.stderr);
}

fn get(mesh: &Mesh, ip: Ipv4Addr, path: &str) -> String {
    mesh.get("shop/client", &format!("http://{ip}:{HTTP_PORT}{path}"))
        .body
}

/// Opens a connection to a server that sends first; returns its first bytes, if a byte is echoed after them.
fn greeting(mesh: &Mesh, ip: Ipv4Addr) -> Option<String> {
    let place = LabNetns::Pod("shop/client".to_owned());
    let address = SocketAddr::from((ip, TCP_PORT));
    let mut stream = mesh.client().dial(place, address).ok()?;
    let mut name = vec![0; ip.to_string().len()];
    stream.read_exact(&mut name).ok()?;
    stream.write_all(b"x").ok()?;
    stream.read_exact(&mut [0]).ok()?;
    String::from_utf8(name).ok()
}

#[test]
fn original_destination_is_called_if_policies_allow() {
    let files = tempfile::tempdir().unwrap();
    let mesh = start_mesh(files.path(), "");
    start_waypoint(&mesh, &[]);
    let web = [1, 2].map(|last| Ipv4Addr::new(203, 0, 113, last));
    let raw = [1, 2].map(|last| Ipv4Addr::new(198, 51, 100, last));
    let pod = serve(&mesh);
    for ip in web.into_iter().chain(raw) {
        add_address(&mesh, &pod, ip);
    }
    // Single addresses, and a network.
    let http = "{number: 8080, name: http, protocol: HTTP}";
    let tcp = "{number: 8091, name: tcp, protocol: TCP}";
    let entries = service_entry("web", "203.0.113.1, 203.0.113.2", http)
        + &service_entry("raw", "198.51.100.0/24", tcp);
    mesh.apply("entries", &entries);
    for ip in web {
        wait_until("requests reach the server", || {
            get(&mesh, ip, "/a").contains(&format!("this is {ip}"))
        });
    }
    for ip in raw {
        wait_until("connections reach the server", || {
            greeting(&mesh, ip) == Some(ip.to_string())
        });
    }
    wait_until("the waypoint has delivered both", || {
        ["web.example", "raw.example"]
            .iter()
            .all(|host| waypoint_access_log(&mesh).contains(host))
    });

    mesh.apply(
        "deny-web",
        &deny_policy("web", "{to: [{operation: {paths: [/secret]}}]}"),
    );
    wait_until("a request is denied", || {
        get(&mesh, web[0], "/secret").contains("RBAC: access denied")
    });
    assert!(get(&mesh, web[0], "/a").contains("this is"));
    mesh.apply(
        "deny-raw",
        &deny_policy("raw", "{from: [{source: {namespaces: [shop]}}]}"),
    );
    wait_until("connections are refused", || {
        greeting(&mesh, raw[1]).is_none()
    });
    assert!(get(&mesh, web[1], "/a").contains("this is"));
}
