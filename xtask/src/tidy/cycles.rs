//! Rule for the modules of one crate: no import cycles.
//!
//! A cycle consists of sibling modules, each with all modules below it, and of their parent's own file (`self`): `a`
//! imports from `b`, and `b/c` from `a`; or `a.rs` imports from `a/b.rs`, and `a/b/c.rs` names an item that `a.rs`
//! defines. A path through a re-export or an import counts as a path to the module that defines the item, so that a
//! parent may re-export items from below, and children may name each other's items as the parent's. For a parent,
//! declaring a child is no import, and neither is re-exporting an item from below that the same file does not use. Test
//! code does not count.
//!
//! Methods are not followed: `a.rs` may call a method that `a/b.rs` adds to a type of `a.rs`.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt::Write as _,
};

use syn::Item;

use super::{
    modules::{Module, ModulePath, modules},
    paths::{CodeScope, NamedPath, first_names, named_paths},
    source::{Source, is_for_tests, item_attributes},
    workspace::Package,
};

/// Maximum number of re-exports that are followed from a path to the definition of its item.
const MAX_RE_EXPORTS: usize = 8;

/// Returns the import cycles of a package's modules.
pub(super) fn find_violations(package: &Package, sources: &[Source]) -> Vec<String> {
    let modules = modules(sources);
    let Cycles { sets, edges } = cycles(&modules);
    sets.iter()
        .map(|cycle| {
            let members: Vec<_> = cycle.iter().map(|path| path.join("::")).collect();
            let members = members.join(", ");
            let edges = describe_cycle(&edges, cycle);
            format!("{}: modules in a cycle: {members}{edges}", package.name)
        })
        .collect()
}

/// Sets of modules that import each other, directly or indirectly, with all imports.
struct Cycles {
    sets: Vec<BTreeSet<ModulePath>>,
    edges: Edges,
}

/// Imports between modules: for each pair, the paths in the file of the first that refer to the second.
type Edges = BTreeMap<ModulePath, BTreeMap<ModulePath, BTreeSet<String>>>;

/// Describes the imports within a cycle as lines, each with one of the importing paths.
fn describe_cycle(edges: &Edges, cycle: &BTreeSet<ModulePath>) -> String {
    let mut lines = String::new();
    for from in cycle {
        let imported = edges.get(from).into_iter().flatten();
        for (to, paths) in imported.filter(|(to, _)| cycle.contains(*to)) {
            let (from, to) = (from.join("::"), to.join("::"));
            let paths: Vec<_> = paths.iter().map(String::as_str).collect();
            let _ = write!(lines, "\n    {from} imports {to}: {}", paths.join(", "));
        }
    }
    lines
}

fn cycles(modules: &[Module<'_>]) -> Cycles {
    let scopes = scopes(modules);
    let mut edges = Edges::new();
    for scope in scopes.values() {
        let from = &scope.module.path[..];
        let add = |edges: &mut Edges, to: &[String], by: &NamedPath| {
            if let Some((from, to)) = siblings_of_paths(from, to) {
                let paths = edges.entry(from).or_default().entry(to).or_default();
                paths.insert(by.segments.join("::"));
            }
        };
        for path in &scope.paths {
            let Some((target, _)) = resolve_module(scope, path, &scopes) else {
                continue;
            };
            let target = &target.module.path[..];
            if !from.starts_with(target) && !target.starts_with(from) {
                add(&mut edges, target, path);
            }
            if !scope.re_exports(path, &scopes)
                && let Some(target) = defining_module(scope, path, &scopes, MAX_RE_EXPORTS)
            {
                add(&mut edges, target, path);
            }
        }
    }
    Cycles {
        sets: strongly_connected(&edges),
        edges,
    }
}

/// File of a module, with everything that is needed to resolve paths in it.
struct ModuleScope<'a> {
    module: &'a Module<'a>,
    /// Paths in the file's code outside of tests.
    paths: Vec<NamedPath>,
    /// First segments of paths outside of `use`.
    first_names: BTreeSet<String>,
    /// Names of the items that the file defines.
    items: BTreeSet<String>,
}

type Scopes<'a> = BTreeMap<&'a [String], ModuleScope<'a>>;

fn scopes<'a>(modules: &'a [Module<'a>]) -> Scopes<'a> {
    let tests: Vec<ModulePath> = modules.iter().flat_map(Module::test_modules).collect();
    let is_shipped = |module: &&Module<'_>| {
        let is_below = |tests: &ModulePath| module.path.starts_with(tests);
        !module.source.is_test() && !tests.iter().any(is_below)
    };
    let scope = |module: &'a Module<'a>| ModuleScope {
        module,
        paths: named_paths(&module.source.syntax, CodeScope::Shipped),
        first_names: first_names(&module.source.syntax, CodeScope::Shipped),
        items: shipped_item_names(&module.source.syntax.items),
    };
    let shipped = modules.iter().filter(is_shipped);
    shipped
        .map(|module| (&module.path[..], scope(module)))
        .collect()
}

impl ModuleScope<'_> {
    /// Returns whether a path re-exports an item from a module below, which the file itself does not use.
    fn re_exports(&self, path: &NamedPath, scopes: &Scopes<'_>) -> bool {
        let Some(import) = path.import.as_ref().filter(|import| import.is_public) else {
            return false;
        };
        let is_below = resolve_module(self, path, scopes)
            .is_some_and(|(target, _)| target.module.path.starts_with(&self.module.path));
        is_below && !self.first_names.contains(&import.name)
    }

    /// Returns the imports of a name, including those of all names of a module (`*`).
    fn imports(&self, name: &str) -> impl Iterator<Item = &NamedPath> {
        self.paths.iter().filter(move |path| {
            let import = path.import.as_ref();
            path.inline_depth == 0 && import.is_some_and(|import| import.name == name)
        })
    }
}

/// Returns the module to which the beginning of a path resolves, and the rest of the path.
fn resolve_module<'s, 'p>(
    scope: &'s ModuleScope<'_>,
    path: &'p NamedPath,
    scopes: &'s Scopes<'s>,
) -> Option<(&'s ModuleScope<'s>, &'p [String])> {
    let (first, rest) = path.segments.split_first()?;
    let mut base = scope.module.path.clone();
    let mut segments = &path.segments[..];
    match first.as_str() {
        "crate" => {
            base.clear();
            segments = rest;
        }
        "self" => segments = rest,
        "super" => {
            let mut inline = path.inline_depth;
            while let Some((first, rest)) = segments.split_first()
                && first == "super"
            {
                match inline {
                    0 => drop(base.pop()),
                    _ => inline -= 1,
                }
                segments = rest;
            }
        }
        first if scope.module.children.contains_key(first) => {}
        _ => return None,
    }
    let mut found: &ModuleScope<'_> = scopes.get(&base[..])?;
    while let Some((next, rest)) = segments.split_first() {
        base.push(next.clone());
        match scopes.get(&base[..]) {
            Some(child) => (found, segments) = (child, rest),
            None => break,
        }
    }
    Some((found, segments))
}

/// Returns the module that defines the item of a path; `None` if another crate does.
fn defining_module<'s>(
    scope: &'s ModuleScope<'_>,
    path: &NamedPath,
    scopes: &'s Scopes<'s>,
    re_exports: usize,
) -> Option<&'s [String]> {
    let (target, within) = resolve_module(scope, path, scopes)?;
    let own = Some(&target.module.path[..]);
    let Some(name) = within.first().filter(|name| !target.items.contains(*name)) else {
        return own;
    };
    let Some(re_exports) = re_exports.checked_sub(1) else {
        return own;
    };
    if let Some(import) = target.imports(name).next() {
        return defining_module(target, import, scopes, re_exports);
    }
    let in_globs = target.imports("*").find_map(|glob| {
        let (of, _) = resolve_module(target, glob, scopes)?;
        of.items.contains(name).then_some(&of.module.path[..])
    });
    // Otherwise a name that a macro makes.
    in_globs.or(own)
}

/// Returns the names of the items that are not for tests only.
fn shipped_item_names(items: &[Item]) -> BTreeSet<String> {
    let shipped = items
        .iter()
        .filter(|item| !is_for_tests(item_attributes(item)));
    let name = |item: &Item| {
        Some(match item {
            Item::Const(item) => item.ident.to_string(),
            Item::Enum(item) => item.ident.to_string(),
            Item::Fn(item) => item.sig.ident.to_string(),
            Item::Macro(item) => item.ident.as_ref()?.to_string(),
            Item::Mod(item) if item.content.is_some() => item.ident.to_string(),
            Item::Static(item) => item.ident.to_string(),
            Item::Struct(item) => item.ident.to_string(),
            Item::Trait(item) => item.ident.to_string(),
            Item::Type(item) => item.ident.to_string(),
            Item::Union(item) => item.ident.to_string(),
            _ => return None,
        })
    };
    shipped.filter_map(name).collect()
}

/// Returns two sibling modules that contain `from` and `to`, or are these modules. If one contains the other, returns
/// the container's own file and its child on the path to the other module. `None` for a path within one module.
fn siblings_of_paths(from: &[String], to: &[String]) -> Option<(ModulePath, ModulePath)> {
    let common = from.iter().zip(to).take_while(|(a, b)| a == b).count();
    let node = |path: &[String]| match path.get(..=common) {
        Some(node) => node.to_vec(),
        None => [path, &["self".to_owned()]].concat(),
    };
    let (from, to) = (node(from), node(to));
    (from != to).then_some((from, to))
}

fn strongly_connected(edges: &Edges) -> Vec<BTreeSet<ModulePath>> {
    let reach = |start: &ModulePath| {
        let mut seen = BTreeSet::new();
        let mut open = vec![start];
        while let Some(next) = open.pop() {
            for to in edges.get(next).into_iter().flat_map(BTreeMap::keys) {
                if seen.insert(to.clone()) {
                    open.push(to);
                }
            }
        }
        seen
    };
    let reached: BTreeMap<&ModulePath, BTreeSet<ModulePath>> =
        edges.keys().map(|path| (path, reach(path))).collect();
    let mut cycles = BTreeSet::new();
    for (path, theirs) in &reached {
        let back =
            |other: &&ModulePath| reached.get(other).is_some_and(|seen| seen.contains(*path));
        let cycle: BTreeSet<ModulePath> = theirs.iter().filter(back).cloned().collect();
        if cycle.len() > 1 {
            cycles.insert(cycle);
        }
    }
    cycles.into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::{super::source::test_source, *};

    fn found_violations(files: &[(&str, &str)]) -> Vec<String> {
        let sources: Vec<_> = files
            .iter()
            .map(|(path, text)| test_source(path, text))
            .collect();
        let package = Package {
            name: "made-up".to_owned(),
            ..Package::default()
        };
        let broken = find_violations(&package, &sources);
        let summary = |text: String| text.lines().next().unwrap_or_default().to_owned();
        broken.into_iter().map(summary).collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod a; mod b;");

    #[test]
    fn siblings_that_name_each_other_are_a_cycle() {
        let cycle = [
            LIB,
            ("a.rs", "use crate::b::B; pub struct A;"),
            ("b.rs", "mod c; pub struct B;"),
            ("b/c.rs", "fn c() -> crate::a::A { todo!() }"),
        ];
        assert_eq!(
            found_violations(&cycle),
            ["made-up: modules in a cycle: a, b"]
        );
        let by_re_export = [
            (
                "lib.rs",
                "mod a; mod b; pub use a::A; pub use b::*; pub struct Mine;",
            ),
            ("a.rs", "use crate::B; pub struct A;"),
            ("b.rs", "use crate::A; pub struct B;"),
        ];
        assert_eq!(
            found_violations(&by_re_export),
            ["made-up: modules in a cycle: a, b"]
        );
    }

    #[test]
    fn parent_and_child_that_name_each_others_items_are_a_cycle() {
        let parent = |text: &'static str| {
            [
                ("lib.rs", "mod a;"),
                ("a.rs", text),
                ("a/d.rs", "mod e; pub struct D;"),
                ("a/d/e.rs", "fn e(_: crate::a::A) {}"),
            ]
        };
        let cycle = ["made-up: modules in a cycle: a::d, a::self"];
        for text in [
            "mod d; use d::D; pub struct A(D);",
            "mod d; pub use d::D; pub struct A(D);",
            "mod d; pub struct A; fn f() -> d::D { todo!() }",
        ] {
            assert_eq!(found_violations(&parent(text)), cycle, "{text}");
        }
        for text in [
            "mod d; pub use d::D; pub struct A;",
            "mod d; use d::D; pub use std::sync::Arc as A;",
        ] {
            assert_eq!(
                found_violations(&parent(text)),
                Vec::<String>::new(),
                "{text}"
            );
        }
    }

    #[test]
    fn tests_and_visibilities_are_no_imports() {
        let tree = [
            LIB,
            (
                "a.rs",
                "mod d; use d::D; pub struct A(D); #[cfg(test)] mod tests { use crate::b::B; }",
            ),
            ("a/d.rs", "pub(in crate::a) struct D;"),
            (
                "b.rs",
                "use super::a::A; pub struct B; #[cfg(test)] mod tests; mod inline { use super::super::a; }",
            ),
            ("b/tests.rs", "use crate::b::*;"),
        ];
        assert_eq!(found_violations(&tree), Vec::<String>::new());
    }
}
