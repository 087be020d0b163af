//! Programs for the Gateway API's conformance tests in the pods of a mesh: a server that reports
//! the received request, and a client that the tests run in the pods. The tests call them by the
//! names `server` and `client`, with the arguments of the suite's own image; the suite parses the
//! client's output (`conformance/utils/echo/parse.go`).
#![forbid(unsafe_code)]

mod client;
mod grpc;
mod server;
#[cfg(test)]
mod tests;

use clap::Parser;

#[derive(Debug, Parser)]
#[command(multicall = true)]
enum Program {
    /// Answers until it is told to end
    Server(server::Args),
    /// Sends requests, prints the answers
    Client(client::Args),
}

#[tokio::main(flavor = "current_thread")]
#[expect(clippy::print_stdout, reason = "the suite reads standard output")]
async fn main() -> anyhow::Result<()> {
    match Program::parse() {
        Program::Server(args) => server::run(&args).await,
        Program::Client(args) => {
            println!("{}", client::run(&args).await?);
            Ok(())
        }
    }
}
