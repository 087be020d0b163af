//! Compares the order of rules. A VirtualService applies the first rule that matches; among HTTPRoutes the most
//! specific match wins, whatever its position. So a conversion is correct only if no later match would precede an
//! earlier one that matches some of the same requests.

use ambit_k8s_api::gateway::{HttpNamedMatch, HttpRouteMatch, HttpRouteRule};

use super::FieldRemark;

/// Returns a remark for each pair of matches whose order an HTTPRoute would change.
pub(crate) fn order_differences(rules: &[HttpRouteRule]) -> Vec<FieldRemark> {
    let all = HttpRouteMatch::default();
    let matches: Vec<(usize, &HttpRouteMatch)> = rules
        .iter()
        .enumerate()
        .flat_map(|(number, rule)| {
            let given = rule.matches.iter();
            let everything = rule.matches.is_empty().then_some(&all);
            given.chain(everything).map(move |one| (number, one))
        })
        .collect();
    let mut changes = Vec::new();
    for (position, (later, one)) in matches.iter().enumerate() {
        let before = matches.iter().take(position);
        let overtaken = before
            .filter(|(earlier, _)| earlier < later)
            .find(|(_, other)| precedence(one) > precedence(other) && matches_overlap(one, other));
        if let Some((earlier, _)) = overtaken {
            changes.push(FieldRemark::new(
                format!("http[{later}]"),
                format!(
                    "it would go before http[{earlier}] in an HTTPRoute, which prefers the more specific match: give the \
                     rules the order of their specificity, or conditions that exclude each other"
                ),
            ));
        }
    }
    changes.dedup();
    changes
}

/// Returns the precedence of a match in an HTTPRoute: path type, path length, method, number of headers, number of
/// query parameters; the greatest wins.
fn precedence(one: &HttpRouteMatch) -> (u8, usize, bool, usize, usize) {
    let (kind, path) = path_match(one);
    let kind = match kind {
        "Exact" => 2,
        "PathPrefix" => 1,
        _ => 0,
    };
    (
        kind,
        path.len(),
        one.method.is_some(),
        one.headers.len(),
        one.query_params.len(),
    )
}

fn path_match(one: &HttpRouteMatch) -> (&str, &str) {
    let path = one.path.as_ref();
    let kind = path.and_then(|path| path.type_.as_deref());
    let value = path.and_then(|path| path.value.as_deref());
    (kind.unwrap_or("PathPrefix"), value.unwrap_or("/"))
}

/// Returns whether one request may satisfy both matches; true if that is undecidable.
fn matches_overlap(one: &HttpRouteMatch, other: &HttpRouteMatch) -> bool {
    let methods = match (&one.method, &other.method) {
        (Some(one), Some(other)) => one == other,
        _ => true,
    };
    methods
        && paths_overlap(path_match(one), path_match(other))
        && !are_mutually_exclusive(&one.headers, &other.headers, true)
        && !are_mutually_exclusive(&one.query_params, &other.query_params, false)
}

fn paths_overlap(one: (&str, &str), other: (&str, &str)) -> bool {
    match (one, other) {
        (("Exact", one), ("Exact", other)) => one == other,
        (("Exact", exact), ("PathPrefix", prefix)) | (("PathPrefix", prefix), ("Exact", exact)) => {
            is_path_below(exact, prefix)
        }
        (("PathPrefix", one), ("PathPrefix", other)) => {
            is_path_below(one, other) || is_path_below(other, one)
        }
        _ => true,
    }
}

/// Returns whether the path's segments begin with the segments of `prefix`.
fn is_path_below(path: &str, prefix: &str) -> bool {
    let prefix = prefix.trim_end_matches('/');
    let rest = path.strip_prefix(prefix);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// Returns whether both lists require different values of one header or query parameter, so that no request satisfies
/// both.
fn are_mutually_exclusive(
    one: &[HttpNamedMatch],
    other: &[HttpNamedMatch],
    ignores_case: bool,
) -> bool {
    let is_exact = |one: &&HttpNamedMatch| one.type_.as_deref().unwrap_or("Exact") == "Exact";
    one.iter().filter(is_exact).any(|one| {
        other.iter().filter(is_exact).any(|other| {
            let same = match ignores_case {
                true => one.name.eq_ignore_ascii_case(&other.name),
                false => one.name == other.name,
            };
            same && one.value != other.value
        })
    })
}
