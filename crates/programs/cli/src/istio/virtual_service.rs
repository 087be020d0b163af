//! Effects of a VirtualService: the objects that `ambit convert` makes in its place, or the reasons why it makes none.

use serde_json::Value;

use super::{Effect, Outcome, object_name};
use crate::convert;

/// Effects of one object.
pub(super) fn effects(value: &Value, cluster_domain: &str) -> Vec<Effect> {
    let object = object_name(value);
    let lapses = |advice: String| {
        let effect = "objects of this kind have no effect";
        Effect::new(Outcome::Lapses, &object, ".", effect, advice)
    };
    match convert::preview(value, cluster_domain) {
        Ok(conversion) => {
            let names: Vec<_> = conversion.objects.iter().map(object_name).collect();
            let advice = format!("apply {}, as `ambit convert` makes it", names.join(" and "));
            let notes = conversion.notes.iter().map(|note| {
                let field = format!("spec.{}", note.field);
                Effect::new(Outcome::Changes, &object, field, &note.message, "")
            });
            let mut whole = lapses(advice);
            whole.replacement.clone_from(&conversion.objects);
            std::iter::once(whole).chain(notes).collect()
        }
        Err(reasons) => {
            let whole = lapses(
                "write an HTTPRoute: `ambit convert` cannot, for the fields below".to_owned(),
            );
            let reasons = reasons.iter().map(|reason| {
                let field = format!("spec.{}", reason.field);
                Effect::new(Outcome::Lapses, &object, field, &reason.message, "")
            });
            std::iter::once(whole).chain(reasons).collect()
        }
    }
}
