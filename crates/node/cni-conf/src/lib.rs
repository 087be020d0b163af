//! CNI network configuration files: which file runtimes use, its contents, and edits that leave every other byte of it
//! unchanged. The agent uses this crate to install Ambit's plugin, and the plugin uses it to call the plugins of the
//! primary CNI.
//!
//! Everything but [`directory::read`] is pure.
#![forbid(unsafe_code)]

pub mod directory;
pub mod edit;
pub mod json;
pub mod network;

pub use directory::{ConfFile, PrimaryConf};
pub use network::{InvalidConf, Network, Plugin};

/// The plugin's name: that of its executable, and its `type` in network configurations.
pub const PLUGIN_NAME: &str = "ambit-cni";

/// Member, not part of the CNI specification, that marks network configurations of which Ambit wrote every byte.
pub const MARK: &str = "ambit";
