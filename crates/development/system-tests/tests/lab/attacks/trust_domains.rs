//! Tests that clients of other trust domains reach servers as policies allow, while their trust domain is accepted and
//! if its own CA has signed their certificates; at node proxies and at waypoints.

use std::net::SocketAddr;

use ambit_system_tests::{
    HbonePeer, Mesh, TunnelOutcome, idle_pod, options, wait_until, with_waypoint_options,
};
use ambit_testkit::Pki;

const FAR_NETWORK_MANIFESTS: &str = "
---
apiVersion: v1
kind: Namespace
metadata: {name: far, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: server, namespace: far}
spec:
  nodeName: node-2
  serviceAccountName: server
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, \"8080\", --name, far-server]
    readinessProbe: {tcpSocket: {port: 8080}}
";
const GET_REQUEST: &str = "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

/// Outcome of a call: the server responds, a policy denies it, or the certificate is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CallResult {
    Response,
    Denied,
    CertificateRejected,
}

/// Returns policies for both servers that allow one principal.
fn allow(principal: &str) -> String {
    let policy = |namespace: &str, target: &str| {
        format!(
            "---\napiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {{name: one, namespace: {namespace}}}\n\
             spec:\n  {target}\n  rules: [{{from: [{{source: {{principals: [{principal}]}}}}]}}]\n"
        )
    };
    let gateway = "targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]";
    policy("far", "action: ALLOW") + &policy("shop", gateway)
}

fn trust_domain_settings(aliases: &str, west: &Pki) -> String {
    let pem = west.root_pem().replace('\n', "\n        ");
    format!(
        "apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: istio, namespace: istio-system}}\ndata:\n  mesh: |\n    \
         trustDomainAliases: [{aliases}]\n    caCertificates:\n    - trustDomains: [west]\n      pem: |\n        {pem}\n"
    )
}

/// Clients, each with its trust domain and signing CA, and the servers that the clients call.
struct TrustDomainFixture<'a> {
    clients: Vec<(&'static str, HbonePeer<'a>)>,
    node_proxy: SocketAddr,
    waypoint: SocketAddr,
    target: String,
}

impl<'a> TrustDomainFixture<'a> {
    fn new(mesh: &'a Mesh, west: &Pki) -> Self {
        let all = [
            ("own", "cluster.local", None),
            ("alias", "old", None),
            ("west", "west", Some(west)),
            ("west by the mesh", "west", None),
            ("own by west", "cluster.local", Some(west)),
            ("alias by west", "old", Some(west)),
            ("foreign", "foreign", None),
        ];
        let client = |(name, domain, authority): (_, &str, Option<&Pki>)| {
            let identity = format!("spiffe://{domain}/ns/legacy/sa/sidecar");
            let peer = HbonePeer::signed_by(mesh, "legacy/sidecar", &identity, authority);
            (name, peer)
        };
        let at = |pod: &str, port: u16| SocketAddr::new(mesh.ip(pod), port);
        Self {
            clients: all.map(client).into(),
            node_proxy: at("far/server", 15008),
            waypoint: at("shop/waypoint", 15008),
            target: at("shop/server", 8080).to_string(),
        }
    }

    fn call_results(&self) -> Vec<(&'static str, [CallResult; 2])> {
        let far = SocketAddr::new(self.node_proxy.ip(), 8080).to_string();
        let node_proxy = ("spiffe://cluster.local/ns/far/sa/server", self.node_proxy);
        let waypoint = ("spiffe://cluster.local/ns/shop/sa/waypoint", self.waypoint);
        let clients = self.clients.iter();
        clients
            .map(|(name, peer)| {
                let tunnel = peer.open_tunnel(node_proxy, &far);
                let request = peer.request_through_tunnel(waypoint, &self.target, &[], GET_REQUEST);
                (
                    *name,
                    [
                        call_result(&tunnel, ""),
                        call_result(&request, "HTTP/1.1 200"),
                    ],
                )
            })
            .collect()
    }

    /// Waits until clients of the mesh's own trust domain, of its alias, and of the domain `west` get these outcomes.
    /// Checks that clients whose certificates another CA has signed are rejected.
    #[track_caller]
    fn wait_for_results(&self, what: &str, [own, alias, west]: [CallResult; 3]) {
        let others = [
            "west by the mesh",
            "own by west",
            "alias by west",
            "foreign",
        ];
        let mut expected = vec![("own", own), ("alias", alias), ("west", west)];
        expected.extend(others.map(|name| (name, CallResult::CertificateRejected)));
        let expected: Vec<_> = expected
            .into_iter()
            .map(|(name, call_result)| (name, [call_result; 2]))
            .collect();
        let mut last = Vec::new();
        let is_met = || {
            last = self.call_results();
            last == expected
        };
        wait_until(what, is_met);
    }
}

/// Converts the outcome of opening a tunnel; a response that begins with `success` is a success.
fn call_result(outcome: &TunnelOutcome, success: &str) -> CallResult {
    match outcome {
        TunnelOutcome::Refused(401) => CallResult::Denied,
        TunnelOutcome::Established(text) if text.starts_with("HTTP/1.1 403") => CallResult::Denied,
        TunnelOutcome::Established(text) if text.starts_with(success) => CallResult::Response,
        TunnelOutcome::Failed(_) | TunnelOutcome::Refused(_) | TunnelOutcome::Established(_) => {
            CallResult::CertificateRejected
        }
    }
}

#[test]
fn clients_of_other_trust_domains_are_subject_to_policies() {
    use CallResult::{CertificateRejected, Denied, Response};
    let west = Pki::new();
    let sidecar = idle_pod("legacy/sidecar", "node-1", "app: sidecar");
    let (mesh, _) = with_waypoint_options(&format!("{FAR_NETWORK_MANIFESTS}{sidecar}"), options());
    let scene = TrustDomainFixture::new(&mesh, &west);
    mesh.apply("policies", &allow("cluster.local/ns/legacy/sa/sidecar"));
    scene.wait_for_results(
        "own alone",
        [Response, CertificateRejected, CertificateRejected],
    );
    mesh.apply("settings", &trust_domain_settings("old", &west));
    scene.wait_for_results("the alias is the mesh's", [Response, Response, Denied]);
    mesh.apply("policies", &allow("west/ns/legacy/sa/sidecar"));
    scene.wait_for_results("west is another one", [Denied, Denied, Response]);
    mesh.apply("policies", &allow("old/ns/legacy/sa/*"));
    scene.wait_for_results("own is meant by the alias", [Response, Response, Denied]);
    mesh.apply("settings", &trust_domain_settings("", &west));
    scene.wait_for_results("the alias is gone", [Denied, CertificateRejected, Denied]);
    mesh.remove("settings");
    scene.wait_for_results(
        "west is gone",
        [Denied, CertificateRejected, CertificateRejected],
    );
}
