//! Tests of `ambit check --from istio` with files and with clusters, including parts that cannot be read.

use std::path::PathBuf;

use ambit_install::cluster::ClusterApi;
use ambit_testkit::ApiServer;
use clap::Parser as _;
use serde_json::{Value, json};

use super::*;
use crate::args::{Args, Command};

const WORKS: &str = "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: default, namespace: books}
spec: {mtls: {mode: STRICT}}
";
const CHANGES: &str = "apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: plain, namespace: books}
spec: {mtls: {mode: DISABLE}}
";
const LAPSES: &str = "apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: default, namespace: books}
";

fn report_of_files(files: &[(&str, &str)]) -> ConversionReport {
    let directory = tempfile::tempdir().unwrap();
    for (name, text) in files {
        std::fs::write(directory.path().join(name), text).unwrap();
    }
    let mut mesh = istio::read_files(&[directory.path().to_owned()]).unwrap();
    let prefix = format!("{}/", directory.path().display());
    for text in &mut mesh.unreadable {
        *text = text.replace(&prefix, "");
    }
    report(mesh)
}

#[test]
fn the_exit_code_is_of_the_worst_outcome() {
    assert_eq!(report_of_files(&[("a.yaml", WORKS)]).exit_code(), 0);
    assert_eq!(
        report_of_files(&[("a.yaml", WORKS), ("b.yml", CHANGES)]).exit_code(),
        5
    );
    assert_eq!(report_of_files(&[("a.yaml", LAPSES)]).exit_code(), 5);
    assert_eq!(
        report_of_files(&[("a.yaml", WORKS), ("b.yaml", "kind: [\n")]).exit_code(),
        1
    );
}

#[test]
fn effects_are_grouped_by_outcome_with_a_summary() {
    let broken = "# comment\n---\nkind: A\n---\nkind: {\n";
    let files = [
        ("a.yaml", WORKS),
        ("b.yaml", CHANGES),
        ("c.yaml", LAPSES),
        ("d.yaml", broken),
        ("e.txt", "kind: ["),
    ];
    insta::assert_snapshot!(report_of_files(&files).to_text());
}

#[test]
fn a_report_is_json_with_its_summary() {
    let report = report_of_files(&[
        ("a.json", r#"{"kind": "List", "items": []}"#),
        ("b.yaml", LAPSES),
    ]);
    let value = serde_json::to_value(&report).unwrap();
    assert_eq!(
        value["summary"],
        json!({"works": 0, "changes": 0, "lapses": 1})
    );
    assert_eq!(value["effects"][0]["outcome"], "lapses");
    assert_eq!(value["effects"][0]["object"], "Sidecar books/default");
}

#[test]
fn files_that_are_not_there_fail_the_command() {
    let error = istio::read_files(&[PathBuf::from("/nowhere/mesh.yaml")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotFound);
    assert!(
        error.message_with_sources().contains("/nowhere/mesh.yaml"),
        "{}",
        error.message_with_sources()
    );
}

#[test]
fn hostile_names_do_not_reach_the_terminal() {
    let text =
        "apiVersion: networking.istio.io/v1\nkind: \"Side\\ecar\"\nmetadata: {name: \"a\\nb\"}\n";
    let report = report_of_files(&[("a.yaml", text)]).to_text();
    assert!(
        !report.contains('\u{1b}') && report.contains("\\u{1b}"),
        "{report}"
    );
}

fn definition(group: &str, kind: &str, plural: &str, versions: &[&str]) -> Value {
    let versions: Vec<_> = versions
        .iter()
        .map(|name| json!({"name": name, "served": true, "storage": *name == versions[0]}))
        .collect();
    json!({
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": format!("{plural}.{group}")},
        "spec": {
            "group": group, "scope": "Namespaced", "versions": versions,
            "names": {"kind": kind, "plural": plural},
        },
    })
}

/// Creates an API server with CRDs of kinds that Ambit reads, that it does not read, and that it does not know.
fn server() -> ApiServer {
    let server = ApiServer::start();
    let definitions = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
    for (group, kind, plural, versions) in [
        (
            "security.istio.io",
            "PeerAuthentication",
            "peerauthentications",
            &["v1", "v1beta1"][..],
        ),
        (
            "networking.istio.io",
            "Sidecar",
            "sidecars",
            &["v1beta1", "v1"],
        ),
        (
            "networking.istio.io",
            "ProxyConfig",
            "proxyconfigs",
            &["v1beta1"],
        ),
        ("networking.istio.io", "Future", "futures", &["v1"]),
        ("example.com", "Other", "others", &["v1"]),
    ] {
        server.put(definitions, definition(group, kind, plural, versions));
        for version in versions {
            server.serve(&format!("/apis/{group}/{version}/{plural}"), kind);
        }
    }
    let of = |text: &str| -> Value { serde_saphyr::from_str(text).unwrap() };
    server.put("/apis/security.istio.io/v1/peerauthentications", of(WORKS));
    server.put("/apis/networking.istio.io/v1beta1/sidecars", of(LAPSES));
    server.put("/api/v1/namespaces", json!({"metadata": {"name": "books"}}));
    let settings = json!({
        "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": "enableTracing: true"},
    });
    server.put("/api/v1/configmaps", settings);
    server
}

async fn report_of_server(server: &ApiServer) -> Result<ConversionReport, CliError> {
    let file = kube::config::Kubeconfig::from_yaml(&server.kubeconfig()).unwrap();
    let config = kube::Config::from_custom_kubeconfig(file, &Default::default()).await;
    let client = ambit_kube_kit::client::from_config(config.unwrap(), "test").unwrap();
    let mesh = istio::read_cluster(&ClusterApi::new(client), "istio-system").await?;
    Ok(report(mesh))
}

fn outcomes(report: &ConversionReport) -> Vec<(Outcome, &str)> {
    let effects = report.effects.iter();
    effects
        .map(|one| (one.outcome, one.object.as_str()))
        .collect()
}

#[tokio::test]
async fn a_cluster_is_checked_by_its_definitions() {
    let report = report_of_server(&server()).await.unwrap();
    assert_eq!(
        outcomes(&report),
        [
            (Outcome::Lapses, "ConfigMap istio-system/istio"),
            (Outcome::Lapses, "Sidecar books/default"),
            (Outcome::Works, "PeerAuthentication books/default"),
        ]
    );
    assert_eq!(
        report.unused_kinds,
        ["Future (futures.networking.istio.io)"]
    );
    assert_eq!((report.unreadable.len(), report.exit_code()), (0, 5));
}

#[tokio::test]
async fn a_kind_without_permission_is_named_and_the_rest_is_checked() {
    let server = server();
    server.fail_next_at("/apis/networking.istio.io/v1beta1/sidecars", &[403]);
    server.fail_next_at("/api/v1/namespaces/istio-system/configmaps/istio", &[403]);
    let report = report_of_server(&server).await.unwrap();
    assert_eq!(
        outcomes(&report),
        [(Outcome::Works, "PeerAuthentication books/default")]
    );
    assert_eq!(
        report.unreadable,
        [
            "Sidecar: no permission for the verb list; not checked",
            "ConfigMap istio-system/istio: no permission for the verb get; not checked",
        ]
    );
    assert_eq!(report.exit_code(), 1);
    server.fail_next_at(
        "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
        &[403],
    );
    let without_definitions = report_of_server(&server).await.unwrap();
    let read = outcomes(&without_definitions);
    assert!(
        read.contains(&(Outcome::Works, "PeerAuthentication books/default")),
        "{read:?}"
    );
    assert_eq!(without_definitions.unreadable.len(), 1);
}

#[tokio::test]
async fn settings_of_an_installed_mesh_are_those_of_its_control_plane() {
    let server = server();
    let settings = json!({
        "metadata": {"name": "istio", "namespace": "istio-system"},
        "data": {"mesh": "waypointAttachment: labels\nwaypointBinding: ready\nwaypointMissing: allow\n\
                          workloadWaypoints: istio\nreferenceGrants: ignored\ntrustDomain: books.example\n\
                          outboundTrafficPolicy: {mode: REGISTRY_ONLY}\n"},
    });
    server.put("/api/v1/configmaps", settings);
    let before = report_of_server(&server).await.unwrap();
    let of_settings = |report: &ConversionReport| {
        let effects = report.effects.iter();
        effects
            .filter(|one| one.object.ends_with("/istio"))
            .map(|one| one.outcome)
            .collect::<Vec<_>>()
    };
    assert_eq!(of_settings(&before), [Outcome::Changes; 7]);
    let env = [
        ("TRUST_DOMAIN", "books.example"),
        ("AMBIT_WAYPOINT_ATTACHMENT", "labels"),
        ("AMBIT_WAYPOINT_BINDING", "ready"),
        ("AMBIT_WAYPOINT_MISSING", "allow"),
        ("AMBIT_WORKLOAD_WAYPOINTS", "istio"),
        ("AMBIT_REFERENCE_GRANTS", "ignored"),
        ("AMBIT_OUTBOUND_TRAFFIC_POLICY", "REGISTRY_ONLY"),
    ];
    let env = env.map(|(name, value)| json!({"name": name, "value": value}));
    let control = json!({
        "metadata": {"name": "ambit-control", "namespace": "istio-system"},
        "spec": {
            "selector": {},
            "template": {"spec": {"containers": [{"name": "control", "env": env}]}},
        },
    });
    server.put("/apis/apps/v1/deployments", control);
    let after = report_of_server(&server).await.unwrap();
    assert_eq!(of_settings(&after), [Outcome::Works]);
}

#[tokio::test]
async fn a_cluster_that_fails_ends_the_command() {
    let server = server();
    server.fail_next_at("/api/v1/pods", &[500]);
    let error = report_of_server(&server).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(
        error.message_with_sources().contains("list Pods"),
        "{}",
        error.message_with_sources()
    );
    drop(server);
}

#[test]
fn manifests_are_checked_in_place_of_the_cluster() {
    let parsed =
        Args::try_parse_from(["ambit", "check", "--from", "istio", "a.yaml", "-"]).unwrap();
    let Command::Check(args) = parsed.command else {
        panic!("{parsed:?}");
    };
    assert_eq!(args.subjects, ["a.yaml", "-"]);
    assert!(Args::try_parse_from(["ambit", "check", "--from", "linkerd"]).is_err());
    assert!(Args::try_parse_from(["ambit", "check", "--from", "istio", "--on-node"]).is_err());
}
