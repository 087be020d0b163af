//! Reference of settings: the chart's values with their comments, and the programs' environment variables.

mod environment;
mod values;

use anyhow::{Context as _, Result, ensure};

use super::code::markdown_table;
use crate::shell;

/// File with the chart's values.
const VALUES_FILE: &str = "charts/ambit/values.yaml";

/// Returns the page of the chart's values.
pub(super) fn render_chart_values() -> Result<String> {
    let text = std::fs::read_to_string(shell::workspace_root().join(VALUES_FILE))
        .with_context(|| format!("cannot read {VALUES_FILE}"))?;
    let values = values::parse_chart_values(&text);
    ensure!(values.len() > 50, "{VALUES_FILE} has no values");
    let mut page = "# Values of the chart\n\n\
         For `ambit install` and `ambit upgrade` (`--set`, `-f`) and for Helm. An empty string means the default of \
         `global.platform`.\n"
        .to_owned();
    let mut section = "";
    let mut rows = Vec::new();
    for value in &values {
        let of = value.path.split('.').next().unwrap_or_default();
        if of != section {
            push(&mut page, section, &mut rows);
            section = of;
        }
        let default = match value.default.as_str() {
            "" => String::new(),
            default => format!("`{default}`"),
        };
        rows.push(vec![
            format!("`{}`", value.path),
            default,
            value.comment.clone(),
        ]);
    }
    push(&mut page, section, &mut rows);
    Ok(page)
}

fn push(page: &mut String, section: &str, rows: &mut Vec<Vec<String>>) {
    if !rows.is_empty() {
        let table = markdown_table(&["value", "default", "meaning"], rows);
        page.push_str(&format!("\n## {section}\n\n{table}"));
        rows.clear();
    }
}

/// Returns the page of environment variables.
pub(super) fn render_environment() -> Result<String> {
    environment::render()
}
