//! Packages of the workspace and of its dependencies, as `cargo metadata` lists them.

use std::{collections::BTreeMap, path::PathBuf};

use anyhow::{Context as _, Result, ensure};
use serde::Deserialize;

use crate::shell;

/// All packages that are built, by package ID.
#[derive(Debug, Default)]
pub(super) struct Workspace {
    pub(super) packages: BTreeMap<String, Package>,
}

/// Package of the workspace, or a dependency of one.
#[derive(Clone, Debug, Default)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) version: String,
    /// Directory of the manifest, relative to the workspace's root for members.
    pub(super) dir: PathBuf,
    /// Licence as an SPDX expression.
    pub(super) licence: Option<String>,
    /// Registry or repository from which the package comes; `None` for workspace members.
    pub(super) source: Option<String>,
    /// Dependencies that the manifest declares.
    pub(super) declared: Vec<DeclaredDependency>,
    /// IDs of the package's dependencies, without those of its tests and build scripts.
    pub(super) normal: Vec<String>,
    pub(super) rules: TidyRules,
}

/// Dependency that a manifest declares.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
pub(super) struct DeclaredDependency {
    pub(super) name: String,
    /// Kind of the dependency: `None` for a normal one, `dev` or `build`.
    pub(super) kind: Option<String>,
    /// Features that the manifest enables, besides the default ones.
    #[serde(default)]
    pub(super) features: Vec<String>,
    /// Name of the crate in code; `None` if the dependency is not built.
    #[serde(skip)]
    pub(super) crate_name: Option<String>,
}

/// Rules of a package: `[package.metadata.tidy]` of its manifest.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(super) struct TidyRules {
    /// Whether the crate is pure, that is, does no IO.
    pub(super) pure: bool,
    /// Packages that the dependency tree must not contain, each with the reason.
    pub(super) never: BTreeMap<String, String>,
}

impl Package {
    /// Returns whether the package is a member of the workspace.
    pub(super) fn is_workspace_member(&self) -> bool {
        self.source.is_none()
    }
}

impl Workspace {
    /// Returns the members of the workspace.
    pub(super) fn workspace_members(&self) -> impl Iterator<Item = &Package> {
        self.packages
            .values()
            .filter(|package| package.is_workspace_member())
    }

    /// Returns the packages with these IDs.
    pub(super) fn packages_by_id<'a>(
        &'a self,
        ids: &'a [String],
    ) -> impl Iterator<Item = &'a Package> {
        ids.iter().filter_map(|id| self.packages.get(id))
    }
}

#[derive(Deserialize)]
struct Metadata {
    packages: Vec<MetadataPackage>,
    resolve: Resolve,
}

#[derive(Deserialize)]
struct MetadataPackage {
    id: String,
    name: String,
    version: String,
    manifest_path: PathBuf,
    license: Option<String>,
    source: Option<String>,
    dependencies: Vec<DeclaredDependency>,
    metadata: Option<OwnMetadata>,
}

#[derive(Default, Deserialize)]
struct OwnMetadata {
    #[serde(default)]
    tidy: serde_json::Value,
}

#[derive(Deserialize)]
struct Resolve {
    nodes: Vec<Node>,
}

#[derive(Deserialize)]
struct Node {
    id: String,
    deps: Vec<Edge>,
}

#[derive(Deserialize)]
struct Edge {
    /// Name of the dependency's library crate in code.
    name: String,
    pkg: String,
    dep_kinds: Vec<EdgeKind>,
}

#[derive(Deserialize)]
struct EdgeKind {
    kind: Option<String>,
}

/// Reads `cargo metadata` for Linux on x86-64.
pub(super) fn read() -> Result<Workspace> {
    let target = "--filter-platform=x86_64-unknown-linux-gnu";
    let output = shell::cargo(&["metadata", "--format-version", "1", target]).output()?;
    ensure!(output.status.success(), "cargo metadata failed");
    let metadata: Metadata = serde_json::from_slice(&output.stdout)?;
    let mut edges: BTreeMap<String, Vec<Edge>> = metadata
        .resolve
        .nodes
        .into_iter()
        .map(|node| (node.id, node.deps))
        .collect();
    let names: BTreeMap<_, _> = metadata
        .packages
        .iter()
        .map(|package| (package.id.clone(), package.name.clone()))
        .collect();
    let mut packages = BTreeMap::new();
    for mut package in metadata.packages {
        let deps = edges.remove(&package.id).unwrap_or_default();
        let normal = deps
            .iter()
            .filter(|edge| edge.dep_kinds.iter().any(|kind| kind.kind.is_none()));
        for declared in &mut package.dependencies {
            let edge = deps
                .iter()
                .find(|edge| names.get(&edge.pkg) == Some(&declared.name));
            declared.crate_name = edge.map(|edge| edge.name.clone());
        }
        let dir = package.manifest_path.parent();
        let dir = dir.context("a manifest at the root")?.to_path_buf();
        let name = package.name;
        let rules = package.metadata.unwrap_or_default().tidy;
        let ours = package.source.is_none() && !rules.is_null();
        let rules = match ours {
            true => serde_json::from_value(rules)
                .with_context(|| format!("package.metadata.tidy of {name}"))?,
            false => TidyRules::default(),
        };
        packages.insert(
            package.id,
            Package {
                normal: normal.map(|edge| edge.pkg.clone()).collect(),
                name,
                version: package.version,
                dir,
                licence: package.license,
                source: package.source,
                declared: package.dependencies,
                rules,
            },
        );
    }
    Ok(Workspace { packages })
}

#[cfg(test)]
impl Workspace {
    /// Builds a workspace from packages, with their names as IDs, for tests.
    pub(super) fn of(packages: impl IntoIterator<Item = Package>) -> Self {
        let packages = packages.into_iter();
        let packages = packages.map(|package| (package.name.clone(), package));
        Self {
            packages: packages.collect(),
        }
    }
}
