//! Formats lists of object names for the messages of conditions and problems.

use ambit_model::GatewayName;

/// Maximum number of names that a message lists.
const MAX_LISTED_NAMES: usize = 3;

/// Joins the first names to a text, followed by the number of the others; `None` if there are no names.
pub(crate) fn join_names(names: &[String]) -> Option<String> {
    let first = names.get(..MAX_LISTED_NAMES.min(names.len()))?.join(", ");
    match names.len() {
        0 => None,
        all if all > MAX_LISTED_NAMES => {
            Some(format!("{first} and {} more", all - MAX_LISTED_NAMES))
        }
        _ => Some(first),
    }
}

/// Joins the names of Gateways to a text; `None` if there are none.
pub(crate) fn join_gateway_names<'a>(
    of: impl IntoIterator<Item = &'a GatewayName>,
) -> Option<String> {
    let names: Vec<_> = of.into_iter().map(GatewayName::to_string).collect();
    (!names.is_empty()).then(|| names.join(", "))
}
