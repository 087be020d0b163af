//! Runs the Gateway API's conformance tests of meshes, from its Go module, against Ambit's waypoint.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::Command,
};

use ambit_cluster_tests::{
    Cluster, ClusterPaths, Mesh, Slot, built_binary, sources, target_directory,
};

/// Image of the pods that the tests deploy; without access to its registry, an equivalent image is loaded under this
/// name.
const ECHO_IMAGE: &str = "registry.k8s.io/gateway-api/echo-advanced:v1.5.1";

/// Namespace, labelled for the mesh, that the tests fill with the Services whose routes they test.
const NAMESPACE: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: gateway-conformance-mesh, labels: {istio.io/dataplane-mode: ambient}}
";

/// Timeout after which the conformance tests abort.
const SUITE_TIMEOUT: &str = "15m";

#[test]
fn the_mesh_passes_the_gateway_apis_conformance_tests() {
    let places = ClusterPaths::in_target(&target_directory(), Slot::TESTS);
    // Before the mesh is taken: it takes minutes when they are built from nothing.
    let tests = Cluster::build_conformance_tests(&places, &sources())
        .unwrap_or_else(|error| panic!("{error:#}"));
    let out = target_directory().join("conformance");
    fs::create_dir_all(&out).unwrap();
    let mesh = Mesh::shared();
    load_echo(mesh.cluster(), &out.join("echo.tar"));
    // On a cluster that stays up, an earlier run's may still be terminating.
    mesh.kubectl(&[
        "delete",
        "namespaces",
        "--ignore-not-found",
        "gateway-conformance-mesh",
        "gateway-conformance-mesh-consumer",
    ]);
    mesh.apply(NAMESPACE);
    let kubeconfig = format!("--kubeconfig={}", mesh.cluster().kubeconfig().display());
    mesh.ambit(&[
        "waypoint",
        "apply",
        "--namespace=gateway-conformance-mesh",
        "--wait",
        &kubeconfig,
    ]);

    let (log, report) = (out.join("output.txt"), out.join("report.yaml"));
    let output = File::create(&log).unwrap();
    let status = Command::new(tests)
        .args(["-test.v", "-test.timeout", SUITE_TIMEOUT])
        .args(["--organization=ambit-mesh", "--project=ambit"])
        .args(["--url", env!("CARGO_PKG_REPOSITORY")])
        .args([
            "--contact",
            concat!(env!("CARGO_PKG_REPOSITORY"), "/issues"),
        ])
        .args(["--version", env!("CARGO_PKG_VERSION")])
        .arg("--report")
        .arg(&report)
        .env("KUBECONFIG", mesh.cluster().kubeconfig())
        .stdout(output.try_clone().unwrap())
        .stderr(output)
        .status()
        .unwrap();
    assert!(
        status.success(),
        "these failed, as {} tells ({status}):\n{}",
        log.display(),
        failed_tests(&fs::read_to_string(&log).unwrap())
    );
    compare_reports(&report);
}

fn load_echo(cluster: &Cluster, archive: &Path) {
    let program = built_binary("ambit-conformance-echo");
    ambit_images::write_program_image(ECHO_IMAGE, &program, &["server", "client"], archive)
        .unwrap();
    cluster.load(&[archive.to_path_buf()]).unwrap();
}

/// Returns the output lines that name failed tests; or the last lines of a run that did not finish.
fn failed_tests(output: &str) -> String {
    let is_named = |line: &&str| line.trim_start().starts_with("--- FAIL");
    let mut lines: Vec<_> = output.lines().filter(is_named).collect();
    if lines.is_empty() {
        lines = output.lines().rev().take(30).collect();
        lines.reverse();
    }
    lines.join("\n")
}

/// Compares this run's report with the one in the repository, except for the date; replaces the repository's report if
/// the two differ.
fn compare_reports(report: &Path) {
    let committed = committed_report_path();
    let (found, known) = (
        fs::read_to_string(report).unwrap(),
        fs::read_to_string(&committed).unwrap_or_default(),
    );
    let undated = |text: &str| -> Vec<String> {
        let lines = text.lines().filter(|line| !line.starts_with("date:"));
        lines.map(str::to_owned).collect()
    };
    let is_known = undated(&found) == undated(&known);
    if !is_known {
        fs::write(&committed, &found).unwrap();
    }
    assert!(
        is_known,
        "conformance/report.yaml was not what this run reports; it is now: read and commit it\n{found}"
    );
}

fn committed_report_path() -> PathBuf {
    sources().join("../conformance/report.yaml")
}
