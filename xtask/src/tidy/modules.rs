//! Rules for the modules of one crate: every file is a module, and there are no import cycles.
//!
//! Cycles are detected among siblings, each with all modules below it: `a` imports from `b`, and `b/c` from `a`.
//! Imports between a module and its own parent are not a cycle.

use std::collections::{BTreeMap, BTreeSet};

use syn::Item;

use super::{
    paths::{Code, Named, named},
    source::{Source, is_for_tests},
    workspace::Package,
};

/// Number of modules in import cycles that each crate still has. Numbers may only shrink: a crate without cycles is
/// removed from the list.
const IN_CIRCLES: &[(&str, usize)] = &[
];

/// A path of modules below the crate's root.
type Path = Vec<String>;

pub(super) fn broken(package: &Package, sources: &[Source]) -> Vec<String> {
    let modules = modules(sources);
    let mut broken = orphans(&modules, sources);
    let circles = circles(&modules);
    let found: usize = circles.iter().map(BTreeSet::len).sum();
    let allowed = IN_CIRCLES.iter().find(|(name, _)| *name == package.name);
    let allowed = allowed.map_or(0, |(_, allowed)| *allowed);
    if found > allowed {
        for circle in circles {
            let members: Vec<_> = circle.iter().map(|path| path.join("::")).collect();
            broken.push(format!(
                "{}: modules in a circle: {}",
                package.name,
                members.join(", ")
            ));
        }
    } else if found < allowed {
        broken.push(format!(
            "{}: {found} modules in cycles; write that number into xtask/src/tidy/modules.rs",
            package.name
        ));
    }
    broken
}

struct Module<'a> {
    source: &'a Source,
    path: Path,
    /// Submodules that are declared as files.
    children: BTreeMap<String, bool>,
}

/// Returns the files of `src` as modules, without `src/bin` and, beside a library, `src/main.rs`, which only wire.
fn modules(sources: &[Source]) -> Vec<Module<'_>> {
    let mut modules = Vec::new();
    for source in sources.iter().filter(|source| !source.generated) {
        let Some(in_src) = &source.in_src else {
            continue;
        };
        let parts = in_src.with_extension("");
        let parts = parts.iter().map(|part| part.to_string_lossy().into_owned());
        let mut path: Path = parts.collect();
        if path == ["lib"] || path == ["main"] {
            path.clear();
        }
        if path.first().is_some_and(|first| first == "bin") {
            continue;
        }
        let mut children = BTreeMap::new();
        declared(&source.syntax.items, false, &mut children);
        modules.push(Module {
            source,
            path,
            children,
        });
    }
    modules
}

/// Returns the submodules that are files, and whether each is for tests only.
fn declared(items: &[Item], in_tests: bool, children: &mut BTreeMap<String, bool>) {
    for item in items {
        if let Item::Mod(item) = item {
            let for_tests = in_tests || is_for_tests(&item.attrs);
            match &item.content {
                Some((_, items)) => declared(items, for_tests, children),
                None => drop(children.insert(item.ident.to_string(), for_tests)),
            }
        }
    }
}

/// Returns the files that no `mod` declares: they are neither built nor tested.
fn orphans(modules: &[Module<'_>], sources: &[Source]) -> Vec<String> {
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

/// Returns sets of siblings that import each other, directly or indirectly.
fn circles(modules: &[Module<'_>]) -> Vec<BTreeSet<Path>> {
    let tests: Vec<Path> = modules
        .iter()
        .flat_map(|module| {
            let tests = module.children.iter().filter(|(_, for_tests)| **for_tests);
            tests.map(|(name, _)| [&module.path[..], std::slice::from_ref(name)].concat())
        })
        .collect();
    let mut edges: BTreeMap<Path, BTreeSet<Path>> = BTreeMap::new();
    for module in modules {
        let for_tests = tests.iter().any(|tests| module.path.starts_with(tests));
        if for_tests || module.source.is_test() {
            continue;
        }
        for path in named(&module.source.syntax, Code::Shipped) {
            let Some(target) = target(module, &path, modules) else {
                continue;
            };
            if let Some((from, to)) = siblings(&module.path, &target) {
                edges.entry(from).or_default().insert(to);
            }
        }
    }
    strongly_connected(&edges)
}

/// Returns the module that a path names.
fn target(module: &Module<'_>, path: &Named, modules: &[Module<'_>]) -> Option<Path> {
    let mut segments = path.segments.iter().peekable();
    let mut base = module.path.clone();
    match segments.peek()?.as_str() {
        "crate" => {
            base.clear();
            segments.next();
        }
        "self" => drop(segments.next()),
        "super" => {
            let mut inline = path.inline;
            while segments.next_if(|segment| *segment == "super").is_some() {
                match inline {
                    0 => drop(base.pop()),
                    _ => inline -= 1,
                }
            }
        }
        first if module.children.contains_key(first) => {}
        _ => return None,
    }
    for segment in segments {
        base.push(segment.clone());
        if !modules.iter().any(|module| module.path == base) {
            base.pop();
            break;
        }
    }
    Some(base)
}

/// Returns the ancestors of two modules that are siblings; `None` if one module contains the other.
fn siblings(from: &[String], to: &[String]) -> Option<(Path, Path)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let (from, to) = (from.get(..=common)?, to.get(..=common)?);
    Some((from.to_vec(), to.to_vec()))
}

fn strongly_connected(edges: &BTreeMap<Path, BTreeSet<Path>>) -> Vec<BTreeSet<Path>> {
    let reach = |start: &Path| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(next) = open.pop() {
            for to in edges.get(next).into_iter().flatten() {
                if seen.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&Path, BTreeSet<Path>> =
        edges.keys().map(|path| (path, reach(path))).collect();
    let mut circles = BTreeSet::new();
    for (path, theirs) in &reached {
        let back = |other: &&Path| reached.get(other).is_some_and(|seen| seen.contains(*path));
        let circle: BTreeSet<Path> = theirs.iter().filter(back).cloned().collect();
        if circle.len() > 1 {
            circles.insert(circle);
        }
    }
    circles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{super::source::made_up, *};

    fn found(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| made_up(path, text))
            .collect();
        let package = Package {
            name: "made-up".to_owned(),
            ..Package::default()
        };
        broken(&package, &sources)
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a; mod b;");

    #[test]
    fn siblings_that_name_each_other_go_in_a_circle() {
        let circle = [
            LIB,
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "mod c; pub struct B;"),
            ("b/c.rs", "fn c() -> crate::a::A { todo!() }"),
        ];
        assert_eq!(found(&circle), ["made-up: modules in a circle: a, b"]);
    }

    #[test]
    fn parents_and_children_and_tests_do_not() {
        let tree = [
            LIB,
            ("a.rs", "mod d; pub use d::D; pub struct A;"),
            ("a/d.rs", "use super::A; pub struct D;"),
            (
                "b.rs",
                "use super::a::A; #[cfg(test)] mod tests; mod inline { use super::super::a; }",
            ),
            ("b/tests.rs", "use crate::b::*;"),
        ];
        assert_eq!(found(&tree), Vec::<String>::new());
        let tests = [
            LIB,
            (
                "a.rs",
                "pub struct A; #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("b.rs", "use crate::a::A; pub struct B;"),
        ];
        assert_eq!(found(&tests), Vec::<String>::new());
    }

    #[test]
    fn a_file_that_no_module_declares_is_found() {
        let files = [("lib.rs", "mod a;"), ("a.rs", ""), ("a/tests.rs", "")];
        assert_eq!(
            found(&files),
            ["crates/x/y/src/a/tests.rs: no module declares it"]
        );
    }
}
