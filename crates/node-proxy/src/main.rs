//! The node proxy's process.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ambit_rt::Env;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HELP: &str = "ambit-node-proxy: the node's proxy of an ambient mesh

Usage: ambit-node-proxy [proxy [ztunnel] | version | help]

Configured by the environment variables that Istio's ztunnel reads.
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        [] | ["proxy"] | ["proxy", "ztunnel"] => {
            match ambit_node_proxy::app::run(&Env::from_process()) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => fail(&format!("{error:#}")),
            }
        }
        ["version" | "--version"] => print(&format!("{:#}\n", ambit_node_proxy::admin::version())),
        ["help" | "--help" | "-h"] => print(HELP),
        other => fail(&format!("unknown arguments {other:?}\n\n{HELP}")),
    }
}

#[expect(
    clippy::print_stdout,
    reason = "what was asked for on the command line"
)]
fn print(text: &str) -> ExitCode {
    print!("{text}");
    ExitCode::SUCCESS
}

fn fail(text: &str) -> ExitCode {
    eprintln!("ambit-node-proxy: {text}");
    ExitCode::FAILURE
}
