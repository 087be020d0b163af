//! Tests the validation of policies by the chart's CRDs. A policy that cannot be parsed would deny everything in its
//! scope: the API server rejects it when it is applied. Every form that Istio accepts is accepted.

use std::{io::Write, process::Stdio};

use ambit_cluster_tests::Mesh;

const AUTHORIZATION_POLICY: &str = "AuthorizationPolicy";
const PEER_AUTHENTICATION: &str = "PeerAuthentication";

const REJECTED_POLICIES: &[(&str, &str)] = &[
    (AUTHORIZATION_POLICY, "{rulez: [{}]}"),
    (
        AUTHORIZATION_POLICY,
        "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Gateway, name: x}]}",
    ),
    (AUTHORIZATION_POLICY, "{rules: [{from: [{source: {}}]}]}"),
    (AUTHORIZATION_POLICY, "{rules: [{from: [{}]}]}"),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{from: [{source: {principals: ['']}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{from: [{source: {ipBlocks: [10.0.0.0/33]}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{from: [{source: {serviceAccounts: [a/*]}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{to: [{operation: {ports: [http]}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{to: [{operation: {ports: ['65536']}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{when: [{key: source.nonsense, values: [a]}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{when: [{key: source.ip}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{targetRefs: [{kind: service, name: x}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{targetRefs: [{kind: Gateway, group: '', name: x}]}",
    ),
    (PEER_AUTHENTICATION, "{mtls: {mode: STRICTLY}}"),
    (
        PEER_AUTHENTICATION,
        "{portLevelMtls: {'9000': {mode: STRICT}}}",
    ),
    (
        PEER_AUTHENTICATION,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {http: {mode: STRICT}}}",
    ),
    (
        PEER_AUTHENTICATION,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {'65536': {mode: STRICT}}}",
    ),
];

const ACCEPTED_POLICIES: &[(&str, &str)] = &[
    (AUTHORIZATION_POLICY, "{}"),
    (
        AUTHORIZATION_POLICY,
        "{targetRefs: [], selector: {matchLabels: {a: b}}, rules: [{from: [], to: [], when: []}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{from: [{source: {principals: [td/ns/*/sa/x, 'spiffe://a/b'], ipBlocks: [10.0.0.1, '::1', 'fd00::/8']}}]}]}",
    ),
    (
        AUTHORIZATION_POLICY,
        "{rules: [{when: [{key: 'request.headers[x]', values: [a]}]}]}",
    ),
    (
        PEER_AUTHENTICATION,
        "{selector: {matchLabels: {}}, mtls: {mode: STRICT}}",
    ),
    (
        PEER_AUTHENTICATION,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {'9000': {mode: STRICT}}}",
    ),
];

/// Returns a container whose probe or lifecycle hook calls `host`.
fn container(calling: &str, host: &str) -> String {
    let place = calling.replace("HOST", host);
    format!("{{name: a, image: a, {place}}}")
}

/// Applies a policy as a dry run: returns whether the API server would accept it, and the output of `kubectl apply`.
fn dry_run_policy(mesh: &Mesh, kind: &str, spec: &str) -> (bool, String) {
    dry_run_object(
        mesh,
        &format!(
            "apiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: tried, namespace: default}}\nspec: {spec}\n"
        ),
    )
}

/// Applies an object as a dry run: returns whether the API server would accept it, and the output of `kubectl apply`.
fn dry_run_object(mesh: &Mesh, object: &str) -> (bool, String) {
    let mut kubectl = mesh
        .cluster()
        .kubectl()
        .args(["apply", "--dry-run=server", "--filename=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = kubectl.stdin.take().unwrap();
    stdin.write_all(object.as_bytes()).unwrap();
    drop(stdin);
    let output = kubectl.wait_with_output().unwrap();
    let message = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), message)
}

#[test]
fn what_cannot_be_read_is_refused_when_it_is_applied() {
    let mesh = Mesh::shared();
    for (kind, spec) in ACCEPTED_POLICIES {
        let (taken, message) = dry_run_policy(&mesh, kind, spec);
        assert!(taken, "{kind} {spec}: {message}");
    }
    for (kind, spec) in REJECTED_POLICIES {
        let (taken, message) = dry_run_policy(&mesh, kind, spec);
        assert!(!taken, "{kind} {spec}");
        assert!(
            message.contains("is invalid") || message.contains("strict decoding error"),
            "{kind} {spec}: {message}"
        );
    }
}

#[test]
fn probes_that_call_other_hosts_are_refused_when_pods_are_created() {
    let mesh = Mesh::shared();
    let places = [
        "livenessProbe: {httpGet: {host: 'HOST', port: 80}}",
        "livenessProbe: {tcpSocket: {host: 'HOST', port: 80}}",
        "readinessProbe: {httpGet: {host: 'HOST', port: 80}}",
        "readinessProbe: {tcpSocket: {host: 'HOST', port: 80}}",
        "startupProbe: {httpGet: {host: 'HOST', port: 80}}",
        "startupProbe: {tcpSocket: {host: 'HOST', port: 80}}",
        "lifecycle: {postStart: {httpGet: {host: 'HOST', port: 80}}}",
        "lifecycle: {postStart: {tcpSocket: {host: 'HOST', port: 80}}}",
        "lifecycle: {preStop: {httpGet: {host: 'HOST', port: 80}}}",
        "lifecycle: {preStop: {tcpSocket: {host: 'HOST', port: 80}}}",
    ];
    let pod = |spec: &str| {
        let object = format!(
            "apiVersion: v1\nkind: Pod\nmetadata: {{name: tried, namespace: default}}\nspec: {spec}\n"
        );
        dry_run_object(&mesh, &object)
    };
    for place in places {
        let (taken, message) = pod(&format!("{{containers: [{}]}}", container(place, "")));
        assert!(taken, "{place}: {message}");
        let (taken, message) = pod(&format!(
            "{{containers: [{}]}}",
            container(place, "10.244.1.7")
        ));
        assert!(
            !taken && message.contains("cni.probeHosts"),
            "{place}: {message}"
        );
    }
    let sidecar = container(places[2], "server.shop.svc")
        .replace("name: a,", "name: b, restartPolicy: Always,");
    let (taken, message) = pod(&format!(
        "{{initContainers: [{sidecar}], containers: [{{name: a, image: a}}]}}"
    ));
    assert!(!taken && message.contains("cni.probeHosts"), "{message}");
    let (taken, message) = pod(&format!(
        "{{containers: [{}]}}",
        container(places[0], "127.0.0.1")
    ));
    assert!(taken, "{message}");
}
