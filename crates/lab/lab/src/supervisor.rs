//! Supervisor of a lab: builds the network, starts the mesh, and executes the effects of [`crate::cluster`] until it is
//! terminated.

use std::{
    collections::{BTreeMap, HashMap},
    fs, io,
    io::Write as _,
    path::Path,
    sync::Arc,
    time::Duration,
};

use ambit_k8s_api::ObjectKey;
use ambit_manifests::{ManifestChange, ManifestDirs, OpenError};
use ambit_rt::{ErrorChain, logging::LogFormat};
use serde_json::Value;
use tokio::sync::{mpsc, watch};

use crate::{
    Options, PrimaryCni,
    addresses::AddressPlan,
    announcement::{READY_LINE, hand_over_stdout},
    cluster::{
        Cluster, ClusterEffect, ClusterEvent, NodeInfo, PodObservation, PodPlan, ServiceView,
    },
    cni::PluginList,
    cni_plugin::PLUGIN_NAME,
    dns::{self, Zone},
    fabric::{self, Node},
    lab_state::LabState,
    layout::Layout,
    mesh,
    pods::PodRunner,
    server, services,
    tokens::TokenIssuer,
};

/// Maximum size in bytes of the log of a container, or of a process of the mesh; [`LOG_CHECK_INTERVAL`] is the interval
/// of checks.
const MAX_LOG_BYTES: u64 = 32 << 20;
const LOG_CHECK_INTERVAL: Duration = Duration::from_secs(10);

/// Reason why the supervisor ended, or could not start, the lab.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SupervisorError {
    #[error("{0}")]
    Network(String),
    #[error(transparent)]
    Manifests(#[from] OpenError),
    #[error("cannot {what}: {source}")]
    Io {
        what: &'static str,
        #[source]
        source: io::Error,
    },
}

fn io_error(what: &'static str) -> impl FnOnce(io::Error) -> SupervisorError {
    move |source| SupervisorError::Io { what, source }
}

/// Runs the supervisor until the lab is shut down.
pub(crate) fn run(layout: Layout, options: Options) -> Result<(), SupervisorError> {
    let env = ambit_rt::Env::from_process();
    let filter = env.text("AMBIT_LAB_LOG", "info");
    // Standard error is the lab's log; standard output is where `up` waits for one word.
    let logging = ambit_rt::logging::init_with(LogFormat::Text, &filter, io::stderr());
    let _handle = logging.map_err(|error| io_error("log")(io::Error::other(error)))?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .map_err(io_error("start the runtime"))?;
    let result = runtime.block_on(supervise(layout, options));
    // Every other process of the lab ends with its first one, which ends with this.
    runtime.shutdown_background();
    result
}

async fn supervise(layout: Layout, options: Options) -> Result<(), SupervisorError> {
    let plan = AddressPlan {
        family: options.ip_family,
    };
    prepare_directories(&layout, &options.ambit)?;
    let built = fabric::build(plan, &options, &layout).await;
    let built = built.map_err(|error| SupervisorError::Network(ErrorChain(&error).to_string()))?;
    let nodes: Vec<_> = built.nodes.into_iter().map(Arc::new).collect();
    let board = Arc::new(LabState::new(
        layout,
        options,
        built.root.netns().clone(),
        built.control.netns().clone(),
        nodes.clone(),
    ));
    let (zone, zones) = watch::channel(Arc::new(Zone::default()));
    let plugins = prepare_nodes(&board, plan, &zones)?;
    let mut manifests = ManifestDirs::open(vec![board.options.manifests.clone()])?;
    let (down, mut ended) = mpsc::channel(1);
    let (events, mut happened) = mpsc::channel(64);
    let control: Vec<_> = plan
        .control_plane_addresses()
        .iter()
        .map(ipnet::IpNet::addr)
        .collect();
    let waypoints = mesh::waypoint_settings(&board, &control);
    let tokens = TokenIssuer::new().map_err(io_error("make a key for tokens"))?;
    let infos = nodes.iter().map(|node| NodeInfo {
        name: node.name.clone(),
        ips: node.ips.clone(),
    });
    // The whole first state is written before anything reads it.
    let mesh_objects = if board.options.mesh {
        write_mesh_objects(&board, &nodes)?
    } else {
        BTreeMap::new()
    };
    let mut supervisor = Supervisor {
        cluster: Cluster::new(plan, infos.collect(), waypoints, Box::new(new_uid)),
        mesh_objects,
        stop_senders: HashMap::new(),
        service_nodes: nodes
            .iter()
            .map(|node| ServiceNode {
                node: node.clone(),
                direct: direct_pod_networks(&board.options, plan, node),
                is_failing: false,
            })
            .collect(),
        board: board.clone(),
        plugins,
        tokens: Arc::new(tokens),
        zone,
        events,
        problems: Vec::new(),
    };
    let first = manifests.next_change().await;
    let effects = first
        .map(|change| supervisor.apply_manifest_change(change))
        .unwrap_or_default();
    let (objects, rest): (Vec<_>, Vec<_>) = effects
        .into_iter()
        .partition(|effect| matches!(effect, ClusterEffect::WriteObject(..)));
    supervisor.apply_effects(objects).await;
    if board.options.mesh {
        mesh::start(&board, control, supervisor.tokens.clone())
            .await
            .map_err(io_error("start the mesh"))?;
    }
    drop(ambit_rt::spawn(
        "logs",
        truncate_large_logs(board.layout.logs()),
    ));
    server::serve(board.clone(), down).map_err(io_error("open the control socket"))?;
    supervisor.apply_effects(rest).await;
    announce_readiness()?;
    loop {
        let (mut effects, mut seen) = (Vec::new(), Vec::new());
        tokio::select! {
            Some(change) = manifests.next_change() => effects = supervisor.apply_manifest_change(change),
            Some(event) = happened.recv() => seen.push(event),
            _ = ended.recv() => return Ok(()),
        };
        // Further events that have arrived meanwhile are handled together.
        while let Ok(event) = happened.try_recv() {
            seen.push(event);
        }
        let observed = pod_observations(&seen);
        for event in seen {
            effects.extend(supervisor.apply_event(event));
        }
        supervisor.apply_effects(effects).await;
        // Reported only now: a pod that is seen as ready is also an endpoint of its services.
        for (uid, observed) in observed {
            board.set_pod_observation(&uid, &observed);
        }
    }
}

/// Creates the lab's directories, and installs `ambit` as its CNI plugin.
fn prepare_directories(layout: &Layout, ambit: &Path) -> Result<(), SupervisorError> {
    for dir in [
        layout.live(),
        layout.status(),
        layout.logs(),
        layout.cni_bin(),
    ] {
        fs::create_dir_all(dir).map_err(io_error("make the lab's directories"))?;
    }
    std::os::unix::fs::symlink(ambit, layout.cni_bin().join(PLUGIN_NAME))
        .map_err(io_error("install the lab's plugin"))
}

/// Writes the objects of the mesh, which do not depend on manifests, to the live directory, and returns them.
fn write_mesh_objects(
    board: &LabState,
    nodes: &[Arc<Node>],
) -> Result<BTreeMap<ObjectKey, Value>, SupervisorError> {
    let objects = mesh::proxy_pod_objects(nodes, &board.options);
    for (key, value) in &objects {
        write_object(&board.layout.live(), key, value).map_err(io_error("write an object"))?;
    }
    Ok(objects)
}

/// Starts DNS on every node, and writes and returns its list of CNI plugins.
fn prepare_nodes(
    board: &LabState,
    plan: AddressPlan,
    zones: &watch::Receiver<Arc<Zone>>,
) -> Result<HashMap<String, Arc<PluginList>>, SupervisorError> {
    let mut plugins = HashMap::new();
    for node in &board.nodes {
        fs::create_dir_all(&node.dir).map_err(io_error("make a node's directory"))?;
        dns::serve(node, zones).map_err(io_error("serve DNS on a node"))?;
        let list = PluginList::new(node, plan, &board.options, &board.layout.cni_bin());
        let text = serde_json::to_vec_pretty(&list.to_json()).map_err(io::Error::from);
        text.and_then(|text| fs::write(node.dir.join("10-lab.conflist"), text))
            .map_err(io_error("write a node's plugin list"))?;
        plugins.insert(node.name.clone(), Arc::new(list));
    }
    Ok(plugins)
}

fn pod_observations(events: &[ClusterEvent]) -> Vec<(String, PodObservation)> {
    let observed = |event: &ClusterEvent| match event {
        ClusterEvent::PodObserved { uid, observed } => Some((uid.clone(), observed.clone())),
        _ => None,
    };
    events.iter().filter_map(observed).collect()
}

/// Truncates logs that exceed [`MAX_LOG_BYTES`], checking at intervals: the log files are in memory.
async fn truncate_large_logs(dir: std::path::PathBuf) {
    loop {
        tokio::time::sleep(LOG_CHECK_INTERVAL).await;
        for entry in fs::read_dir(&dir)
            .into_iter()
            .flatten()
            .filter_map(Result::ok)
        {
            if entry
                .metadata()
                .is_ok_and(|meta| meta.len() > MAX_LOG_BYTES)
            {
                // Writers append, so they continue at the new end.
                let file = fs::File::options().write(true).open(entry.path());
                if let Err(error) = file.and_then(|file| file.set_len(0)) {
                    tracing::warn!(path = %entry.path().display(), %error, "cannot cut a log");
                }
            }
        }
    }
}

fn announce_readiness() -> Result<(), SupervisorError> {
    let mut stdout = io::stdout().lock();
    let announced = writeln!(stdout, "{}", READY_LINE).and_then(|()| stdout.flush());
    announced.map_err(io_error("say that the lab is ready"))?;
    hand_over_stdout().map_err(io_error("close the standard output"))
}

struct Supervisor {
    board: Arc<LabState>,
    cluster: Cluster,
    /// Objects of the mesh itself, which the lab writes to the live directory independently of manifests.
    mesh_objects: BTreeMap<ObjectKey, Value>,
    plugins: HashMap<String, Arc<PluginList>>,
    tokens: Arc<TokenIssuer>,
    stop_senders: HashMap<String, watch::Sender<bool>>,
    service_nodes: Vec<ServiceNode>,
    zone: watch::Sender<Arc<Zone>>,
    events: mpsc::Sender<ClusterEvent>,
    problems: Vec<String>,
}

impl Supervisor {
    fn apply_manifest_change(&mut self, change: ManifestChange) -> Vec<ClusterEffect> {
        self.problems = change.problems.iter().map(ToString::to_string).collect();
        self.apply_event(ClusterEvent::ManifestsChanged(change.events))
    }

    fn apply_event(&mut self, event: ClusterEvent) -> Vec<ClusterEffect> {
        if let ClusterEvent::PodGone { uid } = &event {
            self.stop_senders.remove(uid);
        }
        let effects = self.cluster.apply(event);
        let mut problems = self.problems.clone();
        problems.extend(self.cluster.problems());
        let cluster = &self.cluster;
        self.board
            .set_cluster_state(problems, cluster.gateways(), cluster.objects());
        effects
    }

    async fn apply_effects(&mut self, effects: Vec<ClusterEffect>) {
        let mut services = None;
        for effect in effects {
            match effect {
                ClusterEffect::WriteObject(key, value) => self.write_live_object(&key, &value),
                ClusterEffect::RemoveAddedFields(key) => {
                    let path = object_path(&self.board.layout.live(), &key);
                    match self.mesh_objects.get(&key) {
                        Some(object) => self.write_live_object(&key, object),
                        None => drop(fs::remove_file(path)),
                    }
                }
                ClusterEffect::StartPod(plan) => self.start_pod(plan),
                ClusterEffect::StopPod { uid } => {
                    self.board.mark_pod_terminating(&uid);
                    if let Some(stop) = self.stop_senders.get(&uid) {
                        stop.send_replace(true);
                    }
                }
                // Only the last state counts.
                ClusterEffect::PublishServices(views) => services = Some(views),
            }
        }
        if let Some(views) = services {
            self.zone.send_replace(Arc::new(Zone::new(&views)));
            for node in &mut self.service_nodes {
                node.load(&views).await;
            }
        }
    }

    fn write_live_object(&self, key: &ObjectKey, value: &Value) {
        if let Err(error) = write_object(&self.board.layout.live(), key, value) {
            tracing::error!(%key, %error, "cannot write an object");
        }
    }

    fn start_pod(&mut self, plan: PodPlan) {
        self.board.add_pod(plan.clone());
        let node = self.board.node(&plan.node).cloned();
        let (Ok(node), Some(plugins)) = (node, self.plugins.get(&plan.node)) else {
            tracing::error!(
                pod = plan.full_name(),
                node = plan.node,
                "there is no such node"
            );
            return;
        };
        let (stop, stopped) = watch::channel(false);
        self.stop_senders.insert(plan.uid.clone(), stop);
        let runner = PodRunner {
            board: self.board.clone(),
            node,
            plugins: plugins.clone(),
            tokens: self.tokens.clone(),
            plan,
            events: self.events.clone(),
        };
        drop(ambit_rt::spawn("pod", runner.run(stopped)));
    }
}

/// Returns the networks in which pods of a node reach each other without passing through the node.
fn direct_pod_networks(options: &Options, plan: AddressPlan, node: &Node) -> Vec<ipnet::IpNet> {
    match options.primary_cni {
        PrimaryCni::Bridge | PrimaryCni::Macvlan => plan.pod_networks(node.number),
        PrimaryCni::Lab | PrimaryCni::Ptp => Vec::new(),
    }
}

/// One node's translation of service addresses, as last loaded into nftables.
struct ServiceNode {
    node: Arc<Node>,
    direct: Vec<ipnet::IpNet>,
    is_failing: bool,
}

impl ServiceNode {
    async fn load(&mut self, views: &[ServiceView]) {
        let loaded = services::load(
            &self.node,
            &services::render_nft_script(views, &self.direct),
        )
        .await;
        if let Err(error) = &loaded
            && !self.is_failing
        {
            tracing::warn!(node = self.node.name, %error,
                "pods outside the mesh cannot use service addresses (is nft installed?)");
        }
        self.is_failing = loaded.is_err();
    }
}

fn object_path(dir: &Path, key: &ObjectKey) -> std::path::PathBuf {
    dir.join(format!("{}.{}.{}.json", key.kind, key.namespace, key.name))
}

/// Writes an object's file atomically: readers see the old object or the new one.
fn write_object(dir: &Path, key: &ObjectKey, value: &Value) -> io::Result<()> {
    let path = object_path(dir, key);
    let fresh = path.with_extension("new");
    fs::write(&fresh, serde_json::to_vec(value)?)?;
    fs::rename(fresh, path)
}

fn new_uid() -> String {
    // The kernel makes them; without /proc, any id that is unique in this lab.
    let text = fs::read_to_string("/proc/sys/kernel/random/uuid");
    text.map_or_else(
        |_| format!("{:?}", std::time::Instant::now()),
        |text| text.trim().to_owned(),
    )
}
