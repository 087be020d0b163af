//! Changes to the kernel that carry out enrolment steps. All functions block, for milliseconds.

pub(crate) mod bpf;
mod cgroup;
mod node_programs;

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    net::IpAddr,
    path::{Path, PathBuf},
};

use ambit_model::PROXY_MARK;
use ambit_netplan::{Cgroup, HostMember, HostSpec, ProbePorts, RedirectionSpec, is_interface_name};
use ambit_rt::ErrorChain;
use ambit_sys::{
    addresses::addresses_in,
    links::{self, PodLinks},
    loopback,
    netns::Netns,
    procfs::{self, Attribution, PodTarget},
    redirection::{self, Applied, RedirectionError},
    tcp_sockets::{self, Direction, TcpStateFilter, UnproxiedSocket},
};
use ambit_zds::PodUid;

pub use self::node_programs::NodePrograms;
use crate::{
    capture::{BpfReadiness, CaptureMethod, CaptureTarget},
    enrolment::ScanTarget,
};

/// Operations of the agent on its node and pods, which tests replace by a simulation.
pub trait Actions: Send + Sync + 'static {
    /// Finds the network namespaces of the running pods in `targets`.
    ///
    /// # Errors
    /// When the processes of the node cannot be listed.
    fn scan(&self, targets: &[ScanTarget]) -> Result<BTreeMap<PodUid, Netns>, ActionError>;
    /// Opens the network namespace at the path that the CNI plugin sent, and brings its loopback interface up.
    ///
    /// # Errors
    /// If the namespace does not exist or is the node's own, or its loopback interface stays down.
    fn open_netns(&self, path: &str) -> Result<Netns, ActionError>;
    /// Prepares a pod for BPF programs: afterwards its proxy enters its listeners.
    ///
    /// # Errors
    /// If programs cannot capture the pod.
    fn prepare_bpf(&self, pod: &CaptureTarget, spec: &RedirectionSpec) -> Result<(), ActionError>;
    /// Applies redirection to a pod. The pod's current interfaces, not `spec`, decide on which of them kubelet's probes
    /// are exempt.
    ///
    /// # Errors
    /// If the kernel refuses the rules.
    fn apply_rules(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
        bpf: &BpfReadiness,
    ) -> Result<RedirectionOutcome, ActionError>;
    /// Forgets which pods' node proxy has not entered its listeners for BPF programs: another one has connected.
    fn forget_missing_listeners(&self);
    /// Removes what is left of BPF programs of pods that are gone; `pods` are those that exist.
    fn sweep_bpf(&self, pods: &BTreeSet<PodUid>);
    /// Removes the BPF programs of all pods except `captured`, since the mesh was removed. Connections in the proxy continue.
    fn remove_bpf(&self, captured: &[Netns]);
    /// Closes the pre-capture connections of a captured pod, which its proxy does not carry. Kubelet's probes of
    /// `probe_ports`, and connections within the pod, continue.
    ///
    /// # Errors
    /// When they cannot be listed.
    fn close_unproxied(
        &self,
        netns: &Netns,
        probe_ports: &ProbePorts,
    ) -> Result<ClosedConnections, ActionError>;
    /// Removes redirection from a pod, if there is any; connections in the proxy continue.
    ///
    /// # Errors
    /// If a part of the redirection stays.
    fn release_rules(&self, netns: &Netns) -> Result<(), ActionError>;
    /// Installs the rules in the node's namespace that exempt kubelet's probes; existing members (addresses and ports
    /// of pods) stay.
    ///
    /// # Errors
    /// If the kernel refuses the rules.
    fn ensure_host_rules(&self) -> Result<(), ActionError>;
    /// Exempts kubelet's probes of a pod from redirection at exactly these addresses and ports.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    fn upsert_probes(
        &self,
        uid: &str,
        addresses: &[IpAddr],
        ports: &ProbePorts,
    ) -> Result<(), ActionError>;
    /// Removes all addresses and ports of a pod from the exemption of kubelet's probes.
    ///
    /// # Errors
    /// If the exemption stays.
    fn remove_probes(&self, uid: &str) -> Result<(), ActionError>;
    /// Replaces the addresses and ports of all pods that are exempt for kubelet's probes.
    ///
    /// # Errors
    /// If the kernel refuses the change.
    fn set_probe_members(&self, members: &[HostMember]) -> Result<(), ActionError>;
    /// Returns the number of connections that the node's rules have exempted since they were last written.
    ///
    /// # Errors
    /// When the rule cannot be read.
    fn exempted_connections(&self) -> Result<u64, ActionError>;
    /// Removes the rules that exempt kubelet's probes from the node's namespace.
    ///
    /// # Errors
    /// If the rule stays.
    fn remove_host_rules(&self) -> Result<(), ActionError>;
}

/// Result of applying a pod's redirection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectionOutcome {
    /// State of the redirection before it was applied.
    pub prior: PriorRedirection,
    /// Method by which the pod is captured now.
    pub method: CaptureMethod,
    /// Warnings for operators that do not impair the redirection.
    pub warnings: Vec<String>,
}

/// State of a pod's redirection before it was applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PriorRedirection {
    /// Redirection was completely in place.
    Complete,
    /// No redirection existed, neither of Ambit's agent nor of Istio's.
    Absent,
    /// Redirection was partly in place, from an attempt that failed, and did not capture the pod. The text describes the
    /// differences from the desired state.
    Incomplete(String),
    /// Redirection captured the pod, and differed from the desired state, as the text describes.
    Drifted(String),
}

/// Outcome of closing a pod's pre-capture connections, formatted for logs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClosedConnections {
    /// Connections that were closed; both peers see a reset.
    pub closed: Vec<String>,
    /// Connections that could not be closed, with the reason.
    pub failed: Vec<(String, String)>,
}

/// Error of an operation on the node or a pod.
#[derive(Debug, thiserror::Error)]
pub enum ActionError {
    /// The node's processes cannot be listed.
    #[error("cannot list the processes under {path}")]
    Scan {
        /// Path of the node's procfs.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The network namespace from the plugin cannot be opened.
    #[error("cannot open the network namespace {path}")]
    OpenNetns {
        /// Path of the namespace as seen by the agent.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The loopback interface cannot be brought up.
    #[error("cannot bring up loopback in the network namespace {path}")]
    Loopback {
        /// Path of the namespace as seen by the agent.
        path: PathBuf,
        /// Cause of the error.
        #[source]
        source: io::Error,
    },
    /// The namespace from the plugin is the node's own, which is never captured, since that would disconnect the node.
    #[error("{path} is the node's own network namespace, which is never captured")]
    NodeNetns {
        /// Path of the namespace as seen by the agent.
        path: PathBuf,
    },
    /// Redirection in a pod cannot be changed.
    #[error("cannot {what} its redirection")]
    Redirection {
        /// Operation that failed, as a verb for the error message.
        what: &'static str,
        /// Cause of the error.
        #[source]
        source: RedirectionError,
    },
    /// BPF programs cannot capture a pod.
    #[error("{0}")]
    NotByBpf(String),
    /// A pod's interfaces cannot be listed.
    #[error("cannot list the pod's network interfaces")]
    Links(#[source] io::Error),
    /// A pod's connections cannot be listed.
    #[error("cannot list the pod's connections")]
    Connections(#[source] io::Error),
    /// The node's rules that exempt kubelet's probes cannot be changed.
    #[error("cannot {what} the exemption of probes on the node")]
    Probes {
        /// Operation that failed, as a verb for the error message.
        what: &'static str,
        /// Cause of the error.
        #[source]
        source: RedirectionError,
    },
}

/// Implementation of [`Actions`] on the node's kernel.
#[derive(Debug)]
pub struct KernelActions {
    /// Path of the node's procfs.
    pub procfs: PathBuf,
    /// Method by which a process is attributed to a pod.
    pub attribution: Attribution,
    /// Prefix for the namespace paths that the plugin sends, such as `/host`.
    pub netns_prefix: PathBuf,
    /// Network namespace of the node.
    pub node_netns: Netns,
    /// Desired rules that exempt kubelet's probes; `None` leaves the node's namespace unchanged.
    pub host: Option<HostSpec>,
    /// Path of kubelet's cgroup in the node's cgroup v2 hierarchy.
    pub kubelet_cgroup: Option<String>,
    /// BPF programs of the node's pods.
    pub programs: NodePrograms,
}

impl KernelActions {
    /// Returns the specification with the interfaces over which probes are exempt, and the pod's interfaces.
    fn with_probe_interfaces(
        &self,
        netns: &Netns,
        spec: &RedirectionSpec,
    ) -> Result<(RedirectionSpec, PodLinks), ActionError> {
        let links = match &self.host {
            Some(_) => {
                links::classify_links(netns, &self.node_netns).map_err(ActionError::Links)?
            }
            None => PodLinks::default(),
        };
        let names = links.visible_on_node.iter().cloned();
        let spec = RedirectionSpec {
            probe_interfaces: names.filter(|name| is_interface_name(name)).collect(),
            ..spec.clone()
        };
        Ok((spec, links))
    }

    /// Returns the desired probe rules with kubelet's current cgroup. A recreated cgroup has another id; a missing one
    /// exempts no process.
    fn host_spec(&self) -> Option<HostSpec> {
        let name = self.kubelet_cgroup.as_deref();
        let find = |name| cgroup::find_cgroup(&self.procfs, name).unwrap_or(Cgroup::NONE);
        Some(HostSpec {
            kubelet_cgroup: name.map(find),
            ..self.host.clone()?
        })
    }

    /// Creates or repairs the rules that exempt kubelet's probes.
    fn ensure_probe_rule(&self, spec: &HostSpec) -> Result<(), ActionError> {
        if spec.kubelet_cgroup == Some(Cgroup::NONE) {
            tracing::error!(
                cgroup = self.kubelet_cgroup,
                "the node has no such cgroup of version 2 (cni.kubeletCgroup, KUBELET_CGROUP): no probe is exempt until it has"
            );
        }
        redirection::host::ensure_rules(&self.node_netns, spec)
            .map(drop)
            .map_err(|source| ActionError::Probes {
                what: "put in place",
                source,
            })
    }
}

impl Actions for KernelActions {
    fn scan(&self, targets: &[ScanTarget]) -> Result<BTreeMap<PodUid, Netns>, ActionError> {
        let targets: Vec<_> = targets
            .iter()
            .map(|pod| PodTarget {
                uid: pod.uid.to_string(),
                cgroup_alias: pod.cgroup_alias.clone(),
                addresses: pod.addresses.clone(),
            })
            .collect();
        let discovered =
            procfs::discover(&self.procfs, &self.attribution, &targets).map_err(|source| {
                ActionError::Scan {
                    path: self.procfs.clone(),
                    source,
                }
            })?;
        for rejected in discovered.rejected {
            let why = ErrorChain(&rejected.reason).to_string();
            tracing::debug!(
                uid = rejected.uid,
                pid = rejected.pid,
                why,
                "not the pod's namespace"
            );
        }
        let found = discovered.namespaces.into_iter();
        Ok(found
            .filter(|(_, netns)| *netns != self.node_netns)
            .map(|(uid, netns)| (uid.into(), netns))
            .collect())
    }

    fn open_netns(&self, path: &str) -> Result<Netns, ActionError> {
        // `join` with an absolute path would drop the prefix.
        let named = self
            .netns_prefix
            .join(Path::new(path.trim_start_matches('/')));
        // In a container the node's directory of namespaces is in one place, whatever the runtime
        // calls it.
        let usual = self.netns_prefix.join("var/run/netns");
        let path = match named.file_name() {
            Some(name) if !named.exists() && usual.join(name).exists() => usual.join(name),
            _ => named,
        };
        let netns = Netns::open(&path).map_err(|source| ActionError::OpenNetns {
            path: path.clone(),
            source,
        })?;
        let own = Netns::current().is_ok_and(|own| own == netns);
        if own || netns == self.node_netns {
            return Err(ActionError::NodeNetns { path });
        }
        // Runtimes call the plugin for loopback and the others at the same time. While it is down, the proxy can have
        // no DNS sockets on it, and no route uses it.
        loopback::bring_up(&netns).map_err(|source| ActionError::Loopback { path, source })?;
        Ok(netns)
    }

    fn prepare_bpf(&self, pod: &CaptureTarget, spec: &RedirectionSpec) -> Result<(), ActionError> {
        let (spec, _) = self.with_probe_interfaces(&pod.netns, spec)?;
        self.prepare_programs(pod, &spec)
    }

    fn forget_missing_listeners(&self) {
        self.clear_missing_listeners();
    }

    fn sweep_bpf(&self, pods: &BTreeSet<PodUid>) {
        self.sweep_programs(pods);
    }

    fn remove_bpf(&self, captured: &[Netns]) {
        self.remove_programs(captured);
    }

    fn apply_rules(
        &self,
        pod: &CaptureTarget,
        spec: &RedirectionSpec,
        bpf: &BpfReadiness,
    ) -> Result<RedirectionOutcome, ActionError> {
        let (spec, links) = self.with_probe_interfaces(&pod.netns, spec)?;
        let (applied, method) = self.apply_redirection(pod, &spec, bpf)?;
        let mut warnings = Vec::new();
        // Kubelet's probes use the pod's first interface; others in a pod have other purposes.
        if spec.probe_interfaces.is_empty() && !links.hidden_from_node.is_empty() {
            let kinds = links.hidden_from_node.iter();
            let kinds: Vec<_> = kinds
                .map(|(name, kind)| format!("{name} ({kind})"))
                .collect();
            warnings.push(format!(
                "kubelet's probes count as plaintext: the node does not see the frames of {}, where a \
                 neighbour could pretend to be kubelet",
                kinds.join(", ")
            ));
        }
        match redirection::has_unreadable_rules(&pod.netns) {
            Ok(false) => {}
            Ok(true) => warnings.push(
                "it has tables of iptables' legacy variant, which cannot be looked at: rules of another \
                 mesh in them stay until the pod is started anew, or iptables is installed in the \
                 agent's image"
                    .to_owned(),
            ),
            // The redirection is in place, and whether it was before must not be lost with an error.
            Err(error) => warnings.push(format!(
                "whether rules of another mesh are beside its redirection cannot be read: {}",
                ErrorChain(&error)
            )),
        }
        Ok(RedirectionOutcome {
            prior: match applied {
                Applied::Unchanged => PriorRedirection::Complete,
                Applied::Installed => PriorRedirection::Absent,
                Applied::Repaired { what } if what.was_captured => {
                    PriorRedirection::Drifted(what.to_string())
                }
                Applied::Repaired { what } => PriorRedirection::Incomplete(what.to_string()),
            },
            method,
            warnings,
        })
    }

    fn close_unproxied(
        &self,
        netns: &Netns,
        probe_ports: &ProbePorts,
    ) -> Result<ClosedConnections, ActionError> {
        let open = tcp_sockets::unproxied_sockets(netns, PROXY_MARK, TcpStateFilter::Open)
            .map_err(ActionError::Connections)?;
        if open.is_empty() {
            return Ok(ClosedConnections::default());
        }
        // Probes that began before the capture still come from the node's own addresses.
        let of_node = addresses_in(&self.node_netns).map_err(ActionError::Connections)?;
        let mut outcome = ClosedConnections::default();
        for UnproxiedSocket { socket, direction } in open {
            let by_node = direction == Direction::Inbound && of_node.contains(&socket.remote.ip());
            if by_node && probe_ports.contains(socket.local.port()) {
                continue;
            }
            let text = match direction {
                Direction::Inbound => format!("{} -> {}", socket.remote, socket.local),
                Direction::Outbound => format!("{} -> {}", socket.local, socket.remote),
            };
            match tcp_sockets::destroy(netns, &socket) {
                Ok(()) => outcome.closed.push(text),
                // It has ended by itself.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => outcome.failed.push((text, error.to_string())),
            }
        }
        Ok(outcome)
    }

    fn release_rules(&self, netns: &Netns) -> Result<(), ActionError> {
        self.release_redirection(netns)
            .map_err(|source| ActionError::Redirection {
                what: "take away",
                source,
            })
    }

    fn ensure_host_rules(&self) -> Result<(), ActionError> {
        let Some(spec) = &self.host_spec() else {
            return Ok(());
        };
        self.ensure_probe_rule(spec)
    }

    fn upsert_probes(
        &self,
        uid: &str,
        addresses: &[IpAddr],
        ports: &ProbePorts,
    ) -> Result<(), ActionError> {
        let Some(spec) = &self.host_spec() else {
            return Ok(());
        };
        redirection::host::upsert_pod(&self.node_netns, spec, uid, addresses, ports).map_err(
            |source| ActionError::Probes {
                what: "put in place",
                source,
            },
        )
    }

    fn remove_probes(&self, uid: &str) -> Result<(), ActionError> {
        let Some(spec) = &self.host_spec() else {
            return Ok(());
        };
        redirection::host::remove_pod(&self.node_netns, spec, uid).map_err(|source| {
            ActionError::Probes {
                what: "take away",
                source,
            }
        })
    }

    fn set_probe_members(&self, members: &[HostMember]) -> Result<(), ActionError> {
        let Some(spec) = &self.host_spec() else {
            return Ok(());
        };
        self.ensure_probe_rule(spec)?;
        redirection::host::set_members(&self.node_netns, spec, members).map_err(|source| {
            ActionError::Probes {
                what: "put in place",
                source,
            }
        })
    }

    fn exempted_connections(&self) -> Result<u64, ActionError> {
        let Some(spec) = &self.host_spec() else {
            return Ok(0);
        };
        redirection::host::exempted_connections(&self.node_netns, spec).map_err(|source| {
            ActionError::Probes {
                what: "count",
                source,
            }
        })
    }

    fn remove_host_rules(&self) -> Result<(), ActionError> {
        if self.host.is_none() {
            return Ok(());
        }
        redirection::host::remove_rules(&self.node_netns).map_err(|source| ActionError::Probes {
            what: "take away",
            source,
        })
    }
}

#[cfg(test)]
mod tests {
    use ambit_bpf::Pins;

    use super::*;

    #[test]
    fn a_missing_cgroup_of_kubelet_exempts_no_process() {
        let proc = tempfile::tempdir().unwrap();
        let root = proc.path().join("1/root/sys/fs/cgroup");
        let actions = |kubelet_cgroup: Option<&str>| KernelActions {
            procfs: proc.path().to_owned(),
            attribution: Attribution::Cgroup,
            netns_prefix: PathBuf::new(),
            node_netns: Netns::current().unwrap(),
            host: Some(HostSpec::default()),
            kubelet_cgroup: kubelet_cgroup.map(str::to_owned),
            programs: NodePrograms::at(Pins::at(proc.path())),
        };
        let cgroup = |name| actions(name).host_spec().unwrap().kubelet_cgroup;
        assert_eq!(cgroup(None), None);
        assert_eq!(cgroup(Some("system.slice")), Some(Cgroup::NONE));
        std::fs::create_dir_all(root.join("system.slice")).unwrap();
        std::fs::write(root.join("cgroup.controllers"), "").unwrap();
        assert_ne!(cgroup(Some("system.slice")), Some(Cgroup::NONE));
        assert_eq!(cgroup(Some("kubelet.slice")), Some(Cgroup::NONE));
    }
}
