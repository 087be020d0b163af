//! CNI network configuration files, for the agent that installs the plugin and for the plugin that
//! calls what they name: which file is in force, what it says, and edits that leave every other byte
//! of it alone.
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

/// A member of the configurations that are wholly ours, beside those of the specification.
pub const MARK: &str = "ambit";
