//! The node proxy's process.
#![forbid(unsafe_code)]

use std::process::ExitCode;

use ambit_node_proxy::{
    app::{self, StartedBy},
    supervisor,
};
use ambit_rt::Env;

#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

const HELP: &str = "ambit-node-proxy: the node's proxy of an ambient mesh

Usage: ambit-node-proxy [--no-supervisor] [proxy [ztunnel] | version | help]

Configured by the environment variables that Istio's ztunnel reads.

  --no-supervisor  run the proxy itself, without the process that holds the pods' sockets
                   and replaces a proxy that died (also AMBIT_SUPERVISOR=false)
";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let mut arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let alone = arguments.first() == Some(&"--no-supervisor");
    if alone {
        arguments.remove(0);
    }
    let env = Env::from_process();
    match arguments.as_slice() {
        [] | ["proxy"] | ["proxy", "ztunnel"] => {
            let result = match env.flag("AMBIT_SUPERVISOR") {
                Ok(setting) if alone || setting == Some(false) => work(&env, StartedBy::Anyone),
                Ok(_) => supervisor::run(&env),
                Err(error) => Err(error.into()),
            };
            exit_with(result)
        }
        [supervisor::WORKER_ARGUMENT] => exit_with(work(&env, StartedBy::Supervisor)),
        ["version" | "--version"] => print(&format!("{:#}\n", ambit_node_proxy::admin::version())),
        ["help" | "--help" | "-h"] => print(HELP),
        other => fail(&format!("unknown arguments {other:?}\n\n{HELP}")),
    }
}

fn work(env: &Env, by: StartedBy) -> anyhow::Result<u8> {
    app::run(env, by).map(|()| 0)
}

fn exit_with(result: anyhow::Result<u8>) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        Err(error) => fail(&format!("{error:#}")),
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
