//! Settings of one plugin.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::Limits;

/// Settings of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Name of the plugin (root ID), which the module can read.
    pub name: String,
    /// Root id: name of the plugin within the module.
    pub root_id: String,
    /// VM id: plugins with the same one share data.
    pub vm_id: String,
    /// Configuration of the plugin.
    pub configuration: Bytes,
    /// Configuration of the VM.
    pub vm_configuration: Bytes,
    /// Environment of the module.
    pub environment: BTreeMap<String, String>,
    /// Limits of an instance.
    pub limits: Limits,
}
