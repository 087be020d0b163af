//! Output of results: tables for people, JSON or YAML for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

use crate::{CliError, ErrorKind};

/// The form of a result.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// Columns of text
    #[default]
    Table,
    /// JSON, for programs
    Json,
    /// YAML, for manifests
    Yaml,
}

/// Prints `value` as JSON or YAML, or its `table`.
pub(crate) fn print_formatted<T: Serialize>(
    format: OutputFormat,
    value: &T,
    table: impl FnOnce() -> String,
) -> Result<(), CliError> {
    let failed = |error: Box<dyn std::error::Error + Send + Sync>| {
        CliError::new(ErrorKind::Failed, "cannot print the result").with_source(error)
    };
    match format {
        OutputFormat::Table => print_line(&table()),
        OutputFormat::Json => {
            print_line(&serde_json::to_string_pretty(value).map_err(|e| failed(e.into()))?)
        }
        OutputFormat::Yaml => {
            let text = serde_saphyr::to_string(value).map_err(|e| failed(e.to_string().into()))?;
            print_line(text.trim_end())
        }
    }
}

/// Prints a line. A reader that closes the pipe (`| head`) is no error.
pub(crate) fn print_line(text: &str) -> Result<(), CliError> {
    match writeln!(io::stdout(), "{text}") {
        Err(error) if error.kind() != io::ErrorKind::BrokenPipe => {
            Err(CliError::new(ErrorKind::Failed, "cannot write").with_source(error))
        }
        _ => Ok(()),
    }
}

/// Maximum number of characters that [`escape_unprintable`] keeps of a foreign text.
const MAX_PRINTABLE_CHARS: usize = 512;

/// Makes foreign text safe for a terminal: control characters, bidirectional controls and invisible characters become
/// escapes, and long texts are truncated.
pub(crate) fn escape_unprintable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len().min(MAX_PRINTABLE_CHARS));
    for (at, character) in text.chars().enumerate() {
        if at == MAX_PRINTABLE_CHARS {
            shown.push('…');
            break;
        }
        let is_invisible = matches!(
            character,
            '\u{61c}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}'
        );
        match character.is_control() || is_invisible {
            true => shown.extend(character.escape_unicode()),
            false => shown.push(character),
        }
    }
    shown
}

/// Formats rows as aligned columns without borders, like kubectl.
pub(crate) fn format_table(header: &[&str], rows: impl IntoIterator<Item = Vec<String>>) -> String {
    let mut table = Table::new();
    table
        .load_style(presets::NOTHING)
        .set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header.iter().copied());
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut() {
        column.set_padding((0, 2));
    }
    table.trim_fmt()
}
