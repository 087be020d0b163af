//! Cluster for the benchmarks: start, images, removal, and the operations that scenarios share.

use std::{
    path::PathBuf,
    process::{Command, Stdio},
    time::{Duration, Instant, SystemTime},
};

use ambit_cluster::{Cluster, ClusterPaths, Node, Options, Slot, objects};
use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::{
    Api, Client,
    api::{DeleteParams, ListParams, LogParams, Patch, PatchParams, PostParams},
};
use serde_json::{Value, json};

use crate::process::Memory;

/// Timeout of operations on pods.
const TIMEOUT: Duration = Duration::from_secs(180);
/// Name of the image with the lab's tools, under which the cluster has loaded it.
const TOOLS_IMAGE: &str = "ambit/tools:dev";
/// Annotation of pods whose traffic is redirected to the node proxy.
const REDIRECTION_ANNOTATION: &str = "ambient.istio.io/redirection";
/// Label that enrols a namespace in the mesh.
pub(super) const DATAPLANE_MODE_LABEL: &str = "istio.io/dataplane-mode";
pub(super) const MESH_NAMESPACE: &str = "istio-system";

/// Running Kubernetes cluster with the mesh, on which the benchmarks run.
pub(super) struct BenchCluster {
    pub(super) client: Client,
    cluster: Cluster,
    paths: ClusterPaths,
    slot: Slot,
    /// Whether the cluster outlives the benchmarks, because it was running before they started.
    keep: bool,
    ambit: PathBuf,
}

/// Program of the mesh on a node, found by its command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Program {
    Agent,
    /// Both processes of the node proxy.
    NodeProxy,
    /// Process of the node proxy that carries the connections.
    NodeProxyWorker,
    Control,
}

impl Program {
    fn pattern(self) -> &'static str {
        match self {
            Self::Agent => "^[^ ]*ambit-agent( |$)",
            Self::NodeProxy => "^[^ ]*ambit-node-proxy( |$)",
            Self::NodeProxyWorker => "^[^ ]*ambit-node-proxy worker",
            Self::Control => "^[^ ]*ambit-control( |$)",
        }
    }
}

/// Name, node and command of a pod to create.
#[derive(Clone, Debug)]
pub(super) struct PodPlan<'a> {
    pub(super) namespace: &'a str,
    pub(super) name: &'a str,
    /// Number of the node to run on, from 1.
    pub(super) node: u8,
    /// Arguments of `ambit-lab-tool`.
    pub(super) tool_arguments: Vec<String>,
}

impl PodPlan<'_> {
    fn object(&self, restart: &str) -> Result<Pod> {
        let mut command = vec!["/usr/bin/ambit-lab-tool".to_owned()];
        command.extend(self.tool_arguments.iter().cloned());
        Ok(serde_json::from_value(json!({
            "metadata": {"name": self.name, "namespace": self.namespace, "labels": {"app": self.name}},
            "spec": {
                "nodeName": format!("n{}", self.node),
                "restartPolicy": restart,
                "terminationGracePeriodSeconds": 1,
                "automountServiceAccountToken": false,
                "containers": [{"name": "main", "image": TOOLS_IMAGE, "imagePullPolicy": "Never",
                    "command": command}],
            },
        }))?)
    }
}

/// Splits a text into arguments of `ambit-lab-tool`.
pub(super) fn split_arguments(text: &str) -> Vec<String> {
    text.split_whitespace().map(str::to_owned).collect()
}

/// Returns the time in seconds since 1970, the unit of the load tools' timestamps.
pub(super) fn unix_seconds() -> f64 {
    SystemTime::now()
        .duration_since(SystemTime::UNIX_EPOCH)
        .map_or(0.0, |since| since.as_secs_f64())
}

impl BenchCluster {
    /// Starts the cluster, or uses the running one, with the images in `archives`.
    pub(super) async fn up(archives: &[PathBuf]) -> Result<Self> {
        let program = std::env::current_exe()?;
        let target = program.ancestors().nth(2).context("no target directory")?;
        let slot = Slot::BENCHMARKS;
        let places = ClusterPaths::in_target(target, slot);
        let found = Cluster::find(places.clone(), slot)?;
        let keep = found.is_some();
        let cluster = match found {
            Some(cluster) => cluster,
            // It starts a runtime of its own.
            None => {
                let places = places.clone();
                // `cargo xtask` starts this at the root of the repository.
                let sources = std::env::current_dir()?.join("build");
                let up = move || Cluster::up(places, slot, Options::default(), &sources);
                ambit_rt::spawn_blocking("cluster up", up).await??
            }
        };
        cluster.load(archives)?;
        Ok(Self {
            client: cluster.client().await?,
            cluster,
            paths: places,
            slot,
            keep,
            ambit: program.with_file_name("ambit"),
        })
    }

    /// Removes the cluster, if this value started it.
    pub(super) fn down(self) -> Result<()> {
        if self.keep {
            return Ok(());
        }
        Cluster::down(self.paths, self.slot)
    }

    pub(super) fn node(&self, number: u8) -> Node<'_> {
        self.cluster.node(number)
    }

    /// Runs `ambit` against this cluster.
    pub(super) fn ambit(&self, arguments: &str) -> Result<()> {
        let output = Command::new(&self.ambit)
            .args(arguments.split_whitespace())
            .env("KUBECONFIG", self.cluster.kubeconfig())
            .stdin(Stdio::null())
            .output()?;
        ensure!(
            output.status.success(),
            "ambit {arguments}: {}{}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    // === namespaces ===

    /// Creates a namespace inside or outside the mesh, replacing an old one of that name.
    pub(super) async fn namespace(&self, name: &str, in_mesh: bool) -> Result<()> {
        self.remove_namespace(name).await?;
        let mode = if in_mesh { "ambient" } else { "none" };
        let namespace = serde_json::from_value(json!({
            "metadata": {"name": name, "labels": {DATAPLANE_MODE_LABEL: mode}},
        }))?;
        let api: Api<Namespace> = Api::all(self.client.clone());
        api.create(&PostParams::default(), &namespace).await?;
        // Pods are forbidden before.
        let accounts: Api<k8s_openapi::api::core::v1::ServiceAccount> =
            Api::namespaced(self.client.clone(), name);
        objects::wait_until("the default service account", TIMEOUT, async || {
            Ok(accounts.get("default").await.map(drop)?)
        })
        .await
    }

    pub(super) async fn remove_namespace(&self, name: &str) -> Result<()> {
        let api: Api<Namespace> = Api::all(self.client.clone());
        if api.get_opt(name).await?.is_none() {
            return Ok(());
        }
        api.delete(name, &DeleteParams::default()).await?;
        objects::wait_until(&format!("{name} is gone"), TIMEOUT, async || {
            objects::error_unless(api.get_opt(name).await?.is_none(), "it is there")
        })
        .await
    }

    /// Enrols or unenrols a namespace by its label; returns the Unix time just before the change, in seconds.
    pub(super) async fn label(&self, name: &str, in_mesh: bool) -> Result<f64> {
        let mode = if in_mesh {
            json!("ambient")
        } else {
            Value::Null
        };
        let patch = json!({"metadata": {"labels": {DATAPLANE_MODE_LABEL: mode}}});
        let api: Api<Namespace> = Api::all(self.client.clone());
        let before = unix_seconds();
        api.patch(name, &PatchParams::default(), &Patch::Merge(&patch))
            .await?;
        Ok(before)
    }

    // === pods ===

    pub(super) fn pods(&self, namespace: &str) -> Api<Pod> {
        Api::namespaced(self.client.clone(), namespace)
    }

    /// Creates a pod, and returns the Unix time just before its creation, in seconds.
    pub(super) async fn create(&self, plan: &PodPlan<'_>) -> Result<f64> {
        self.create_object(plan, "Never").await
    }

    /// Creates a pod whose container restarts whenever it ends, and returns the Unix time just before its creation, in
    /// seconds.
    pub(super) async fn create_restarting(&self, plan: &PodPlan<'_>) -> Result<f64> {
        self.create_object(plan, "Always").await
    }

    async fn create_object(&self, plan: &PodPlan<'_>, restart: &str) -> Result<f64> {
        let object = plan.object(restart)?;
        let before = unix_seconds();
        self.pods(plan.namespace)
            .create(&PostParams::default(), &object)
            .await
            .with_context(|| format!("pod {}/{}", plan.namespace, plan.name))?;
        Ok(before)
    }

    /// Waits until a pod runs, and returns its address.
    pub(super) async fn wait_until_running(&self, namespace: &str, name: &str) -> Result<String> {
        let what = format!("{namespace}/{name} runs");
        objects::wait_until(&what, TIMEOUT, async || {
            let pod = self.pods(namespace).get(name).await?;
            let status = pod.status.unwrap_or_default();
            let phase = status.phase.unwrap_or_default();
            objects::error_unless(phase == "Running" || phase == "Succeeded", &phase)?;
            status.pod_ip.context("no address")
        })
        .await
    }

    /// Creates a server with HTTP on port 8080 and an echo on port 9090; returns its address.
    pub(super) async fn server(&self, namespace: &str, name: &str, node: u8) -> Result<String> {
        let tool = split_arguments("serve --port 8080 --echo 9090 --quiet");
        let plan = PodPlan {
            namespace,
            name,
            node,
            tool_arguments: tool,
        };
        self.create(&plan).await?;
        self.wait_until_running(namespace, name).await
    }

    /// Returns the log of a pod.
    pub(super) async fn log(&self, namespace: &str, name: &str) -> Result<String> {
        let pods = self.pods(namespace);
        Ok(pods.logs(name, &LogParams::default()).await?)
    }

    /// Waits for a line that contains `part` in a pod's log, and returns it.
    pub(super) async fn wait_for_log_line(
        &self,
        namespace: &str,
        name: &str,
        part: &str,
    ) -> Result<String> {
        let what = format!("{namespace}/{name} says {part:?}");
        objects::wait_until(&what, TIMEOUT, async || {
            let log = self.log(namespace, name).await?;
            let line = log.lines().find(|line| line.contains(part));
            Ok(line.context("not yet")?.to_owned())
        })
        .await
    }

    /// Deletes a pod, and waits until it is gone.
    pub(super) async fn remove(&self, namespace: &str, name: &str) -> Result<()> {
        let api = self.pods(namespace);
        api.delete(name, &DeleteParams::default().grace_period(0))
            .await?;
        objects::wait_until(&format!("{name} is gone"), TIMEOUT, async || {
            objects::error_unless(api.get_opt(name).await?.is_none(), "it is there")
        })
        .await
    }

    /// Waits until all pods of a namespace are annotated as captured (`captured`), or until none is.
    pub(super) async fn wait_until_captured(&self, namespace: &str, captured: bool) -> Result<()> {
        let what = format!("captured: {captured} for all of {namespace}");
        objects::wait_until(&what, TIMEOUT, async || {
            let pods = self.pods(namespace).list(&ListParams::default()).await?;
            let matching = pods.iter().filter(|pod| is_captured(pod) == captured);
            objects::error_unless(matching.count() == pods.items.len(), "not all of them yet")
        })
        .await
    }

    /// Waits until a rollout of a DaemonSet or Deployment is complete.
    pub(super) async fn wait_until_rolled_out(&self, kind: &str, name: &str) -> Result<()> {
        let mut kubectl = self.cluster.kubectl();
        let output = kubectl
            .args(["rollout", "status", "--namespace", MESH_NAMESPACE])
            .arg(format!("{kind}/{name}"))
            .arg(format!("--timeout={}s", TIMEOUT.as_secs()))
            .output()?;
        ensure!(
            output.status.success(),
            "{kind}/{name}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    /// Runs `kubectl` with these arguments.
    pub(super) fn kubectl(&self, arguments: &str) -> Result<()> {
        let output = self
            .cluster
            .kubectl()
            .args(arguments.split_whitespace())
            .output()?;
        ensure!(
            output.status.success(),
            "kubectl {arguments}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        Ok(())
    }

    pub(super) async fn apply(&self, yaml: &str) -> Result<()> {
        objects::apply(&self.client, yaml).await
    }

    pub(super) async fn delete(&self, yaml: &str) -> Result<()> {
        objects::delete(&self.client, yaml).await
    }

    // === processes of a node ===

    /// Returns the IDs, in the node's PID namespace, of a program's processes.
    pub(super) fn pids(&self, node: u8, program: Program) -> Result<Vec<u32>> {
        let mut pgrep = self.node(node).command("pgrep")?;
        let output = pgrep.arg("-f").arg(program.pattern()).output()?;
        let text = String::from_utf8(output.stdout)?;
        Ok(text
            .split_whitespace()
            .filter_map(|pid| pid.parse().ok())
            .collect())
    }

    /// Kills a program's processes on a node; returns their number.
    pub(super) fn kill(&self, node: u8, program: Program) -> Result<usize> {
        let pids = self.pids(node, program)?;
        if !pids.is_empty() {
            let mut kill = self.node(node).command("kill")?;
            kill.arg("-9").args(pids.iter().map(ToString::to_string));
            // One that has just ended by itself counts too.
            kill.stderr(Stdio::null()).status()?;
        }
        Ok(pids.len())
    }

    /// Returns the memory of a program's processes on a node.
    pub(super) fn memory(&self, node: u8, program: Program) -> Result<Memory> {
        let mut sum = Memory::default();
        for pid in self.pids(node, program)? {
            let path = format!("/proc/{pid}/smaps_rollup");
            let output = self.node(node).command("cat")?.arg(path).output()?;
            sum = sum.plus(Memory::from_rollup(&String::from_utf8(output.stdout)?));
        }
        if sum == Memory::default() {
            bail!("no {program:?} runs on n{node}");
        }
        Ok(sum)
    }

    /// Captures packets on a node's outer interface that match a filter, until the returned value is dropped.
    pub(super) fn capture_packets(
        &self,
        node: u8,
        filter: &str,
    ) -> Result<super::packet_capture::PacketCapture> {
        let mut tcpdump = self.node(node).command("tcpdump")?;
        tcpdump.args(["-i", "eth0", "-nn", "-tt", "-l", "-q", filter]);
        super::packet_capture::PacketCapture::start(tcpdump)
    }
}

pub(super) fn is_captured(pod: &Pod) -> bool {
    pod.metadata
        .annotations
        .as_ref()
        .and_then(|annotations| annotations.get(REDIRECTION_ANNOTATION))
        .is_some_and(|value| value == "enabled")
}

/// Waits in real time, while the measurement continues.
pub(super) async fn pause(seconds: f64) {
    tokio::time::sleep(Duration::from_secs_f64(seconds)).await;
}

/// Runs an operation, and returns its result and duration in seconds.
pub(super) async fn timed<T>(work: impl Future<Output = Result<T>>) -> Result<(T, f64)> {
    let start = Instant::now();
    let value = work.await?;
    Ok((value, start.elapsed().as_secs_f64()))
}
