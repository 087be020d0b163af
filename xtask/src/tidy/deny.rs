//! Rules of `deny.toml`, in cargo-deny's format: licences, banned crates, and sources of crates. `cargo deny check
//! licenses bans sources` reads the same file; nothing needs to be installed for this check.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

use anyhow::{Context as _, Result};
use serde::Deserialize;
use spdx::{Expression, ParseMode};

use super::workspace::{Package, Workspace};
use crate::shell;

/// Part of cargo-deny's format that is read here.
#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct DenyPolicy {
    graph: Graph,
    licenses: Licenses,
    bans: Bans,
    sources: Sources,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Graph {
    /// Target triples whose dependencies are checked.
    targets: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Licenses {
    /// SPDX identifiers of the licences that packages may have.
    allow: Vec<String>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Bans {
    deny: Vec<Banned>,
    /// Versions, as `NAME@VERSION`, that may be built besides another version of the same crate.
    skip: Vec<Banned>,
}

#[derive(Debug, Deserialize)]
struct Banned {
    #[serde(rename = "crate")]
    name: String,
    reason: String,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct Sources {
    #[serde(rename = "allow-registry")]
    allow_registry: Vec<String>,
}

pub(super) fn find_violations(workspace: &Workspace) -> Result<Vec<String>> {
    let path = shell::workspace_root().join("deny.toml");
    let deny = parse(&fs::read_to_string(&path)?).with_context(|| path.display().to_string())?;
    let mut broken = check_policy(&deny, workspace);
    for banned in &deny.bans.deny {
        broken.extend(is_built(banned)?);
    }
    broken.extend(duplicates(
        &deny.bans.skip,
        &built_versions(&deny.graph.targets)?,
    ));
    Ok(broken)
}

/// Versions of each crate that are built, by the crate's name.
type Versions = BTreeMap<String, BTreeSet<String>>;

/// Lists the versions of crates that are built for any of the targets, by `cargo tree`.
fn built_versions(targets: &[String]) -> Result<Versions> {
    let mut args = vec!["tree", "--workspace", "--prefix", "none"];
    args.extend(["--edges", "normal,build,dev", "--format", "{p}"]);
    for target in targets {
        args.extend(["--target", target]);
    }
    let output = shell::cargo(&args).output()?;
    anyhow::ensure!(output.status.success(), "`cargo {}` failed", args.join(" "));
    Ok(versions(&String::from_utf8(output.stdout)?))
}

/// Parses lines of `cargo tree` such as `base64 v0.22.1 (proc-macro)`.
fn versions(tree: &str) -> Versions {
    let mut versions = Versions::new();
    for line in tree.lines() {
        let mut words = line.split(' ');
        if let (Some(name), Some(version)) = (words.next(), words.next())
            && let Some(version) = version.strip_prefix('v')
        {
            let all = versions.entry(name.to_owned()).or_default();
            all.insert(version.to_owned());
        }
    }
    versions
}

/// Finds crates of which more than one version is built and not listed in `skip`, and entries of `skip` without effect.
fn duplicates(skip: &[Banned], built: &Versions) -> Vec<String> {
    let mut broken = Vec::new();
    for (name, versions) in built {
        let is_skipped = |version: &&String| {
            let one = format!("{name}@{version}");
            skip.iter().any(|skipped| skipped.name == one)
        };
        let left: Vec<&str> = versions
            .iter()
            .filter(|version| !is_skipped(version))
            .map(String::as_str)
            .collect();
        if left.len() > 1 {
            let left = left.join(" and ");
            broken.push(format!(
                "{name} is built as {left}: raise what needs the older one, or skip one in deny.toml with the reason"
            ));
        }
    }
    for Banned { name: one, .. } in skip {
        let is_duplicate = one.split_once('@').is_some_and(|(name, version)| {
            let versions = built.get(name);
            versions.is_some_and(|all| all.len() > 1 && all.contains(version))
        });
        if !is_duplicate {
            broken.push(format!(
                "deny.toml skips {one}, which is not built beside another version"
            ));
        }
    }
    broken
}

fn parse(text: &str) -> Result<DenyPolicy> {
    Ok(toml::from_str(text)?)
}

fn check_policy(deny: &DenyPolicy, workspace: &Workspace) -> Vec<String> {
    let mut broken = Vec::new();
    let packages: BTreeMap<_, _> = workspace.packages.iter().collect();
    for package in packages
        .into_values()
        .filter(|package| !package.is_workspace_member())
    {
        let name = format!("{} {}", package.name, package.version);
        if let Some(problem) = check_license(deny, package) {
            broken.push(format!("{name}: {problem}"));
        }
        let from = package.source.as_deref().unwrap_or_default();
        let registry = from.trim_start_matches("registry+");
        if !deny
            .sources
            .allow_registry
            .iter()
            .any(|allowed| allowed == registry)
        {
            broken.push(format!(
                "{name} comes from {from}, which deny.toml does not allow"
            ));
        }
    }
    broken
}

/// Returns the violation in a package's licence, if there is one.
fn check_license(deny: &DenyPolicy, package: &Package) -> Option<String> {
    let Some(text) = &package.licence else {
        return Some("its manifest names no licence".to_owned());
    };
    // Older manifests write `MIT/Apache-2.0`.
    let Ok(expression) = Expression::parse_mode(text, ParseMode::LAX) else {
        return Some(format!("its licence {text:?} is no SPDX expression"));
    };
    let allowed = expression.evaluate(|requirement| {
        let name = requirement.to_string();
        deny.licenses.allow.contains(&name)
    });
    (!allowed).then(|| format!("deny.toml does not allow its licence {text:?}"))
}

/// Returns the violation if a banned crate is built, by `cargo tree`, since `cargo metadata` includes crates of
/// disabled features.
fn is_built(banned: &Banned) -> Result<Option<String>> {
    let args = [
        "tree",
        "--workspace",
        "--target",
        "all",
        "--edges",
        "all",
        "--invert",
        &banned.name,
    ];
    let output = shell::cargo(&args).output()?;
    Ok((!output.stdout.is_empty()).then(|| {
        let Banned { name, reason } = banned;
        format!("{name} is built ({reason}); see `cargo {}`", args.join(" "))
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    const CRATES_IO: &str = "https://github.com/rust-lang/crates.io-index";

    fn package(licence: Option<&str>, source: &str) -> Workspace {
        Workspace::of([Package {
            name: "thing".to_owned(),
            version: "1.0.0".to_owned(),
            licence: licence.map(ToOwned::to_owned),
            source: Some(source.to_owned()),
            ..Package::default()
        }])
    }

    fn deny() -> DenyPolicy {
        parse(&format!(
            "[licenses]\nallow = [\"MIT\", \"Apache-2.0 WITH LLVM-exception\"]\n\
             [bans]\ndeny = [{{ crate = \"ring\", reason = \"TLS is aws-lc's\" }}]\n\
             [sources]\nallow-registry = [\"{CRATES_IO}\"]\n"
        ))
        .unwrap()
    }

    #[test]
    fn one_alternative_of_a_licence_expression_must_be_allowed() {
        let from = format!("registry+{CRATES_IO}");
        for (licence, fine) in [
            (Some("MIT"), true),
            (Some("MIT OR GPL-3.0-only"), true),
            (Some("MIT/Apache-2.0"), true),
            (Some("Apache-2.0 WITH LLVM-exception"), true),
            (Some("Apache-2.0"), false),
            (Some("MIT AND GPL-3.0-only"), false),
            (Some("whatever"), false),
            (None, false),
        ] {
            let broken = check_policy(&deny(), &package(licence, &from));
            assert_eq!(broken.is_empty(), fine, "{licence:?} {broken:?}");
        }
    }

    #[test]
    fn crates_come_from_the_registries_that_are_listed() {
        for (source, fine) in [
            (format!("registry+{CRATES_IO}"), true),
            ("registry+https://example.com/index".to_owned(), false),
            ("git+https://example.com/thing#abc".to_owned(), false),
        ] {
            let broken = check_policy(&deny(), &package(Some("MIT"), &source));
            assert_eq!(broken.is_empty(), fine, "{source} {broken:?}");
        }
    }

    #[test]
    fn a_banned_crate_that_is_built_is_found() {
        let banned = |name: &str| {
            is_built(&Banned {
                name: name.to_owned(),
                reason: "why".to_owned(),
            })
            .unwrap()
        };
        assert!(banned("serde").is_some_and(|broken| broken.contains("(why)")));
        assert_eq!(banned("no-such-crate-as-this"), None);
    }

    #[test]
    fn second_versions_need_a_skip_and_skips_need_a_second_version() {
        let built = versions(
            "a v1.0.0\na v2.0.0 (proc-macro)\nb v1.0.0\n\n[build-dependencies]\nb v1.0.0\n",
        );
        let skip = |names: &[&str]| -> Vec<Banned> {
            let skipped = names.iter().map(|name| Banned {
                name: (*name).to_owned(),
                reason: "why".to_owned(),
            });
            skipped.collect()
        };
        let found = |names: &[&str]| duplicates(&skip(names), &built).len();
        assert_eq!(found(&["a@1.0.0"]), 0);
        assert_eq!(found(&["a@2.0.0"]), 0);
        assert_eq!(found(&[]), 1);
        for useless in ["a@3.0.0", "b@1.0.0", "c@1.0.0", "a"] {
            assert_eq!(found(&["a@1.0.0", useless]), 1, "{useless}");
        }
    }

    #[test]
    fn every_ban_of_the_workspace_has_its_reason() {
        let text = fs::read_to_string(shell::workspace_root().join("deny.toml")).unwrap();
        assert!(parse(&text).unwrap().bans.deny.len() >= 4);
    }
}
