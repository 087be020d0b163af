//! The developer's one entry: `cargo xtask <command>`. Nothing else needs to be installed by hand.

use std::process::ExitCode;

mod bench;
mod cluster;
mod demo;
mod fuzz;
mod images;
mod outside;
mod plugin;
mod proto;
mod setup;
mod shell;
mod static_binary;
mod test;
mod tidy;
mod web;

const USAGE: &str = "\
usage: cargo xtask <command>

  demo            build, start a lab, show the mesh at work
  test [CRATE]    install what the tests need, run everything (or the tests of one crate; what follows goes to cargo test)
  check           formatting and lints of the whole workspace
  tidy            layers, dependencies, licences, modules, files: the rules of CONTRIBUTING.md
  fuzz [SECONDS]  a short run of every fuzz target (default 5 seconds each)
  bench [PART]    figures as ratios: traffic, memory, control (plane at scale), waypoint (beside Envoy), cluster [SCENARIO], floods
  cluster ...     a real Kubernetes: up, down, load, status, kubectl, node, kill-node, start-node
  images          container images as OCI archives [--release] [--out DIR] [--hub HUB] [--tag TAG]
  plugin          the CNI plugin as one static file
  web [--check]   the dashboard's bundle, from web/
  gen [--check]   the generated protobuf code, from crates/protocol/wire/proto
";

fn main() -> ExitCode {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let argument = args.get(1).map(String::as_str);
    let result = match args.first().map(String::as_str) {
        Some("demo") => demo::run(),
        Some("test") => test::run(args.get(1..).unwrap_or_default()),
        Some("check") => test::check(),
        Some("tidy") => tidy::run(),
        Some("fuzz") => fuzz::run(argument),
        Some("cluster") => cluster::run(args.get(1..).unwrap_or_default()),
        Some("images") => images::run(args.get(1..).unwrap_or_default()),
        Some("plugin") => plugin::build().map(drop),
        Some("bench") => bench::run(args.get(1..).unwrap_or_default()),
        Some("web") => web::build(argument == Some("--check")),
        Some("gen") => proto::generate(argument == Some("--check")),
        _ => {
            eprint!("{USAGE}");
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("xtask: {error:#}");
            ExitCode::FAILURE
        }
    }
}
