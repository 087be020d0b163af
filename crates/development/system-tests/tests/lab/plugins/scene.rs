//! Setup of the plugin tests: a mesh with a waypoint, and directories with modules for its plugins.

use std::{net::SocketAddr, path::Path};

use ambit_system_tests::{
    CLIENT_AND_SERVER, GATEWAY, LogSource, Mesh, Options, answer_ok, built_binary,
    is_complete_response, options, read_head, wait_until,
};

const POD: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: a, namespace: shop, labels: {app: many}}
spec:
  nodeName: node-2
  serviceAccountName: many
  containers:
  - {name: main, image: none, command: [$LAB_TOOL, sleep]}
---
apiVersion: v1
kind: Service
metadata: {name: many, namespace: shop}
spec:
  selector: {app: many}
  ports:
  - {name: http, port: 80, targetPort: 8090}
  - {name: grpc, port: 81, targetPort: 8091}
";

/// Mesh with a waypoint that runs plugins, and an application that echoes requests.
pub(crate) struct PluginFixture {
    pub(crate) mesh: Mesh,
    service: SocketAddr,
    modules: tempfile::TempDir,
}

impl PluginFixture {
    pub(crate) fn new() -> Self {
        Self::with("", options())
    }

    pub(crate) fn with(more: &str, options: Options) -> Self {
        let mesh = Mesh::up_with(
            &format!("{CLIENT_AND_SERVER}\n---{GATEWAY}{POD}{more}"),
            options,
        );
        let service = mesh.service_address("many.shop.svc", 80);
        // The response repeats the request.
        mesh.serve_connections("shop/a", 8090, |mut stream| {
            while let Some(head) = read_head(&mut stream)? {
                let mut echoed = head.clone();
                echoed.push_str(&read_body(&head.to_ascii_lowercase(), &mut stream)?);
                answer_ok(&mut stream, &echoed)?;
            }
            Ok(())
        });
        let modules = tempfile::tempdir().unwrap();
        Self {
            mesh,
            service,
            modules,
        }
    }

    pub(crate) fn install_module(&self, name: &str, wat: &str) {
        let bytes = wat::parse_str(wat).unwrap();
        let path = self.path(name);
        let unfinished = format!("{path}.new");
        std::fs::write(&unfinished, bytes).unwrap();
        std::fs::rename(unfinished, path).unwrap();
    }

    fn path(&self, name: &str) -> String {
        let path: &Path = self.modules.path();
        path.join(name).display().to_string()
    }

    /// Installs the module that was compiled from another language as `program`, under the plugin's name.
    pub(crate) fn install_compiled_module(&self, name: &str, program: &str) {
        let unfinished = format!("{}.new", self.path(name));
        std::fs::copy(built_binary(program), &unfinished).unwrap();
        std::fs::rename(unfinished, self.path(name)).unwrap();
    }

    pub(crate) fn apply_plugin(&self, name: &str, more: &str) {
        self.apply_plugin_from(name, &format!("file://{}", self.path(name)), more);
    }

    pub(crate) fn apply_plugin_from(&self, name: &str, url: &str, more: &str) {
        let manifest = format!(
            "
apiVersion: extensions.istio.io/v1alpha1
kind: WasmPlugin
metadata: {{name: {name}, namespace: shop}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}}]
  url: {url}
  {more}
"
        );
        self.mesh.apply(name, &manifest);
    }

    pub(crate) fn get(&self, headers: &str) -> String {
        self.send(&format!("GET /x?y HTTP/1.1\r\nHost: many\r\n{headers}\r\n"))
    }

    /// Sends a request, and returns the response; empty if there is none.
    pub(crate) fn send(&self, request: &str) -> String {
        let Ok(mut connection) = self.mesh.dial("shop/client", self.service) else {
            return String::new();
        };
        let answer = connection.send_raw(request.as_bytes(), is_complete_response);
        answer.unwrap_or_default()
    }

    pub(crate) fn wait_for_responses(
        &self,
        what: &str,
        headers: &str,
        expected: impl Fn(&str) -> bool,
    ) -> String {
        let mut last = String::new();
        wait_until(what, || {
            last = self.get(headers);
            expected(&last)
        });
        last
    }

    /// Returns the waypoint's own log.
    pub(crate) fn waypoint_log(&self) -> String {
        let source = LogSource::Pod {
            pod: "shop/waypoint".to_owned(),
            container: None,
        };
        self.mesh.client().log_text(source).unwrap()
    }

    pub(crate) fn dump(&self) -> String {
        let url = "http://127.0.0.1:15000/config_dump";
        self.mesh.get("shop/waypoint", url).body
    }

    /// Returns the state of a plugin in the waypoint's configuration dump; null if the waypoint does not have the
    /// plugin.
    pub(crate) fn dumped_plugin_state(&self, name: &str) -> serde_json::Value {
        let dump = self.dump();
        // The body after the status line and headers.
        let json = dump.split_once(' ').map_or("", |(_, json)| json);
        let dump: serde_json::Value = serde_json::from_str(json).unwrap_or_default();
        let plugins = dump.pointer("/workloadState/plugins");
        let mut plugins = plugins.and_then(|all| all.as_array()).into_iter().flatten();
        let is_it = |one: &&serde_json::Value| one["name"] == format!("shop/{name}");
        plugins.find(is_it).cloned().unwrap_or_default()
    }

    pub(crate) fn metrics(&self) -> String {
        let url = format!("http://{}:15020/metrics", self.mesh.ip("shop/waypoint"));
        self.mesh.get("legacy/client", &url).body
    }
}

/// Reads the body of a request by its framing (length or chunks).
fn read_body(head: &str, stream: &mut impl std::io::Read) -> std::io::Result<String> {
    let mut body = Vec::new();
    if head.contains("transfer-encoding: chunked") {
        let is_whole =
            |body: &[u8]| body.windows(3).any(|end| end == b"0\r\n") && body.ends_with(b"\r\n\r\n");
        while !is_whole(&body) {
            let mut byte = [0];
            stream.read_exact(&mut byte)?;
            body.extend(byte);
        }
    } else if let Some(length) = head
        .lines()
        .find_map(|line| line.strip_prefix("content-length: "))
    {
        body.resize(length.parse().unwrap_or_default(), 0);
        stream.read_exact(&mut body)?;
    }
    Ok(String::from_utf8_lossy(&body).into_owned())
}
