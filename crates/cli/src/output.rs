//! Tables, JSON and YAML.

use comfy_table::{ContentArrangement, Table, presets};
use serde_json::Value;

use crate::error::{CliError, ErrorKind};

/// How to print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Output {
    /// For people.
    #[default]
    Table,
    /// For programs.
    Json,
    /// For both.
    Yaml,
}

/// Rows under headings.
pub fn table<const N: usize>(
    headings: [&str; N],
    rows: impl IntoIterator<Item = [String; N]>,
) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled)
        .set_header(headings);
    for row in rows {
        table.add_row(row);
    }
    table
        .lines()
        .map(|line| format!("{}\n", line.trim_end()))
        .collect()
}

/// A value as JSON or YAML.
///
/// # Errors
/// When it cannot be written in that form.
pub fn structured(value: &Value, output: Output) -> Result<String, CliError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        CliError::new(ErrorKind::Failed, "cannot print the answer").because(error)
    };
    match output {
        Output::Json | Output::Table => serde_json::to_string_pretty(value)
            .map(|text| text + "\n")
            .map_err(|e| failed(e.into())),
        Output::Yaml => serde_saphyr::to_string(value).map_err(|e| failed(e.into())),
    }
}
