//! File layout of a lab. Private files (keys, tokens, live objects, logs) are under `run`, a memory file system in the
//! lab's own mount namespace, which is invisible from outside and ends with the lab.

use std::path::{Path, PathBuf};

/// The directory of one lab.
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
        /// Locked while the lab runs.
        lock = "lock";
        /// Process id of the lab's first process, as seen from outside.
        pid = "pid";
        /// File with the lab's options.
        options = "options.json";
        /// The control socket.
        socket = "control.sock";
        /// The supervisor's own log.
        log = "lab.log";
        /// Directory of private files.
        run = "run";
        /// Objects that the lab adds: nodes, pods of Deployments, addresses, states.
        live = "run/live";
        /// Annotations that agents write.
        status = "run/status";
        /// Output of pods and daemons.
        logs = "run/logs";
        /// The control plane's CA.
        ca = "run/ca";
        /// Root certificate for the proxies.
        root_cert = "run/root-cert.pem";
        /// Trust domains that the proxies accept besides the mesh's own one.
        trust_domains = "run/trust-domains.json";
        /// Public key that tokens are checked with.
        token_keys = "run/token-keys.pem";
        /// Links to the plugins.
        cni_bin = "run/cni-bin";
        /// A lock file for iptables, should it be used: /run need not be writable.
        xtables_lock = "run/xtables.lock";
    }

    /// A directory of one node.
    pub(crate) fn node(&self, node: &str) -> PathBuf {
        self.root.join("run/nodes").join(node)
    }

    /// Returns the directory of a pod's `/etc` mounts.
    pub(crate) fn pod(&self, uid: &str) -> PathBuf {
        self.root.join("run/pods").join(uid)
    }

    /// A container's output.
    pub(crate) fn container_log(&self, uid: &str, container: &str) -> PathBuf {
        self.logs().join(format!("pod-{uid}-{container}.log"))
    }

    /// A daemon's output.
    pub(crate) fn daemon_log(&self, name: &str, node: Option<&str>) -> PathBuf {
        self.logs().join(match node {
            Some(node) => format!("{node}-{name}.log"),
            None => format!("{name}.log"),
        })
    }
}
