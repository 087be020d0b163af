//! Entry point of `ambit-cluster`, which `cargo xtask cluster` calls.

use clap::Parser;

fn main() -> anyhow::Result<()> {
    ambit_cluster::command_line::run(ambit_cluster::command_line::Args::parse())
}
