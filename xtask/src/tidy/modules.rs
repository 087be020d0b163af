//! Files of one crate as modules, and the rule that every file is a module.

use std::{collections::BTreeMap, path};

use syn::Item;

use super::source::{Source, is_for_tests};

/// Path of a module below the crate's root.
pub(super) type ModulePath = Vec<String>;

/// Returns the files that no `mod` declares, which are neither built nor tested.
pub(super) fn find_violations(sources: &[Source]) -> Vec<String> {
    orphan_files(&modules(sources), sources)
}

pub(super) struct Module<'a> {
    pub(super) source: &'a Source,
    pub(super) path: ModulePath,
    /// Submodules in files of their own, and whether each is for tests only.
    pub(super) children: BTreeMap<String, bool>,
}

impl Module<'_> {
    /// Returns the paths of the submodules that are for tests only.
    pub(super) fn test_modules(&self) -> impl Iterator<Item = ModulePath> {
        let tests = self.children.iter().filter(|(_, for_tests)| **for_tests);
        tests.map(|(name, _)| [&self.path[..], std::slice::from_ref(name)].concat())
    }
}

/// Returns the files of `src` as modules, without `src/bin` and, in a crate with a library, `src/main.rs`, which only
/// calls the library.
pub(super) fn modules(sources: &[Source]) -> Vec<Module<'_>> {
    let has_lib = sources
        .iter()
        .any(|source| source.path_in_src.as_deref() == Some(path::Path::new("lib.rs")));
    let mut modules = Vec::new();
    for source in sources.iter().filter(|source| !source.is_generated) {
        let Some(in_src) = &source.path_in_src else {
            continue;
        };
        let parts = in_src.with_extension("");
        let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
        let mut path: ModulePath = parts.collect();
        let only_wires = has_lib && path == ["main"];
        if only_wires || path.first().is_some_and(|first| first == "bin") {
            continue;
        }
        if path == ["lib"] || path == ["main"] {
            path.clear();
        }
        let mut children = BTreeMap::new();
        collect_declared_modules(&source.syntax.items, false, &mut children);
        modules.push(Module {
            source,
            path,
            children,
        });
    }
    modules
}

/// Collects the submodules that are in separate files, and whether each is for tests only.
fn collect_declared_modules(items: &[Item], in_tests: bool, children: &mut BTreeMap<String, bool>) {
    for item in items {
        if let Item::Mod(item) = item {
            let for_tests = in_tests || is_for_tests(&item.attrs);
            match &item.content {
                Some((_, items)) => collect_declared_modules(items, for_tests, children),
                None => drop(children.insert(item.ident.to_string(), for_tests)),
            }
        }
    }
}

fn orphan_files(modules: &[Module<'_>], sources: &[Source]) -> Vec<String> {
    let is_declared = |module: &Module<'_>| {
        let Some((name, parent)) = module.path.split_last() else {
            return true;
        };
        let named = sources.iter().any(|source| {
            // Files that `#[path = "…"]` or `include!` names.
            source.text.contains(&format!("{name}.rs\""))
        });
        let mut parents = modules.iter().filter(|other| other.path == parent);
        named || parents.any(|parent| parent.children.contains_key(name))
    };
    let orphans = modules.iter().filter(|module| !is_declared(module));
    orphans
        .map(|module| format!("{}: no module declares it", module.source.path.display()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{super::source::test_source, *};

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let files = [("lib.rs", "mod a;"), ("a.rs", ""), ("a/tests.rs", "")];
        let files = files.map(|(path, text)| test_source(path, text));
        assert_eq!(
            find_violations(&files),
            ["crates/x/y/src/a/tests.rs: no module declares it"]
        );
    }
}
