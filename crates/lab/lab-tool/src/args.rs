//! Arguments and subcommands of `ambit-lab-tool`.

use clap::{Parser, Subcommand};

use crate::{first_connect, load, probe_server, resolve};

/// Servers and clients for the pods of a lab or a cluster.
#[derive(Debug, Parser)]
#[command(name = "ambit-lab-tool", version, about)]
pub(crate) struct Args {
    #[command(subcommand)]
    pub(crate) tool: Tool,
}

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
