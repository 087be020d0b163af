//! Lists of names in messages.

use ambit_model::GatewayName;

/// Maximum number of names that a message lists.
const NAMED: usize = 3;

/// Joins the first names to a text, followed by the number of the others; `None` if there are no names.
pub(crate) fn listed(names: &[String]) -> Option<String> {
    let first = names.get(..NAMED.min(names.len()))?.join(", ");
    match names.len() {
        0 => None,
        all if all > NAMED => Some(format!("{first} and {} more", all - NAMED)),
        _ => Some(first),
    }
}

/// Joins the names of Gateways to a text; `None` if there are none.
pub(crate) fn names<'a>(of: impl IntoIterator<Item = &'a GatewayName>) -> Option<String> {
    let names: Vec<_> = of.into_iter().map(GatewayName::to_string).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
