//! Documents of one file: splits the file, and parses and checks each document independently.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
};

use ambit_k8s_api::{
    InvalidObject, Object, ObjectKey, ObjectKeyError, labels::OVERLAY, unread::is_mesh_group,
};
use serde_json::Value;

use crate::lines::{item_lines, line_of_path};

/// Valid object of a file.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Document {
    pub(crate) key: ObjectKey,
    /// Object as JSON text, which takes a fifth of the memory of a [`Value`].
    pub(crate) json: Arc<str>,
    /// Hash of the document's text, by which an unchanged document is recognised; 0 for an item of a list.
    pub(crate) content_hash: u64,
    /// First line of the document in its file.
    pub(crate) line: u64,
    /// Whether the document is an overlay, which only extends an object that is defined elsewhere.
    pub(crate) is_overlay: bool,
}

impl Document {
    /// Returns the object as JSON.
    pub(crate) fn value(&self) -> Value {
        // The same library has written the text.
        serde_json::from_str(&self.json).unwrap_or_default()
    }
}

/// Document that cannot be parsed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct InvalidDocument {
    /// Key of the object, if it can be read from the document.
    pub(crate) key: Option<ObjectKey>,
    pub(crate) line: u64,
    pub(crate) message: String,
    /// The object with its error, if the document is an object with invalid fields.
    pub(crate) rejected_object: Option<RejectedObject>,
}

/// Invalid object with its error.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RejectedObject {
    pub(crate) error: InvalidObject,
    pub(crate) value: Value,
}

/// Contents of a file.
#[derive(Debug, Default)]
pub(crate) struct ParsedFile {
    pub(crate) documents: Vec<Document>,
    pub(crate) invalid_documents: Vec<InvalidDocument>,
    /// Objects of the mesh's API groups that are ignored because of their kind: first line and kind of each.
    pub(crate) ignored_objects: Vec<(u64, String)>,
}

/// Format of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileFormat {
    Yaml,
    Json,
}

/// Documents of a file as last parsed, by [`Document::content_hash`].
pub(crate) type KnownDocuments = HashMap<u64, Document>;

/// Parses a whole file. `patch` marks a later layer, in which `null` removes a field. Documents
/// whose text is that of one of `known` are not parsed again.
pub(crate) fn parse_file(
    text: &str,
    format: FileFormat,
    patch: bool,
    known: &KnownDocuments,
) -> ParsedFile {
    let mut parsed = ParsedFile::default();
    match format {
        FileFormat::Json => parse_document(text, 1, format, patch, &mut parsed),
        FileFormat::Yaml => {
            for (line, document) in split_documents(text) {
                match known.get(&hash(document)) {
                    Some(same) => {
                        let line = line + count_leading_lines(document);
                        parsed.documents.push(Document {
                            line,
                            ..same.clone()
                        });
                    }
                    None => parse_document(document, line, format, patch, &mut parsed),
                }
            }
        }
    }
    parsed
}

/// Objects of a file, with the items of lists as separate objects, and parse errors, each with the line of its
/// document.
#[derive(Debug, Default)]
pub(crate) struct ParsedValues {
    pub(crate) values: Vec<(u64, Value)>,
    pub(crate) errors: Vec<(u64, String)>,
}

/// Parses a whole file to JSON values of any kind.
pub(crate) fn parse_values(text: &str, format: FileFormat) -> ParsedValues {
    let mut all = ParsedValues::default();
    if text.trim_start().starts_with('{')
        && let Ok(value) = serde_json::from_str(text)
    {
        all.add_value(1, value);
        return all;
    }
    let documents = match format {
        FileFormat::Json => vec![(1, text)],
        FileFormat::Yaml => split_documents(text),
    };
    for (first_line, document) in documents {
        match parse_value(document, format) {
            Ok(value) => all.add_value(first_line + count_leading_lines(document), value),
            Err((line, message)) => all
                .errors
                .push((first_line + line.saturating_sub(1), message)),
        }
    }
    all
}

impl ParsedValues {
    fn add_value(&mut self, line: u64, mut value: Value) {
        let items = is_list(&value).then(|| value.get_mut("items").map(Value::take));
        match items.flatten() {
            Some(Value::Array(items)) => {
                self.values
                    .extend(items.into_iter().map(|item| (line, item)));
            }
            _ if value.is_null() => {}
            _ => self.values.push((line, value)),
        }
    }
}

fn is_list(value: &Value) -> bool {
    let kind = value.get("kind").and_then(Value::as_str);
    kind.is_some_and(|kind| kind.ends_with("List"))
}

fn hash(text: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    hasher.finish()
}

/// Splits a YAML stream into documents with their first line numbers. A line that begins with `---` always ends a
/// document, whatever the parser's state, so that an invalid document cannot swallow the next.
pub(crate) fn split_documents(text: &str) -> Vec<(u64, &str)> {
    let mut documents = Vec::new();
    let (mut begin, mut begin_line) = (0, 1);
    let mut offset = 0;
    for (line, content) in (1..).zip(text.split_inclusive('\n')) {
        let marker = content
            .strip_prefix("---")
            .is_some_and(|rest| rest.is_empty() || rest.starts_with(char::is_whitespace));
        if marker {
            documents.extend(
                text.get(begin..offset)
                    .map(|document| (begin_line, document)),
            );
            begin = offset;
            begin_line = line;
        }
        offset += content.len();
    }
    documents.extend(text.get(begin..).map(|document| (begin_line, document)));
    documents.retain(|(_, document)| {
        document.lines().any(|line| {
            let line = line.strip_prefix("---").unwrap_or(line).trim();
            !line.is_empty() && !line.starts_with('#')
        })
    });
    documents
}

fn parse_document(
    text: &str,
    first_line: u64,
    format: FileFormat,
    patch: bool,
    parsed: &mut ParsedFile,
) {
    let value: Value = match parse_value(text, format) {
        Ok(value) => value,
        Err((line, message)) => {
            let line = first_line + line.saturating_sub(1);
            parsed.invalid_documents.push(InvalidDocument {
                key: None,
                line,
                message,
                rejected_object: None,
            });
            return;
        }
    };
    let items = value.get("items").and_then(Value::as_array);
    if let Some(items) = items.filter(|_| is_list(&value)) {
        let lines = item_lines(text, "items");
        for (index, item) in items.iter().enumerate() {
            let path = format!("items[{index}]");
            let line = first_line + lines.get(index).unwrap_or(&1) - 1;
            parse_object(item.clone(), text, &path, (first_line, line), patch, parsed);
        }
    } else if !value.is_null() {
        let line = first_line + count_leading_lines(text);
        parse_object(value, text, "", (first_line, line), patch, parsed);
    }
}

/// Returns the number of lines before a document's content: its `---` marker, comments, empty lines.
fn count_leading_lines(text: &str) -> u64 {
    let empty = |line: &&str| {
        let line = line.strip_prefix("---").unwrap_or(line).trim();
        line.is_empty() || line.starts_with('#')
    };
    u64::try_from(text.lines().take_while(empty).count()).unwrap_or_default()
}

fn parse_value(text: &str, format: FileFormat) -> Result<Value, (u64, String)> {
    match format {
        FileFormat::Json => serde_json::from_str(text).map_err(|error| {
            (
                u64::try_from(error.line()).unwrap_or(1),
                format!("not JSON: {error}"),
            )
        }),
        FileFormat::Yaml => serde_saphyr::from_str_with_options(text, parser_options(text))
            .map_err(|error| {
                let line = error.location().map_or(1, |location| location.line());
                (line, format!("not YAML: {}", error.without_snippet()))
            }),
    }
}

/// Returns options of the YAML parser. `yes` and `on` are strings, not booleans: a label may have such a value. Limits
/// grow with the text, since a list may have thousands of objects; aliases cannot multiply it.
fn parser_options(text: &str) -> serde_saphyr::Options {
    serde_saphyr::options! {
        strict_booleans: true,
        with_snippet: false,
        budget: serde_saphyr::budget! {
            max_nodes: text.len().max(250_000),
            max_events: text.len().saturating_mul(2).max(1_000_000),
        },
    }
}

fn parse_object(
    mut value: Value,
    text: &str,
    path: &str,
    (first_line, line): (u64, u64),
    patch: bool,
    parsed: &mut ParsedFile,
) {
    let key = match ObjectKey::read(&value) {
        Ok(key) => key,
        Err(ObjectKeyError::UnreadKind(kind)) => {
            tracing::debug!(%kind, line, "a kind the mesh does not read");
            if has_mesh_group(&value) {
                parsed.ignored_objects.push((line, kind));
            }
            return;
        }
        Err(error) => {
            parsed.invalid_documents.push(InvalidDocument {
                key: None,
                line,
                message: error.to_string(),
                rejected_object: None,
            });
            return;
        }
    };
    let overlay = take_overlay_annotation(&mut value);
    let checked = if patch || overlay {
        let mut without_nulls = Value::Null;
        json_patch::merge(&mut without_nulls, &value);
        Object::from_value(key.kind, &without_nulls)
    } else {
        Object::from_value(key.kind, &value)
    };
    match checked {
        Ok(_) => parsed.documents.push(Document {
            key,
            json: value.to_string().into(),
            content_hash: if path.is_empty() { hash(text) } else { 0 },
            line,
            is_overlay: overlay,
        }),
        Err(error) => {
            let field = if path.is_empty() {
                error.field.clone()
            } else {
                format!("{path}.{}", error.field)
            };
            let line = first_line + line_of_path(text, &field).unwrap_or(1).saturating_sub(1);
            parsed.invalid_documents.push(InvalidDocument {
                key: Some(key),
                line,
                message: error.to_string(),
                // An overlay alone is not an object.
                rejected_object: (!patch && !overlay).then_some(RejectedObject { error, value }),
            });
        }
    }
}

/// Returns whether an object is of an API group from which the mesh reads other kinds, so that its author expects it to
/// have an effect.
fn has_mesh_group(value: &Value) -> bool {
    let version = value.get("apiVersion").and_then(Value::as_str);
    let group = version.and_then(|version| version.split_once('/'));
    group.is_some_and(|(group, _)| is_mesh_group(group))
}

/// Removes the annotation that marks an overlay; returns whether the document had it.
fn take_overlay_annotation(value: &mut Value) -> bool {
    let annotations = value
        .pointer_mut("/metadata/annotations")
        .and_then(Value::as_object_mut);
    let mark = annotations.and_then(|annotations| annotations.remove(OVERLAY));
    mark.is_some_and(|mark| mark == "true" || mark == true)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn yaml(text: &str) -> ParsedFile {
        parse_file(text, FileFormat::Yaml, false, &KnownDocuments::new())
    }

    #[test]
    fn unread_kinds_of_the_mesh_are_reported() {
        let parsed = yaml(
            "apiVersion: networking.istio.io/v1\nkind: Sidecar\nmetadata: {name: a}\n---\n\
             apiVersion: security.istio.io/v1\nkind: AuthorisationPolicy\nmetadata: {name: b}\n---\n\
             apiVersion: batch/v1\nkind: Job\nmetadata: {name: c}\n",
        );
        assert_eq!(
            (parsed.invalid_documents.len(), parsed.documents.len()),
            (0, 0)
        );
        let unread = [
            (1, "networking.istio.io/v1 Sidecar".to_owned()),
            (5, "security.istio.io/v1 AuthorisationPolicy".to_owned()),
        ];
        assert_eq!(parsed.ignored_objects, unread);
    }

    #[test]
    fn documents_are_split_with_their_lines() {
        let parsed = yaml(
            "# a comment\n---\nkind: Pod\nmetadata: {name: a}\n---\n# nothing\n--- # b\nkind: Pod\nmetadata: {name: b}\n",
        );
        assert_eq!(parsed.invalid_documents, []);
        let found: Vec<_> = parsed
            .documents
            .iter()
            .map(|doc| (doc.key.name.as_str(), doc.line))
            .collect();
        assert_eq!(found, [("a", 3), ("b", 8)]);
    }

    #[test]
    fn invalid_document_is_reported_by_line_and_others_are_read() {
        let parsed = yaml(
            "kind: Pod\nmetadata: {name: a}\n---\nkind: Pod\nmetadata: {name\n---\nkind: Pod\nmetadata: {name: c}\n",
        );
        assert_eq!(parsed.documents.len(), 2);
        assert_eq!(parsed.invalid_documents.len(), 1);
        assert!(
            (4..=6).contains(&parsed.invalid_documents[0].line),
            "{:?}",
            parsed.invalid_documents
        );
        assert!(
            parsed.invalid_documents[0].message.starts_with("not YAML"),
            "{:?}",
            parsed.invalid_documents
        );
    }

    #[test]
    fn invalid_field_is_reported_with_its_line() {
        let parsed = yaml(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata:\n  name: p\nspec:\n  rules:\n  - form: []\n",
        );
        assert_eq!(
            parsed.invalid_documents[0].line, 7,
            "{:?}",
            parsed.invalid_documents
        );
        assert!(
            parsed.invalid_documents[0]
                .message
                .contains("unknown field `form`"),
            "{:?}",
            parsed.invalid_documents
        );
        assert_eq!(
            parsed.invalid_documents[0]
                .key
                .as_ref()
                .unwrap()
                .to_string(),
            "AuthorizationPolicy default/p"
        );
    }

    #[test]
    fn lists_are_flattened() {
        let parsed = yaml(
            "kind: List\napiVersion: v1\nitems:\n- {kind: Pod, metadata: {name: a}}\n- {kind: Pod, metadata: {name: b}}\n",
        );
        assert_eq!(parsed.documents.len(), 2);
        assert_eq!(parsed.documents[1].line, 5);
    }

    #[test]
    fn json_is_parsed() {
        let parsed = parse_file(
            "{\"kind\":\"Pod\",\n\"metadata\":{\"name\":\"a\"}}",
            FileFormat::Json,
            false,
            &KnownDocuments::new(),
        );
        assert_eq!(parsed.documents.len(), 1);
        assert_eq!(
            parse_file("{\n,}", FileFormat::Json, false, &KnownDocuments::new()).invalid_documents
                [0]
            .line,
            2
        );
    }

    #[test]
    fn duplicate_keys_are_an_error() {
        let parsed = yaml("kind: Pod\nmetadata: {name: a}\nmetadata: {name: b}\n");
        assert_eq!(parsed.documents.len(), 0);
        assert!(
            parsed.invalid_documents[0].message.contains("duplicate"),
            "{:?}",
            parsed.invalid_documents
        );
    }

    #[test]
    fn other_kinds_are_ignored() {
        let parsed = yaml("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: a}\n");
        assert!(parsed.documents.is_empty() && parsed.invalid_documents.is_empty());
    }

    #[test]
    fn hostile_text_is_only_a_problem() {
        let deep = "[".repeat(100_000);
        let bomb = "a: &a [x,x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: &f [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\ng: [*f,*f,*f,*f,*f,*f,*f,*f,*f,*f]\n";
        for text in [
            deep.as_str(),
            bomb,
            "- 1\n- 2\n",
            "just text",
            "kind: 7\n",
            "\t- a",
            "{}",
            "kind: Pod",
        ] {
            let parsed = yaml(text);
            assert_eq!(
                parsed.invalid_documents.len(),
                1,
                "{:?}",
                text.chars().take(40).collect::<String>()
            );
        }
    }

    #[test]
    fn unchanged_document_is_reused_with_its_new_line() {
        let one = "kind: Pod\nmetadata: {name: a}\n";
        let first = yaml(one).documents.remove(0);
        let known = KnownDocuments::from([(first.content_hash, first.clone())]);
        let again = parse_file(
            &format!("kind: Node\nmetadata: {{name: n}}\n---\n# c\n{one}"),
            FileFormat::Yaml,
            false,
            &known,
        );
        assert_eq!(again.documents.len(), 2);
        let moved = parse_file(&format!("\n{one}"), FileFormat::Yaml, false, &known);
        assert_eq!(
            (moved.documents[0].line, &moved.documents[0].json),
            (2, &first.json)
        );
        let same = parse_file(one, FileFormat::Yaml, false, &known);
        assert_eq!(same.documents, [first]);
    }

    #[test]
    fn values_of_lists_and_streams_are_parsed_for_any_kind() {
        let text = "# c\napiVersion: v1\nkind: List\nitems: [{kind: Sidecar}, {kind: Other}]\n---\nkind: [\n---\nkind: A\n---\n";
        let read = parse_values(text, FileFormat::Yaml);
        let kinds: Vec<_> = read
            .values
            .iter()
            .map(|(line, value)| (*line, value["kind"].as_str().unwrap()))
            .collect();
        assert_eq!(kinds, [(2, "Sidecar"), (2, "Other"), (8, "A")]);
        assert_eq!(read.errors.len(), 1);
        assert!(matches!(read.errors[0].0, 6 | 7), "{:?}", read.errors);
        let item = "{kind: A, metadata: {labels: {a: b, c: d, e: f}}, spec: {a: [1, 2, 3, 4, 5, 6, 7, 8]}}";
        let items = vec![item; 10_000];
        let list = format!("kind: List\nitems:\n- {}\n", items.join("\n- "));
        let read = parse_values(&list, FileFormat::Yaml);
        assert_eq!((read.values.len(), read.errors), (10_000, vec![]));
        assert_eq!(
            parse_values(
                "{\"kind\": \"List\", \"items\": [{}, {}]}",
                FileFormat::Yaml
            )
            .values
            .len(),
            2
        );
    }
}
