//! Finds dependencies that a manifest declares and that no code uses.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::Result;
use serde::Deserialize;

use super::{
    paths::{CodeScope, named_paths},
    source::Source,
    workspace::{Package, Workspace},
};

pub(super) fn find_violations(package: &Package, sources: &[Source]) -> Vec<String> {
    let in_src = sources.iter().filter(|source| source.path_in_src.is_some());
    let shipped = first_path_segments(
        in_src.filter(|source| !source.is_test()),
        CodeScope::Shipped,
    );
    let build = sources.iter().filter(|source| source.name() == "build.rs");
    let build = first_path_segments(build, CodeScope::All);
    let all = first_path_segments(sources.iter(), CodeScope::All);
    let mut broken = Vec::new();
    for dependency in &package.declared {
        let (used, table) = match dependency.kind.as_deref() {
            Some("dev") => (&all, "dev-dependencies"),
            Some("build") => (&build, "build-dependencies"),
            _ => (&shipped, "dependencies"),
        };
        // Dependencies of other features or platforms are not checked.
        let Some(name) = &dependency.crate_name else {
            continue;
        };
        if used.contains(name) {
            continue;
        }
        let only_tests = table == "dependencies" && all.contains(name);
        broken.push(format!(
            "{}: {} of its {table} is {}",
            package.name,
            dependency.name,
            if only_tests {
                "used by tests only: it belongs to dev-dependencies"
            } else {
                "used nowhere"
            }
        ));
    }
    broken
}

/// Returns the dependencies in the workspace's manifest that no member declares.
pub(super) fn find_unused_in_workspace(
    manifest: &str,
    workspace: &Workspace,
) -> Result<Vec<String>> {
    let manifest: Manifest = toml::from_str(manifest)?;
    let taken: BTreeSet<_> = workspace
        .workspace_members()
        .flat_map(|package| &package.declared)
        .map(|declared| declared.name.as_str())
        .collect();
    let names = manifest.workspace.dependencies.into_keys();
    let unused = names.filter(|name| !taken.contains(name.as_str()));
    let broken = unused.map(|name| format!("Cargo.toml: no crate of the workspace uses {name}"));
    Ok(broken.collect())
}

#[derive(Deserialize)]
struct Manifest {
    workspace: Tables,
}

#[derive(Deserialize)]
struct Tables {
    dependencies: BTreeMap<String, toml::Value>,
}

/// Returns the first segments of all paths in the sources.
fn first_path_segments<'a>(
    sources: impl Iterator<Item = &'a Source>,
    code: CodeScope,
) -> BTreeSet<String> {
    let paths = sources.flat_map(|source| named_paths(&source.syntax, code));
    paths
        .filter_map(|path| path.segments.into_iter().next())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{
        super::{source::test_source, workspace::DeclaredDependency},
        *,
    };

    #[test]
    fn unused_workspace_dependencies_are_found() {
        let taker = Package {
            declared: vec![DeclaredDependency {
                name: "taken".to_owned(),
                ..DeclaredDependency::default()
            }],
            ..Package::default()
        };
        let manifest = "[workspace.dependencies]\ntaken = \"1\"\nleft = { version = \"2\" }";
        let broken = find_unused_in_workspace(manifest, &Workspace::of([taker])).unwrap();
        assert_eq!(broken, ["Cargo.toml: no crate of the workspace uses left"]);
    }

    #[test]
    fn unused_dependencies_are_found() {
        let dependency = |name: &str, kind: Option<&str>| DeclaredDependency {
            name: name.to_owned(),
            kind: kind.map(ToOwned::to_owned),
            crate_name: Some(name.replace('-', "_")),
            ..DeclaredDependency::default()
        };
        let package = Package {
            name: "made-up".to_owned(),
            declared: vec![
                dependency("rt-tools", None),
                dependency("bytes", None),
                dependency("tempfile", None),
                dependency("proptest", Some("dev")),
                dependency("insta", Some("dev")),
            ],
            ..Package::default()
        };
        let text = "use rt_tools as rt; fn f(bytes: u8) -> u8 { bytes }\n\
            #[cfg(test)] mod tests { fn g() { tempfile::tempdir(); proptest::proptest! {} } }";
        let broken = find_violations(&package, &[test_source("lib.rs", text)]);
        assert_eq!(
            broken,
            [
                "made-up: bytes of its dependencies is used nowhere",
                "made-up: tempfile of its dependencies is used by tests only: it belongs to \
                 dev-dependencies",
                "made-up: insta of its dev-dependencies is used nowhere",
            ]
        );
    }
}
