//! Label sets of metrics: the fields of structures that derive their encoding, and the names that other code encodes by
//! hand.

use std::collections::{BTreeMap, BTreeSet};

use quote::ToTokens as _;
use syn::{
    Expr, ExprCall, ExprMethodCall, ExprTuple, Fields, Item, ItemFn, ItemImpl, Type,
    visit::{self, Visit},
};

use super::super::code::string_literal;

/// Labels by the name of the structure, or of the function that encodes them.
#[derive(Clone, Debug, Default)]
pub(super) struct LabelSets {
    sets: BTreeMap<String, Vec<LabelSetPart>>,
}

/// Part of a label set: one label, or another set.
#[derive(Clone, Debug)]
enum LabelSetPart {
    Label(String),
    /// All labels of the set with this name.
    Set(String),
}

impl LabelSets {
    /// Adds the label sets that a file defines.
    pub(super) fn add(&mut self, file: &syn::File) {
        for item in &file.items {
            match item {
                Item::Struct(item) => {
                    let derives = item
                        .attrs
                        .iter()
                        .map(|attribute| attribute.to_token_stream());
                    let mut derives = derives.map(|tokens| tokens.to_string());
                    if let Fields::Named(fields) = &item.fields
                        && derives.any(|text| text.contains("EncodeLabelSet"))
                    {
                        let names = fields.named.iter().filter_map(|field| field.ident.as_ref());
                        let names = names.map(|name| {
                            let name = name.to_string();
                            LabelSetPart::Label(name.trim_start_matches("r#").to_owned())
                        });
                        self.sets.insert(item.ident.to_string(), names.collect());
                    }
                }
                Item::Fn(item) => self.add_function(item),
                Item::Impl(item) => self.add_impl(item),
                _ => {}
            }
        }
    }

    fn add_function(&mut self, item: &ItemFn) {
        let mut written = EncodedLabels::default();
        written.visit_block(&item.block);
        self.extend(item.sig.ident.to_string(), written.0);
    }

    fn add_impl(&mut self, item: &ItemImpl) {
        let Type::Path(of) = &*item.self_ty else {
            return;
        };
        let Some(of) = of.path.segments.last() else {
            return;
        };
        let mut written = EncodedLabels::default();
        written.visit_item_impl(item);
        self.extend(of.ident.to_string(), written.0);
    }

    fn extend(&mut self, name: String, parts: Vec<LabelSetPart>) {
        if !parts.is_empty() {
            self.sets.entry(name).or_default().extend(parts);
        }
    }

    /// Returns the labels of a set, in the order of their encoding.
    pub(super) fn labels_of_set(&self, name: &str) -> Vec<String> {
        let mut labels = Vec::new();
        self.collect(name, &mut BTreeSet::new(), &mut labels);
        labels
    }

    fn collect<'a>(
        &'a self,
        name: &'a str,
        seen: &mut BTreeSet<&'a str>,
        labels: &mut Vec<String>,
    ) {
        if !seen.insert(name) {
            return;
        }
        for part in self.sets.get(name).into_iter().flatten() {
            match part {
                LabelSetPart::Label(label) if labels.contains(label) => {}
                LabelSetPart::Label(label) => labels.push(label.clone()),
                LabelSetPart::Set(other) => self.collect(other, seen, labels),
            }
        }
    }
}

/// Labels that a function encodes: `labels.put_label("name", …)`, `("name", …).encode(…)`, and calls of other
/// functions.
#[derive(Default)]
struct EncodedLabels(Vec<LabelSetPart>);

impl<'ast> Visit<'ast> for EncodedLabels {
    fn visit_expr_method_call(&mut self, call: &'ast ExprMethodCall) {
        let label = match (&*call.receiver, call.args.first()) {
            (_, Some(first)) if call.method == "put_label" => string_literal(first),
            (Expr::Tuple(ExprTuple { elems, .. }), _) if call.method == "encode" => {
                elems.first().and_then(string_literal)
            }
            _ => None,
        };
        self.0.extend(label.map(LabelSetPart::Label));
        visit::visit_expr_method_call(self, call);
    }

    fn visit_expr_call(&mut self, call: &'ast ExprCall) {
        if let Expr::Path(path) = &*call.func
            && let Some(function) = path.path.get_ident()
        {
            self.0.push(LabelSetPart::Set(function.to_string()));
        }
        visit::visit_expr_call(self, call);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_are_fields_or_written_by_code() {
        let mut sets = LabelSets::default();
        let text = "#[derive(Clone, EncodeLabelSet)] struct A { r#type: u8, reason: u8 }
            fn parties(l: &mut L) { l.put_label(\"source\", x)?; l.put_label(\"destination\", y) }
            impl EncodeLabelSet for B { fn encode(&self, e: &mut E) { parties(e)?; e.put_label(\"flags\", z) } }
            impl EncodeLabelSet for C { fn encode(&self, e: &mut E) { (\"reporter\", 1).encode(e.encode_label()) } }";
        sets.add(&syn::parse_file(text).unwrap());
        assert_eq!(sets.labels_of_set("A"), ["type", "reason"]);
        assert_eq!(sets.labels_of_set("B"), ["source", "destination", "flags"]);
        assert_eq!(sets.labels_of_set("C"), ["reporter"]);
        assert!(sets.labels_of_set("D").is_empty());
    }
}
