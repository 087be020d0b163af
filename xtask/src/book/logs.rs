//! Reference of logs: the fields of access logs, and the response flags of requests and connections.

use std::collections::BTreeMap;

use anyhow::{Context as _, Result, ensure};
use quote::ToTokens as _;
use syn::{
    Arm, Item, Macro, Pat,
    visit::{self, Visit},
};

use super::code::{
    capitalize_first, constants, doc_text, enum_variants, markdown_table, parse, string_literal,
};

/// File with the fields of a node proxy's access log.
const CONNECTION_LOG_FILE: &str = "crates/dataplane/telemetry/src/access_log.rs";
/// File with the formats of a waypoint's access log.
const FORMATS_FILE: &str = "crates/dataplane/observation/src/format.rs";
/// File with the response flags of requests.
const FLAGS_FILE: &str = "crates/dataplane/telemetry/src/http/flags.rs";
/// File with the response flags of connections.
const REASONS_FILE: &str = "crates/protocol/model/src/reason.rs";

/// Meanings of access log fields that are not fields of a structure.
const MEASURED_FIELDS: &[(&str, &str)] = &[
    ("bytes_sent", "Bytes that the pod's side sent."),
    ("bytes_recv", "Bytes that the pod's side received."),
    ("duration", "Time from the first packet to the end."),
    (
        "error",
        "Cause of a failure; the line has the level `error` then.",
    ),
];

/// Returns the tables of the logs page.
pub(super) fn render() -> Result<String> {
    Ok(format!(
        "# Logs\n\n\
         All programs log to standard output, as text or, with `global.logAsJson`, as JSON. `ambit log-level` changes \
         the level while they run.\n\n\
         ## Connections at a node proxy\n\n\
         One line for each connection, in the scope `access`.\n\n{}\n\
         ## Requests at a waypoint\n\n\
         One line for each request, in Istio's formats; `Telemetry` objects and `meshConfig` choose others. The text has \
         the same values in the same order.\n\n{}\n\
         ## Flags of responses\n\n\
         `%RESPONSE_FLAGS%`, and the label `response_flags` of request metrics.\n\n{}\n\
         ## Flags of connections\n\n\
         The label `response_flags` of TCP metrics.\n\n{}",
        connection_fields()?,
        request_fields()?,
        response_flags()?,
        failure_reasons()?
    ))
}

fn connection_fields() -> Result<String> {
    let file = parse(CONNECTION_LOG_FILE)?;
    let mut docs: BTreeMap<String, String> = BTreeMap::new();
    for item in &file.items {
        if let Item::Struct(item) = item
            && item.ident == "AccessLog"
        {
            for field in &item.fields {
                let name = field.ident.as_ref().map(ToString::to_string);
                docs.insert(name.unwrap_or_default(), doc_text(&field.attrs));
            }
        }
    }
    let mut events = LogEventFields::default();
    events.visit_file(&file);
    let longest = events.0.into_iter().max_by_key(Vec::len);
    let rows = longest
        .unwrap_or_default()
        .into_iter()
        .map(|(name, source)| {
            let measured = MEASURED_FIELDS.iter().find(|(field, _)| *field == name);
            let meaning = measured.map(|(_, text)| (*text).to_owned());
            let meaning = meaning.or_else(|| docs.get(&source).cloned());
            let meaning =
                meaning.with_context(|| format!("the log's field {name} has no meaning"))?;
            Ok(vec![format!("`{name}`"), meaning])
        });
    let rows = rows.collect::<Result<Vec<_>>>()?;
    ensure!(rows.len() > 10, "{CONNECTION_LOG_FILE} has no fields");
    Ok(markdown_table(&["field", "meaning"], &rows))
}

/// Fields of each call of `tracing::event!`, each with the structure's field whose value it logs.
#[derive(Default)]
struct LogEventFields(Vec<Vec<(String, String)>>);

impl<'ast> Visit<'ast> for LogEventFields {
    fn visit_macro(&mut self, one: &'ast Macro) {
        if one.path.to_token_stream().to_string() == "tracing :: event" {
            self.0.push(event_fields(&one.tokens.to_string()));
        }
        visit::visit_macro(self, one);
    }

    /// Reads an event within a macro that the file itself defines.
    fn visit_item_macro(&mut self, one: &'ast syn::ItemMacro) {
        self.0.push(event_fields(&one.mac.tokens.to_string()));
    }
}

/// Returns the fields in the tokens of a `tracing::event!` call.
fn event_fields(tokens: &str) -> Vec<(String, String)> {
    let parts = tokens.split(',').map(str::trim);
    let fields = parts.filter_map(|part| {
        let (name, value) = part.split_once('=').unwrap_or((part, part));
        let name = name.replace(' ', "");
        let is_name = name
            .chars()
            .all(|one| one.is_ascii_lowercase() || "._".contains(one));
        let value = value.split("self . ").nth(1).unwrap_or(value);
        let source: String = value
            .trim()
            .chars()
            .take_while(|one| one.is_alphanumeric() || *one == '_')
            .collect();
        (is_name && !name.is_empty()).then_some((name, source))
    });
    fields.collect()
}

fn request_fields() -> Result<String> {
    let constants = constants(&parse(FORMATS_FILE)?);
    let json = constants.iter().find(|one| one.name == "ISTIO_JSON_FORMAT");
    let json = json.with_context(|| format!("{FORMATS_FILE} has no ISTIO_JSON_FORMAT"))?;
    // Parsed line by line: the order of the fields is that of the text.
    let pairs = json.value.split(['{', '}', ',', '\n']).filter_map(|pair| {
        let (key, value) = pair.trim().split_once("\":\"")?;
        let operator = value.trim_end_matches('"');
        Some(vec![
            format!("`{}`", key.trim_start_matches('"')),
            format!("`{operator}`"),
        ])
    });
    Ok(markdown_table(
        &["JSON field", "value"],
        &pairs.collect::<Vec<_>>(),
    ))
}

fn response_flags() -> Result<String> {
    let rows = enum_variants(&parse(FLAGS_FILE)?, "ResponseFlag").into_iter();
    let rows = rows.map(|(name, doc)| {
        let (flag, meaning) = doc
            .split_once(": ")
            .with_context(|| format!("{FLAGS_FILE}: {name} does not begin with its flag"))?;
        Ok(vec![flag.to_owned(), capitalize_first(meaning)])
    });
    Ok(markdown_table(
        &["flag", "meaning"],
        &rows.collect::<Result<Vec<_>>>()?,
    ))
}

fn failure_reasons() -> Result<String> {
    let file = parse(REASONS_FILE)?;
    let mut texts = ReasonTexts::default();
    texts.visit_file(&file);
    let rows = enum_variants(&file, "FailureReason")
        .into_iter()
        .map(|(name, doc)| {
            let text = texts.0.get(&name);
            let text = text.with_context(|| format!("{REASONS_FILE}: {name} has no text"))?;
            Ok(vec![format!("`{text}`"), doc])
        });
    Ok(markdown_table(
        &["flag", "meaning"],
        &rows.collect::<Result<Vec<_>>>()?,
    ))
}

/// Texts of enum variants, from match arms such as `Self::Variant => "text"`.
#[derive(Default)]
struct ReasonTexts(BTreeMap<String, String>);

impl<'ast> Visit<'ast> for ReasonTexts {
    fn visit_arm(&mut self, arm: &'ast Arm) {
        if let (Pat::Path(path), Some(text)) = (&arm.pat, string_literal(&arm.body))
            && let Some(variant) = path.path.segments.last()
        {
            self.0.insert(variant.ident.to_string(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_of_an_event_name_their_source() {
        let tokens = "target : \"access\" , src . workload = self . src_workload . as_deref () , \
                      dst . addr = % self . dst , bytes_sent , error , \"connection complete\"";
        let fields = event_fields(tokens);
        let fields: Vec<_> = fields
            .iter()
            .map(|(name, source)| (name.as_str(), source.as_str()))
            .collect();
        let expected = [
            ("src.workload", "src_workload"),
            ("dst.addr", "dst"),
            ("bytes_sent", "bytes_sent"),
            ("error", "error"),
        ];
        assert_eq!(fields, expected);
    }
}
