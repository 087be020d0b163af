//! File layout of a lab. Private files (keys, tokens, live objects, logs) are under `run`, a memory file system in the
//! lab's own mount namespace, which is invisible from outside and ends with the lab.

use std::path::{Path, PathBuf};

/// Paths in the directory of one lab.
#[derive(Clone, Debug)]
pub(crate) struct Layout {
    root: PathBuf,
}

macro_rules! paths {
    ($($(#[doc = $doc:literal])* $name:ident = $path:literal;)*) => {
        $($(#[doc = $doc])* pub(crate) fn $name(&self) -> PathBuf { self.root.join($path) })*
    };
}

impl Layout {
    pub(crate) fn new(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    paths! {
        /// File that is locked while the lab runs.
        lock = "lock";
        /// File with the process id of the lab's init process, in the PID namespace of the user.
        pid = "pid";
        /// File with the lab's options, as JSON.
        options = "options.json";
        /// Unix socket on which the supervisor accepts requests.
        socket = "control.sock";
        /// Log of the lab's supervisor.
        log = "lab.log";
        /// Directory of private files, a memory file system.
        run = "run";
        /// Directory of the objects that the lab itself writes: nodes, pods of Deployments, addresses, pod status.
        live = "run/live";
        /// Directory in which agents write their annotations of pods.
        status = "run/status";
        /// Directory with the output of containers and of the mesh's processes.
        logs = "run/logs";
        /// Directory of the control plane's CA.
        ca = "run/ca";
        /// Root certificate of the mesh, for the proxies.
        root_cert = "run/root-cert.pem";
        /// File with the trust domains that the proxies accept in addition to the mesh's own.
        trust_domains = "run/trust-domains.json";
        /// Public key by which the control plane verifies service account tokens.
        token_keys = "run/token-keys.pem";
        /// Directory with symbolic links to the CNI plugins.
        cni_bin = "run/cni-bin";
        /// Directory of pods' BPF programs, a BPF file system.
        bpffs = "run/bpf";
        /// Lock file for iptables, if it is used: `/run` need not be writable.
        xtables_lock = "run/xtables.lock";
    }

    /// Returns the directory of a node's files in the lab.
    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.root.join("run/nodes").join(node)
    }

    /// Returns the directory of a pod's private files: those mounted over `/etc`, and its token.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("run/pods").join(uid)
    }

    /// Returns the file with a container's output.
    pub(crate) fn container_log(&self, uid: &str, container: &str) -> PathBuf {
        self.logs().join(format!("pod-{uid}-{container}.log"))
    }

    /// Returns the file with the output of a process of the mesh.
    pub(crate) fn daemon_log(&self, name: &str, node: Option<&str>) -> PathBuf {
        self.logs().join(match node {
            Some(node) => format!("{node}-{name}.log"),
            None => format!("{name}.log"),
        })
    }
}
