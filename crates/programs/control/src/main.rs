//! Entry point of `ambit-control`, the control plane.
#![forbid(unsafe_code)]

use clap::Parser;

fn main() -> anyhow::Result<()> {
    ambit_control::run::main(ambit_control::args::Args::parse())
}
