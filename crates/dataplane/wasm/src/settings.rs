//! What one plugin is given.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::Limits;

/// Settings of a plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name, which it may ask for.
    pub name: String,
    /// Which of the module's plugins it is.
    pub root_id: String,
    /// Name under which plugins share data.
    pub vm_id: String,
    /// For the plugin.
    pub configuration: Bytes,
    /// For the instance.
    pub vm_configuration: Bytes,
    /// Environment of the module.
    pub environment: BTreeMap<String, String>,
    /// Limits of an instance.
    pub limits: Limits,
}
