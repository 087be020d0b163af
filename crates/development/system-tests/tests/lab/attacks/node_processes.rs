//! Tests that of the processes in a node's network namespace, only the kubelet, on the ports of a pod's probes,
//! bypasses a captured pod's proxy, policies and waypoint. All others are treated like any plaintext.

use std::{
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
};

use ambit_system_tests::{IpFamily, LabNetns, Mesh, Options, find_pod, options, wait_until};

const NODE: &str = "node-1";
/// Name of the pod in the host network.
const HOST_NETWORK_POD: &str = "legacy/on-the-node";
const PROBE_PORT: u16 = 8080;
const OTHER_PORT: u16 = 8081;
const MARKER: &str = "plain-marker";

/// Namespaces of the servers, each with the manifest of the policy that protects its server.
const POLICIES: [(&str, &str); 3] = [
    (
        "strict",
        "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: strict}
spec: {mtls: {mode: STRICT}}
",
    ),
    (
        "denied",
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: mesh-only, namespace: denied}
spec:
  action: DENY
  rules: [{from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/client]}}]}]
",
    ),
    (
        "guarded",
        "apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: waypoint, namespace: guarded}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: mesh-only, namespace: guarded}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{from: [{source: {notPrincipals: [cluster.local/ns/shop/sa/client]}}]}]
",
    ),
];

/// Returns the manifest of a server with two ports: one with probes of every kind, and one without probes.
fn server(namespace: &str) -> String {
    format!(
        "---
apiVersion: v1
kind: Namespace
metadata: {{name: {namespace}, labels: {{istio.io/dataplane-mode: ambient}}}}
---
apiVersion: v1
kind: Pod
metadata: {{name: server, namespace: {namespace}, labels: {{app: server}}}}
spec:
  nodeName: {NODE}
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '{PROBE_PORT}', --name, server, --text, {MARKER}]
    ports: [{{name: http, containerPort: {PROBE_PORT}}}]
    startupProbe: {{tcpSocket: {{port: {PROBE_PORT}}}, periodSeconds: 1}}
    readinessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}}
    livenessProbe: {{httpGet: {{path: /, port: http}}, periodSeconds: 1, timeoutSeconds: 10, failureThreshold: 1}}
  - name: admin
    image: none
    command: [$LAB_TOOL, serve, --port, '{OTHER_PORT}', --name, admin, --text, {MARKER}]
    readinessProbe: {{exec: {{command: ['true']}}, periodSeconds: 1}}
"
    )
}

/// Process in the node's network namespace that calls a server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum NodeCaller {
    /// Process of the node itself, as root, like the kubelet.
    Node,
    /// Container in the host network, as root.
    HostNetworkRoot,
    /// Container in the host network, as another user.
    HostNetworkUser,
    /// Root of a separate user namespace, in the host network.
    HostNetworkUserNamespace,
}

impl NodeCaller {
    const ALL: [Self; 4] = [
        Self::Node,
        Self::HostNetworkRoot,
        Self::HostNetworkUser,
        Self::HostNetworkUserNamespace,
    ];

    fn is_root(self) -> bool {
        matches!(self, Self::Node | Self::HostNetworkRoot)
    }
}

struct NodeFixture {
    mesh: Mesh,
    protected: Vec<&'static str>,
}

impl NodeFixture {
    /// Starts a node whose pods are protected by every kind of policy, once all policies are enforced.
    fn new(backend: &str, exemption: &str) -> Self {
        let mut manifests = format!(
            "apiVersion: v1
kind: Namespace
metadata: {{name: legacy}}
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: shop}}
spec:
  nodeName: {NODE}
  serviceAccountName: client
  containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: client, namespace: legacy}}
spec:
  nodeName: {NODE}
  containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]
---
apiVersion: v1
kind: Pod
metadata: {{name: on-the-node, namespace: legacy}}
spec: {{nodeName: {NODE}, hostNetwork: true, containers: [{{name: main, image: none, command: [$LAB_TOOL, sleep]}}]}}
"
        );
        manifests += &server("shop");
        for (namespace, policy) in POLICIES {
            manifests += &format!("{}---\n{policy}", server(namespace));
        }
        let env = [
            ("RECONCILE_SECONDS", "1"),
            ("REDIRECTION_BACKEND", backend),
            ("PROBE_EXEMPTION", exemption),
        ];
        let options = Options {
            nodes: 1,
            ip_family: IpFamily::Dual,
            env: env
                .map(|(name, value)| (name.to_owned(), value.to_owned()))
                .into(),
            ..options()
        };
        let node = Self {
            mesh: Mesh::up_with(&manifests, options),
            protected: POLICIES.map(|(namespace, _)| namespace).to_vec(),
        };
        for namespace in &node.protected {
            let url = format!(
                "http://{}:{OTHER_PORT}/",
                node.mesh.ip(&format!("{namespace}/server"))
            );
            wait_until(
                "the policy lets the mesh's client in and nobody else",
                || {
                    node.mesh.get("shop/client", &url).body.contains(MARKER)
                        && !node.mesh.get("legacy/client", &url).body.contains(MARKER)
                },
            );
        }
        node
    }

    fn addresses(&self, namespace: &str) -> Vec<IpAddr> {
        let addresses = self.mesh.pod(&format!("{namespace}/server")).ips;
        assert_eq!(addresses.len(), 2);
        addresses
    }

    /// Returns whether the application's response reaches the caller.
    fn is_served(&self, caller: NodeCaller, to: SocketAddr) -> bool {
        if caller == NodeCaller::Node {
            let place = LabNetns::Node(NODE.to_owned());
            let stream = self.mesh.client().dial(place, to);
            return stream.is_ok_and(|stream| request_response(stream).contains(MARKER));
        }
        // Only root can execute the lab's tool.
        let call = format!(
            "exec 3<>/dev/tcp/{}/{} && printf 'GET / HTTP/1.0\\r\\n\\r\\n' >&3 && timeout 5 cat <&3",
            to.ip(),
            to.port()
        );
        let mut command = vec!["timeout", "8"];
        if !caller.is_root() {
            let user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups"];
            command.extend(user);
        }
        if caller == NodeCaller::HostNetworkUserNamespace {
            command.extend(["unshare", "--user", "--map-root-user"]);
        }
        command.extend(["bash", "-c", &call]);
        let output = self
            .mesh
            .client()
            .output(HOST_NETWORK_POD, &command)
            .unwrap();
        output.stdout.contains(MARKER)
    }

    /// Returns the number of connections that the redirection rules counted as kubelet's.
    fn exempted_connections(&self) -> u64 {
        let address = SocketAddr::from(([127, 0, 0, 1], 15014));
        let place = LabNetns::Node(NODE.to_owned());
        let Ok(mut stream) = self.mesh.client().dial(place, address) else {
            return 0;
        };
        let request = b"GET /metrics HTTP/1.0\r\nHost: localhost\r\n\r\n";
        stream.write_all(request).ok();
        let mut text = String::new();
        stream.read_to_string(&mut text).ok();
        let name = "ambit_agent_probe_connections_total ";
        let value = text.lines().find_map(|line| line.strip_prefix(name));
        value.and_then(|value| value.parse().ok()).unwrap_or(0)
    }

    /// Asserts that the kubelet's probes continue, and have never failed.
    fn assert_probes_succeed(&self) {
        let before = self.exempted_connections();
        wait_until("further probes pass and are counted", || {
            self.exempted_connections() > before + 6
        });
        let status = self.mesh.client().status().unwrap();
        for namespace in &self.protected {
            let pod = find_pod(&status, &format!("{namespace}/server")).unwrap();
            assert!(pod.ready && pod.captured, "{pod:?}");
            let restarts = pod.containers.iter().map(|one| one.restarts).sum::<u32>();
            assert_eq!(restarts, 0, "{pod:?}");
        }
    }

    /// Asserts that every caller reaches a captured server without policies.
    fn assert_all_served_without_policy(&self) {
        for caller in NodeCaller::ALL {
            let to = SocketAddr::new(self.addresses("shop")[0], OTHER_PORT);
            assert!(self.is_served(caller, to), "{caller:?}");
        }
    }

    /// Asserts that forwarded packets of a node port, which look like the node's own, do not count
    /// as probes, also at a probe port.
    fn assert_node_ports_checked(&self) {
        // The server of `shop` has no protection.
        for (namespace, is_open) in [("shop", true), ("strict", false)] {
            for to in self.addresses(namespace) {
                let family = if to.is_ipv4() { "ip" } else { "ip6" };
                let target = SocketAddr::new(to, PROBE_PORT);
                let rules = format!(
                    "nft -f - <<'END'
table {family} node-ports {{
	chain prerouting {{
		type nat hook prerouting priority dstnat; policy accept;
		tcp dport 30080 dnat to {target}
	}}
	chain postrouting {{
		type nat hook postrouting priority srcnat; policy accept;
		ct status dnat masquerade
	}}
}}
END"
                );
                self.mesh.run(HOST_NETWORK_POD, &["sh", "-ec", &rules]);
                let by_port = SocketAddr::new(self.node_address(to), 30080);
                let url = format!("http://{by_port}/");
                let answer = self.mesh.get("legacy/client", &url);
                assert_eq!(answer.body.contains(MARKER), is_open, "{url}: {answer:?}");
                let remove = format!("nft delete table {family} node-ports");
                self.mesh.run(HOST_NETWORK_POD, &["sh", "-ec", &remove]);
            }
        }
    }

    /// Returns the node's address of the same family as a pod's address.
    fn node_address(&self, of: IpAddr) -> IpAddr {
        let status = self.mesh.client().status().unwrap();
        let node = status.nodes.iter().find(|node| node.name == NODE).unwrap();
        let mut ips = node.ips.iter().filter(|ip| ip.is_ipv4() == of.is_ipv4());
        *ips.next().unwrap()
    }

    /// Asserts that a readiness probe whose `host` is another pod's address reaches only that pod's probe ports.
    fn assert_foreign_probes_limited(&self) {
        let victim = self.addresses("strict")[0];
        for (name, port) in [("near", PROBE_PORT), ("far", OTHER_PORT)] {
            self.mesh.apply(
                name,
                &format!(
                    "apiVersion: v1
kind: Pod
metadata: {{name: {name}, namespace: legacy}}
spec:
  nodeName: {NODE}
  containers:
  - name: main
    image: none
    command: [$LAB_TOOL, sleep]
    readinessProbe: {{httpGet: {{host: '{victim}', path: /, port: {port}}}, periodSeconds: 1}}
"
                ),
            );
        }
        let is_ready = |name: &str| {
            let status = self.mesh.client().status().unwrap();
            find_pod(&status, &format!("legacy/{name}")).is_some_and(|pod| pod.ready)
        };
        wait_until("probed as by the victim's kubelet", || is_ready("near"));
        // The other port has been probed as often.
        self.assert_probes_succeed();
        assert!(!is_ready("far"));
    }

    /// Asserts which callers are served, as a table of namespace, address, caller and port.
    fn assert_served(&self, expected: impl Fn(NodeCaller, u16) -> bool + Sync) {
        let wrong = std::sync::Mutex::new(Vec::new());
        let look = |namespace: &str, ip: IpAddr| {
            for caller in NodeCaller::ALL {
                for port in [PROBE_PORT, OTHER_PORT] {
                    let served = self.is_served(caller, SocketAddr::new(ip, port));
                    if served != expected(caller, port) {
                        let case = format!("{namespace}: {caller:?} to {ip} {port}: {served}");
                        wrong.lock().unwrap().push(case);
                    }
                }
            }
        };
        std::thread::scope(|scope| {
            for namespace in &self.protected {
                for ip in self.addresses(namespace) {
                    let look = &look;
                    scope.spawn(move || look(namespace, ip));
                }
            }
        });
        let wrong = wrong.into_inner().unwrap();
        assert!(wrong.is_empty(), "{wrong:#?}\n{}", self.mesh.logs());
    }
}

fn request_response(mut stream: TcpStream) -> String {
    let timeout = std::time::Duration::from_secs(5);
    stream.set_read_timeout(Some(timeout)).unwrap();
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").ok();
    let mut bytes = Vec::new();
    // A reset ends it, too.
    stream.read_to_end(&mut bytes).ok();
    String::from_utf8_lossy(&bytes).into_owned()
}

#[test]
fn only_kubelet_on_probe_ports_bypasses_protection() {
    for backend in ["nftables", "iptables-nft"] {
        eprintln!("{backend}");
        let node = NodeFixture::new(backend, "kubelet");
        let is_kubelet = |caller: NodeCaller, port| caller.is_root() && port == PROBE_PORT;
        node.assert_served(is_kubelet);
        node.assert_all_served_without_policy();
        node.assert_probes_succeed();
        node.assert_node_ports_checked();
        // Another agent takes over the rules of the first.
        node.mesh.kill("agent-worker", Some(NODE));
        node.assert_probes_succeed();
        node.assert_served(is_kubelet);
        node.assert_foreign_probes_limited();
    }
}

#[test]
fn setting_exempts_all_processes_of_the_node() {
    let node = NodeFixture::new("nftables", "node");
    node.assert_served(|_, _| true);
}
