//! Lists of names in messages.

use ambit_model::GatewayName;

/// Number of names that a message contains.
const NAMED: usize = 3;

/// Returns the first of some names, with the number of further ones.
pub(crate) fn listed(names: &[String]) -> Option<String> {
    let first = names.get(..NAMED.min(names.len()))?.join(", ");
    match names.len() {
        0 => None,
        all if all > NAMED => Some(format!("{first} and {} more", all - NAMED)),
        _ => Some(first),
    }
}

/// Returns the names of Gateways as text, if there are any.
pub(crate) fn names<'a>(of: impl IntoIterator<Item = &'a GatewayName>) -> Option<String> {
    let names: Vec<_> = of.into_iter().map(GatewayName::to_string).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
