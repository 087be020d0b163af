//! Modes in which the runtime calls the plugin.

use clap::ValueEnum;

/// How the plugin is reached.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub enum InstallMode {
    /// Owned, unless the primary CNI itself takes its configuration from the same directory: chained
    /// then.
    #[default]
    Auto,
    /// A configuration of ours comes first and calls the primary one.
    Owned,
    /// Our entry is the last of the primary's list.
    Chained,
    /// A configuration of ours beside the others, which something else (Multus) refers to.
    Standalone,
}
