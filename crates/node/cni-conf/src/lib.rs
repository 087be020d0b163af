//! CNI network configuration files: which file runtimes use, its contents, and edits that leave
//! every other byte of it unchanged. Used by the agent, which installs the plugin, and by the
//! plugin, which calls the plugins they name.
//!
//! Everything but [`directory::read`] is pure.
#![forbid(unsafe_code)]

pub mod directory;
pub mod edit;
pub mod json;
pub mod network;

pub use directory::{ConfFile, Primary};
pub use network::{Invalid, Network, Plugin};

/// The plugin's name: its file, and its `type` in configurations.
pub const PLUGIN: &str = "ambit-cni";

/// Member that marks the configurations that are entirely Ambit's, not part of the CNI
/// specification.
pub const MARK: &str = "ambit";
