//! Collects the paths in code: in `use`, types and expressions, attributes, and arguments of macros.

use proc_macro2::{Delimiter, TokenStream, TokenTree};
use syn::{
    Attribute, File, Item, ItemMod, ItemUse, Lit, Macro, UseTree,
    visit::{self, Visit},
};

use super::source::{attributes, is_for_tests};

/// A path that occurs in a file.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Named {
    pub(super) segments: Vec<String>,
    /// Depth of the enclosing module within the file.
    pub(super) inline: usize,
}

/// Code that is searched for paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Code {
    /// All code of a file.
    All,
    /// Code that is not for tests only.
    Shipped,
}

/// Returns all paths with more than one segment, and all paths in `use`.
pub(super) fn named(file: &File, code: Code) -> Vec<Named> {
    let mut paths = Paths {
        code,
        inline: 0,
        found: Vec::new(),
    };
    paths.visit_file(file);
    paths.found.sort();
    paths.found.dedup();
    paths.found
}

struct Paths {
    code: Code,
    inline: usize,
    found: Vec<Named>,
}

impl Paths {
    fn add(&mut self, segments: Vec<String>) {
        self.found.push(Named {
            segments,
            inline: self.inline,
        });
    }

    fn add_use(&mut self, tree: &UseTree, before: &[String]) {
        let with = |last: String| [before, &[last]].concat();
        match tree {
            UseTree::Path(path) => self.add_use(&path.tree, &with(path.ident.to_string())),
            UseTree::Name(name) if name.ident == "self" => self.add(before.to_vec()),
            UseTree::Name(name) => self.add(with(name.ident.to_string())),
            UseTree::Rename(name) if name.ident == "self" => self.add(before.to_vec()),
            UseTree::Rename(name) => self.add(with(name.ident.to_string())),
            UseTree::Glob(_) => self.add(before.to_vec()),
            UseTree::Group(group) => {
                for tree in &group.items {
                    self.add_use(tree, before);
                }
            }
        }
    }

    /// Collects paths from tokens of unknown syntax.
    fn add_tokens(&mut self, tokens: TokenStream) {
        let mut path: Vec<String> = Vec::new();
        let mut colons = 0;
        let end = |path: &mut Vec<String>, paths: &mut Self| {
            if path.len() > 1 {
                paths.add(std::mem::take(path));
            }
            path.clear();
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

impl<'ast> Visit<'ast> for Paths {
    fn visit_item(&mut self, item: &'ast Item) {
        if self.code == Code::All || !is_for_tests(attributes(item)) {
            visit::visit_item(self, item);
        }
    }

    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        self.inline += 1;
        visit::visit_item_mod(self, item);
        self.inline -= 1;
    }

    fn visit_item_use(&mut self, item: &'ast ItemUse) {
        self.add_use(&item.tree, &[]);
    }

    fn visit_path(&mut self, path: &'ast syn::Path) {
        if path.segments.len() > 1 {
            let segments = path.segments.iter();
            self.add(segments.map(|segment| segment.ident.to_string()).collect());
        }
        visit::visit_path(self, path);
    }

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

    fn of(text: &str, code: Code) -> Vec<String> {
        let found = named(&syn::parse_file(text).unwrap(), code);
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
        assert_eq!(of(text, Code::All), expected);
    }

    #[test]
    fn code_of_tests_may_be_left_out() {
        let text = "fn f() { a::b() } #[cfg(test)] mod tests { use super::*; fn g() { c::d() } }";
        assert_eq!(of(text, Code::Shipped), ["a::b"]);
        assert_eq!(of(text, Code::All), ["a::b", "c::d", "super"]);
    }
}
