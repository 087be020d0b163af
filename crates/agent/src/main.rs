//! `ambit-agent`, one on each node.

use std::process::ExitCode;

use ambit_agent::config::Args;
use clap::Parser as _;

fn main() -> ExitCode {
    match ambit_agent::run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            ambit_rt::logging::flush(std::time::Duration::from_millis(200));
            eprintln!("ambit-agent: {:#}", anyhow::Error::from(error));
            ExitCode::FAILURE
        }
    }
}
