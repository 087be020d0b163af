//! Settings of one plugin.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::Limits;

/// Settings of one Wasm plugin, from which its instances start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the plugin, which the module can read.
    pub name: String,
    /// Root id (`plugin_root_id`), which selects one of several plugins in the module.
    pub root_id: String,
    /// VM id: plugins with the same VM id share data.
    pub vm_id: String,
    /// Configuration that the module reads as plugin configuration.
    pub configuration: Bytes,
    /// Configuration that the module reads as VM configuration.
    pub vm_configuration: Bytes,
    /// Environment variables of the module.
    pub environment: BTreeMap<String, String>,
    /// Resource limits of an instance.
    pub limits: Limits,
}
