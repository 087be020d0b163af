//! Reference of status conditions: the table in the documentation of `status-writer`. Every type of condition in the
//! code must be in it.

use std::fs;

use anyhow::{Context as _, Result, ensure};
use syn::{Expr, Item};

use super::code::{parse, string_literal};
use crate::shell;

/// File whose module documentation has the table of conditions.
const WRITER_FILE: &str = "crates/control-plane/status-writer/src/lib.rs";
/// File that defines the types of conditions.
const TYPES_FILE: &str = "crates/control-plane/derive/src/condition.rs";

/// Returns the table of the conditions page.
pub(super) fn render() -> Result<String> {
    let text = fs::read_to_string(shell::workspace_root().join(WRITER_FILE))
        .with_context(|| format!("cannot read {WRITER_FILE}"))?;
    let table = conditions_table(&text);
    for name in condition_types(&parse(TYPES_FILE)?) {
        ensure!(
            table.contains(&format!("`{name}`")),
            "the table of {WRITER_FILE} does not have the condition {name}"
        );
    }
    Ok(format!(
        "# Conditions\n\n\
         The control plane writes what it makes of an object into the object's status. `ambit problems` lists every \
         condition that needs attention, and `kubectl get` and `kubectl describe` show them all.\n\n{table}"
    ))
}

/// Returns the lines of the table in a module's documentation.
fn conditions_table(text: &str) -> String {
    let lines = text.lines().filter_map(|line| line.strip_prefix("//! "));
    let rows = lines.filter(|line| line.starts_with('|'));
    rows.map(|line| format!("{line}\n")).collect()
}

/// Returns the names of all types of conditions in the code.
fn condition_types(file: &syn::File) -> Vec<String> {
    let mut names = Vec::new();
    for item in &file.items {
        if let Item::Const(item) = item
            && let Expr::Struct(value) = &*item.expr
            && value.path.is_ident("ConditionType")
        {
            let named = value.fields.iter().filter(
                |field| matches!(&field.member, syn::Member::Named(member) if member == "name"),
            );
            names.extend(named.filter_map(|field| string_literal(&field.expr)));
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_conditions_are_found_with_their_table() {
        let text = "//! Text.\n//! | object | condition |\n//! |---|---|\n\
                    const A: ConditionType = ConditionType { name: \"Good\", verdict: v };\n\
                    const B: ConditionType = ConditionType { verdict: w, ..A };";
        assert_eq!(condition_types(&syn::parse_file(text).unwrap()), ["Good"]);
        assert_eq!(
            conditions_table(text),
            "| object | condition |\n|---|---|\n"
        );
    }
}
