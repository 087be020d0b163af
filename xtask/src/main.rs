//! `cargo xtask <command>`: the entry point of all development tasks. Nothing else needs to be installed by hand.

use std::process::ExitCode;

mod arm64;
mod bench;
mod book;
mod bpf;
mod cluster;
mod cross;
mod debian;
mod demo;
mod dist;
mod fuzz;
mod images;
mod istio;
mod outside;
mod plugin;
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
    let argument = args.get(1).map(String::as_str);
    let result = match args.first().map(String::as_str) {
        Some("demo") => demo::run(),
        Some("test") => test::run(args.get(1..).unwrap_or_default()),
        Some("arm64") => arm64::run(),
        Some("spire") => test::spire(),
        Some("check") => test::check(),
        Some("tidy") => tidy::run(),
        Some("fuzz") => fuzz::run(argument),
        Some("cluster") => cluster::run(args.get(1..).unwrap_or_default()),
        Some("images") => images::run(args.get(1..).unwrap_or_default()),
        Some("dist") => dist::run(args.get(1..).unwrap_or_default()),
        Some("plugin") => plugin::build_native().map(drop),
        Some("bench") => bench::run(args.get(1..).unwrap_or_default()),
        Some("web") => web::build(argument == Some("--check")),
        Some("book") => book::run(args.get(1..).unwrap_or_default()),
        Some("bpf") => bpf::build(argument == Some("--check")),
        Some("gen") => proto::generate(),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    if let Err(error) = result {
        eprintln!("xtask: {error:#}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
