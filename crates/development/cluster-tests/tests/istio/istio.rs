//! Installation of Istio's ambient mode on a test cluster.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
    time::Duration,
};

use ambit_cluster_tests::{Access, MESH_NAMESPACE, Mesh, is_ready, target_directory, wait_until};
use ambit_testkit::documents::{parse_file_steps, run_steps};
use tempfile::TempDir;

/// Chart values of Ambit that select the test cluster's images.
const VALUES: &str = "hub: ambit, tag: dev, imagePullPolicy: Never";
/// Values of Istio's installation. They select images that the test cluster has loaded, with Ambit's node proxy in
/// place of ztunnel.
const INSTALLATION_VALUES: [&str; 7] = [
    "hub=docker.io/istio",
    "tag=dev",
    "values.global.imagePullPolicy=Never",
    "values.global.variant=",
    "values.ztunnel.image=docker.io/ambit/node-proxy:dev",
    "values.pilot.resources.requests.cpu=10m",
    "values.pilot.resources.requests.memory=100Mi",
];

/// Cluster in which Istio is installed.
pub(crate) struct Istio {
    pub(crate) mesh: Access,
    manifest: PathBuf,
    /// Temporary directory that replaces `/tmp` in the page's commands.
    temporary_directory: TempDir,
}

impl Istio {
    /// Starts a cluster and installs Istio's ambient mode. Returns when all of Istio's pods are ready.
    pub(crate) fn start_and_install() -> Self {
        let directory = target_directory().join("istio");
        let archives = ["pilot.tar", "install-cni.tar"].map(|name| directory.join(name));
        for archive in &archives {
            let hint = "use `cargo xtask cluster test --istio`";
            assert!(archive.exists(), "no image {}: {hint}", archive.display());
        }
        let mut istioctl = Command::new(directory.join("istioctl"));
        istioctl.args(["manifest", "generate", "--set", "profile=ambient"]);
        for setting in INSTALLATION_VALUES {
            istioctl.args(["--set", setting]);
        }
        let written = istioctl.output().unwrap();
        assert!(written.status.success(), "{written:?}");
        let manifest = directory.join("ambient.yaml");
        fs::write(&manifest, written.stdout).unwrap();
        let istio = Self {
            mesh: Mesh::without_mesh(&[], &archives),
            manifest,
            temporary_directory: tempfile::tempdir().unwrap(),
        };
        istio.mesh.kubectl(&["create", "namespace", MESH_NAMESPACE]);
        istio.install();
        istio.run_migration_page("istio", "");
        istio
    }

    /// Applies Istio's objects except its DaemonSets, and waits until the control plane is ready.
    pub(crate) fn install_control_plane(&self) {
        let all = fs::read_to_string(&self.manifest).unwrap();
        let objects = all.split("\n---\n");
        let some: Vec<_> = objects
            .filter(|object| !object.lines().any(|line| line == "kind: DaemonSet"))
            .collect();
        assert_eq!(all.split("\n---\n").count() - some.len(), 2, "DaemonSets");
        let manifest = self.temporary_directory.path().join("control-plane.yaml");
        fs::write(&manifest, some.join("\n---\n")).unwrap();
        self.apply(&manifest);
        self.wait_until_ready("istio=pilot", 1);
    }

    fn apply(&self, manifest: &Path) {
        let manifest = manifest.to_str().unwrap();
        let apply = ["apply", "--server-side", "--force-conflicts", "--filename"];
        self.mesh.kubectl(&[&apply[..], &[manifest]].concat());
    }

    /// Applies all of Istio's objects, and waits until its pods are ready.
    pub(crate) fn install(&self) {
        self.apply(&self.manifest);
        let parts = [
            ("istio=pilot", 1),
            ("app=ztunnel", 2),
            ("k8s-app=istio-cni-node", 2),
        ];
        for (label, count) in parts {
            self.wait_until_ready(label, count);
        }
    }

    /// Runs commands of the book's page about migrations whose code blocks are marked for `runner`, with the images of
    /// the test cluster and a test's namespace.
    pub(crate) fn run_migration_page(&self, runner: &str, namespace: &str) {
        let steps = parse_file_steps("docs/src/migration.md", runner);
        run_steps(&steps, Duration::from_secs(180), |command| {
            let command = command
                .replace("hub: registry.example.com/ambit, tag: v1", VALUES)
                .replace(" shop ", &format!(" {namespace} "))
                .replace(
                    "/tmp/",
                    &format!("{}/", self.temporary_directory.path().display()),
                );
            self.mesh.shell(&command)
        });
    }

    /// Runs `kubectl` in the mesh's namespace; returns its output.
    pub(crate) fn kubectl(&self, args: &[&str]) -> String {
        self.mesh
            .kubectl(&[args, &["--namespace", MESH_NAMESPACE]].concat())
    }

    fn wait_until_ready(&self, label: &str, count: usize) {
        wait_until(&format!("{count} pods {label} are ready"), || {
            let pods = self.mesh.pods_with(label);
            pods.len() == count && pods.iter().all(is_ready)
        });
    }
}
