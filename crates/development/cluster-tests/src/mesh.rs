//! Cluster with Ambit that the tests of a run share, or that one test creates for itself.

use std::{
    io::{BufRead, BufReader},
    ops::Deref,
    os::unix::process::CommandExt,
    path::{Path, PathBuf},
    process::{Child, Command, Output, Stdio},
    sync::OnceLock,
};

use ambit_cluster::{Cluster, ClusterPaths, Slot, objects};
use ambit_testkit::documents::repository_root;
use k8s_openapi::api::core::v1::Pod;
use kube::{Api, Client, api::ListParams};
use parking_lot::{RwLock, RwLockReadGuard, RwLockWriteGuard};
use tokio::runtime::Runtime;

use crate::{
    built_binary, pod::is_ready, process::run_successfully, target_directory,
    traffic_capture::TrafficCapture, wait::wait_until,
};

/// Namespace in which the mesh is installed.
pub const MESH_NAMESPACE: &str = "istio-system";

/// Name of the Helm release.
const RELEASE: &str = "ambit";

/// Chart values for the test cluster's images, and for a drain time of waypoints that is longer than any test.
pub const VALUES: &str = "global.hub=ambit,global.tag=dev,global.imagePullPolicy=Never,\
    global.waypoint.terminationGracePeriodSeconds=300";

/// Returns the chart's setting of the backend that all tests shall use, if any.
fn backend_value() -> Option<String> {
    let backend = ambit_testkit::redirection_backend()?;
    Some(format!("cni.redirectionBackend={backend}"))
}

static MESH: OnceLock<Mesh> = OnceLock::new();
/// Lock that tests which kill nodes or replace the mesh hold exclusively, and other tests share.
static EXCLUSIVE_USE: RwLock<()> = RwLock::new(());

/// Returns the path of the repository's `build` directory.
pub fn sources() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../build")
}

/// Component of Ambit in the cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    /// DaemonSet of node agents.
    Agent,
    /// DaemonSet of node proxies.
    NodeProxy,
    /// Deployment of the control plane.
    Control,
}

impl Component {
    const ALL: [Self; 3] = [Self::Agent, Self::NodeProxy, Self::Control];

    /// Returns the label `app` of the component's pods.
    fn label(self) -> &'static str {
        match self {
            Self::Agent => "ambit-agent",
            Self::NodeProxy => "ztunnel",
            Self::Control => "istiod",
        }
    }

    /// Returns kind and name of the component's DaemonSet or Deployment.
    pub fn object(self) -> &'static str {
        match self {
            Self::Agent => "daemonset/ambit-agent",
            Self::NodeProxy => "daemonset/ztunnel",
            Self::Control => "deployment/ambit-control",
        }
    }
}

/// Cluster in which Ambit is installed.
pub struct Mesh {
    cluster: Cluster,
    slot: Slot,
    client: Client,
    runtime: Runtime,
    remover: Option<ClusterRemover>,
}

/// Process that removes the cluster when this value is dropped or this process ends, in any way.
struct ClusterRemover(Child);

impl Drop for ClusterRemover {
    fn drop(&mut self) {
        drop(self.0.stdin.take());
        if let Err(error) = self.0.wait() {
            eprintln!("the cluster may still be up: {error}");
        }
    }
}

impl std::fmt::Debug for Mesh {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Mesh").finish_non_exhaustive()
    }
}

/// Access of one test to the mesh, shared or exclusive.
#[derive(Debug)]
pub struct Access {
    mesh: MeshHandle,
    guard: Guard,
}

#[derive(Debug)]
enum MeshHandle {
    Shared(&'static Mesh),
    Own(Box<Mesh>),
}

#[derive(Debug)]
enum Guard {
    Shared {
        _guard: RwLockReadGuard<'static, ()>,
    },
    Exclusive {
        _guard: RwLockWriteGuard<'static, ()>,
    },
}

impl Deref for Access {
    type Target = Mesh;

    fn deref(&self) -> &Mesh {
        match &self.mesh {
            MeshHandle::Shared(mesh) => mesh,
            MeshHandle::Own(mesh) => mesh,
        }
    }
}

impl Drop for Access {
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
            eprintln!("{}", self.rejected_packets());
            if matches!(
                (&self.guard, &self.mesh),
                (Guard::Exclusive { .. }, MeshHandle::Shared(_))
            ) {
                eprintln!("the tests after this one may find the cluster as this one left it");
            }
        }
    }
}

/// Maximum number of lines about failed connections in [`Mesh::logs`].
const MAX_FAILURE_LINES: usize = 60;

impl Mesh {
    /// Returns the mesh, shared with other tests.
    pub fn shared() -> Access {
        let guard = Guard::Shared {
            _guard: EXCLUSIVE_USE.read(),
        };
        let mesh = MeshHandle::Shared(MESH.get_or_init(Self::up));
        Access { mesh, guard }
    }

    /// Returns the mesh for exclusive use: no other test of the process runs until the returned value is dropped.
    pub fn exclusive() -> Access {
        let guard = Guard::Exclusive {
            _guard: EXCLUSIVE_USE.write(),
        };
        let mesh = MeshHandle::Shared(MESH.get_or_init(Self::up));
        Access { mesh, guard }
    }

    /// Creates a cluster with a mesh for one test. Dropping the returned value removes the cluster. `options` are those
    /// of `cargo xtask cluster up`, `values` those of [`Self::install`]. No other test runs meanwhile.
    pub fn with_own_cluster(options: &[&str], values: &[&str]) -> Access {
        let mesh = Self::without_mesh(options, &[]);
        mesh.install(values);
        mesh
    }

    /// Creates a cluster for one test without a mesh: Ambit's images and the `further` image archives are loaded, and
    /// nothing is installed. Dropping the returned value removes the cluster. No other test runs meanwhile.
    pub fn without_mesh(options: &[&str], further: &[PathBuf]) -> Access {
        let guard = Guard::Exclusive {
            _guard: EXCLUSIVE_USE.write(),
        };
        let mesh = Self::with_images(Slot::OWN, Some(start_removed_on_exit(Slot::OWN, options)));
        mesh.cluster
            .load(further)
            .unwrap_or_else(|error| panic!("{error:#}"));
        let mesh = MeshHandle::Own(Box::new(mesh));
        Access { mesh, guard }
    }

    fn up() -> Self {
        match std::env::var("AMBIT_TEST_SLOT") {
            Ok(number) => Self::install_on_slot(number.parse().expect("a slot's number"), None),
            Err(_) => {
                let slot = match std::env::var("AMBIT_TEST_PLACE").as_deref() {
                    Ok("1") => Slot::MORE_TESTS,
                    _ => Slot::TESTS,
                };
                Self::install_on_slot(slot, Some(start_removed_on_exit(slot, &[])))
            }
        }
    }

    /// Installs Ambit on the cluster of a slot, after loading its images if the cluster was just started.
    fn install_on_slot(slot: Slot, holder: Option<ClusterRemover>) -> Self {
        let mesh = Self::with_images(slot, holder);
        mesh.install(&[]);
        mesh
    }

    /// Finds the cluster of a slot, and loads Ambit's images if it was just started.
    fn with_images(slot: Slot, holder: Option<ClusterRemover>) -> Self {
        let places = ClusterPaths::in_target(&target_directory(), slot);
        let cluster = Cluster::find(places, slot)
            .expect("the cluster's state can be read")
            .expect("the cluster is up");
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap();
        let client = runtime
            .block_on(cluster.client())
            .unwrap_or_else(|error| panic!("no access to the cluster: {error:#}"));
        let mesh = Self {
            cluster,
            slot,
            client,
            runtime,
            remover: holder,
        };
        if mesh.remover.is_some() {
            mesh.cluster
                .load(&archives())
                .unwrap_or_else(|error| panic!("{error:#}"));
        }
        mesh
    }

    /// Runs `ambit install` with `values` in addition to those of the test cluster. Returns when all workloads are
    /// ready.
    pub fn install(&self, values: &[&str]) {
        let backend = backend_value();
        let mut args = vec!["install", "--timeout=120s", "--set", VALUES];
        for value in backend
            .iter()
            .map(String::as_str)
            .chain(values.iter().copied())
        {
            args.extend(["--set", value]);
        }
        self.ambit(&args);
    }

    /// Installs the mesh with Helm, over an installation by `ambit install`.
    #[track_caller]
    pub fn install_with_helm(&self) {
        self.ambit(&["uninstall", "--force"]);
        self.wait_until_removed();
        let chart = sources().join("../charts/ambit");
        let chart = chart.to_str().expect("a path of letters");
        let args = ["install", RELEASE, chart, "--wait", "--timeout=120s"];
        let values = [VALUES.to_owned()].into_iter().chain(backend_value());
        let values = values.collect::<Vec<_>>().join(",");
        self.helm(&[&args[..], &["--set", &values]].concat());
    }

    /// Runs `helm uninstall`, and returns once only terminating pods of the release are left.
    #[track_caller]
    pub fn uninstall_with_helm(&self) {
        self.helm(&["uninstall", RELEASE, "--wait", "--timeout=5m"]);
    }

    /// Runs a Helm command that must succeed; returns its output.
    #[track_caller]
    fn helm(&self, args: &[&str]) -> String {
        let mut command = ambit_testkit::helm_command();
        run_successfully(
            command
                .args(args)
                .args(["--namespace", MESH_NAMESPACE])
                .env("KUBECONFIG", self.cluster.kubeconfig()),
        )
    }

    /// Waits until no pod of the mesh's components is left.
    #[track_caller]
    pub fn wait_until_removed(&self) {
        let pods: Api<Pod> = Api::namespaced(self.client(), MESH_NAMESPACE);
        wait_until("the mesh's own pods are gone", || {
            let list = self.wait_for(pods.list(&ListParams::default()));
            list.unwrap().items.is_empty()
        });
    }

    /// Returns the names of the chart's objects that exist, except pods.
    #[track_caller]
    pub fn chart_objects(&self) -> String {
        let kinds = "daemonsets,deployments,jobs,services,serviceaccounts,configmaps,roles,rolebindings,\
            networkpolicies,poddisruptionbudgets,clusterroles,clusterrolebindings";
        let ours = "--selector=app.kubernetes.io/part-of=ambit";
        let all = "--all-namespaces";
        self.kubectl(&["get", kinds, ours, all, "--output=name"])
    }

    /// Waits until every pod of the installation is ready after a change.
    #[track_caller]
    pub fn wait_until_installed(&self) {
        for part in Component::ALL {
            self.wait_until_replaced(part, &[]);
        }
    }

    /// Replaces the pods of a component, as an upgrade does, and waits until the new pods are ready. Replaced node
    /// proxies may still drain their connections afterwards.
    #[track_caller]
    pub fn restart(&self, part: Component) {
        let before = self.pods_of(part);
        self.kubectl(&[
            "rollout",
            "restart",
            part.object(),
            "--namespace",
            MESH_NAMESPACE,
        ]);
        self.wait_until_replaced(part, &before);
    }

    #[track_caller]
    fn wait_until_replaced(&self, part: Component, before: &[Pod]) {
        let expected = match part {
            Component::Control => 1,
            Component::Agent | Component::NodeProxy => self.cluster.nodes().count(),
        };
        wait_until(&format!("{} is ready", part.object()), || {
            let pods = self.pods_of(part);
            let is_new = |pod: &Pod| {
                let mut old = before.iter();
                old.all(|old| old.metadata.uid != pod.metadata.uid)
            };
            pods.len() == expected && pods.iter().all(|pod| is_ready(pod) && is_new(pod))
        });
    }

    /// Returns the pods of a component that are not terminating.
    pub fn pods_of(&self, part: Component) -> Vec<Pod> {
        self.pods_with(&format!("app={}", part.label()))
    }

    /// Returns the pods in the mesh's namespace with a label that are not terminating.
    pub fn pods_with(&self, label: &str) -> Vec<Pod> {
        let pods: Api<Pod> = Api::namespaced(self.client(), MESH_NAMESPACE);
        let list = ListParams::default().labels(label);
        let mut pods = self.wait_for(pods.list(&list)).unwrap().items;
        pods.retain(|pod| pod.metadata.deletion_timestamp.is_none());
        pods
    }

    /// Returns the cluster's slot, which is part of its addresses.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Runs `ambit` with these arguments, which must succeed; returns its output.
    #[track_caller]
    pub fn ambit(&self, args: &[&str]) -> String {
        let mut command = Command::new(built_binary("ambit"));
        run_successfully(
            command
                .args(args)
                .env("KUBECONFIG", self.cluster.kubeconfig()),
        )
    }

    /// Runs `kubectl` with these arguments, which must succeed; returns its output.
    #[track_caller]
    pub fn kubectl(&self, args: &[&str]) -> String {
        run_successfully(self.cluster.kubectl().args(args))
    }

    /// Runs a shell command in the repository's root, with `ambit` and `kubectl` configured for this cluster.
    pub fn shell(&self, command: &str) -> Output {
        let kubectl = self.cluster.kubectl();
        let quoted = |text: &std::ffi::OsStr| format!("'{}'", text.to_string_lossy());
        let words: Vec<_> = std::iter::once(kubectl.get_program())
            .chain(kubectl.get_args())
            .map(quoted)
            .collect();
        let script = format!("kubectl() {{ {} \"$@\"; }}\n{command}", words.join(" "));
        let programs = built_binary("ambit");
        let programs = programs.parent().expect("a directory");
        let path = std::env::var("PATH").expect("a path");
        Command::new("sh")
            .args(["-ec", &script])
            .current_dir(repository_root())
            .env("PATH", format!("{}:{path}", programs.display()))
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .output()
            .unwrap_or_else(|error| panic!("{command}: {error}"))
    }

    /// Captures the traffic of all nodes, and searches it for the `markers`.
    pub fn capture_traffic(&self, markers: &[&str]) -> TrafficCapture {
        TrafficCapture::watch(&self.cluster, markers)
    }

    /// Applies manifests, in the namespaces that they name.
    #[track_caller]
    pub fn apply(&self, yaml: &str) {
        self.wait_for(objects::apply(&self.client, yaml))
            .unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Deletes the objects of manifests.
    #[track_caller]
    pub fn delete(&self, yaml: &str) {
        self.wait_for(objects::delete(&self.client, yaml))
            .unwrap_or_else(|error| panic!("{error:#}"));
    }

    /// Blocks until a future has completed, on the runtime of the client.
    pub fn wait_for<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(work)
    }

    /// Returns a client of the API server, as cluster administrator.
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// Returns the cluster on which the mesh is installed.
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// Returns the access logs of the node proxies on all nodes.
    pub fn access_log(&self) -> String {
        let pods = format!("--selector=app={}", Component::NodeProxy.label());
        let log = self.kubectl(&[
            "logs",
            "--namespace",
            MESH_NAMESPACE,
            "--all-containers",
            "--tail=-1",
            "--max-log-requests=20",
            &pods,
        ]);
        let lines = log.lines().filter(|line| line.contains("\taccess\t"));
        lines.map(|line| format!("{line}\n")).collect()
    }

    /// Returns the last log lines of the mesh's pods, and the node proxies' log lines about failed connections.
    pub fn logs(&self) -> String {
        let access_log = self.access_log();
        let failed: Vec<_> = access_log
            .lines()
            .filter(|line| line.contains(" error="))
            .collect();
        let shown = failed.len().saturating_sub(MAX_FAILURE_LINES);
        let failed = failed.get(shown..).unwrap_or_default().join("\n");
        let mut text = format!("--- connections that failed\n{failed}\n");
        for app in Component::ALL.map(Component::label) {
            let log = self
                .cluster
                .kubectl()
                .args(["logs", "--namespace", MESH_NAMESPACE, "--prefix"])
                .args(["--all-containers", "--tail=30", "--selector"])
                .arg(format!("app={app}"))
                .output();
            if let Ok(log) = log {
                text += &format!("--- {app}\n{}", String::from_utf8_lossy(&log.stdout));
            }
        }
        text
    }

    /// Returns the numbers of packets that redirection rules in pods rejected, by node and namespace. An application
    /// cannot distinguish such a rejection from a missing listener.
    fn rejected_packets(&self) -> String {
        const RULES: &str = r#"for netns in /run/netns/*; do
            nsenter --net="$netns" nft list ruleset |
                awk -v of="$netns" '/chain/ {chain = $2} /reject/ && !/packets 0 / {print of, chain, $0}'
        done"#;
        let mut text = String::new();
        for node in self.cluster.nodes() {
            let rules = node.command("sh").and_then(|mut shell| {
                let rules = shell.args(["-c", RULES]).output()?;
                Ok(String::from_utf8_lossy(&rules.stdout).into_owned())
            });
            let rules = rules.unwrap_or_else(|error| format!("{error:#}\n"));
            text += &format!("--- refused on {}\n{rules}", node.name());
        }
        text
    }
}

/// Returns the paths of Ambit's image archives, as written by `cargo xtask test`.
fn archives() -> Vec<PathBuf> {
    ["agent", "node-proxy", "control", "waypoint", "tools"]
        .map(|name| {
            let path = target_directory().join(format!("cluster/ambit/{name}.tar"));
            assert!(
                path.exists(),
                "no image {}: use `cargo xtask test`",
                path.display()
            );
            path
        })
        .into()
}

/// Environment variable with the release of Kubernetes that test clusters run, for instance `1.35`; `cargo xtask
/// cluster test` sets it.
const KUBERNETES_VERSION_VARIABLE: &str = "AMBIT_CLUSTER_KUBERNETES";

/// Starts a cluster that is removed when this process ends, in any way.
fn start_removed_on_exit(slot: Slot, options: &[&str]) -> ClusterRemover {
    let release = std::env::var(KUBERNETES_VERSION_VARIABLE);
    let release = release.map(|release| format!("--kubernetes={release}"));
    let mut child = Command::new(built_binary("ambit-cluster"))
        .arg("--target")
        .arg(target_directory())
        .arg("--sources")
        .arg(sources())
        .arg(format!("--slot={slot}"))
        .args(["up", "--hold"])
        .args(release)
        .args(options)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        // Not ended together with the tests by Ctrl-C: it must clean up then.
        .process_group(0)
        .spawn()
        .expect("ambit-cluster starts");
    let mut line = String::new();
    let output = child.stdout.take().expect("piped");
    BufReader::new(output).read_line(&mut line).unwrap();
    assert!(!line.is_empty(), "the cluster does not come up; see above");
    ClusterRemover(child)
}
