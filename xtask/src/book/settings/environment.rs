//! Reference of environment variables: flags of the agent and the control plane name theirs in an attribute, node
//! proxies and waypoints read theirs by name.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Result, ensure};
use quote::ToTokens as _;
use syn::{
    Attribute, Field, ItemMod, LitStr, Pat, Variant,
    visit::{self, Visit},
};

use super::super::code::{capitalize_first, doc_text, markdown_table, parse, without_links};

/// Programs, and the files in which their environment variables are named.
const PROGRAMS: &[(&str, &[&str])] = &[
    (
        "Node proxy",
        &[
            "crates/programs/node-proxy/src/config.rs",
            "crates/dataplane/proxy/src/environment.rs",
            "crates/dataplane/proxy/src/environment/threads.rs",
            "crates/dataplane/tls/src/settings.rs",
            "crates/node/handover/src/supervisor_sockets.rs",
        ],
    ),
    (
        "Waypoint",
        &[
            "crates/dataplane/waypoint-engine/src/config.rs",
            "crates/dataplane/tls/src/settings.rs",
        ],
    ),
    (
        "Node agent",
        &[
            "crates/programs/agent/src/config.rs",
            "crates/programs/agent/src/install/options.rs",
        ],
    ),
    ("Control plane", &["crates/programs/control/src/args.rs"]),
];

/// Returns the tables of the page of environment variables.
pub(super) fn render() -> Result<String> {
    let mut page = "# Environment variables\n\n\
         The chart sets what its values need; `cni.env`, `ztunnel.env`, `pilot.env` and `global.waypoint.env` set others. \
         Names that Istio's programs have mean the same. Variables of OpenTelemetry (`OTEL_…`) work in all programs.\n"
        .to_owned();
    for (program, files) in PROGRAMS {
        let mut reader = VariableReader::default();
        for path in *files {
            reader.visit_file(&parse(path)?);
        }
        ensure!(!reader.names.is_empty(), "{program} has no variables");
        let rows = reader.names.iter().map(|name| {
            let meaning = reader.meanings.get(name).cloned();
            vec![format!("`{name}`"), meaning.unwrap_or_default()]
        });
        let rows: Vec<_> = rows.collect();
        let table = markdown_table(&["variable", "meaning"], &rows);
        page.push_str(&format!("\n## {program}\n\n{table}"));
    }
    Ok(page)
}

/// Environment variables that code names, and their meanings from doc comments.
#[derive(Default)]
struct VariableReader {
    names: BTreeSet<String>,
    meanings: BTreeMap<String, String>,
}

/// Returns whether a text has the form of an environment variable's name.
fn is_variable(text: &str) -> bool {
    let is_part = |part: &str| {
        let is_upper = |one: char| one.is_ascii_uppercase() || one.is_ascii_digit();
        !part.is_empty() && part.chars().all(is_upper)
    };
    text.contains('_') && text.split('_').all(is_part)
}

/// Returns the meaning of an environment variable from a doc comment: `VARIABLE`: meaning, or meaning (`VARIABLE`).
fn variable_meaning(name: &str, doc: &str) -> String {
    let text = doc.replace(&format!(" (`{name}`)"), "");
    let text = text.strip_prefix(&format!("`{name}`: ")).unwrap_or(&text);
    capitalize_first(text)
}

/// Returns the environment variable in a flag's attributes.
fn flag_variable(attributes: &[Attribute]) -> Option<String> {
    let arguments = attributes.iter().filter(|one| one.path().is_ident("arg"));
    let mut texts = arguments.map(|one| one.meta.to_token_stream().to_string());
    texts.find_map(|text| {
        let (_, value) = text.split_once("env = \"")?;
        value.split('"').next().map(str::to_owned)
    })
}

impl<'ast> Visit<'ast> for VariableReader {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_field(&mut self, field: &'ast Field) {
        let text = without_links(&doc_text(&field.attrs));
        if let Some(name) = flag_variable(&field.attrs) {
            self.meanings.insert(name.clone(), text.clone());
            self.names.insert(name);
        }
        for name in text.split('`').skip(1).step_by(2) {
            let meaning = variable_meaning(name, &text);
            self.meanings.entry(name.to_owned()).or_insert(meaning);
        }
    }

    // Patterns have values of variables.
    fn visit_pat(&mut self, _: &'ast Pat) {}

    fn visit_variant(&mut self, _: &'ast Variant) {}

    fn visit_attribute(&mut self, _: &'ast Attribute) {}

    fn visit_lit_str(&mut self, literal: &'ast LitStr) {
        self.names
            .extend(Some(literal.value()).filter(|text| is_variable(text)));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_found_in_flags_and_texts() {
        let text = "struct Args { /// Namespace of the mesh.\n #[arg(long, env = \"SYSTEM_NAMESPACE\")] a: u8,
                        /// `AMBIT_LIMIT`: most bytes, by `SO_MARK`.\n b: u8, /// Name of the node (`NODE_NAME`).\n c: u8 }
                    fn f(env: &Env) { env.get(\"AMBIT_LIMIT\"); env.get(\"NODE_NAME\"); env.get(\"OTHER_NAME\"); env.get(\"TEXT\"); }
                    mod tests { const A: &str = \"NOT_THIS\"; }";
        let mut reader = VariableReader::default();
        reader.visit_file(&syn::parse_file(text).unwrap());
        let meaning = |name: &String| reader.meanings.get(name).map_or("", String::as_str);
        let found: Vec<_> = reader
            .names
            .iter()
            .map(|name| (name.as_str(), meaning(name)))
            .collect();
        let expected = [
            ("AMBIT_LIMIT", "Most bytes, by `SO_MARK`."),
            ("NODE_NAME", "Name of the node."),
            ("OTHER_NAME", ""),
            ("SYSTEM_NAMESPACE", "Namespace of the mesh."),
        ];
        assert_eq!(found, expected);
    }
}
