//! Tests of long outages or replacement of the mesh's dependencies: the API server, the root of trust.

use std::{
    collections::BTreeMap,
    io::{Read, Write},
    net::{IpAddr, SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use ambit_cluster_tests::{Component, ExpectedOutcome, Load, Mesh, TestNamespace, wait_until};
use k8s_openapi::{ByteString, api::core::v1::Secret};
use kube::{
    Api,
    api::{Patch, PatchParams},
};
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, KeyPair, KeyUsagePurpose};
use serde_json::json;

use crate::WORKER;

const DENY: &str = "apiVersion: security.istio.io/v1\n\
    kind: AuthorizationPolicy\n\
    metadata: {name: nobody}\n\
    spec: {action: DENY, selector: {matchLabels: {app: server}}, rules: [{to: [{operation: {ports: ['8080']}}]}]}\n";

/// Returns whether the server at an address responds to a GET from this machine, a client outside the mesh. Needs no
/// API server.
fn is_responding(address: IpAddr) -> bool {
    let get = || -> std::io::Result<bool> {
        let limit = Duration::from_secs(5);
        let mut stream = TcpStream::connect_timeout(&SocketAddr::new(address, 8080), limit)?;
        stream.set_read_timeout(Some(limit))?;
        stream.write_all(b"GET / HTTP/1.1\r\nHost: server\r\n\r\n")?;
        let mut status = *b"HTTP/1.1 ...";
        stream.read_exact(&mut status)?;
        Ok(status == *b"HTTP/1.1 200")
    };
    get().is_ok_and(|answered| answered)
}

fn server_address(space: &TestNamespace<'_>) -> IpAddr {
    let pod = space.pods("server").remove(0);
    pod.status.unwrap().pod_ip.unwrap().parse().unwrap()
}

fn deploy_client_and_server<'a>(mesh: &'a Mesh, name: &str) -> TestNamespace<'a> {
    let space = mesh.test_namespace(name);
    space.deploy_captured_server();
    space.deploy_client("client", Some("n1"));
    space.wait_until_captured("client", true);
    space.wait_for_get("client", "http://server/", true);
    space
}

#[test]
fn a_minute_without_the_api_server_is_not_noticed() {
    let mesh = Mesh::exclusive();
    let space = deploy_client_and_server(&mesh, "away");
    let load = Load::start(&space, "load", Some("n1"), "server");
    let server = server_address(&space);
    mesh.cluster().stop_api_server().unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    let mut unanswered = 0;
    while Instant::now() < end {
        unanswered += u32::from(!is_responding(server));
    }
    mesh.cluster().start_api_server().unwrap();
    assert_eq!(unanswered, 0, "while the API server was away");
    load.finish().assert_no_failures();
    space.apply(DENY);
    let name = format!("explicitly denied by: {}/nobody", space.name());
    space.wait_for_get("client", "http://server/", ExpectedOutcome::Denial(&name));
    space.deploy_server("later", Some("n1"));
    space.wait_until_captured("later", true);
}

struct RootKeyPair {
    certificate: String,
    key: String,
}

fn new_root() -> RootKeyPair {
    let mut params = CertificateParams::default();
    params
        .distinguished_name
        .push(DnType::OrganizationName, "cluster.local");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    let key = KeyPair::generate().unwrap();
    RootKeyPair {
        certificate: params.self_signed(&key).unwrap().pem(),
        key: key.serialize_pem(),
    }
}

/// Changes the Secret of the CA; returns when the control plane has loaded it.
fn set_ca_secret(mesh: &Mesh, entries: &[(&str, &str)]) {
    let taken = || {
        let log = mesh.kubectl(&[
            "logs",
            "--namespace=istio-system",
            Component::Control.object(),
            "--tail=-1",
        ]);
        log.matches("the certificate authority is renewed").count()
    };
    let before = taken();
    let secrets: Api<Secret> = Api::namespaced(mesh.client(), "istio-system");
    let data: BTreeMap<&str, ByteString> = entries
        .iter()
        .map(|(key, text)| (*key, ByteString(text.as_bytes().to_vec())))
        .collect();
    let patch = Patch::Merge(json!({"data": data}));
    mesh.wait_for(secrets.patch("istio-ca-secret", &PatchParams::default(), &patch))
        .unwrap();
    wait_until("the control plane has taken it", || taken() > before);
}

fn ca_certificate(mesh: &Mesh) -> String {
    let secrets: Api<Secret> = Api::namespaced(mesh.client(), "istio-system");
    let secret = mesh.wait_for(secrets.get("istio-ca-secret")).unwrap();
    let data = secret.data.unwrap_or_default();
    let pem = ["root-cert.pem", "ca-cert.pem"]
        .iter()
        .filter_map(|key| data.get(*key))
        .find(|value| !value.0.is_empty())
        .expect("a root");
    String::from_utf8(pem.0.clone()).unwrap()
}

/// Returns whether the PEM text contains exactly these root certificates.
fn contains_exactly(text: &str, roots: &[&str]) -> bool {
    roots.iter().all(|root| text.contains(root.trim()))
        && text.matches("BEGIN CERTIFICATE").count() == roots.len()
}

/// Waits until the ConfigMap of every namespace has these root certificates.
fn wait_until_distributed(mesh: &Mesh, space: &TestNamespace<'_>, roots: &[&str]) {
    wait_until("the roots are in the namespace", || {
        let text = mesh.kubectl(&[
            "get",
            "--namespace",
            space.name(),
            "--ignore-not-found",
            "configmap/istio-ca-root-cert",
            "--output=jsonpath={.data.root-cert\\.pem}",
        ]);
        contains_exactly(&text, roots)
    });
}

/// Restarts all node proxies, so that they request new certificates; returns when the root certificates in each proxy's
/// ConfigMap volume are `roots`. A kubelet that lost the API server passes on earlier contents of ConfigMaps for a
/// while.
fn renew_proxy_certificates(mesh: &Mesh, roots: &[&str]) {
    mesh.restart(Component::NodeProxy);
    let pods = mesh.pods_of(Component::NodeProxy);
    let uids: Vec<_> = pods
        .into_iter()
        .filter_map(|pod| pod.metadata.uid)
        .collect();
    let read = |pid: u32, file: &str| {
        std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default()
    };
    let know = |pid: u32| {
        contains_exactly(
            &read(pid, "root/var/run/secrets/istio/root-cert.pem"),
            roots,
        )
    };
    for node in mesh.cluster().nodes() {
        wait_until(
            &format!("the proxy of {} knows the roots", node.name()),
            || {
                let pids = node.processes(WORKER).into_iter();
                // Earlier proxies may still exist, draining their connections.
                let mut new = pids.filter(|pid| {
                    let group = read(*pid, "cgroup");
                    uids.iter().any(|uid| group.contains(uid))
                });
                new.next().is_some_and(know)
            },
        );
    }
}

#[test]
fn the_root_is_replaced_under_load() {
    let mesh = Mesh::exclusive();
    let space = deploy_client_and_server(&mesh, "roots");
    let load = Load::start(&space, "load", Some("n1"), "server");
    let old = ca_certificate(&mesh);
    let new = new_root();
    let both = format!("{}\n{}\n", old.trim(), new.certificate.trim());

    // All trust both roots, then the new one signs, then the old one is removed.
    set_ca_secret(&mesh, &[("root-cert.pem", &both)]);
    wait_until_distributed(&mesh, &space, &[&old, &new.certificate]);
    renew_proxy_certificates(&mesh, &[&old, &new.certificate]);
    set_ca_secret(
        &mesh,
        &[
            ("ca-cert.pem", &new.certificate),
            ("ca-key.pem", &new.key),
            ("root-cert.pem", &both),
        ],
    );
    renew_proxy_certificates(&mesh, &[&old, &new.certificate]);
    set_ca_secret(&mesh, &[("root-cert.pem", &new.certificate)]);
    wait_until_distributed(&mesh, &space, &[&new.certificate]);
    renew_proxy_certificates(&mesh, &[&new.certificate]);
    space.wait_for_get("client", "http://server/", true);
    load.finish().assert_no_failures();
}
