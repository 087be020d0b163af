//! Flags of `ambit check`.

use clap::{Args, ValueEnum};

use crate::{cluster::Target, output::OutputFormat};

/// Text of the help about exit codes.
const EXIT_CODES: &str = "Exit codes: 0 without errors, 1 with errors. With --from istio:
  0  every object works as it is
  1  a file or kind could not be read, which is named; the rest is checked
  5  an object changes or lapses
Any failure of the command itself: 2 for its arguments, 3 for what does not exist, 4 for a cluster that cannot be reached.";

/// Flags of `ambit check`.
#[derive(Clone, Debug, Args)]
#[command(after_help = EXIT_CODES)]
pub(crate) struct CheckArgs {
    /// Namespaces to check as if they were in the mesh, besides those that are; with --from, manifests to check in
    /// place of the cluster: files, directories, or - for standard input
    #[arg(value_name = "NAMESPACE|FILE")]
    pub(super) subjects: Vec<String>,
    #[command(flatten)]
    pub(super) target: Target,
    /// Check which objects of another mesh work with Ambit, which change, and which lapse
    #[arg(long, value_enum, value_name = "MESH")]
    pub(super) from: Option<OtherMesh>,
    /// Check this machine as a node instead of the cluster
    #[arg(long, conflicts_with_all = ["subjects", "from"])]
    pub(super) on_node: bool,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(super) output: OutputFormat,
}

/// Mesh whose objects are checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum OtherMesh {
    /// Istio, with sidecars or in ambient mode
    Istio,
}
