//! `cargo xtask profile`: records what the proxies execute under load, as the profile by which those in images are
//! optimised: code that runs for connections and requests for speed, all other code for size.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::Architecture;
use anyhow::{Context as _, Result, ensure};

use crate::{
    bench, outside, setup, shell,
    static_binary::{self, PROFILED_PROGRAMS, profile_path},
};

/// Loads under which the proxies are recorded, as arguments of `ambit-bench` and redirection backends.
const LOADS: [(&[&str], &str); 3] = [
    (&["traffic"], "nftables"),
    (&["traffic"], "bpf"),
    (&["waypoint", "loads", "grpc", "policies"], "bpf"),
];

/// Records the profile for this machine's architecture, and writes it where static builds find it.
pub(crate) fn record() -> Result<()> {
    setup::ensure(setup::Purpose::Bench)?;
    setup::ensure(setup::Purpose::Profile)?;
    let architecture = Architecture::native()?;
    let directory = shell::target_dir().join("profile");
    let counters = directory.join("counters");
    let programs = bench::build(&[])?;
    // `%c` in its path maps the counters' file into the program, so that nothing is lost when the lab kills it.
    let flags = [
        format!("-Cprofile-generate={}%c", counters.display()),
        "-Cllvm-args=-runtime-counter-relocation".to_owned(),
        // Mapped files have no place for counters of values, such as the targets of indirect calls.
        "-Cllvm-args=-disable-vp".to_owned(),
    ];
    let build = directory.join("build");
    for program in PROFILED_PROGRAMS {
        let counting = static_binary::build_with(&flags, &build, program, program, architecture)?;
        bench::replace_program(&counting, &programs.join(program))?;
    }
    // Build scripts and procedural macros have counted as well.
    fs::remove_dir_all(&counters)?;
    fs::create_dir_all(&counters)?;
    let (envoy, collector) = (bench::find_envoy()?, outside::build_collector()?);
    for (arguments, backend) in LOADS {
        let mut load = Command::new(programs.join("ambit-bench"));
        load.args(arguments)
            .env("AMBIT_BENCH_BACKEND", backend)
            .env("AMBIT_BENCH_ROUNDS", "1")
            .env("AMBIT_BENCH_ENVOY", &envoy)
            .env("AMBIT_BENCH_COLLECTOR", &collector)
            .current_dir(shell::workspace_root());
        let what = format!("load: {}, captured by {backend}", arguments.join(" "));
        shell::run(&what, &mut load)?;
    }
    merge(&counters, &profile_path(architecture))?;
    fs::copy(
        shell::workspace_root().join("rust-toolchain.toml"),
        recorded_toolchain_path(),
    )?;
    Ok(())
}

/// Returns the contents of `rust-toolchain.toml` when the profile was recorded.
pub(crate) fn recorded_toolchain() -> Result<String> {
    let path = recorded_toolchain_path();
    fs::read_to_string(&path).with_context(|| path.display().to_string())
}

fn recorded_toolchain_path() -> PathBuf {
    shell::workspace_root().join("build/profiles/toolchain")
}

/// Writes the profile of all files in the directory `counters`, with the functions that were executed.
fn merge(counters: &Path, profile: &Path) -> Result<()> {
    let files: Vec<PathBuf> = fs::read_dir(counters)?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    ensure!(
        !files.is_empty(),
        "the proxies wrote no counters to {}",
        counters.display()
    );
    let mut tool = Command::new(setup::PROFDATA_PATH);
    tool.args(["merge", "--sparse", "--output"])
        .arg(profile)
        .args(files);
    shell::run("merge the counters", &mut tool)?;
    eprintln!("    {}", profile.display());
    Ok(())
}
