//! Flags of `ambit explain`.

use std::path::PathBuf;

use crate::{cluster::Target, output::OutputFormat};

/// Flags of `ambit explain`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "The exit code is 1 if the request would be refused: reset, or answered with 4xx or 5xx by a proxy.\nPlugins are not run, providers of CUSTOM policies and rate limits not called: such steps are OPEN."
)]
pub(crate) struct RequestExplainArgs {
    /// The client's pod (`namespace/name`, or the beginning of a name)
    #[arg(long, value_name = "NAMESPACE/POD")]
    pub(crate) from: String,
    /// Whom it calls: a name as the client would write it, `namespace/service`, or an address; port 80 if left out
    #[arg(long, value_name = "HOST[:PORT]")]
    pub(crate) to: String,
    /// Method of the request
    #[arg(short = 'X', long, default_value = "GET")]
    pub(crate) method: String,
    /// Path of the request, with its query
    #[arg(long, default_value = "/")]
    pub(crate) path: String,
    /// A header of the request, as `Name: value`; may be given several times
    #[arg(short = 'H', long = "header", value_name = "NAME: VALUE")]
    pub(crate) headers: Vec<String>,
    /// File with a token that the request bears in `Authorization`
    #[arg(long, value_name = "FILE")]
    pub(crate) token: Option<PathBuf>,
    /// Of this lab; otherwise of the kubeconfig's cluster
    #[arg(long, env = "AMBIT_LAB")]
    pub(crate) lab: Option<String>,
    #[command(flatten)]
    pub(crate) target: Target,
    /// Format of the output
    #[arg(short, long, value_enum, default_value_t)]
    pub(crate) output: OutputFormat,
}
