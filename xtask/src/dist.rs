//! `cargo xtask dist`: the files of a release besides images and chart: the command line for Linux, bills of materials,
//! and checksums. The workflow `release` signs and publishes them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::{Architecture, Tree, hex_digest};
use anyhow::{Context, Result, bail};

use crate::{
    cross,
    setup::{self, Purpose},
    shell, static_binary,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Writer of bills of materials: crate and version.
const CYCLONEDX: (&str, &str) = ("cargo-cyclonedx", "0.5.9");

/// Crates of programs, and the names that their bills of materials have: those of the images.
const PROGRAMS: [(&str, &str); 6] = [
    ("agent", "agent"),
    ("cli", "tools"),
    ("cni", "cni"),
    ("control", "control"),
    ("node-proxy", "node-proxy"),
    ("waypoint", "waypoint"),
];

/// Writes the files to the directory that `--out` names, by default `target/dist`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let out = match args {
        [] => shell::target_dir().join("dist"),
        [flag, directory] if flag == "--out" => PathBuf::from(directory),
        _ => bail!("usage: cargo xtask dist [--out DIR]"),
    };
    // A file of an earlier version would get into the checksums.
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    setup::ensure(Purpose::Images)?;
    for architecture in Architecture::ALL {
        if !architecture.is_native() {
            setup::ensure(Purpose::Cross(architecture))?;
        }
        command_line(architecture, &out)?;
    }
    bills_of_materials(&out)?;
    checksums(&out)
}

/// Writes the archive of the command line for Linux on an architecture. It is static, since distributions have different
/// versions of the C library.
fn command_line(architecture: Architecture, out: &Path) -> Result<()> {
    let program = static_binary::build("ambit-cli", "ambit", architecture)?;
    cross::check_start(std::slice::from_ref(&program), architecture)?;
    let mut tree = Tree::default();
    tree.copy("ambit", &program, 0o755)?;
    // kubectl finds its plugins by their names.
    tree.link("kubectl-ambit", "ambit");
    tree.copy("LICENSE", &shell::root().join("LICENSE"), 0o644)?;
    let file = format!("ambit-{VERSION}-linux-{}.tar.gz", architecture.name());
    let path = out.join(file);
    fs::write(&path, tree.compressed()?).with_context(|| path.display().to_string())
}

/// Writes a bill of materials of each program, in the form of CycloneDX.
fn bills_of_materials(out: &Path) -> Result<()> {
    let tool = cyclonedx()?;
    let target = Architecture::native()?.rust_target();
    for (folder, name) in PROGRAMS {
        let directory = shell::root().join("crates/programs").join(folder);
        let mut command = Command::new(&tool);
        command
            .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
            .args(["--target", &target, "--override-filename", "bill"])
            .arg("--manifest-path")
            .arg(directory.join("Cargo.toml"))
            // The same sources give the same bytes: no time of today.
            .env("SOURCE_DATE_EPOCH", commit_time()?);
        shell::run(&format!("bill of materials of {name}"), &mut command)?;
        // The tool writes beside the manifest of each crate of the workspace that the program depends on.
        let bill = directory.join("bill.json");
        fs::copy(&bill, out.join(format!("{name}.cdx.json")))
            .with_context(|| format!("cargo-cyclonedx did not write {}", bill.display()))?;
        remove_bills(&shell::root().join("crates"))?;
    }
    Ok(())
}

/// Returns the time of the commit that is checked out, in seconds since 1970.
fn commit_time() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(shell::root());
    let output = git.output().context("git log")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn remove_bills(crates: &Path) -> Result<()> {
    for folder in fs::read_dir(crates)? {
        for entry in fs::read_dir(folder?.path())? {
            let bill = entry?.path().join("bill.json");
            if bill.exists() {
                fs::remove_file(bill)?;
            }
        }
    }
    Ok(())
}

/// Installs the writer of bills of materials into the target directory, and returns its path.
fn cyclonedx() -> Result<PathBuf> {
    let (name, version) = CYCLONEDX;
    let root = shell::target_dir()
        .join("tools")
        .join(format!("{name}-{version}"));
    let tool = root.join("bin").join(name);
    if !tool.exists() {
        let mut cargo = shell::cargo(&["install", "--locked", name, "--version", version]);
        cargo.arg("--root").arg(&root);
        shell::run(&format!("install {name}"), &mut cargo)?;
    }
    Ok(tool)
}

/// Writes the checksums of all files, as `sha256sum` prints and checks them.
fn checksums(out: &Path) -> Result<()> {
    let mut names = Vec::new();
    for entry in fs::read_dir(out)? {
        names.push(entry?.file_name().to_string_lossy().into_owned());
    }
    names.sort();
    let mut text = String::new();
    for name in names {
        let digest = hex_digest(&fs::read(out.join(&name))?);
        text.push_str(&format!("{digest}  {name}\n"));
    }
    eprint!("{text}");
    Ok(fs::write(out.join("SHA256SUMS"), text)?)
}
