//! Environment variables by which a runtime calls a plugin.

/// Variable that this plugin sets for the plugins that it calls, to detect that one of them calls it again.
pub(crate) const DELEGATION_VARIABLE: &str = "AMBIT_CNI_DELEGATING";

/// Environment variables of a call by the runtime. An empty text means that the variable is not set.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// Command to carry out, `CNI_COMMAND`.
    pub command: String,
    /// ID of the container, `CNI_CONTAINERID`.
    pub container_id: String,
    /// Path of the pod's network namespace, `CNI_NETNS`.
    pub netns: String,
    /// Name of the interface in the pod, `CNI_IFNAME`.
    pub interface: String,
    /// Search path of plugin executables, `CNI_PATH`.
    pub path: String,
    /// Extra arguments, such as the pod's name, `CNI_ARGS`.
    pub args: String,
    /// Whether this plugin is called by a plugin that it has called itself.
    pub is_delegated: bool,
}

impl Environment {
    /// Reads the environment of this process.
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
