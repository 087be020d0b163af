//! Parses the path and query of a request to the API server.

use bytes::Bytes;
use serde_json::{Value, json};

use super::change::{Change, ChangeKind};

/// Target of a request: a collection or one of its objects, and the requested format of the response.
#[derive(Clone, Debug, Default)]
pub(super) struct RequestTarget {
    /// Path of all objects of the kind.
    pub(super) collection: String,
    /// Namespace; empty for all namespaces and for cluster-scoped objects.
    pub(super) namespace: String,
    pub(super) name: Option<String>,
    pub(super) metadata_only: bool,
    pub(super) watch: bool,
    pub(super) from_version: u64,
    pub(super) limit: usize,
    /// Continuation of a paged list: the list's version, and namespace and name of the last returned object.
    pub(super) continuation: Option<(u64, (String, String))>,
    terms: Vec<SelectorTerm>,
}

/// One requirement of a label or field selector.
#[derive(Clone, Debug)]
struct SelectorTerm {
    /// Dotted path of the label or field.
    path: String,
    /// Required value; `None` only requires that the label or field exists.
    value: Option<String>,
    /// Whether the requirement is negated (`!=`, `!key`).
    negated: bool,
}

impl SelectorTerm {
    fn parse(prefix: &str, term: &str) -> Self {
        let term = term.trim();
        let (path, value, negated) = if let Some((path, value)) = term.split_once("!=") {
            (path, Some(value), true)
        } else if let Some((path, value)) = term.split_once('=') {
            (path, Some(value.trim_start_matches('=')), false)
        } else if let Some(path) = term.strip_prefix('!') {
            (path, None, true)
        } else {
            (term, None, false)
        };
        Self {
            path: format!("{prefix}{path}"),
            value: value.map(str::to_owned),
            negated,
        }
    }

    fn matches(&self, object: &Value) -> bool {
        let found = match self.path.strip_prefix("metadata.labels/") {
            Some(label) => &object["metadata"]["labels"][label],
            None => self
                .path
                .split('.')
                .fold(object, |value, part| &value[part]),
        };
        let is_so = match &self.value {
            Some(expected) => found.as_str() == Some(expected),
            None => !found.is_null(),
        };
        is_so != self.negated
    }
}

impl RequestTarget {
    pub(super) fn parse(uri: &http::Uri, metadata_only: bool) -> Option<Self> {
        let mut parts = uri.path().trim_matches('/').split('/');
        let root = match parts.next()? {
            "api" => format!("/api/{}", parts.next()?),
            "apis" => format!("/apis/{}/{}", parts.next()?, parts.next()?),
            _ => return None,
        };
        let rest: Vec<&str> = parts.collect();
        let (namespace, plural, name) = match rest.as_slice() {
            ["namespaces", namespace, plural, name, ..] if *plural != "status" => {
                (*namespace, *plural, Some(*name))
            }
            ["namespaces", namespace, plural] if *plural != "status" => (*namespace, *plural, None),
            [plural, name, ..] => ("", *plural, Some(*name)),
            [plural] => ("", *plural, None),
            [] => return None,
        };
        let mut target = Self {
            collection: format!("{root}/{plural}"),
            namespace: namespace.to_owned(),
            name: name.map(str::to_owned),
            metadata_only,
            ..Self::default()
        };
        for (key, value) in query_pairs(uri.query().unwrap_or_default()) {
            match key.as_str() {
                "watch" => target.watch = value == "true" || value == "1",
                "resourceVersion" => target.from_version = value.parse().unwrap_or(0),
                "limit" => target.limit = value.parse().unwrap_or(0),
                "continue" => target.continuation = parse_continue_token(&value),
                "fieldSelector" => target.add_selector_terms("", &value),
                "labelSelector" => target.add_selector_terms("metadata.labels/", &value),
                _ => {}
            }
        }
        Some(target)
    }

    pub(super) fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    fn add_selector_terms(&mut self, prefix: &str, selector: &str) {
        let terms = selector.split(',').filter(|term| !term.is_empty());
        self.terms
            .extend(terms.map(|term| SelectorTerm::parse(prefix, term)));
    }

    pub(super) fn matches(&self, object: &Value) -> bool {
        let of_namespace = self.namespace.is_empty()
            || object["metadata"]["namespace"].as_str() == Some(&self.namespace);
        of_namespace && self.terms.iter().all(|term| term.matches(object))
    }

    /// Returns the object in the format that the request accepts.
    pub(super) fn visible_part(&self, object: &Value) -> Value {
        if self.metadata_only {
            json!({"apiVersion": "meta.k8s.io/v1", "kind": "PartialObjectMetadata",
                   "metadata": object["metadata"]})
        } else {
            object.clone()
        }
    }

    /// Returns the watch event of a change as a line; `None` if the selectors exclude the object.
    pub(super) fn event(&self, change: &Change) -> Option<Bytes> {
        if change.collection != self.collection || !self.matches(&change.object) {
            return None;
        }
        let kind = match change.kind {
            ChangeKind::Added => "ADDED",
            ChangeKind::Modified => "MODIFIED",
            ChangeKind::Deleted => "DELETED",
        };
        let line = json!({"type": kind, "object": self.visible_part(&change.object)});
        Some(format!("{line}\n").into())
    }
}

/// Parses a continuation token, which [`Store::list_page`](super::store::Store::page) creates.
fn parse_continue_token(text: &str) -> Option<(u64, (String, String))> {
    let mut parts = text.splitn(3, '/');
    let version = parts.next()?.parse().ok()?;
    Some((
        version,
        (parts.next()?.to_owned(), parts.next()?.to_owned()),
    ))
}

fn query_pairs(query: &str) -> impl Iterator<Item = (String, String)> {
    query.split('&').filter_map(|pair| {
        let (key, value) = pair.split_once('=')?;
        Some((key.to_owned(), percent_decode(value)))
    })
}

fn percent_decode(text: &str) -> String {
    let mut bytes = Vec::new();
    let mut rest = text.bytes();
    while let Some(byte) = rest.next() {
        bytes.push(match byte {
            b'+' => b' ',
            b'%' => {
                let hex: String = rest.by_ref().take(2).map(char::from).collect();
                u8::from_str_radix(&hex, 16).expect("a percent-encoded byte")
            }
            byte => byte,
        });
    }
    String::from_utf8(bytes).expect("UTF-8")
}
