//! Environment variables by which a runtime calls a plugin.

/// Variable that is set for delegated plugins, so that this plugin detects a call by itself.
pub(crate) const DELEGATION_VARIABLE: &str = "AMBIT_CNI_DELEGATING";

/// Environment variables that the runtime sets. Empty means unset.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Command of the call, `CNI_COMMAND`.
    pub command: String,
    /// Id of the container, `CNI_CONTAINERID`.
    pub container_id: String,
    /// Path of the pod's network namespace, `CNI_NETNS`.
    pub netns: String,
    /// Name of the interface, `CNI_IFNAME`.
    pub interface: String,
    /// Directories of plugins, `CNI_PATH`.
    pub path: String,
    /// Further arguments, `CNI_ARGS`.
    pub args: String,
    /// Whether the caller is a plugin that this plugin has called.
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
            is_delegated: !read(DELEGATION_VARIABLE).is_empty(),
        }
    }
}
