//! `cargo xtask tidy`: the rules of CONTRIBUTING.md as code.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::shell;

/// The folders of `crates/`, lowest first: a crate uses those of lower folders and its own.
const FOLDERS: &[&str] = &[
    "protocol",
    "runtime",
    "node",
    "dataplane",
    "control-plane",
    "lab",
    PROGRAMS,
    DEVELOPMENT,
];

/// Its crates never use each other.
const PROGRAMS: &str = "programs";

/// Nothing shipped uses its crates; each may use all.
const DEVELOPMENT: &str = "development";

/// What the tree of a crate with `package.metadata.tidy.pure` never holds: whatever does IO.
const IO: &[&str] = &["tokio", "prost", "rustix", "socket2"];

/// Crypto other than aws-lc, and parsers without upkeep.
const BANNED_EVERYWHERE: &[&str] = &["ring", "openssl-sys", "native-tls", "serde_yaml"];

const MAX_FILE_LINES: usize = 700;
const MAX_MAIN_LINES: usize = 60;
const HEADER_FROM_LINES: usize = 100;

/// Fails with every broken rule, one a line.
pub(crate) fn run() -> Result<()> {
    let mut broken = Vec::new();
    let packages = metadata()?;
    layers(&packages, &mut broken);
    trees(&packages, &mut broken);
    banned_everywhere(&mut broken)?;
    for (name, package) in &packages {
        if name.starts_with("ambit-") {
            sources(package, &mut broken)?;
        }
    }
    ensure!(broken.is_empty(), "tidy found:\n  {}", broken.join("\n  "));
    eprintln!(
        "==> tidy: {} crates in order",
        packages.keys().filter(|n| is_ours(n)).count()
    );
    Ok(())
}

struct Package {
    dir: PathBuf,
    /// Normal dependencies, by package name.
    dependencies: Vec<String>,
    /// What its tree of dependencies must never hold, and why.
    never: Vec<(String, String)>,
}

fn is_ours(name: &str) -> bool {
    name.starts_with("ambit-")
}

#[expect(
    clippy::indexing_slicing,
    reason = "JSON values give null for what is not there"
)]
fn metadata() -> Result<BTreeMap<String, Package>> {
    let target = "--filter-platform=x86_64-unknown-linux-gnu";
    let output = shell::cargo(&["metadata", "--format-version", "1", target]).output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    let json: Value = serde_json::from_slice(&output.stdout)?;
    let packages = json["packages"].as_array().context("no packages")?;
    let names: BTreeMap<&str, &str> = packages
        .iter()
        .filter_map(|p| Some((p["id"].as_str()?, p["name"].as_str()?)))
        .collect();
    let mut result = BTreeMap::new();
    for node in json["resolve"]["nodes"].as_array().context("no resolve")? {
        let id = node["id"].as_str().context("a node without an id")?;
        let package = packages
            .iter()
            .find(|p| p["id"] == node["id"])
            .context("a package that is not listed")?;
        let manifest = package["manifest_path"]
            .as_str()
            .context("a package without a manifest")?;
        let dependencies = node["deps"]
            .as_array()
            .into_iter()
            .flatten()
            .filter(|dep| {
                dep["dep_kinds"]
                    .as_array()
                    .is_some_and(|kinds| kinds.iter().any(|k| k["kind"].is_null()))
            })
            .filter_map(|dep| names.get(dep["pkg"].as_str()?).map(ToString::to_string))
            .collect();
        let dir = Path::new(manifest)
            .parent()
            .context("a manifest at the root")?
            .to_path_buf();
        if let Some(name) = names.get(id) {
            let package = Package {
                dir,
                dependencies,
                never: never(&package["metadata"]["tidy"]),
            };
            result.insert((*name).to_owned(), package);
        }
    }
    Ok(result)
}

/// What `[package.metadata.tidy]` forbids: `pure = true`, and `never = { crate = "why" }`.
#[expect(
    clippy::indexing_slicing,
    reason = "JSON values give null for what is not there"
)]
fn never(metadata: &Value) -> Vec<(String, String)> {
    let pure = metadata["pure"].as_bool().unwrap_or_default();
    let io = IO.iter().filter(|_| pure);
    let io = io.map(|name| ((*name).to_owned(), "a pure crate does no IO".to_owned()));
    let named = metadata["never"].as_object().into_iter().flatten();
    let named = named.map(|(name, why)| (name.clone(), why.as_str().unwrap_or_default().into()));
    io.chain(named).collect()
}

/// The folder of a crate below `crates/`, and its rank.
fn folder(package: &Package) -> Option<(usize, &'static str)> {
    let path = package
        .dir
        .strip_prefix(shell::root().join("crates"))
        .ok()?;
    let (rank, folder) = FOLDERS
        .iter()
        .enumerate()
        .find(|(_, folder)| path.parent() == Some(Path::new(folder)))?;
    Some((rank, folder))
}

fn layers(packages: &BTreeMap<String, Package>, broken: &mut Vec<String>) {
    for (name, package) in packages.iter().filter(|(name, _)| is_ours(name)) {
        let Some((own, own_folder)) = folder(package) else {
            broken.push(format!(
                "{name} is in none of the folders of crates/ that xtask/src/tidy.rs lists"
            ));
            continue;
        };
        for dependency in package.dependencies.iter().filter(|d| is_ours(d)) {
            let theirs = packages.get(dependency).and_then(folder);
            let allowed = theirs
                .is_some_and(|(theirs, _)| theirs < own || theirs == own && own_folder != PROGRAMS);
            if !allowed {
                broken.push(format!("{name} ({own_folder}) must not use {dependency}"));
            }
        }
    }
}

fn trees(packages: &BTreeMap<String, Package>, broken: &mut Vec<String>) {
    for (root, package) in packages.iter().filter(|(name, _)| is_ours(name)) {
        let tree = tree(packages, root);
        for (bad, why) in &package.never {
            if tree.contains(bad.as_str()) {
                broken.push(format!("{root} reaches {bad}: {why}"));
            }
        }
    }
}

/// `cargo metadata` also lists what optional features only might bring, so cargo itself is asked.
fn banned_everywhere(broken: &mut Vec<String>) -> Result<()> {
    for bad in BANNED_EVERYWHERE {
        let args = [
            "tree",
            "--workspace",
            "--target",
            "all",
            "--edges",
            "all",
            "--invert",
            bad,
        ];
        let output = shell::cargo(&args).output()?;
        if !output.stdout.is_empty() {
            broken.push(format!("{bad} is built; see `cargo {}`", args.join(" ")));
        }
    }
    Ok(())
}

/// A package and everything it is built with.
fn tree<'a>(packages: &'a BTreeMap<String, Package>, root: &'a str) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![root];
    while let Some(next) = open.pop() {
        if let Some(package) = packages.get(next)
            && seen.insert(next)
        {
            open.extend(package.dependencies.iter().map(String::as_str));
        }
    }
    seen
}

fn sources(package: &Package, broken: &mut Vec<String>) -> Result<()> {
    let src = package.dir.join("src");
    let lib = src.join("lib.rs");
    if lib.exists() && !fs::read_to_string(&lib)?.contains("#![forbid(unsafe_code)]") {
        broken.push(format!("{}: no #![forbid(unsafe_code)]", show(&lib)));
    }
    let mut files = Vec::new();
    walk(&package.dir, &mut files)?;
    for path in files {
        file(&path, &src, broken)?;
    }
    Ok(())
}

fn file(path: &Path, src: &Path, broken: &mut Vec<String>) -> Result<()> {
    let shown = show(path);
    if shown.contains("/generated/") {
        return Ok(());
    }
    let text = fs::read_to_string(path)?;
    let name = path
        .file_name()
        .map(|n| n.to_string_lossy().into_owned())
        .unwrap_or_default();
    let is_test = !path.starts_with(src) || name == "tests.rs" || shown.contains("/tests/");
    let code = text
        .split("\n#[cfg(test)]\nmod ")
        .next()
        .unwrap_or_default()
        .lines()
        .count();
    if name == "mod.rs" && path.starts_with(src) {
        broken.push(format!(
            "{shown}: a module is foo.rs beside foo/, never mod.rs"
        ));
    }
    if !is_test && code > MAX_FILE_LINES {
        broken.push(format!(
            "{shown}: {code} lines; split it by subject (limit {MAX_FILE_LINES})"
        ));
    }
    if name == "main.rs" && code > MAX_MAIN_LINES {
        broken.push(format!(
            "{shown}: {code} lines; a main only wires (limit {MAX_MAIN_LINES})"
        ));
    }
    if text.lines().count() > HEADER_FROM_LINES && !text.trim_start().starts_with("//!") {
        broken.push(format!(
            "{shown}: does not say what it owns (`//!` at its top)"
        ));
    }
    for (number, line) in text.lines().enumerate() {
        let at = format!("{shown}:{}", number + 1);
        if line.trim_start().starts_with("#[ignore") {
            broken.push(format!("{at}: an ignored test"));
        }
        let sleeps = line.contains("thread::sleep(") || line.contains("time::sleep(");
        if is_test && sleeps && !line.contains("// tidy:") {
            broken.push(format!(
                "{at}: a sleep in a test; wait on a condition with a deadline"
            ));
        }
        for word in ["TODO", "FIXME", "XXX"] {
            if line.contains(word) && !line.contains('"') {
                broken.push(format!("{at}: {word}"));
            }
        }
    }
    Ok(())
}

fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    for entry in fs::read_dir(dir)? {
        let path = entry?.path();
        if path.is_dir() {
            if !path.ends_with("target") {
                walk(&path, files)?;
            }
        } else if path.extension().is_some_and(|e| e == "rs") {
            files.push(path);
        }
    }
    files.sort();
    Ok(())
}

fn show(path: &Path) -> String {
    path.strip_prefix(shell::root())
        .unwrap_or(path)
        .display()
        .to_string()
}
