//! The commands of `cargo xtask`, by their names.

use anyhow::Result;

use crate::{
    arm64, bench, book, bpf, cluster, demo, dist, fuzz, images, plugin, profile, proto, test, tidy,
    web,
};

/// Runs the command that the first argument names; `None` if there is no such command.
pub(crate) fn run(args: &[String]) -> Option<Result<()>> {
    let (name, rest) = args.split_first()?;
    let argument = rest.first().map(String::as_str);
    Some(match name.as_str() {
        "demo" => demo::run(),
        "test" => test::run(rest),
        "arm64" => arm64::run(),
        "spire" => test::spire(),
        "check" => test::check(),
        "tidy" => tidy::run(),
        "fuzz" => fuzz::run(argument),
        "cluster" => cluster::run(rest),
        "images" => images::run(rest),
        "dist" => dist::run(rest),
        "profile" => profile::record(),
        "plugin" => plugin::build_native().map(drop),
        "bench" => bench::run(rest),
        "web" => web::build(argument == Some("--check")),
        "book" => book::run(rest),
        "bpf" => bpf::build(argument == Some("--check")),
        "gen" => proto::generate(),
        _ => return None,
    })
}
