//! Shared state of a running lab: the supervisor's tasks write it, the control socket's threads read it.

use std::{collections::BTreeMap, net::IpAddr, path::PathBuf, sync::Arc};

use ambit_k8s_api::labels;
use ambit_netlab::Netns;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{mpsc, oneshot};

use crate::{
    LabNetns, Options, cgroups,
    cluster::{PodObservation, PodPlan},
    fabric::Node,
    layout::Layout,
    protocol::{ContainerStatus, DaemonStatus, NodeStatus, PodStatus, Replacement, Status},
    shim::Shim,
};

/// Shared state of a running lab. Its lock is held only briefly.
#[derive(Debug)]
pub(crate) struct LabState {
    pub(crate) layout: Layout,
    pub(crate) options: Options,
    pub(crate) fabric: Netns,
    pub(crate) control: Netns,
    pub(crate) nodes: Vec<Arc<Node>>,
    inner: Mutex<Inner>,
}

#[derive(Debug, Default)]
struct Inner {
    pods: BTreeMap<String, PodEntry>,
    daemons: Vec<DaemonStatus>,
    replacement_channels: Vec<(String, Option<String>, mpsc::Sender<ReplaceCommand>)>,
    problems: Vec<String>,
    gateways: Vec<Value>,
    objects: Vec<Value>,
}

/// Request to a daemon's task to replace its process by a second one.
#[derive(Debug)]
pub(crate) struct ReplaceCommand {
    pub(crate) order: Replacement,
    pub(crate) result: oneshot::Sender<Result<(), String>>,
}

/// Pod in which a process is to be started, with its node and namespace.
pub(crate) struct PodTarget {
    pub(crate) node: Arc<Node>,
    pub(crate) plan: PodPlan,
    pub(crate) netns: Netns,
    pub(crate) ips: Vec<IpAddr>,
    /// Name of the container in which the process is to be started.
    pub(crate) container: String,
}

/// State of one pod of the lab.
#[derive(Debug)]
struct PodEntry {
    plan: PodPlan,
    observed: PodObservation,
    terminating: bool,
    netns: Option<Netns>,
}

impl LabState {
    pub(crate) fn new(
        layout: Layout,
        options: Options,
        fabric: Netns,
        control: Netns,
        nodes: Vec<Arc<Node>>,
    ) -> Self {
        Self {
            layout,
            options,
            fabric,
            control,
            nodes,
            inner: Mutex::default(),
        }
    }

    pub(crate) fn add_pod(&self, plan: PodPlan) {
        let entry = PodEntry {
            observed: PodObservation::default(),
            terminating: false,
            netns: None,
            plan,
        };
        self.inner.lock().pods.insert(entry.plan.uid.clone(), entry);
    }

    pub(crate) fn set_pod_netns(&self, uid: &str, netns: Option<Netns>) {
        if let Some(entry) = self.inner.lock().pods.get_mut(uid) {
            entry.netns = netns;
        }
    }

    pub(crate) fn set_pod_observation(&self, uid: &str, observed: &PodObservation) {
        if let Some(entry) = self.inner.lock().pods.get_mut(uid) {
            entry.observed = observed.clone();
        }
    }

    pub(crate) fn mark_pod_terminating(&self, uid: &str) {
        if let Some(entry) = self.inner.lock().pods.get_mut(uid) {
            entry.terminating = true;
        }
    }

    pub(crate) fn remove_pod(&self, uid: &str) {
        self.inner.lock().pods.remove(uid);
    }

    pub(crate) fn set_daemon_status(&self, status: DaemonStatus) {
        let mut inner = self.inner.lock();
        let same =
            |known: &&mut DaemonStatus| known.name == status.name && known.node == status.node;
        match inner.daemons.iter_mut().find(same) {
            Some(known) => *known = status,
            None => inner.daemons.push(status),
        }
    }

    /// Registers the channel for requests to replace a daemon's process.
    pub(crate) fn register_replaceable_daemon(
        &self,
        name: &str,
        node: Option<&str>,
        replace: mpsc::Sender<ReplaceCommand>,
    ) {
        let (name, node) = (name.to_owned(), node.map(ToOwned::to_owned));
        self.inner
            .lock()
            .replacement_channels
            .push((name, node, replace));
    }

    /// Returns the channel for requests to replace a daemon's process; `None` if it cannot be replaced.
    pub(crate) fn replacement_channel(
        &self,
        name: &str,
        node: Option<&str>,
    ) -> Option<mpsc::Sender<ReplaceCommand>> {
        let inner = self.inner.lock();
        let mut known = inner.replacement_channels.iter();
        known
            .find(|(of, at, _)| of == name && at.as_deref() == node)
            .map(|(_, _, replace)| replace.clone())
    }

    /// Stores the current problems of manifests, the Gateways, and the objects that determine to which workloads
    /// policies apply.
    pub(crate) fn set_cluster_state(
        &self,
        problems: Vec<String>,
        gateways: Vec<Value>,
        objects: Vec<Value>,
    ) {
        let mut inner = self.inner.lock();
        (inner.problems, inner.gateways, inner.objects) = (problems, gateways, objects);
    }

    /// Returns the objects that determine to which workloads policies apply, with the agents' annotations on pods.
    pub(crate) fn objects(&self) -> Vec<Value> {
        let inner = self.inner.lock();
        let mut objects = inner.objects.clone();
        let directory = self.layout.status();
        let captured = inner.pods.values().map(|entry| &entry.plan);
        for plan in captured.filter(|plan| is_captured(&directory, plan)) {
            let is_it = |object: &&mut Value| {
                let text = |place: &str| object.pointer(place).and_then(Value::as_str);
                text("/kind") == Some("Pod")
                    && text("/metadata/namespace") == Some(plan.namespace())
                    && text("/metadata/name") == Some(plan.name())
            };
            if let Some(pod) = objects.iter_mut().find(is_it) {
                let annotations =
                    serde_json::json!({labels::REDIRECTION: labels::REDIRECTION_ENABLED});
                json_patch::merge(
                    pod,
                    &serde_json::json!({"metadata": {"annotations": annotations}}),
                );
            }
        }
        objects
    }

    pub(crate) fn daemons(&self) -> Vec<DaemonStatus> {
        self.inner.lock().daemons.clone()
    }

    /// Returns the status of the lab, with the captured pods from the agents' annotation files.
    pub(crate) fn status(&self) -> Status {
        let inner = self.inner.lock();
        let nodes = self.nodes.iter().map(|node| NodeStatus {
            name: node.name.clone(),
            ips: node.ips.clone(),
        });
        Status {
            name: self.options.name.clone(),
            manifests: self.options.manifests.display().to_string(),
            mesh: self.options.mesh,
            nodes: nodes.collect(),
            pods: inner
                .pods
                .values()
                .map(|entry| entry.status(&self.layout.status()))
                .collect(),
            daemons: inner.daemons.clone(),
            problems: inner.problems.clone(),
            gateways: inner.gateways.clone(),
        }
    }

    /// Returns the handle of a network namespace of the lab.
    pub(crate) fn netns(&self, place: &LabNetns) -> Result<Netns, String> {
        match place {
            LabNetns::Fabric => Ok(self.fabric.clone()),
            LabNetns::Control => Ok(self.control.clone()),
            LabNetns::Node(name) => self.node(name).map(|node| node.host.netns().clone()),
            LabNetns::Pod(name) => {
                let inner = self.inner.lock();
                inner.find(name)?.netns()
            }
        }
    }

    pub(crate) fn node(&self, name: &str) -> Result<&Arc<Node>, String> {
        self.nodes
            .iter()
            .find(|node| node.name == name)
            .ok_or_else(|| format!("there is no node {name:?}"))
    }

    /// Finds a pod for a new process by `name`: `namespace/name`, the pod's name alone, a prefix of one of these (so
    /// that a Deployment's name finds one of its pods), or `deploy/NAME`.
    pub(crate) fn find_pod_target(
        &self,
        name: &str,
        container: Option<&str>,
    ) -> Result<PodTarget, String> {
        let inner = self.inner.lock();
        let entry = inner.find(name)?;
        Ok(PodTarget {
            node: self.node(&entry.plan.node)?.clone(),
            plan: entry.plan.clone(),
            netns: entry.netns()?,
            ips: entry.observed.ips.clone(),
            container: entry.container(container)?,
        })
    }

    /// Returns the path of a container's log file.
    pub(crate) fn container_log(
        &self,
        name: &str,
        container: Option<&str>,
    ) -> Result<PathBuf, String> {
        let inner = self.inner.lock();
        let entry = inner.find(name)?;
        Ok(self
            .layout
            .container_log(&entry.plan.uid, &entry.container(container)?))
    }

    /// Returns the shim for processes of a pod, with its mounts and host name.
    pub(crate) fn pod_shim(&self, plan: &PodPlan) -> Shim {
        let dir = self.layout.pod(&plan.uid);
        Shim {
            hostname: plan.hostname(),
            binds: etc_bind_mounts(&dir),
            working_dir: None,
            cgroup: self.cgroup_of(plan),
            socket: None,
            command: Vec::new(),
        }
    }

    /// Creates the pod's cgroup, if the lab has any and the pod a network of its own, and returns its directory.
    pub(crate) fn cgroup_of(&self, plan: &PodPlan) -> Option<PathBuf> {
        let lab = cgroups::of_lab(&self.layout, &self.options)?;
        if plan.is_host_network() {
            return None;
        }
        match cgroups::create(&lab, &plan.uid) {
            Ok(cgroup) => Some(cgroup),
            Err(error) => {
                tracing::warn!(pod = plan.full_name(), %error, "the pod has no cgroup of its own");
                None
            }
        }
    }
}

/// Returns the bind mounts of `dir`'s `resolv.conf` and `hosts` over those of `/etc`.
pub(crate) fn etc_bind_mounts(dir: &std::path::Path) -> Vec<(PathBuf, PathBuf)> {
    ["resolv.conf", "hosts"]
        .map(|file| (dir.join(file), PathBuf::from("/etc").join(file)))
        .to_vec()
}

impl Inner {
    fn find(&self, name: &str) -> Result<&PodEntry, String> {
        let requested = name.strip_prefix("pod/").unwrap_or(name);
        let requested = requested.replacen("deploy/", "", 1);
        let (namespace, requested) = match requested.split_once('/') {
            Some((namespace, requested)) => (Some(namespace), requested),
            None => (None, requested.as_str()),
        };
        let all: Vec<_> = self
            .pods
            .values()
            .filter(|entry| namespace.is_none_or(|namespace| entry.plan.namespace() == namespace))
            .collect();
        if let Some(exact) = all.iter().find(|entry| entry.plan.name() == requested) {
            return Ok(exact);
        }
        let mut found: Vec<_> = all
            .iter()
            .filter(|entry| !entry.terminating)
            .filter(|entry| {
                let rest = entry.plan.name().strip_prefix(requested);
                rest.is_some_and(|rest| rest.starts_with('-'))
            })
            .collect();
        found.sort_by_key(|entry| entry.plan.name().to_owned());
        // Any pod of one Deployment is acceptable; pods of different owners would be a guess.
        let owner = |entry: &PodEntry| entry.plan.owner().map(ToOwned::to_owned);
        match found.as_slice() {
            [] => Err(format!(
                "there is no pod {name:?}; `ambit lab status` lists them"
            )),
            [first, rest @ ..] if rest.iter().all(|other| owner(other) == owner(first)) => {
                Ok(first)
            }
            several => {
                let names: Vec<_> = several.iter().map(|entry| entry.plan.full_name()).collect();
                Err(format!("{name:?} could be any of {}", names.join(", ")))
            }
        }
    }
}

impl PodEntry {
    fn netns(&self) -> Result<Netns, String> {
        self.netns.clone().ok_or_else(|| {
            let why = self.observed.message.as_deref().unwrap_or("it is starting");
            format!("pod {} has no network yet: {why}", self.plan.full_name())
        })
    }

    fn container(&self, requested: Option<&str>) -> Result<String, String> {
        let containers = self.plan.container_names();
        match (requested, containers.as_slice()) {
            (None, [first, ..]) => Ok(first.clone()),
            (Some(requested), all) if all.iter().any(|name| name == requested) => {
                Ok(requested.to_owned())
            }
            (requested, all) => Err(format!(
                "pod {} has no container {}; it has {}",
                self.plan.full_name(),
                requested.unwrap_or_default(),
                all.join(", ")
            )),
        }
    }

    fn status(&self, annotations: &std::path::Path) -> PodStatus {
        let plan = &self.plan;
        let phase = match self.terminating {
            true => "Terminating".to_owned(),
            false => self.observed.phase.as_str().to_owned(),
        };
        PodStatus {
            namespace: plan.namespace().to_owned(),
            name: plan.name().to_owned(),
            uid: plan.uid.clone(),
            node: plan.node.clone(),
            service_account: plan.service_account().to_owned(),
            ips: self.observed.ips.clone(),
            phase,
            ready: self.observed.is_ready(),
            captured: is_captured(annotations, plan),
            containers: self
                .observed
                .containers
                .iter()
                .map(|container| ContainerStatus {
                    name: container.name.clone(),
                    state: container.state.to_string(),
                    ready: container.ready,
                    restarts: container.restarts,
                })
                .collect(),
            message: self.observed.message.clone(),
        }
    }
}

/// Returns whether the agent has written the annotation of a captured pod to the status directory.
fn is_captured(directory: &std::path::Path, plan: &PodPlan) -> bool {
    let file = directory.join(format!("{}.{}.yaml", plan.namespace(), plan.name()));
    std::fs::read_to_string(file).is_ok_and(|text| {
        text.contains(labels::REDIRECTION) && text.contains(labels::REDIRECTION_ENABLED)
    })
}
