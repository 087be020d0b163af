//! Servers for both waypoints: pods outside of the mesh, and the configuration of nginx.

use std::{fs, path::Path};

use anyhow::Result;

/// Returns the manifest of a pod outside of the mesh, in its own namespace, which is ready once its port is open.
pub(super) fn pod_outside_mesh(
    (namespace, name): (&str, &str),
    command: &str,
    port: u16,
) -> String {
    format!(
        "apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: {namespace}, labels: {{app: {name}}}}}
spec:
  containers:
  - name: main
    image: none
    command: [{command}]
    readinessProbe: {{tcpSocket: {{port: {port}}}}}
---
"
    )
}

/// Returns the manifests of a gRPC server outside of the mesh, and of the MeshConfig that names it as an extension
/// provider (name, kind).
pub(super) fn extension_provider(
    place: (&str, &str),
    command: &str,
    port: u16,
    (provider, kind): (&str, &str),
) -> String {
    let (namespace, name) = place;
    let pod = pod_outside_mesh(place, command, port);
    format!(
        "{pod}apiVersion: v1
kind: Service
metadata: {{name: {name}, namespace: {namespace}}}
spec: {{selector: {{app: {name}}}, ports: [{{name: grpc, port: {port}}}]}}
---
apiVersion: v1
kind: ConfigMap
metadata: {{name: istio, namespace: istio-system}}
data:
  mesh: |
    extensionProviders:
    - {{name: {provider}, {kind}: {{service: {name}.{namespace}.svc.cluster.local, port: {port}}}}}
---
"
    )
}

/// Writes nginx's configuration for short and long responses over HTTP/1.1 and HTTP/2, and returns its path.
pub(super) fn nginx(scratch: &Path, name: &str) -> Result<String> {
    let path = scratch.join(format!("{name}.conf"));
    let scratch = scratch.display();
    let text = format!(
        "worker_processes 1; daemon off; error_log /dev/null; pid {scratch}/{name}.pid; user root;
events {{ worker_connections 16384; }}
http {{ access_log off; keepalive_requests 1000000000; sendfile on; http2_max_concurrent_streams 1024;
  server {{
    listen 8080 backlog=4096; listen 8081 http2 backlog=4096;
    location / {{ return 200 \"hello world\\n\"; }}
    location = /large {{ root {scratch}; }}
  }} }}\n"
    );
    fs::write(&path, text)?;
    Ok(path.display().to_string())
}
