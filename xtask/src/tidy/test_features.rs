//! Rule for features of dependencies that only tests enable: code outside of tests does not use what they add. `cargo
//! xtask test` builds the programs together with the tests, and so with these features, but images without them.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    layers::{self, DEVELOPMENT},
    paths::{CodeScope, named_paths},
    source::Source,
    workspace::{Package, Workspace},
};

/// Features that only dev-dependencies enable: dependency, feature, and the modules and functions that it adds.
const TEST_FEATURES: &[(&str, &str, &[&str])] = &[
    (
        "tokio",
        "test-util",
        &[
            "tokio::time::pause",
            "tokio::time::advance",
            "tokio::time::resume",
            "time::pause",
            "time::advance",
            "time::resume",
        ],
    ),
    ("ambit-rt", "testing", &["ambit_rt::testing"]),
    ("ambit-l7", "testing", &["ambit_l7::authz::naive"]),
    (
        "opentelemetry-proto",
        "metrics",
        &[
            "opentelemetry_proto::tonic::metrics",
            "opentelemetry_proto::tonic::collector::metrics",
        ],
    ),
];

/// Finds features that only dev-dependencies enable and that [`TEST_FEATURES`] does not list.
pub(super) fn find_unlisted(workspace: &Workspace) -> Vec<String> {
    let (mut normal, mut dev) = (BTreeMap::new(), BTreeSet::new());
    for member in workspace.workspace_members() {
        let is_shipped = is_shipped(member);
        for dependency in &member.declared {
            let name = dependency.name.as_str();
            if !is_shipped || dependency.kind.as_deref() == Some("dev") {
                dev.extend(dependency.features.iter().map(|feature| (name, feature)));
            } else {
                let enabled: &mut BTreeSet<_> = normal.entry(name).or_default();
                enabled.extend(&dependency.features);
            }
        }
    }
    let is_for_tests = |(name, feature): &(&str, &String)| {
        // Programs do not contain what only tests depend on.
        normal
            .get(name)
            .is_some_and(|enabled| !enabled.contains(feature))
    };
    let is_listed = |(name, feature): &(&str, &String)| {
        TEST_FEATURES
            .iter()
            .any(|(listed, of, _)| listed == name && of == feature)
    };
    dev.into_iter()
        .filter(is_for_tests)
        .filter(|one| !is_listed(one))
        .map(|(name, feature)| {
            format!(
                "only tests enable the feature {feature} of {name}: list what it adds in xtask/src/tidy/test_features.rs"
            )
        })
        .collect()
}

/// Whether programs may contain the package: no shipped crate depends on crates of development, nor on those without a
/// layer, such as the fuzz targets.
fn is_shipped(package: &Package) -> bool {
    layers::folder(package).is_some_and(|folder| folder != DEVELOPMENT)
}

/// Finds code outside of tests that uses what [`TEST_FEATURES`] add.
pub(super) fn find_violations(package: &Package, sources: &[Source]) -> Vec<String> {
    if !is_shipped(package) {
        return Vec::new();
    }
    let in_src = sources.iter().filter(|source| source.path_in_src.is_some());
    let mut broken = Vec::new();
    for source in in_src.filter(|source| !source.is_test()) {
        for path in named_paths(&source.syntax, CodeScope::Shipped) {
            let path = path.segments.join("::");
            let used = TEST_FEATURES.iter().find(|(_, _, items)| {
                items.iter().any(|item| {
                    let rest = path.strip_prefix(item);
                    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
                })
            });
            if let Some((name, feature, _)) = used {
                broken.push(format!(
                    "{}: {path} needs the feature {feature} of {name}, which only tests enable",
                    source.path.display()
                ));
            }
        }
    }
    broken
}

#[cfg(test)]
mod tests {
    use super::{
        super::{source::test_source, workspace::DeclaredDependency},
        *,
    };
    use crate::shell;

    fn dependency(kind: Option<&str>, features: &[&str]) -> DeclaredDependency {
        DeclaredDependency {
            name: "made-up".to_owned(),
            kind: kind.map(str::to_owned),
            features: features.iter().map(|&feature| feature.to_owned()).collect(),
            ..DeclaredDependency::default()
        }
    }

    fn package(folder: &str, declared: Vec<DeclaredDependency>) -> Package {
        Package {
            name: folder.to_owned(),
            dir: shell::workspace_root().join(format!("crates/{folder}/made-up")),
            declared,
            ..Package::default()
        }
    }

    fn unlisted(packages: impl IntoIterator<Item = Package>) -> usize {
        find_unlisted(&Workspace::of(packages)).len()
    }

    #[test]
    fn features_that_only_tests_enable_are_listed() {
        let tests = || dependency(Some("dev"), &["a"]);
        let shipped = |declared| [package("programs", declared)];
        assert_eq!(
            unlisted(shipped(vec![dependency(None, &["b"]), tests()])),
            1
        );
        assert_eq!(
            unlisted(shipped(vec![dependency(None, &["a"]), tests()])),
            0
        );
        assert_eq!(unlisted(shipped(vec![tests()])), 0);
        let of_development = package(DEVELOPMENT, vec![dependency(None, &["a"])]);
        let program = package("programs", vec![dependency(None, &["b"])]);
        assert_eq!(unlisted([of_development, program]), 1);
    }

    #[test]
    fn uses_of_test_features_outside_of_tests_are_found() {
        for (text, expected) in [
            ("fn f() { tokio::time::pause(); }", 1),
            ("use tokio::time; fn f() { time::advance(D); }", 1),
            ("use ambit_rt::testing::Watch;", 1),
            ("use tokio::time::timeout;", 0),
            (
                "#[cfg(test)] mod tests { use ambit_rt::testing::Watch; }",
                0,
            ),
        ] {
            let sources = [test_source("lib.rs", text)];
            let found = |folder| find_violations(&package(folder, Vec::new()), &sources).len();
            assert_eq!(
                (found("programs"), found(DEVELOPMENT)),
                (expected, 0),
                "{text}"
            );
        }
    }
}
