//! Programs for pods of a lab or a cluster, so that nothing else needs to be in them: servers that say
//! who called, clients that call again and again, and a steady load that accounts for every failure.

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

use std::{process::ExitCode, thread, time::Duration};

use clap::Subcommand;

#[derive(Debug, Subcommand)]
pub(crate) enum Tool {
    /// Serve HTTP: every response names server and client
    Serve {
        /// Port to listen on
        #[arg(long, default_value_t = 8080)]
        port: u16,
        /// Name that its answers give
        #[arg(long, default_value = "server")]
        name: String,
        /// Repeat this text in every answer
        #[arg(long, default_value = "")]
        text: String,
        /// Send back every byte on this port, too
        #[arg(long)]
        echo: Option<u16>,
        /// Do not print a line for every request
        #[arg(long)]
        quiet: bool,
    },
    /// Serve HTTP: every response is the head of its request; requests below /silent get none
    Reflect {
        /// Port to listen on
        #[arg(long, default_value_t = 8080)]
        port: u16,
    },
    /// Send back every byte, on every connection
    Echo {
        /// Port to listen on
        #[arg(long, default_value_t = 9000)]
        port: u16,
    },
    /// GET a URL; exits with 0 if it succeeded, else with curl's code: 22 for an HTTP error, 7 refused,
    /// 28 timed out, 52 closed, 56 reset, 6 unknown host
    Get {
        /// URL as http://HOST[:PORT]/PATH
        url: String,
        /// Again and again, so many milliseconds apart
        #[arg(long)]
        every: Option<u64>,
        /// Milliseconds to wait for an answer
        #[arg(long, default_value_t = 5000)]
        timeout: u64,
    },
    /// Keep a connection open; ends when the other side does
    Hold {
        /// Target as HOST:PORT
        target: String,
    },
    /// A steady load on keep-alive, new and long-lived connections; prints every failure and a summary
    /// as lines of JSON
    Load(load::Args),
    /// Connect in the first millisecond of the process; prints when the first answer came, as JSON
    FirstConnect(first_connect::Args),
    /// Answer kubelet's probes of every kind
    ProbeServer(probe_server::Args),
    /// Ask a DNS server one question and print the whole answer
    Resolve(resolve::Args),
    /// Wait for ever
    Sleep,
}

pub(crate) fn run(tool: &Tool) -> ExitCode {
    if let Tool::Load(args) = tool {
        return load::run(args);
    }
    // As the first process of a container it would otherwise not be ended by a signal.
    signals::end_process();
    match tool {
        Tool::Serve {
            port,
            name,
            text,
            echo,
            quiet,
        } => serve::http(*port, name, text, *echo, *quiet),
        Tool::Reflect { port } => reflect::http(*port),
        Tool::Echo { port } => serve::echo(*port),
        Tool::Get {
            url,
            every,
            timeout,
        } => get::get(url, *every, Duration::from_millis(*timeout)),
        Tool::Hold { target } => get::hold(target),
        Tool::Load(args) => load::run(args),
        Tool::FirstConnect(args) => first_connect::run(args),
        Tool::ProbeServer(args) => probe_server::run(args),
        Tool::Resolve(args) => resolve::run(args),
        Tool::Sleep => sleep(),
    }
}

fn sleep() -> ! {
    loop {
        thread::park();
    }
}
