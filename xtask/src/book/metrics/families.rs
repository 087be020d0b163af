//! Metric families in one file. A family is a name and a help text beside each other: arguments of a call, or elements
//! of a tuple. Its type and its labels are in the call, in the registered field, or later in the same function.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use quote::ToTokens as _;
use syn::{
    Expr, ExprArray, ExprCall, ExprForLoop, ExprMethodCall, ExprPath, ExprTuple, Fields,
    ImplItemFn, Item, ItemFn, ItemMod, Local, Member, Pat,
    visit::{self, Visit},
};

use super::{super::code::string_literal, LabelSets};

/// Prefixes by which string literals are recognized as metric names.
const METRIC_PREFIXES: &[&str] = &[
    "ambit",
    "citadel",
    "istio",
    "nodeagent",
    "pilot",
    "process",
    "tokio",
    "workload_manager",
    "ztunnel",
];
/// Types of metrics, by the word for each in code.
const METRIC_KINDS: &[(&str, &str)] = &[
    ("Counter", "counter"),
    ("Gauge", "gauge"),
    ("Histogram", "histogram"),
];
/// Rust type of counters whose names are exposed unchanged.
const PLAIN_COUNTER: &str = "PlainCounter";

/// Metric family as the code defines it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MetricFamily {
    /// Name of the family in the code.
    pub(super) name: String,
    pub(super) help: String,
    pub(super) kind: &'static str,
    pub(super) labels: Vec<String>,
    /// Whether the metrics library appends `_total` to the name.
    has_suffix: bool,
}

impl MetricFamily {
    /// Returns the name of the family's samples in the exposition.
    pub(super) fn exposed_name(&self) -> String {
        match self.has_suffix {
            true => format!("{}_total", self.name),
            false => self.name.clone(),
        }
    }
}

/// Returns the metric families of a file.
pub(super) fn find_families(file: &syn::File, sets: &LabelSets) -> Result<Vec<MetricFamily>> {
    let mut sets = sets.clone();
    sets.add(file);
    let mut reader = FamilyReader {
        fields: fields(file),
        sets,
        events: Vec::new(),
        help_texts: BTreeMap::new(),
        local_values: BTreeMap::new(),
        is_iterated: false,
        families: Vec::new(),
        unreadable_registrations: Vec::new(),
    };
    reader.visit_file(file);
    if let Some(name) = reader.unreadable_registrations.first() {
        bail!(
            "cannot find the type of the metric {name}: register a field, or name the MetricType"
        );
    }
    Ok(reader.families)
}

/// Returns the types, as text, of the fields of all structures of a file.
fn fields(file: &syn::File) -> BTreeMap<String, String> {
    let mut types = BTreeMap::new();
    for item in &file.items {
        let Item::Struct(item) = item else { continue };
        match &item.fields {
            Fields::Named(fields) => {
                for field in &fields.named {
                    let name = field.ident.as_ref().map(ToString::to_string);
                    let of = field.ty.to_token_stream().to_string();
                    types.insert(name.unwrap_or_default(), of);
                }
            }
            // A wrapper has the type of its content.
            Fields::Unnamed(fields) => {
                let of = fields.unnamed.to_token_stream().to_string();
                types.insert(item.ident.to_string(), of);
            }
            Fields::Unit => {}
        }
    }
    types
}

/// Part of a function's code that concerns a metric.
#[derive(Debug)]
enum RegistrationEvent {
    Family {
        name: String,
        help: String,
        kind: Option<&'static str>,
        labels: Vec<String>,
        /// Whether the registered metric is a [`PLAIN_COUNTER`].
        is_plain: bool,
    },
    Kind(&'static str),
    /// Value of this metric type, which is a weaker hint than [`RegistrationEvent::Kind`].
    KindHint(&'static str),
    Labels(Vec<String>),
    /// Call that encodes samples, with the labels that the code mentions before the call.
    LabelsEncoded,
}

struct FamilyReader {
    fields: BTreeMap<String, String>,
    sets: LabelSets,
    events: Vec<RegistrationEvent>,
    /// Texts of the function's string variables, by variable name.
    help_texts: BTreeMap<String, String>,
    /// Initial values of variables, as text, by name.
    local_values: BTreeMap<String, String>,
    /// Whether the visited array is iterated by a loop.
    is_iterated: bool,
    families: Vec<MetricFamily>,
    unreadable_registrations: Vec<String>,
}

impl FamilyReader {
    /// Adds a family if two of these expressions are its name and its help text.
    fn add<'a>(&mut self, callee: &str, parts: impl Iterator<Item = &'a Expr>) {
        let parts: Vec<_> = parts.collect();
        let pairs = parts.iter().zip(parts.iter().skip(1));
        let mut found = pairs.filter_map(|(name, help)| {
            let name = match name {
                Expr::Tuple(tuple) => tuple.elems.first().and_then(string_literal),
                name => string_literal(name),
            };
            let help = match help {
                Expr::Path(path) => self
                    .help_texts
                    .get(&path.to_token_stream().to_string())
                    .cloned(),
                help => string_literal(help),
            };
            Some((name.filter(|name| is_metric(name))?, help?))
        });
        let Some((mut name, help)) = found.next() else {
            return;
        };
        if callee == "register_with_unit" && parts.iter().any(|part| is_path(part, "Unit :: Bytes"))
        {
            name.push_str("_bytes");
        }
        let of = parts.last().map(|last| self.type_of(last));
        let of = of
            .filter(|_| callee.starts_with("register"))
            .unwrap_or_default();
        let explicit = parts.iter().find_map(|part| metric_type(part));
        let by_callee = METRIC_KINDS.iter().find(|(_, kind)| *kind == callee);
        let kind = explicit.or_else(|| by_callee.map(|(_, kind)| *kind));
        self.events.push(RegistrationEvent::Family {
            name,
            help,
            kind: kind.or_else(|| metric_type_of(&of)),
            labels: self.labels_in(&of),
            is_plain: of.contains(PLAIN_COUNTER),
        });
        if callee == "register" && matches!(parts.last(), Some(Expr::Path(_))) {
            self.events.push(RegistrationEvent::LabelsEncoded);
        }
    }

    /// Returns the type, as text, of the field or variable that an expression reads.
    fn type_of(&self, expression: &Expr) -> String {
        let name = match expression {
            Expr::MethodCall(call) => return self.type_of(&call.receiver),
            Expr::Field(field) => match &field.member {
                Member::Named(name) => name.to_string(),
                Member::Unnamed(_) => return self.type_of(&field.base),
            },
            other => {
                let name = other.to_token_stream().to_string();
                return self.local_values.get(&name).cloned().unwrap_or_default();
            }
        };
        let of = self.fields.get(&name).cloned().unwrap_or_default();
        // A wrapper of unknown type has the type of its content.
        match metric_type_of(&of) {
            Some(_) => of,
            None => self.fields.get(&of).cloned().unwrap_or(of),
        }
    }

    /// Returns the labels in the type text `Family < Labels , … >`.
    fn labels_in(&self, of: &str) -> Vec<String> {
        let inner = of.split_once("Family < ").map_or("", |(_, inner)| inner);
        let name: String = inner
            .chars()
            .take_while(|one| one.is_alphanumeric())
            .collect();
        self.sets.labels_of_set(&name)
    }

    /// Ends a function, and completes its families: the type and labels of a family follow it, or are elsewhere in the
    /// same function.
    fn finish_function(&mut self) {
        let events = std::mem::take(&mut self.events);
        for (index, event) in events.iter().enumerate() {
            let RegistrationEvent::Family {
                name,
                help,
                kind,
                labels,
                is_plain,
            } = event
            else {
                continue;
            };
            let after = events.get(index + 1..).unwrap_or_default();
            let kinds = |events: &[RegistrationEvent]| {
                events.iter().find_map(|event| match event {
                    RegistrationEvent::Kind(kind) => Some(*kind),
                    _ => None,
                })
            };
            let value = || {
                events.iter().find_map(|event| match event {
                    RegistrationEvent::KindHint(kind) => Some(*kind),
                    _ => None,
                })
            };
            let kind = kind.or_else(|| kinds(after)).or_else(|| kinds(&events));
            let Some(kind) = kind.or_else(value) else {
                self.unreadable_registrations.push(name.clone());
                continue;
            };
            let labels = match labels.as_slice() {
                [] => labels_of(&events, index),
                _ => labels.clone(),
            };
            self.families.push(MetricFamily {
                name: name.clone(),
                help: help.clone(),
                kind,
                labels,
                has_suffix: kind == "counter" && !is_plain,
            });
        }
        self.help_texts.clear();
        self.local_values.clear();
    }
}

/// Returns the labels with which a function encodes the family at `index`: the last labels that it mentions before the
/// encoding.
fn labels_of(events: &[RegistrationEvent], index: usize) -> Vec<String> {
    let after = events.get(index + 1..).unwrap_or_default();
    let mut own = after
        .iter()
        .take_while(|event| !matches!(event, RegistrationEvent::Family { .. }));
    let Some(encoded) = own.position(|event| matches!(event, RegistrationEvent::LabelsEncoded))
    else {
        return Vec::new();
    };
    let before = events.get(..index + 1 + encoded).unwrap_or_default();
    let labels = |event: &RegistrationEvent| match event {
        RegistrationEvent::Labels(labels) => Some(labels.clone()),
        _ => None,
    };
    before.iter().rev().find_map(labels).unwrap_or_default()
}

fn is_metric(name: &str) -> bool {
    let prefixed = METRIC_PREFIXES.iter().any(|prefix| {
        let rest = name.strip_prefix(prefix);
        rest.is_some_and(|rest| rest.starts_with('_'))
    });
    prefixed
        && name
            .chars()
            .all(|one| one.is_ascii_lowercase() || one == '_' || one.is_ascii_digit())
}

fn is_path(expression: &Expr, text: &str) -> bool {
    expression.to_token_stream().to_string() == text
}

/// Returns the metric type in the expression `MetricType::X`.
fn metric_type(expression: &Expr) -> Option<&'static str> {
    let text = expression.to_token_stream().to_string();
    let kind = text.strip_prefix("MetricType :: ")?;
    METRIC_KINDS
        .iter()
        .find(|(word, _)| *word == kind)
        .map(|(_, kind)| *kind)
}

/// Returns the metric type of a Rust type, given as text.
fn metric_type_of(of: &str) -> Option<&'static str> {
    METRIC_KINDS
        .iter()
        .find(|(word, _)| of.contains(word))
        .map(|(_, kind)| *kind)
}

impl<'ast> Visit<'ast> for FamilyReader {
    fn visit_item_mod(&mut self, item: &'ast ItemMod) {
        // Tests register families of their own.
        if item.ident != "tests" {
            visit::visit_item_mod(self, item);
        }
    }

    fn visit_item_fn(&mut self, item: &'ast ItemFn) {
        visit::visit_item_fn(self, item);
        self.finish_function();
    }

    fn visit_impl_item_fn(&mut self, item: &'ast ImplItemFn) {
        visit::visit_impl_item_fn(self, item);
        self.finish_function();
    }

    fn visit_local(&mut self, local: &'ast Local) {
        if let (Pat::Ident(name), Some(init)) = (&local.pat, &local.init) {
            let name = name.ident.to_string();
            if let Some(text) = string_literal(&init.expr) {
                self.help_texts.insert(name.clone(), text);
            }
            self.local_values
                .insert(name, init.expr.to_token_stream().to_string());
        }
        visit::visit_local(self, local);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        let callee = call.func.to_token_stream().to_string();
        self.add(&callee, call.args.iter());
        if callee.starts_with("Const") {
            self.events
                .extend(metric_type_of(&callee).map(RegistrationEvent::KindHint));
        }
        visit::visit_expr_call(self, call);
    }

    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        self.add(&call.method.to_string(), call.args.iter());
        visit::visit_expr_method_call(self, call);
        if call.method == "encode_family" {
            self.events.push(RegistrationEvent::LabelsEncoded);
        }
    }

    fn visit_expr_tuple(&mut self, tuple: &'ast ExprTuple) {
        self.add("", tuple.elems.iter());
        visit::visit_expr_tuple(self, tuple);
    }

    fn visit_expr_for_loop(&mut self, one: &'ast ExprForLoop) {
        self.is_iterated = true;
        self.visit_expr(&one.expr);
        self.is_iterated = false;
        self.visit_block(&one.body);
    }

    fn visit_expr_array(&mut self, array: &'ast ExprArray) {
        let first = |element: &Expr| match element {
            Expr::Tuple(pair) if pair.elems.len() == 2 => {
                pair.elems.first().and_then(string_literal)
            }
            _ => None,
        };
        let labels: Option<Vec<_>> = array.elems.iter().map(first).collect();
        if let Some(labels) = labels.filter(|labels| !labels.is_empty() && !self.is_iterated) {
            self.events.push(RegistrationEvent::Labels(labels));
        }
        visit::visit_expr_array(self, array);
    }

    fn visit_expr_path(&mut self, path: &'ast ExprPath) {
        self.events
            .extend(metric_type(&Expr::Path(path.clone())).map(RegistrationEvent::Kind));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Vec<MetricFamily> {
        find_families(&syn::parse_file(text).unwrap(), &LabelSets::default()).unwrap()
    }

    fn summary(text: &str) -> Vec<String> {
        let show =
            |one: &MetricFamily| format!("{} {} {:?}", one.exposed_name(), one.kind, one.labels);
        read(text).iter().map(show).collect()
    }

    #[test]
    fn registered_families_have_the_type_and_labels_of_their_field() {
        let text = "#[derive(EncodeLabelSet)] struct Why { reason: u8 }
            struct Metrics { a: Family<Why, Counter>, b: Gauge }
            fn register(m: Metrics) {
                registry.register(\"ambit_a\", \"A.\", m.a.clone());
                registry.register(\"ambit_b\", \"B.\", m.b);
            }";
        let expected = ["ambit_a_total counter [\"reason\"]", "ambit_b gauge []"];
        assert_eq!(summary(text), expected);
        assert_eq!(read(text)[0].help, "A.");
    }

    #[test]
    fn encoded_families_have_the_type_and_labels_of_their_function() {
        let text = "fn encode(mut encoder: E) {
                let help = \"A.\";
                let mut a = encoder.encode_descriptor(\"ambit_a\", help, None, MetricType::Counter)?;
                for (outcome, count) in [(\"sent\", 1), (\"failed\", 2)] {
                    a.encode_family(&[(\"outcome\", outcome)])?;
                }
                for (name, help) in [(\"ambit_b\", \"B.\")] {
                    encoder.encode_descriptor(name, help, None, MetricType::Gauge)?;
                }
            }";
        let expected = ["ambit_a_total counter [\"outcome\"]", "ambit_b gauge []"];
        assert_eq!(summary(text), expected);
    }

    #[test]
    fn plain_counters_keep_their_names() {
        let text = "struct Metrics { a: Family<Why, PlainCounter> }
            fn register(m: Metrics) { registry.register(\"pilot_a\", \"A.\", m.a); }";
        assert_eq!(summary(text), ["pilot_a counter []"]);
    }

    #[test]
    fn a_family_of_unknown_type_is_an_error() {
        let file = syn::parse_file("fn a() { add(\"ambit_a\", \"A.\", x); }").unwrap();
        assert!(find_families(&file, &LabelSets::default()).is_err());
    }
}
