//! Nodes of a running cluster: kills and boots them like machines, and loads images onto them.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, ensure};

use crate::{cgroups, cluster::Cluster, command::ToolCommand, node_config, process};

/// Path of containerd's socket in the node's root directory.
const SOCKET: &str = "run/containerd/containerd.sock";

/// State of a node's disk when the node boots.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum NodeBoot {
    /// The disk is as it was when the node was killed.
    #[default]
    AsConfigured,
    /// The primary CNI has rewritten its configuration file, which drops the plugins that other programs had added to
    /// it.
    CniRewritten,
    /// The primary CNI has rewritten its configuration file as in [`Self::CniRewritten`], and has removed all other
    /// files of the CNI configuration directory.
    OnlyCniConfiguration,
}

/// One node of the cluster.
#[derive(Clone, Copy, Debug)]
pub struct Node<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) number: u8,
}

impl Cluster {
    /// Returns all nodes of the cluster, in the order of their numbers.
    pub fn nodes(&self) -> impl Iterator<Item = Node<'_>> {
        (1..=self.options().nodes).map(|number| Node {
            cluster: self,
            number,
        })
    }

    /// Returns the node with this number, counted from 1.
    pub fn node(&self, number: u8) -> Node<'_> {
        Node {
            cluster: self,
            number,
        }
    }

    /// Loads image archives on all nodes.
    pub fn load(&self, archives: &[PathBuf]) -> Result<()> {
        self.nodes().try_for_each(|node| node.load(archives))
    }
}

impl Node<'_> {
    /// Returns the node's name: `n1`, `n2`, ...
    pub fn name(&self) -> String {
        format!("n{}", self.number)
    }

    fn directory(&self) -> PathBuf {
        self.cluster.paths().state.join(self.name())
    }

    /// Returns the path of the node's network namespace.
    pub fn netns(&self) -> PathBuf {
        self.cluster.network().namespace_path(&self.name())
    }

    /// Returns the PID of the node's first process; `None` while the node is down.
    pub fn pid(&self) -> Option<u32> {
        let unshare = self.cluster.processes().pid(&self.name())?;
        process::children(unshare).first().copied()
    }

    /// Returns the path of the node's root directory; fails while the node is down.
    pub fn root(&self) -> Result<PathBuf> {
        let pid = self
            .pid()
            .with_context(|| format!("node {} is down", self.name()))?;
        Ok(PathBuf::from(format!("/proc/{pid}/root")))
    }

    /// Returns the node's directory of CNI configurations; fails while the node is down.
    pub fn configurations(&self) -> Result<PathBuf> {
        let directory = self.cluster.options().layout.configurations();
        Ok(self.root()?.join(directory.trim_start_matches('/')))
    }

    /// Returns the node's directory of CNI plugins; fails while the node is down.
    pub fn plugins(&self) -> Result<PathBuf> {
        let directory = self.cluster.options().layout.plugins();
        Ok(self.root()?.join(directory.trim_start_matches('/')))
    }

    /// Returns a command that runs a program inside the node's namespaces, as a shell on the node would.
    pub fn command(&self, program: &str) -> Result<std::process::Command> {
        let pid = self
            .pid()
            .with_context(|| format!("node {} is down", self.name()))?;
        let mut command = std::process::Command::new("nsenter");
        command
            .arg("--all")
            .arg(format!("--target={pid}"))
            .arg(program);
        Ok(command)
    }

    /// Returns the PIDs on this machine of processes in the node's pods whose command line begins with `command`. An
    /// empty `command` matches all processes in pods.
    pub fn processes(&self, command: &str) -> Vec<u32> {
        let group = format!(
            "/{}/",
            node_config::cgroup_path(self.cluster.network(), self.number)
        );
        process::pids()
            .into_iter()
            .filter(|pid| {
                let of = |file: &str| fs::read(format!("/proc/{pid}/{file}")).unwrap_or_default();
                let words = String::from_utf8_lossy(&of("cmdline")).replace('\0', " ");
                let more = words.strip_prefix(command);
                more.is_some_and(|more| command.is_empty() || more.starts_with(' '))
                    && String::from_utf8_lossy(&of("cgroup")).contains(&group)
            })
            .collect()
    }

    /// Kills (SIGKILL) the processes with that command line; returns their number.
    pub fn kill_processes(&self, command: &str) -> Result<usize> {
        let pids = self.processes(command);
        for pid in &pids {
            process::kill(*pid)?;
        }
        Ok(pids.len())
    }

    /// Kills (SIGKILL) the parents of the processes with that command line; the death of a container's main process
    /// ends the whole container. Returns the number of killed processes.
    pub fn kill_parents(&self, command: &str) -> Result<usize> {
        let parents: BTreeSet<u32> = self
            .processes(command)
            .into_iter()
            .filter_map(process::parent)
            .collect();
        for pid in &parents {
            process::kill(*pid)?;
        }
        Ok(parents.len())
    }

    /// Kills all processes of the node at once, like a power failure: the disk survives, kernel
    /// state is lost.
    pub fn kill(&self) -> Result<()> {
        let init = self.pid();
        self.cluster.processes().kill(&self.name())?;
        if let Some(init) = init {
            process::kill(init)?;
        }
        // A kubelet that finds cgroups of missing pods waits some seconds for each before it
        // starts.
        cgroups::remove(&node_config::cgroup_path(
            self.cluster.network(),
            self.number,
        ))?;
        ToolCommand::new("nsenter")
            .arg(format!("--net={}", self.netns().display()))
            .args(["nft", "flush", "ruleset"])
            .run()
    }

    /// Boots the node, with its disk in the given state.
    pub fn start(&self, boot: NodeBoot) -> Result<()> {
        ensure!(self.pid().is_none(), "node {} is up", self.name());
        let (network, places) = (self.cluster.network(), self.cluster.paths());
        if boot != NodeBoot::AsConfigured {
            node_config::rewrite_cni_configuration(
                &self.directory(),
                network,
                self.cluster.options(),
                self.number,
                &self.cluster.kubeconfig(),
                boot == NodeBoot::OnlyCniConfiguration,
            )?;
        }
        cgroups::make(&node_config::cgroup_path(network, self.number))?;
        let init = ToolCommand::new("nsenter")
            .arg(format!("--net={}", self.netns().display()))
            .args(["unshare", "--mount", "--uts", "--ipc", "--pid", "--fork"])
            .args(["--kill-child", "--mount-proc", "bash"])
            .arg(places.state.join("node-init.sh"))
            .arg(self.name())
            .arg(self.directory())
            .arg(self.cluster.bin())
            .arg(network.node_addresses(self.number))
            .arg(places.state.join("pki"))
            .arg(self.cluster.options().layout.plugins());
        self.cluster.processes().start(&self.name(), &init)?;
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.is_containerd_responding() {
            ensure!(
                self.cluster.processes().pid(&self.name()).is_some() && Instant::now() < deadline,
                "containerd of node {} does not answer: {}",
                self.name(),
                self.cluster.processes().log_tail(&self.name())
            );
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    }

    fn is_containerd_responding(&self) -> bool {
        self.ctr_command()
            .is_ok_and(|ctr| ctr.arg("version").run().is_ok())
    }

    /// Loads image archives on the node, except for images that it already has.
    pub fn load(&self, archives: &[PathBuf]) -> Result<()> {
        let loaded = self.directory().join("loaded");
        fs::create_dir_all(&loaded)?;
        for archive in archives {
            let stamp = loaded.join(fingerprint(archive)?);
            if stamp.exists() {
                continue;
            }
            self.ctr_command()?
                .args(["--namespace=k8s.io", "images", "import"])
                .arg(archive)
                .run()?;
            fs::write(stamp, "")?;
        }
        Ok(())
    }

    fn ctr_command(&self) -> Result<ToolCommand> {
        Ok(ToolCommand::new("ctr")
            .arg("--address")
            .arg(self.root()?.join(SOCKET)))
    }
}

/// Returns the digest that identifies an archive: the one recorded when this machine wrote the archive, or else that of
/// the whole file.
fn fingerprint(archive: &Path) -> Result<String> {
    if let Ok(digest) = fs::read_to_string(archive.with_extension("digest")) {
        return Ok(digest);
    }
    let bytes = fs::read(archive).with_context(|| format!("no image {}", archive.display()))?;
    Ok(hex_digest(&bytes))
}
