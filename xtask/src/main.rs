//! `cargo xtask <command>`: the entry point of all development tasks. Nothing else needs to be installed by hand.

use std::process::ExitCode;

mod arm64;
mod bench;
mod book;
mod bpf;
mod cluster;
mod command;
mod cross;
mod debian;
mod demo;
mod dist;
mod fuzz;
mod images;
mod istio;
mod outside;
mod plugin;
mod profile;
mod proto;
mod setup;
mod shell;
mod static_binary;
mod test;
mod tidy;
mod web;

const USAGE: &str = include_str!("usage.txt");

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    // Commands would take it for an argument: `bench` would build for minutes before it refuses one.
    let wants_help = args
        .iter()
        .take(2)
        .any(|arg| arg == "--help" || arg == "-h");
    match (!wants_help).then(|| command::run(&args)).flatten() {
        Some(Ok(())) => ExitCode::SUCCESS,
        Some(Err(error)) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
        None => {
            eprint!("{USAGE}");
            ExitCode::from(if wants_help { 0 } else { 2 })
        }
    }
}
