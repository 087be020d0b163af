//! Main program `ambit-agent`, of which each node runs one.

use std::process::ExitCode;

use ambit_agent::config::Args;
use clap::Parser as _;

/// Allocator that returns memory after load peaks; the C library's allocator keeps it in one arena for each thread.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    let args = Args::parse();
    let ended: anyhow::Result<u8> = if args.worker || args.no_supervisor {
        ambit_agent::run(args).map(|()| 0).map_err(Into::into)
    } else {
        let arguments = std::env::args_os().skip(1).collect();
        ambit_agent::supervise(&args, arguments).map_err(Into::into)
    };
    match ended {
        Ok(code) => ExitCode::from(code),
        Err(error) => {
            ambit_rt::logging::flush(std::time::Duration::from_millis(200));
            eprintln!("ambit-agent: {error:#}");
            ExitCode::FAILURE
        }
    }
}
