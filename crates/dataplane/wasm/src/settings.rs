//! What one plugin is given.

use std::collections::BTreeMap;

use bytes::Bytes;

use crate::limits::Limits;

/// What a plugin is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settings {
    /// Its name, which it may ask for.
    pub name: String,
    /// Which of the module's plugins it is.
    pub root_id: String,
    /// Who shares data with it.
    pub vm_id: String,
    /// For the plugin.
    pub configuration: Bytes,
    /// For the instance.
    pub vm_configuration: Bytes,
    /// The environment.
    pub environment: BTreeMap<String, String>,
    /// What it may take.
    pub limits: Limits,
}
