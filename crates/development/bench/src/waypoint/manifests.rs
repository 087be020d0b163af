//! Objects for both waypoints: a client, a server, a Gateway, and the policies and routes that the waypoint evaluates.

use std::{fmt::Write, fs, os::unix::fs::symlink, path::Path};

use anyhow::Result;

use super::{
    compared_proxy::{AMBIT_WAYPOINT, ComparedProxy, ENVOY_WAYPOINT},
    scenario::{CLIENT_NODE, RULES_PER_SERVICE, Scenario, ServerNode},
    servers::nginx,
};

/// Namespace of the client and the server outside of the mesh.
pub(super) const BASELINE_NAMESPACE: &str = "plain";

/// Maximum number of rules in an HTTPRoute.
const RULES_PER_ROUTE: usize = 16;

/// Returns all manifests except the Gateways, as one file.
pub(super) fn all_manifests(scratch: &Path, programs: &Path, scenario: Scenario) -> Result<String> {
    fs::write(scratch.join("large"), vec![b'x'; 1 << 20])?;
    // The name selects the program's role.
    let echo = scratch.join("server");
    symlink(programs.join("ambit-conformance-echo"), &echo)?;
    let mut text = String::new();
    for side in [AMBIT_WAYPOINT, ENVOY_WAYPOINT] {
        let nginx = nginx(scratch, side.name)?;
        write!(
            text,
            "apiVersion: v1
kind: Namespace
metadata: {{name: {name}, labels: {{istio.io/dataplane-mode: ambient}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: {name}}}
spec:
  nodeName: {CLIENT_NODE}
  serviceAccountName: client
  containers: [{{name: main, image: none, command: [sleep, infinity]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: {name}, labels: {{app: server}}}}
spec:
  nodeName: {node}
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [nginx, -c, {nginx}]
    readinessProbe: {{tcpSocket: {{port: 8080}}}}
  - name: echo
    image: none
    command: [{echo}, --grpc=8082]
    readinessProbe: {{tcpSocket: {{port: 8082}}}}
---
apiVersion: v1
kind: Service
metadata: {{name: server, namespace: {name}}}
spec:
  clusterIP: {address}
  selector: {{app: server}}
  ports:
  - {{name: http, port: 80, targetPort: 8080}}
  - {{name: http2, port: 81, targetPort: 8081}}
  - {{name: grpc, port: 82, targetPort: 8082}}
---
",
            name = side.name,
            address = side.address,
            node = scenario.server_node.name(),
            echo = echo.display(),
        )?;
        for n in 0..scenario.policies {
            text += &policy(side.name, n);
        }
        text += &routes(side.name, "server", scenario.rules);
        for n in 0..scenario.services {
            let service = format!("many-{n}");
            write!(
                text,
                "apiVersion: v1
kind: Service
metadata: {{name: {service}, namespace: {}}}
spec: {{selector: {{app: server}}, ports: [{{name: http, port: 80, targetPort: 8080}}]}}
---
",
                side.name
            )?;
            text += &routes(side.name, &service, RULES_PER_SERVICE);
        }
    }
    if scenario.has_baseline {
        text += &baseline(scratch, scenario.server_node)?;
    }
    if let Some(step) = scenario.step {
        text += &step.manifests(scratch)?;
    }
    Ok(text)
}

/// Returns the manifests of a client and a server outside of the mesh.
fn baseline(scratch: &Path, server: ServerNode) -> Result<String> {
    let nginx = nginx(scratch, BASELINE_NAMESPACE)?;
    Ok(format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {BASELINE_NAMESPACE}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: {BASELINE_NAMESPACE}}}
spec:
  nodeName: {CLIENT_NODE}
  containers: [{{name: main, image: none, command: [sleep, infinity]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: {BASELINE_NAMESPACE}}}
spec:
  nodeName: {node}
  containers:
  - name: web
    image: none
    command: [nginx, -c, {nginx}]
    readinessProbe: {{tcpSocket: {{port: 8080}}}}
---
",
        node = server.name(),
    ))
}

/// Returns the manifest of the Gateway, whose pods run on the clients' node; another `revision` changes its pod
/// template.
pub(super) fn gateway(side: ComparedProxy, revision: usize) -> String {
    format!(
        "apiVersion: v1
kind: ConfigMap
metadata: {{name: placement, namespace: {name}}}
data:
  deployment: |
    spec: {{template: {{spec: {{nodeSelector: {{kubernetes.io/hostname: {CLIENT_NODE}}}}}}}}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {{name: {name}, namespace: {name}}}
spec:
  gatewayClassName: istio-waypoint
  infrastructure:
    labels: {{revision: r{revision}}}
    parametersRef: {{group: '', kind: ConfigMap, name: placement}}
  listeners: [{{name: mesh, port: 15008, protocol: HBONE}}]
",
        name = side.name,
    )
}

/// Returns the manifest of a route that adds the header value `mark` to responses.
pub(super) fn marking_route(side: ComparedProxy, mark: usize) -> String {
    format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: marking, namespace: {}}}
spec:
  parentRefs: [{{group: '', kind: Service, name: server}}]
  rules:
  - filters:
    - type: ResponseHeaderModifier
      responseHeaderModifier: {{set: [{{name: x-mark, value: '{mark}'}}]}}
    backendRefs: [{{name: server, port: 80}}]
",
        side.name
    )
}

fn routes(namespace: &str, service: &str, rules: usize) -> String {
    let rules: Vec<usize> = (0..rules).collect();
    let routes = rules.chunks(RULES_PER_ROUTE).enumerate();
    routes
        .map(|(n, rules)| route(namespace, service, n, rules))
        .collect()
}

fn policy(name: &str, n: usize) -> String {
    format!(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: policy-{n}, namespace: {name}}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: {name}}}]
  action: DENY
  rules: [{{to: [{{operation: {{paths: [/denied/{n}], methods: [POST]}}}}]}}]
---
"
    )
}

fn route(namespace: &str, service: &str, n: usize, rules: &[usize]) -> String {
    let mut text = format!(
        "apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {{name: {service}-{n}, namespace: {namespace}}}
spec:
  parentRefs: [{{group: '', kind: Service, name: {service}}}]
  rules:
"
    );
    for rule in rules {
        text += &format!(
            "  - matches: [{{path: {{type: PathPrefix, value: /route/{rule}}}}}]
    backendRefs: [{{name: server, port: 80}}]
"
        );
    }
    text + "---\n"
}
