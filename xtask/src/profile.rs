//! `cargo xtask profile`: records what the proxies execute under load, as profiles by which those in images are optimised:
//! code that runs for connections and requests for speed, all other code for size.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::Architecture;
use anyhow::{Context as _, Result, ensure};

use crate::{
    bench, outside, setup, shell,
    static_binary::{self, profile_path},
};

/// Programs that are built with a profile.
const PROGRAMS: [&str; 2] = ["ambit-node-proxy", "ambit-waypoint"];

/// Loads under which they are recorded, as arguments of `ambit-bench` and redirection backends.
const LOADS: [(&[&str], &str); 3] = [
    (&["traffic"], "nftables"),
    (&["traffic"], "bpf"),
    (&["waypoint", "loads", "grpc", "policies"], "bpf"),
];

/// Records the profiles for this machine's architecture, and writes them where static builds find them.
pub(crate) fn record() -> Result<()> {
    setup::ensure(setup::Purpose::Bench)?;
    setup::ensure(setup::Purpose::Profile)?;
    let architecture = Architecture::native()?;
    let directory = shell::target_dir().join("profile");
    let counters = directory.join("counters");
    let programs = bench::build(&[])?;
    for program in PROGRAMS {
        // `%c` in its path maps the counters' file into the program, so that nothing is lost when the lab kills it.
        let flags = [
            format!("-Cprofile-generate={}%c", counters.join(program).display()),
            "-Cllvm-args=-runtime-counter-relocation".to_owned(),
        ];
        let build = directory.join("build");
        let counting = static_binary::build_with(&flags, &build, program, program, architecture)?;
        bench::replace_program(&counting, &programs.join(program))?;
    }
    // Build scripts and procedural macros have counted as well.
    fs::remove_dir_all(&counters)?;
    for program in PROGRAMS {
        fs::create_dir_all(counters.join(program))?;
    }
    for (arguments, backend) in LOADS {
        let mut load = Command::new(programs.join("ambit-bench"));
        load.args(arguments)
            .env("AMBIT_BENCH_BACKEND", backend)
            .env("AMBIT_BENCH_ROUNDS", "1")
            .env("AMBIT_BENCH_ENVOY", bench::find_envoy()?)
            .env("AMBIT_BENCH_COLLECTOR", outside::build_collector()?)
            .current_dir(shell::workspace_root());
        let what = format!("load: {}, captured by {backend}", arguments.join(" "));
        shell::run(&what, &mut load)?;
    }
    for program in PROGRAMS {
        merge(
            &counters.join(program),
            &profile_path(program, architecture),
        )?;
    }
    Ok(())
}

/// Writes the profile of all files in the directory `counters`, with the functions that were executed.
fn merge(counters: &Path, profile: &Path) -> Result<()> {
    let files: Vec<PathBuf> = fs::read_dir(counters)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    ensure!(
        !files.is_empty(),
        "a program wrote no counters to {}",
        counters.display()
    );
    let directory = profile.parent().context("a profile is in a directory")?;
    fs::create_dir_all(directory)?;
    let mut tool = Command::new(setup::PROFDATA_PATH);
    tool.args(["merge", "--sparse", "--output"])
        .arg(profile)
        .args(files);
    shell::run("merge the counters", &mut tool)?;
    eprintln!("    {}", profile.display());
    Ok(())
}
