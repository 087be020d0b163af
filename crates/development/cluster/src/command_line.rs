//! Command line of `ambit-cluster`.
#![expect(
    clippy::print_stdout,
    reason = "a command line's answers go to standard output"
)]

use std::{io::Read, os::unix::process::CommandExt, path::PathBuf};

use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand};

use crate::{Cluster, ClusterPaths, NodeBoot, Options, Slot};

/// Arguments of the command line.
#[derive(Debug, Parser)]
#[command(name = "cluster", about = "A real Kubernetes on this machine")]
pub struct Args {
    /// Cargo's target directory
    #[arg(long)]
    target: PathBuf,
    /// The repository's `build` directory
    #[arg(long)]
    sources: PathBuf,
    /// Which of the clusters that may be up side by side
    #[arg(long, default_value = "0")]
    slot: Slot,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Start the cluster
    Up {
        #[command(flatten)]
        options: Options,
        /// Stay until standard input ends, then remove it
        #[arg(long)]
        hold: bool,
    },
    /// Build the programs that a cluster and the tests on clusters need
    Build {
        #[command(flatten)]
        options: Options,
    },
    /// Stop and remove everything of it
    Down,
    /// Show what runs
    Status,
    /// Load images on the nodes
    Load {
        /// OCI archives to load
        archives: Vec<PathBuf>,
    },
    /// kubectl as administrator
    #[command(disable_help_flag = true)]
    Kubectl {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        args: Vec<String>,
    },
    /// A shell command on a node, as root there
    Node {
        /// Number of the node, from 1
        number: u8,
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, required = true)]
        args: Vec<String>,
    },
    /// Fail a node, as when its power is cut
    KillNode {
        /// Number of the node, from 1
        number: u8,
    },
    /// Boot a node that was killed
    StartNode {
        /// Number of the node, from 1
        number: u8,
        /// The primary CNI rewrites its configuration
        #[arg(long)]
        rewrite_cni: bool,
    },
}

/// Runs the command.
///
/// # Errors
/// When it fails; the message contains the remedy.
pub fn run(args: Args) -> Result<()> {
    // The nodes' processes see the same files, but have other working directories.
    let places = ClusterPaths::in_target(&std::path::absolute(&args.target)?, args.slot);
    let find = || {
        Cluster::find(places.clone(), args.slot)?
            .context("no cluster is up; bring one up with `cargo xtask cluster up`")
    };
    match args.command {
        Command::Up { options, hold } => {
            if !hold {
                let cluster = Cluster::up(places, args.slot, options, &args.sources)?;
                println!("export KUBECONFIG={}", cluster.kubeconfig().display());
                return Ok(());
            }
            let _held = Cluster::lock_slot(&places)?;
            // The process that held the cluster may have been killed, and left parts of it.
            Cluster::down(places.clone(), args.slot)?;
            let cluster = Cluster::up(places.clone(), args.slot, options, &args.sources)
                .inspect_err(|_| drop(Cluster::down(places.clone(), args.slot)))?;
            println!("{}", cluster.kubeconfig().display());
            std::io::stdin().read_to_end(&mut Vec::new())?;
            Cluster::down(places, args.slot)?;
        }
        Command::Build { options } => {
            Cluster::build_all(places, args.slot, options, &args.sources)?;
        }
        Command::Down => Cluster::down(places, args.slot)?,
        Command::Status => {
            for (part, pid) in find()?.status() {
                let state = pid.map_or_else(|| "down".to_owned(), |pid| format!("pid {pid}"));
                println!("{part:12} {state}");
            }
        }
        Command::Load { archives } => find()?.load(&archives)?,
        Command::Kubectl { args } => return Err(find()?.kubectl().args(args).exec().into()),
        Command::Node { number, args } => {
            let Some((program, rest)) = args.split_first() else {
                bail!("which command?");
            };
            let cluster = find()?;
            let error = cluster.node(number).command(program)?.args(rest).exec();
            return Err(error.into());
        }
        Command::KillNode { number } => find()?.node(number).kill()?,
        Command::StartNode {
            number,
            rewrite_cni,
        } => {
            let boot = if rewrite_cni {
                NodeBoot::CniRewritten
            } else {
                NodeBoot::AsConfigured
            };
            find()?.node(number).start(boot)?;
        }
    }
    Ok(())
}
