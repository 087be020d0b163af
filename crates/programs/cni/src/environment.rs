//! The environment variables by which a runtime calls a plugin.

/// Set for the plugins we call, so that we know when we are called by ourselves.
pub(crate) const DELEGATING: &str = "AMBIT_CNI_DELEGATING";

/// Environment variables that the runtime sets. Empty means unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Command of the call, `CNI_COMMAND`.
    pub command: String,
    /// Id of the container, `CNI_CONTAINERID`.
    pub container_id: String,
    /// `CNI_NETNS`: path of the pod's network namespace.
    pub netns: String,
    /// Name of the interface, `CNI_IFNAME`.
    pub interface: String,
    /// Directories of plugins, `CNI_PATH`.
    pub path: String,
    /// Further arguments, `CNI_ARGS`.
    pub args: String,
    /// Whether our caller is a plugin that we called.
    pub is_delegated: bool,
}

impl Environment {
    /// Environment of this process.
    pub fn from_process() -> Self {
        let read = |name| {
            std::env::var_os(name)
                .map(|v| v.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        Self {
            command: read("CNI_COMMAND"),
            container_id: read("CNI_CONTAINERID"),
            netns: read("CNI_NETNS"),
            interface: read("CNI_IFNAME"),
            path: read("CNI_PATH"),
            args: read("CNI_ARGS"),
            is_delegated: !read(DELEGATING).is_empty(),
        }
    }
}
