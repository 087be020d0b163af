//! Lab or cluster whose flows are read.

use clap::Args;

use crate::cluster::Target;

/// Where flows are read.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct FlowTarget {
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    pub(crate) lab: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
}
