//! `ambit-lab-tool`: servers and clients for pods of a lab or a cluster, so that these need no other programs. The
//! servers report their caller, the clients repeat calls, and a steady load records every failure.
#![forbid(unsafe_code)]

mod args;
mod duration;
mod first_connect;
mod get;
mod http1;
mod load;
mod probe_server;
mod reflect;
mod resolve;
mod serve;
mod signals;

use std::{process::ExitCode, time::Duration};

use clap::Parser as _;

use crate::args::{Args, Tool};

fn main() -> ExitCode {
    let tool = Args::parse().tool;
    // The load handles signals itself, and prints a summary. As the first process of a container,
    // other programs would ignore them.
    if !matches!(tool, Tool::Load(_)) {
        signals::end_process_on_signal();
    }
    match tool {
        Tool::Serve {
            port,
            name,
            text,
            echo,
            quiet,
        } => serve::serve_http(port, &name, &text, echo, quiet),
        Tool::Reflect { port } => reflect::serve_http(port),
        Tool::Echo { port } => serve::serve_echo(port),
        Tool::Get {
            url,
            every,
            timeout,
        } => get::get(&url, every, Duration::from_millis(timeout)),
        Tool::Hold { target } => get::hold(&target),
        Tool::Load(args) => load::run(&args),
        Tool::FirstConnect(args) => first_connect::run(&args),
        Tool::ProbeServer(args) => probe_server::run(&args),
        Tool::Resolve(args) => resolve::run(&args),
        Tool::Sleep => signals::sleep_forever(),
    }
}
