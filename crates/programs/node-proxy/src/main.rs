//! Entry point of the node proxy's process.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ambit_node_proxy::command::{self, CommandOutcome};
use ambit_rt::Env;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[expect(
    clippy::print_stdout,
    reason = "what was asked for on the command line"
)]
fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match command::run(&arguments, &Env::from_process()) {
        Ok(CommandOutcome::Exit(code)) => ExitCode::from(code),
        Ok(CommandOutcome::Print(text)) => {
            print!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("ambit-node-proxy: {error:#}");
            ExitCode::FAILURE
        }
    }
}
