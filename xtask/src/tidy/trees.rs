//! Rule about forbidden crates in the dependency tree of a crate, which its manifest lists (`package.metadata.tidy`).

use std::collections::BTreeSet;

use super::workspace::{Package, Workspace};

/// Crates that do IO, which the dependency tree of a pure crate must not contain.
const IO_PACKAGES: &[&str] = &["tokio", "prost", "rustix", "socket2"];

pub(super) fn find_violations(workspace: &Workspace) -> Vec<String> {
    let mut broken = Vec::new();
    for root in workspace.workspace_members() {
        let tree = dependency_tree(workspace, root);
        let io = IO_PACKAGES.iter().filter(|_| root.rules.pure);
        let io = io.map(|name| (*name, "a pure crate does no IO"));
        let never = root.rules.never.iter();
        let never = never.map(|(name, why)| (name.as_str(), why.as_str()));
        for (bad, why) in io.chain(never) {
            if tree.contains(bad) {
                broken.push(format!("{} reaches {bad}: {why}", root.name));
            }
        }
    }
    broken
}

/// Returns the names of a package and of all its dependencies.
fn dependency_tree<'a>(workspace: &'a Workspace, root: &'a Package) -> BTreeSet<&'a str> {
    let mut seen = BTreeSet::new();
    let mut open = vec![root];
    while let Some(package) = open.pop() {
        // Two versions of one package may have different dependencies.
        if seen.insert((package.name.as_str(), package.version.as_str())) {
            open.extend(workspace.packages_by_id(&package.normal));
        }
    }
    seen.into_iter().map(|(name, _)| name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::workspace::TidyRules;
    use super::*;

    fn package(name: &str, uses: &[&str], rules: TidyRules) -> Package {
        Package {
            name: name.to_owned(),
            normal: uses.iter().map(ToString::to_string).collect(),
            rules,
            ..Package::default()
        }
    }

    #[test]
    fn forbidden_transitive_dependencies_are_found() {
        let pure = TidyRules {
            pure: true,
            ..TidyRules::default()
        };
        let never = TidyRules {
            never: [("kube".to_owned(), "why".to_owned())].into(),
            ..TidyRules::default()
        };
        let workspace = Workspace::of([
            package("model", &["between"], pure),
            package("proxy", &["between"], never),
            package("between", &["tokio", "kube"], TidyRules::default()),
            package("tokio", &[], TidyRules::default()),
            package("kube", &[], TidyRules::default()),
        ]);
        assert_eq!(
            find_violations(&workspace),
            [
                "model reaches tokio: a pure crate does no IO",
                "proxy reaches kube: why"
            ]
        );
    }
}
