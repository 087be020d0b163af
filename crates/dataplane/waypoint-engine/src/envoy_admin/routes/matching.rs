//! Route matches in the dump (`envoy.config.route.v3.RouteMatch`).

use ambit_model::{ArcStr, HttpPathMatch, HttpRouteMatch, HttpValueMatch};
use serde_json::{Value, json};

use super::super::proto_json::{header_value, merge_fields};

/// Renders the match of a route rule.
pub(super) fn route_match(condition: &HttpRouteMatch) -> Value {
    let method = condition
        .method
        .iter()
        .map(|method| json!({"name": ":method", "string_match": {"exact": method.as_str()}}));
    let headers = condition
        .headers
        .iter()
        .map(|(name, value)| header(name, value));
    let without = condition.without_headers.iter().map(|(name, value)| {
        let mut excluded = header(name, value);
        merge_fields(&mut excluded, json!({"invert_match": true}));
        excluded
    });
    let parameters = condition.query_params.iter().map(
        |(name, value)| json!({"name": name.as_str(), "string_match": string_match(name, value)}),
    );
    let mut fields = path(condition.path.as_ref());
    let more = json!({
        "headers": method.chain(headers).chain(without).collect::<Value>(),
        "query_parameters": parameters.collect::<Value>(),
    });
    merge_fields(&mut fields, more);
    fields
}

fn path(condition: Option<&HttpPathMatch>) -> Value {
    match condition {
        None => json!({"prefix": "/"}),
        Some(HttpPathMatch::Exact(path)) => json!({"path": path.as_str()}),
        Some(HttpPathMatch::Prefix(prefix)) => match prefix.trim_end_matches('/') {
            "" => json!({"prefix": "/"}),
            prefix => json!({"path_separated_prefix": prefix}),
        },
        Some(HttpPathMatch::TextPrefix(prefix)) => json!({"prefix": prefix.as_str()}),
        Some(HttpPathMatch::Regex(regex)) => json!({"safe_regex": {"regex": regex.as_str()}}),
    }
}

fn header(name: &ArcStr, value: &HttpValueMatch) -> Value {
    let called = match name.as_str() {
        "host" => ":authority",
        name => name,
    };
    json!({"name": called, "string_match": string_match(name, value)})
}

fn string_match(name: &str, condition: &HttpValueMatch) -> Value {
    match condition {
        HttpValueMatch::Exact(text) => json!({"exact": header_value(name, text)}),
        HttpValueMatch::Regex(regex) => json!({"safe_regex": {"regex": header_value(name, regex)}}),
    }
}
