//! Benchmark of consistent hashing of a header over a thousand endpoints: by a DestinationRule in Ambit, by a ring hash
//! in Envoy. The endpoints are addresses of one server outside the mesh.

use std::{fs, net::Ipv4Addr, path::Path};

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    clusters::{cluster_of, socket_address},
    compared_proxy::{AMBIT_WAYPOINT, ComparedProxy},
    servers::{nginx, pod_outside_mesh},
};
use crate::rig::BenchLab;

/// Namespace and name of the server's pod.
pub(super) const NAMESPACED_NAME: (&str, &str) = ("outside", "server");
const PORT: u16 = 8080;
/// Name of a pod in the node's own network namespace.
const ROUTER: &str = "router";
/// Host of the ServiceEntry, and its virtual address.
const HOST: &str = "many.example";
const ADDRESS: &str = "10.97.1.1";
/// Request header whose hash selects the endpoint.
const HEADER: &str = "x-user";
/// First address of the endpoints (RFC 2544), in a large enough network.
const FIRST_ENDPOINT: Ipv4Addr = Ipv4Addr::new(198, 18, 0, 1);
const NETWORK: &str = "198.18.0.0/22";
const ENDPOINT_COUNT: u32 = 1000;

fn endpoints() -> impl Iterator<Item = Ipv4Addr> {
    (0..ENDPOINT_COUNT).map(|n| Ipv4Addr::from_bits(FIRST_ENDPOINT.to_bits() + n))
}

/// Returns the manifests of the server, and of the ServiceEntry with its addresses for Ambit's waypoint.
pub(super) fn manifests(scratch: &Path) -> Result<String> {
    let (namespace, _) = NAMESPACED_NAME;
    let nginx = nginx(scratch, namespace)?;
    let server = pod_outside_mesh(NAMESPACED_NAME, &format!("nginx, -c, {nginx}"), PORT);
    let gateway = AMBIT_WAYPOINT.name;
    let endpoints: Vec<String> = endpoints()
        .map(|address| format!("{{address: {address}}}"))
        .collect();
    Ok(format!(
        "{server}apiVersion: v1
kind: Pod
metadata: {{name: {ROUTER}, namespace: {namespace}}}
spec:
  hostNetwork: true
  containers: [{{name: main, image: none, command: [sleep, infinity]}}]
---
apiVersion: networking.istio.io/v1
kind: ServiceEntry
metadata: {{name: many, namespace: {gateway}, labels: {{istio.io/use-waypoint: {gateway}}}}}
spec:
  hosts: [{HOST}]
  addresses: [{ADDRESS}]
  resolution: STATIC
  ports: [{{number: 80, name: http, protocol: HTTP, targetPort: {PORT}}}]
  endpoints: [{endpoints}]
---
apiVersion: networking.istio.io/v1
kind: DestinationRule
metadata: {{name: many, namespace: {gateway}}}
spec:
  host: {HOST}
  trafficPolicy: {{loadBalancer: {{consistentHash: {{httpHeaderName: {HEADER}}}}}}}
---
",
        endpoints = endpoints.join(", "),
    ))
}

/// Routes the endpoints' network from the node to the server's pod, and makes the pod accept all addresses of the
/// network as local ones.
pub(super) fn route(rig: &BenchLab, server: &str) -> Result<()> {
    let (namespace, name) = NAMESPACED_NAME;
    let own = ["ip", "route", "add", "local", NETWORK, "dev", "lo"].map(Into::into);
    rig.exec(&format!("{namespace}/{name}"), &own)?;
    let on_node = ["ip", "route", "add", NETWORK, "via", server].map(Into::into);
    rig.exec(&format!("{namespace}/{ROUTER}"), &on_node)?;
    Ok(())
}

pub(super) fn url(side: ComparedProxy) -> String {
    if side.name == AMBIT_WAYPOINT.name {
        format!("http://{ADDRESS}/")
    } else {
        format!("http://server.{}/", side.name)
    }
}

/// Returns arguments of `wrk` that give each request another value of the header.
pub(super) fn arguments(side: ComparedProxy, scratch: &Path) -> Result<Vec<String>> {
    let script = scratch.join("users.lua");
    let text = format!(
        "request = function()
  wrk.headers['{HEADER}'] = math.random(100000)
  return wrk.format()
end\n"
    );
    fs::write(&script, text)?;
    let mut arguments = vec!["-s".to_owned(), script.display().to_string()];
    if side.name == AMBIT_WAYPOINT.name {
        arguments.extend(["-H".to_owned(), format!("Host: {HOST}")]);
    }
    Ok(arguments)
}

/// Returns the action of Envoy's route, with its hash policy.
pub(super) fn route_action() -> Value {
    json!({
        "cluster": HOST,
        "timeout": "0s",
        "hash_policy": [{"header": {"header_name": HEADER}}],
    })
}

/// Returns Envoy's cluster, with the smallest ring that Istio configures.
pub(super) fn cluster() -> Value {
    let addresses: Vec<Value> = endpoints()
        .map(|address| socket_address(&address.to_string(), PORT))
        .collect();
    let mut cluster = cluster_of(HOST, &addresses);
    if let Some(fields) = cluster.as_object_mut() {
        fields.insert("lb_policy".into(), "RING_HASH".into());
        fields.insert(
            "ring_hash_lb_config".into(),
            json!({"minimum_ring_size": 1024}),
        );
    }
    cluster
}
