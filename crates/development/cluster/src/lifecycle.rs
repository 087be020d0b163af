//! Lifecycle of a cluster: starts and stops the whole cluster, its API server and its etcd, and reports its status.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::{
    apps::v1::Deployment,
    core::v1::{Node as NodeObject, ServiceAccount},
};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use rustix::fs::FlockOperation;
use serde_json::json;

use crate::{
    cgroups,
    cluster::Cluster,
    control_plane::{self, API_SERVER, ControlPlane, ETCD},
    images, node_config,
    nodes::{Node, NodeBoot},
    objects,
    options::{ClusterPaths, Options, Slot},
    process, programs,
};

const COREDNS_MANIFEST: &str = include_str!("coredns.yaml");
const NODE_INIT_SCRIPT: &str = include_str!("node-init.sh");

/// Timeout for any component to start on a busy machine.
const START_TIMEOUT: Duration = Duration::from_secs(120);

/// Lock that gives this process exclusive use of a slot's cluster.
#[derive(Debug)]
pub struct SlotLock {
    _lock: File,
}

impl Cluster {
    /// Starts a cluster. `sources` is the repository's `build` directory.
    pub fn up(places: ClusterPaths, slot: Slot, options: Options, sources: &Path) -> Result<Self> {
        let _lock = lock_file(&places.state)?;
        if let Some(running) = Self::find(places.clone(), slot)?
            && running.processes().pid(API_SERVER).is_some()
        {
            bail!(
                "a cluster is up already; its kubeconfig is {}",
                running.kubeconfig().display()
            );
        }
        let cluster = Self::new(places, slot, options);
        cluster.remove()?;
        let cache = &cluster.paths().cache;
        let building = lock_file(&cache.join("bin"))?;
        cluster.build_programs(sources)?;
        let own = images::write(&cluster.bin(), &cache.join("images"))?;
        drop(building);
        cluster.start(&own).inspect_err(|_| cluster.print_logs())?;
        Ok(cluster)
    }

    /// Builds all outdated programs of a cluster and of the tests on clusters. No cluster needs to run.
    ///
    /// # Errors
    ///
    /// Fails if a program does not compile.
    pub fn build_all(
        places: ClusterPaths,
        slot: Slot,
        options: Options,
        sources: &Path,
    ) -> Result<()> {
        let cluster = Self::new(places, slot, options);
        let cache = &cluster.paths().cache;
        let building = lock_file(&cache.join("bin"))?;
        cluster.build_programs(sources)?;
        drop(building);
        Self::build_conformance_tests(cluster.paths(), sources)?;
        Self::kiali(cluster.paths(), sources).map(drop)
    }

    fn build_programs(&self, sources: &Path) -> Result<()> {
        let options = self.options();
        let (kubernetes, primary_cni) = (options.kubernetes, options.primary_cni);
        programs::build_outdated(sources, kubernetes, primary_cni, &self.bin())
    }

    /// Returns the path of the Gateway API's conformance tests, built if they are outdated. No cluster needs to run.
    pub fn build_conformance_tests(places: &ClusterPaths, sources: &Path) -> Result<PathBuf> {
        let bin = places.cache.join("bin");
        // Not under the lock of the cluster's programs: a cluster may be built and started
        // meanwhile.
        let _building = lock_file(&bin.join(programs::CONFORMANCE_PROGRAM))?;
        programs::ensure_conformance(sources, &bin)
    }

    /// Returns the path of Kiali's server, built if it is outdated. No cluster needs to run.
    pub fn kiali(places: &ClusterPaths, sources: &Path) -> Result<PathBuf> {
        let bin = places.cache.join("bin");
        let _building = lock_file(&bin.join(programs::KIALI_PROGRAM))?;
        programs::ensure_kiali(sources, &bin)
    }

    fn start(&self, images: &[PathBuf]) -> Result<()> {
        let state = &self.paths().state;
        fs::create_dir_all(state)?;
        fs::write(
            state.join("cluster.json"),
            serde_json::to_vec(self.options())?,
        )?;
        fs::write(state.join("node-init.sh"), NODE_INIT_SCRIPT)?;
        crate::pki::write(&self.pki(), self.network(), self.options().nodes)?;
        self.network().make(self.options().nodes)?;
        let started = Instant::now();
        let say = |what: &str| eprintln!("    {:.1} s: {what}", started.elapsed().as_secs_f64());
        for node in self.nodes() {
            node_config::write(
                &state.join(node.name()),
                &self.bin(),
                &self.pki(),
                self.network(),
                self.options(),
                node.number,
            )?;
        }
        self.start_component(ETCD)?;
        self.start_component(API_SERVER)?;
        let runtime = runtime()?;
        runtime.block_on(self.wait_until_api_ready())?;
        say("the API server is ready");
        self.start_component(control_plane::CONTROLLER_MANAGER)?;
        self.start_component(control_plane::SCHEDULER)?;
        std::thread::scope(|scope| {
            let nodes: Vec<_> = self
                .nodes()
                .map(|node| {
                    scope.spawn(move || {
                        node.start(NodeBoot::AsConfigured)
                            .and_then(|()| node.load(images))
                    })
                })
                .collect();
            nodes.into_iter().try_for_each(|node| match node.join() {
                Ok(done) => done,
                Err(_) => bail!("starting a node panicked"),
            })
        })?;
        say("the nodes run");
        runtime.block_on(self.wait_until_ready())?;
        say("the nodes are ready");
        Ok(())
    }

    async fn wait_until_api_ready(&self) -> Result<()> {
        let client = self.client().await?;
        objects::wait_until("the API server ready", START_TIMEOUT, async || {
            let request = http_get("/readyz")?;
            Ok(client.request_text(request).await.map(drop)?)
        })
        .await
    }

    async fn wait_until_ready(&self) -> Result<()> {
        let client = self.client().await?;
        if !self.options().no_gateway_api {
            objects::apply(&client, &self.gateway_api()?).await?;
        }
        if let Some(definitions) = self.options().primary_cni.crds() {
            objects::apply(&client, &self.crds(definitions)?).await?;
        }
        let nodes: Api<NodeObject> = Api::all(client.clone());
        for node in self.nodes() {
            let ranges = self.network().node_pod_cidrs(node.number);
            let spec = json!({"spec": {"podCIDR": ranges.first(), "podCIDRs": ranges}});
            let patch = Patch::Merge(&spec);
            objects::wait_until("the node registers", START_TIMEOUT, async || {
                let parameters = PatchParams::default();
                Ok(nodes.patch(&node.name(), &parameters, &patch).await?)
            })
            .await?;
        }
        if !self.options().no_dns {
            let dns =
                COREDNS_MANIFEST.replace("$DNS", &self.network().dns_service_address().to_string());
            objects::apply(&client, &dns).await?;
        }
        for node in self.nodes() {
            self.check_node_ready(&client, node).await?;
        }
        // The API server rejects pods until the service account exists.
        let accounts: Api<ServiceAccount> = Api::default_namespaced(client.clone());
        objects::wait_until("the default service account", START_TIMEOUT, async || {
            Ok(accounts.get("default").await.map(drop)?)
        })
        .await?;
        if self.options().no_dns {
            return Ok(());
        }
        let deployments: Api<Deployment> = Api::namespaced(client, "kube-system");
        objects::wait_until("the cluster's DNS available", START_TIMEOUT, async || {
            let status = deployments.get("coredns").await?.status;
            let available = status.as_ref().and_then(|status| status.available_replicas);
            objects::error_unless(available == Some(1), format_args!("{status:?}"))
        })
        .await
    }

    async fn check_node_ready(&self, client: &Client, node: Node<'_>) -> Result<()> {
        let nodes: Api<NodeObject> = Api::all(client.clone());
        let what = format!("node {} ready", node.name());
        objects::wait_until(&what, START_TIMEOUT, async || {
            let object = nodes.get(&node.name()).await?;
            let conditions = object.status.and_then(|status| status.conditions);
            let ready = conditions
                .iter()
                .flatten()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True");
            objects::error_unless(ready, format_args!("{conditions:?}"))
        })
        .await
    }

    /// Waits until no other process holds the slot's lock, and returns the lock, which is released on drop. Without the
    /// lock, a process could use another process's cluster while it is partly removed.
    pub fn lock_slot(places: &ClusterPaths) -> Result<SlotLock> {
        Ok(SlotLock {
            _lock: lock_file(&places.state.with_extension("held"))?,
        })
    }

    /// Stops and removes everything that exists of a slot's cluster.
    pub fn down(places: ClusterPaths, slot: Slot) -> Result<()> {
        let _lock = lock_file(&places.state)?;
        let options = Self::find(places.clone(), slot)?.map(|cluster| cluster.options().clone());
        Self::new(places, slot, options.unwrap_or_default()).remove()
    }

    fn remove(&self) -> Result<()> {
        for part in self.process_names() {
            self.processes().kill(&part)?;
        }
        for namespace in self.network().namespaces()? {
            for pid in process::pids_in_namespace(&Path::new("/run/netns").join(&namespace)) {
                process::kill(pid)?;
            }
        }
        self.network().remove()?;
        cgroups::remove(&format!("{}-n", self.network().prefix()))?;
        let mut names: Vec<PathBuf> = ["pki", "run", "log", "cp", "kubectl-cache"]
            .map(PathBuf::from)
            .into();
        names.extend((1..=9).map(|number| PathBuf::from(format!("n{number}"))));
        for name in names {
            ignore_not_found(&self.paths().state.join(name), |path| {
                fs::remove_dir_all(path)
            })?;
        }
        for name in ["cluster.json", "node-init.sh"] {
            ignore_not_found(&self.paths().state.join(name), |path| fs::remove_file(path))?;
        }
        if self.paths().state != self.paths().cache {
            ignore_not_found(&self.paths().state, |path| fs::remove_dir_all(path))?;
        }
        Ok(())
    }

    /// Prints the last log lines of the components, to explain a failure.
    fn print_logs(&self) {
        for part in self.process_names() {
            let tail = self.processes().log_tail(&part);
            if !tail.is_empty() {
                eprintln!("--- {part}\n{tail}");
            }
        }
    }

    fn process_names(&self) -> impl Iterator<Item = String> {
        let nodes = (1..=9).map(|number| format!("n{number}"));
        nodes.chain(control_plane::COMPONENTS.map(str::to_owned))
    }

    /// Stops the API server; the nodes' workloads continue.
    pub fn stop_api_server(&self) -> Result<()> {
        self.processes().stop(API_SERVER, Duration::from_secs(10))
    }

    /// Starts the API server again after [`Self::stop_api_server`].
    pub fn start_api_server(&self) -> Result<()> {
        self.start_component(API_SERVER)?;
        runtime()?.block_on(self.wait_until_api_ready())
    }

    /// Copies the contents of etcd as a snapshot of this name. The API server is stopped during the copy.
    pub fn snapshot(&self, name: &str) -> Result<()> {
        self.with_etcd_stopped(|data| {
            fs::copy(data.join(ETCD).join("member/snap/db"), data.join(name))?;
            Ok(())
        })
    }

    /// Restores etcd from the snapshot of this name, as an operator does after a disaster: resource versions increase
    /// and the earlier history of changes is lost, so that all watchers must list again.
    pub fn restore(&self, name: &str) -> Result<()> {
        self.with_etcd_stopped(|data| {
            fs::remove_dir_all(data.join(ETCD))?;
            let peer = "http://127.0.0.1:2380";
            crate::command::ToolCommand::new(self.bin().join("etcd"))
                .args(["util", "restore", "--skip-hash-check", "--mark-compacted"])
                .args(["--bump-revision=1000000000", "--name=cp"])
                .arg(format!("--initial-cluster=cp={peer}"))
                .arg(format!("--initial-advertise-peer-urls={peer}"))
                .arg(format!("--data-dir={}", data.join(ETCD).display()))
                .arg(data.join(name))
                .run()
        })
    }

    fn with_etcd_stopped(&self, work: impl FnOnce(&Path) -> Result<()>) -> Result<()> {
        for part in [control_plane::CONTROLLER_MANAGER, control_plane::SCHEDULER] {
            self.processes().kill(part)?;
        }
        self.stop_api_server()?;
        self.processes().stop(ETCD, Duration::from_secs(10))?;
        work(&self.data())?;
        self.start_component(ETCD)?;
        self.start_api_server()?;
        self.start_component(control_plane::CONTROLLER_MANAGER)?;
        self.start_component(control_plane::SCHEDULER)
    }

    fn start_component(&self, part: &str) -> Result<()> {
        ensure!(self.processes().pid(part).is_none(), "{part} runs already");
        let control_plane = ControlPlane {
            bin: &self.bin(),
            pki: &self.pki(),
            data: &self.data(),
            network: self.network(),
        };
        self.processes()
            .start(part, &control_plane.component_command(part))
    }

    /// Returns the name of each component, and its PID if it runs.
    pub fn status(&self) -> Vec<(String, Option<u32>)> {
        let nodes = self.nodes().map(|node| node.name());
        control_plane::COMPONENTS
            .map(str::to_owned)
            .into_iter()
            .chain(nodes)
            .map(|part| (part.clone(), self.processes().pid(&part)))
            .collect()
    }
}

/// Locks the file `what` exclusively among processes.
fn lock_file(what: &Path) -> Result<File> {
    let mut path = what.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    fs::create_dir_all(path.parent().unwrap_or(what))?;
    let file = File::options().create(true).append(true).open(&path)?;
    let busy = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
    if busy == Err(rustix::io::Errno::WOULDBLOCK) {
        eprintln!(
            "==> waiting for another process to release {}",
            path.display()
        );
        rustix::fs::flock(&file, FlockOperation::LockExclusive)
            .with_context(|| format!("cannot lock {}", path.display()))?;
    }
    Ok(file)
}

fn ignore_not_found(path: &Path, how: impl FnOnce(&Path) -> std::io::Result<()>) -> Result<()> {
    match how(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

fn http_get(path: &str) -> Result<http::Request<Vec<u8>>> {
    Ok(http::Request::get(path).body(Vec::new())?)
}

fn runtime() -> Result<tokio::runtime::Runtime> {
    Ok(tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?)
}
