//! Collects the paths in Rust code: in `use`, types and expressions, attributes, and arguments of macros.

use std::collections::BTreeSet;

use proc_macro2::{Delimiter, Ident, TokenStream, TokenTree};
use syn::{
    Attribute, File, Item, ItemMod, ItemUse, Lit, Macro, UseTree, Visibility,
    visit::{self, Visit},
};

use super::source::{is_for_tests, item_attributes};

/// Path that occurs in a file's code.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct NamedPath {
    pub(super) segments: Vec<String>,
    /// Depth of the inline module in the file that contains the path.
    pub(super) inline_depth: usize,
    /// Name that a `use` declaration gives to the path's item.
    pub(super) import: Option<Import>,
}

/// Name that a `use` declaration brings into a module.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Import {
    /// Imported name; `*` for all names of the module.
    pub(super) name: String,
    /// Whether other modules may use the name.
    pub(super) is_public: bool,
}

/// Part of the code that is searched for paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CodeScope {
    /// Searches all code of a file.
    All,
    /// Searches only code outside of tests.
    Shipped,
}

/// Returns all paths with more than one segment, and all paths in `use`.
pub(super) fn named_paths(file: &File, code: CodeScope) -> Vec<NamedPath> {
    let mut paths = collect_paths(file, code).named;
    paths.sort();
    paths.dedup();
    paths
}

/// Returns the first segments of paths outside of `use`.
pub(super) fn first_names(file: &File, code: CodeScope) -> BTreeSet<String> {
    collect_paths(file, code).first_names
}

fn collect_paths(file: &File, code: CodeScope) -> PathCollector {
    let mut paths = PathCollector {
        code,
        inline_depth: 0,
        named: Vec::new(),
        first_names: BTreeSet::new(),
    };
    paths.visit_file(file);
    paths
}

struct PathCollector {
    code: CodeScope,
    inline_depth: usize,
    named: Vec<NamedPath>,
    first_names: BTreeSet<String>,
}

impl PathCollector {
    fn add(&mut self, segments: Vec<String>) {
        self.first_names.extend(segments.first().cloned());
        if segments.len() > 1 {
            self.named.push(NamedPath {
                segments,
                inline_depth: self.inline_depth,
                import: None,
            });
        }
    }

    fn add_import(&mut self, segments: Vec<String>, name: String, is_public: bool) {
        self.named.push(NamedPath {
            segments,
            inline_depth: self.inline_depth,
            import: Some(Import { name, is_public }),
        });
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String], is_public: bool) {
        let with = |last: &Ident| match last.to_string().as_str() {
            "self" => before.to_vec(),
            last => [before, &[last.to_owned()]].concat(),
        };
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &with(&path.ident), is_public),
            UseTree::Name(name) => {
                let path = with(&name.ident);
                let bound = path.last().cloned().unwrap_or_default();
                self.add_import(path, bound, is_public);
            }
            UseTree::Rename(name) => {
                self.add_import(with(&name.ident), name.rename.to_string(), is_public);
            }
            UseTree::Glob(_) => self.add_import(before.to_vec(), "*".to_owned(), is_public),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before, is_public);
                }
            }
        }
    }

    /// Collects paths from tokens of unknown syntax, such as macro arguments.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let end = |path: &mut Vec<String>, paths: &mut Self| {
            if !path.is_empty() {
                paths.add(std::mem::take(path));
            }
        };
        for token in tokens {
            match token {
                TokenTree::Ident(ident) => {
                    if colons != 2 {
                        end(&mut path, self);
                    }
                    path.push(ident.to_string());
                    colons = 0;
                }
                TokenTree::Punct(punct) if punct.as_char() == ':' => colons += 1,
                TokenTree::Group(group) => {
                    // `a::{b, c}` is written in no macro here but `tokio::join!` and their like.
                    if group.delimiter() != Delimiter::Brace || colons != 2 {
                        end(&mut path, self);
                    }
                    colons = 0;
                    self.add_tokens(group.stream());
                }
                TokenTree::Literal(literal) => {
                    end(&mut path, self);
                    colons = 0;
                    self.add_text(&literal.to_string());
                }
                TokenTree::Punct(_) => {
                    end(&mut path, self);
                    colons = 0;
                }
            }
        }
        end(&mut path, self);
    }

    /// Collects paths from string literals: `#[serde(with = "a::b")]`, and captures in format strings.
    fn add_text(&mut self, literal: &str) {
        if let Ok(Lit::Str(text)) = syn::parse_str(literal)
            && let Ok(path) = syn::parse_str::<syn::Path>(&text.value())
            && path.segments.len() > 1
        {
            self.visit_path(&path);
        }
    }
}

impl<'ast> Visit<'ast> for PathCollector {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.code == CodeScope::All || !is_for_tests(item_attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.inline_depth += 1;
        visit::visit_item_mod(self, item);
        self.inline_depth -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        let is_public = !matches!(item.vis, Visibility::Inherited);
        self.add_use(&item.tree, &[], is_public);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        let segments = path.segments.iter();
        self.add(segments.map(|segment| segment.ident.to_string()).collect());
        visit::visit_path(self, path);
    }

    fn visit_visibility(&mut self, _: &'ast Visibility) {}

    fn visit_macro(&mut self, item: &'ast Macro) {
        self.visit_path(&item.path);
        self.add_tokens(item.tokens.clone());
    }

    fn visit_attribute(&mut self, attribute: &'ast Attribute) {
        self.visit_path(attribute.path());
        match &attribute.meta {
            syn::Meta::List(list) => self.add_tokens(list.tokens.clone()),
            // Links in documentation are not uses of a path.
            syn::Meta::NameValue(_) | syn::Meta::Path(_) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str, code: CodeScope) -> Vec<String> {
        let found = named_paths(&syn::parse_file(text).unwrap(), code);
        found.iter().map(|path| path.segments.join("::")).collect()
    }

    #[test]
    fn paths_are_found_in_any_position() {
        let text = "//! See [`not::this`].\n\
            use a::{b::{self, c}, d as e};\n\
            #[derive(f::G)] struct S { #[serde(with = \"h::i\")] x: j::K }\n\
            fn f() { l::m(vec![n::o()]); let p = p; q!(\"{}\", r::s); }";
        let expected = [
            "a::b", "a::b::c", "a::d", "f::G", "h::i", "j::K", "l::m", "n::o", "r::s",
        ];
        assert_eq!(of(text, CodeScope::All), expected);
    }

    #[test]
    fn code_of_tests_may_be_left_out() {
        let text = "fn f() { a::b() } #[cfg(test)] mod tests { use super::*; fn g() { c::d() } }";
        assert_eq!(of(text, CodeScope::Shipped), ["a::b"]);
        assert_eq!(of(text, CodeScope::All), ["a::b", "c::d", "super"]);
    }
}
