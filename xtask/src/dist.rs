//! `cargo xtask dist`: the files of a release besides images and chart: the command line for Linux, bills of materials
//! (SBOMs), and checksums. The workflow `release` signs and publishes them.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use ambit_images::{Architecture, LayerTree, hex_digest};
use anyhow::{Context, Result, bail};

use crate::{
    cross,
    setup::{self, Purpose},
    shell, static_binary,
};

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Generator of SBOMs: crate and version.
const SBOM_GENERATOR: (&str, &str) = ("cargo-cyclonedx", "0.5.9");

/// Folders of the programs below `crates`, and the names of their SBOMs, which are those of the images; the image
/// `tools` has two programs.
const DISTRIBUTED_PROGRAMS: [(&str, &str); 7] = [
    ("programs/agent", "agent"),
    ("programs/cli", "tools"),
    ("programs/cni", "cni"),
    ("programs/control", "control"),
    ("programs/node-proxy", "node-proxy"),
    ("programs/waypoint", "waypoint"),
    ("lab/lab-tool", "lab-tool"),
];

/// Writes the release's files to the directory that `--out` names, by default `target/dist`.
pub(crate) fn run(args: &[String]) -> Result<()> {
    let out = match args {
        [] => shell::target_dir().join("dist"),
        [flag, directory] if flag == "--out" => PathBuf::from(directory),
        _ => bail!("usage: cargo xtask dist [--out DIR]"),
    };
    // A file of an earlier version would be included in the checksums.
    if out.exists() {
        fs::remove_dir_all(&out)?;
    }
    fs::create_dir_all(&out)?;
    setup::ensure(Purpose::Images)?;
    write_sboms(&out)?;
    for architecture in Architecture::ALL {
        if !architecture.is_native() {
            setup::ensure(Purpose::Cross(architecture))?;
        }
        build_command_line(architecture, &out)?;
    }
    write_checksums(&out)
}

/// Writes the archive of the command line for Linux on an architecture. The binary is statically linked, since
/// distributions have different versions of the C library.
fn build_command_line(architecture: Architecture, out: &Path) -> Result<()> {
    let mut tree = LayerTree::default();
    // Labs start the second one in their pods.
    for (package, name) in [("ambit-cli", "ambit"), ("ambit-lab-tool", "ambit-lab-tool")] {
        let program = static_binary::build(package, name, architecture)?;
        cross::check_start(&program, architecture)?;
        // Line tables are most of what the build writes.
        let stripped = program.with_file_name(format!("{name}-stripped"));
        ambit_images::strip_symbols(architecture, &program, &stripped)?;
        tree.add_copy(name, &stripped, 0o755)?;
    }
    // kubectl finds its plugins by their names.
    tree.add_symlink("kubectl-ambit", "ambit");
    tree.add_copy("LICENSE", &shell::workspace_root().join("LICENSE"), 0o644)?;
    let file = format!("ambit-{VERSION}-linux-{}.tar.gz", architecture.name());
    let path = out.join(file);
    fs::write(&path, tree.to_tar_gz()?).with_context(|| path.display().to_string())
}

/// Writes an SBOM of each program, in CycloneDX format.
fn write_sboms(out: &Path) -> Result<()> {
    let mut command = Command::new(install_cyclonedx()?);
    command
        .args(["cyclonedx", "--format", "json", "--spec-version", "1.5"])
        .args(["--target", &Architecture::native()?.rust_target()])
        .args(["--override-filename", "bill"])
        .current_dir(shell::workspace_root())
        // The same sources give the same bytes: the time of the commit, not today's.
        .env("SOURCE_DATE_EPOCH", commit_time()?);
    // The tool writes beside the manifest of each crate of the workspace.
    let written = shell::run("bills of materials", &mut command).and_then(|()| copy_sboms(out));
    remove_generated_sboms(&shell::workspace_root())?;
    written
}

/// Copies the programs' SBOMs, without the path of this checkout in them.
fn copy_sboms(out: &Path) -> Result<()> {
    let root = shell::workspace_root();
    for (folder, name) in DISTRIBUTED_PROGRAMS {
        let bill = root.join("crates").join(folder).join("bill.json");
        let text = fs::read_to_string(&bill)
            .with_context(|| format!("cargo-cyclonedx did not write {}", bill.display()))?;
        let text = text.replace(&format!("file://{}", root.display()), "file://");
        fs::write(out.join(format!("{name}.cdx.json")), text)?;
    }
    Ok(())
}

/// Returns the time of the checked-out commit, in seconds since 1970.
fn commit_time() -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"])
        .current_dir(shell::workspace_root());
    let output = git.output().context("git log")?;
    Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

/// Removes the SBOMs that the generator wrote beside the manifests of all workspace crates.
fn remove_generated_sboms(root: &Path) -> Result<()> {
    let mut folders = vec![root.to_path_buf()];
    for layer in fs::read_dir(root.join("crates"))? {
        folders.push(layer?.path());
    }
    for folder in folders {
        for entry in fs::read_dir(folder)? {
            let bill = entry?.path().join("bill.json");
            if bill.exists() {
                fs::remove_file(bill)?;
            }
        }
    }
    Ok(())
}

/// Installs the generator of SBOMs into the target directory, and returns its path.
fn install_cyclonedx() -> Result<PathBuf> {
    let (name, version) = SBOM_GENERATOR;
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

/// Writes the checksums of all files of the release, as `sha256sum` prints and checks them.
fn write_checksums(out: &Path) -> Result<()> {
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
