//! A policy that cannot be read would deny everything in its scope: with the chart's CRDs the API server
//! refuses it when it is applied. Every form that Istio accepts is accepted.

use std::{io::Write, process::Stdio};

use ambit_cluster_tests::Mesh;

const AUTHORIZATION: &str = "AuthorizationPolicy";
const PEER: &str = "PeerAuthentication";

const REFUSED: &[(&str, &str)] = &[
    (AUTHORIZATION, "{rulez: [{}]}"),
    (
        AUTHORIZATION,
        "{selector: {matchLabels: {a: b}}, targetRefs: [{kind: Gateway, name: x}]}",
    ),
    (AUTHORIZATION, "{rules: [{from: [{source: {}}]}]}"),
    (AUTHORIZATION, "{rules: [{from: [{}]}]}"),
    (
        AUTHORIZATION,
        "{rules: [{from: [{source: {principals: ['']}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{from: [{source: {ipBlocks: [10.0.0.0/33]}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{from: [{source: {serviceAccounts: [a/*]}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{to: [{operation: {ports: [http]}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{to: [{operation: {ports: ['65536']}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{when: [{key: source.nonsense, values: [a]}]}]}",
    ),
    (AUTHORIZATION, "{rules: [{when: [{key: source.ip}]}]}"),
    (PEER, "{mtls: {mode: STRICTLY}}"),
    (PEER, "{portLevelMtls: {'9000': {mode: STRICT}}}"),
    (
        PEER,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {http: {mode: STRICT}}}",
    ),
    (
        PEER,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {'65536': {mode: STRICT}}}",
    ),
];

const TAKEN: &[(&str, &str)] = &[
    (AUTHORIZATION, "{}"),
    (
        AUTHORIZATION,
        "{targetRefs: [], selector: {matchLabels: {a: b}}, rules: [{from: [], to: [], when: []}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{from: [{source: {principals: [td/ns/*/sa/x, 'spiffe://a/b'], ipBlocks: [10.0.0.1, '::1', 'fd00::/8']}}]}]}",
    ),
    (
        AUTHORIZATION,
        "{rules: [{when: [{key: 'request.headers[x]', values: [a]}]}]}",
    ),
    (PEER, "{selector: {matchLabels: {}}, mtls: {mode: STRICT}}"),
    (
        PEER,
        "{selector: {matchLabels: {a: b}}, portLevelMtls: {'9000': {mode: STRICT}}}",
    ),
];

/// The output of `kubectl apply`, and whether the API server would accept it.
fn apply(mesh: &Mesh, kind: &str, spec: &str) -> (bool, String) {
    let mut kubectl = mesh
        .cluster()
        .kubectl()
        .args(["apply", "--dry-run=server", "--filename=-"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let object = format!(
        "apiVersion: security.istio.io/v1\nkind: {kind}\nmetadata: {{name: tried, namespace: default}}\nspec: {spec}\n"
    );
    let mut stdin = kubectl.stdin.take().unwrap();
    stdin.write_all(object.as_bytes()).unwrap();
    drop(stdin);
    let output = kubectl.wait_with_output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.success(), said)
}

#[test]
fn what_cannot_be_read_is_refused_when_it_is_applied() {
    let mesh = Mesh::shared();
    for (kind, spec) in TAKEN {
        let (taken, said) = apply(&mesh, kind, spec);
        assert!(taken, "{kind} {spec}: {said}");
    }
    for (kind, spec) in REFUSED {
        let (taken, said) = apply(&mesh, kind, spec);
        assert!(!taken, "{kind} {spec}");
        assert!(
            said.contains("is invalid") || said.contains("strict decoding error"),
            "{kind} {spec}: {said}"
        );
    }
}
