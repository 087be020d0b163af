//! Reads Rust code for the book's reference: files, doc comments, constants, literals.

use std::{collections::BTreeMap, fs};

use anyhow::{Context as _, Result};
use syn::{Attribute, Expr, Item, Lit};

use crate::shell;

/// Parses a Rust file, whose path is relative to the workspace's root.
pub(super) fn parse(path: &str) -> Result<syn::File> {
    let text = fs::read_to_string(shell::workspace_root().join(path))
        .with_context(|| format!("cannot read {path}"))?;
    syn::parse_file(&text).with_context(|| format!("cannot parse {path}"))
}

/// Returns the text of an item's doc comment on one line.
pub(super) fn doc_text(attributes: &[Attribute]) -> String {
    let lines = attributes.iter().filter_map(|attribute| {
        let named = attribute.meta.require_name_value().ok()?;
        let is_doc = named.path.is_ident("doc");
        string_literal(&named.value).filter(|_| is_doc)
    });
    let lines: Vec<_> = lines.map(|line| line.trim().to_owned()).collect();
    lines.join(" ").trim().to_owned()
}

/// Returns a doc comment without its links to items, which have no target in the book.
pub(super) fn without_links(doc: &str) -> String {
    doc.replace("[`", "`").replace("`]", "`")
}

/// Returns the text of a string literal, also of one that is converted to an owned string.
pub(super) fn string_literal(expression: &Expr) -> Option<String> {
    match expression {
        Expr::Lit(literal) => match &literal.lit {
            Lit::Str(text) => Some(text.value()),
            _ => None,
        },
        Expr::MethodCall(call) if call.method == "to_owned" => string_literal(&call.receiver),
        Expr::Reference(reference) => string_literal(&reference.expr),
        Expr::Paren(inner) => string_literal(&inner.expr),
        _ => None,
    }
}

/// String constant of a Rust file, with its doc comment.
#[derive(Debug)]
pub(super) struct Constant {
    pub(super) name: String,
    pub(super) value: String,
    pub(super) doc: String,
}

/// Returns the string constants of a file, in order. Links to one of them in a doc comment are replaced by its value.
pub(super) fn constants(file: &syn::File) -> Vec<Constant> {
    let mut found = Vec::new();
    for item in &file.items {
        if let Item::Const(item) = item
            && let Some(value) = string_literal(&item.expr)
        {
            found.push(Constant {
                name: item.ident.to_string(),
                value,
                doc: doc_text(&item.attrs),
            });
        }
    }
    let values: BTreeMap<_, _> = found
        .iter()
        .map(|one| (format!("[`{}`]", one.name), format!("`{}`", one.value)))
        .collect();
    for one in &mut found {
        for (link, value) in &values {
            one.doc = one.doc.replace(link, value);
        }
    }
    found
}

/// Returns the variants of an enumeration with their doc comments.
pub(super) fn enum_variants(file: &syn::File, name: &str) -> Vec<(String, String)> {
    let mut found = Vec::new();
    for item in &file.items {
        if let Item::Enum(item) = item
            && item.ident == name
        {
            let all = item.variants.iter();
            found.extend(all.map(|one| (one.ident.to_string(), doc_text(&one.attrs))));
        }
    }
    found
}

/// Returns the text with a capital first letter.
pub(super) fn capitalize_first(text: &str) -> String {
    let mut letters = text.chars();
    let first = letters.next().map(|first| first.to_uppercase().to_string());
    first.unwrap_or_default() + letters.as_str()
}

/// Formats a Markdown table. Bars in cells are escaped.
pub(super) fn markdown_table(heading: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut text = line(heading.iter().map(|cell| (*cell).to_owned()).collect());
    text.push_str(&format!("|{}\n", "---|".repeat(heading.len())));
    for row in rows {
        let cells = row.iter().map(|cell| cell.replace('|', "\\|"));
        text.push_str(&line(cells.collect()));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn constants_are_read_with_their_comments() {
        let text = "/// Label of a pod: [`ON`]\n/// joins.\npub const MODE: &str = \"a.io/mode\";\n\
                    /// Value.\nconst ON: &str = \"on\";\nconst COUNT: u8 = 1;";
        let found = constants(&syn::parse_file(text).unwrap());
        let found: Vec<_> = found
            .iter()
            .map(|one| (one.value.as_str(), one.doc.as_str()))
            .collect();
        let expected = [
            ("a.io/mode", "Label of a pod: `on` joins."),
            ("on", "Value."),
        ];
        assert_eq!(found, expected);
    }

    #[test]
    fn bars_end_no_cell() {
        let text = markdown_table(&["a", "b"], &[vec!["x|y".to_owned(), "z".to_owned()]]);
        assert_eq!(text, "| a | b |\n|---|---|\n| x\\|y | z |\n");
    }
}
