//! Renders the filters of a route rule or a backend as fields of `envoy.config.route.v3.Route` and
//! `envoy.config.route.v3.WeightedCluster.ClusterWeight`. Fields of a route's action are rendered by [`super::action`].

use ambit_model::{
    ArcStr, FaultStatus, HeaderChanges, HttpCors, HttpFault, HttpFilter, HttpRewrite,
    RequestFraction,
};
use serde_json::{Map, Value, json};

use super::super::proto_json::{any_message, duration, header_value};

/// Denominator of Envoy's most precise fractions (`MILLION`).
const MILLION: u32 = 1_000_000;

/// Renders the filters of a rule as fields of an Envoy route.
pub(super) fn route_fields(filters: &[HttpFilter]) -> Map<String, Value> {
    let mut fields = Map::new();
    let mut by_filter = Map::new();
    for filter in filters {
        match filter {
            HttpFilter::RequestHeaders(changes) => {
                add_header_changes(&mut fields, "request", changes)
            }
            HttpFilter::ResponseHeaders(changes) => {
                add_header_changes(&mut fields, "response", changes)
            }
            HttpFilter::Cors(of) => {
                by_filter.insert("envoy.filters.http.cors".to_owned(), cors(of));
            }
            HttpFilter::Fault(of) => {
                by_filter.insert("envoy.filters.http.fault".to_owned(), fault(of));
            }
            // Rendered as part of the action.
            HttpFilter::Redirect(_) | HttpFilter::Rewrite(_) | HttpFilter::Mirror(_) => {}
        }
    }
    if !by_filter.is_empty() {
        fields.insert("typed_per_filter_config".to_owned(), by_filter.into());
    }
    fields
}

/// Renders the filters of a backend as fields of a weighted cluster.
pub(super) fn weighted_cluster_fields(filters: &[HttpFilter]) -> Map<String, Value> {
    let mut fields = route_fields(filters);
    let hosts = filters.iter().filter_map(|filter| match filter {
        HttpFilter::Rewrite(HttpRewrite { hostname, .. }) => hostname.as_deref(),
        _ => None,
    });
    let hosts = hosts.map(|host| ("host_rewrite_literal".to_owned(), host.into()));
    fields.extend(hosts);
    fields
}

/// Whether a filter of a backend has no corresponding field in Envoy's weighted clusters.
pub(super) fn is_unsupported_on_weighted_cluster(filter: &HttpFilter) -> bool {
    match filter {
        HttpFilter::Rewrite(rewrite) => rewrite.path.is_some(),
        HttpFilter::Redirect(_) | HttpFilter::Mirror(_) => true,
        HttpFilter::RequestHeaders(_)
        | HttpFilter::ResponseHeaders(_)
        | HttpFilter::Cors(_)
        | HttpFilter::Fault(_) => false,
    }
}

/// Renders a fraction of requests as `envoy.type.v3.FractionalPercent`.
pub(super) fn fraction(numerator: u32, denominator: u32) -> Value {
    let parts = u64::from(numerator) * u64::from(MILLION) / u64::from(denominator.max(1));
    json!({"numerator": parts.min(u64::from(MILLION)), "denominator": "MILLION"})
}

fn add_header_changes(fields: &mut Map<String, Value>, of: &str, changes: &HeaderChanges) {
    let option = |action: &'static str| {
        move |(name, value): &(ArcStr, ArcStr)| {
            json!({
                "header": {"key": name.as_str(), "value": header_value(name, value)},
                "append_action": action,
            })
        }
    };
    let set = changes.set.iter();
    let set = set.map(option("OVERWRITE_IF_EXISTS_OR_ADD"));
    let add = changes.add.iter().map(option("APPEND_IF_EXISTS_OR_ADD"));
    let remove = changes.remove.iter().map(|name| Value::from(name.as_str()));
    fields.insert(format!("{of}_headers_to_add"), set.chain(add).collect());
    fields.insert(format!("{of}_headers_to_remove"), remove.collect());
}

fn cors(filter: &HttpCors) -> Value {
    let joined = |all: &[ArcStr]| {
        let text = all.iter().map(ArcStr::as_str).collect::<Vec<_>>().join(",");
        (!text.is_empty()).then_some(text)
    };
    let origin = |origin: &ArcStr| match origin.split_once('*') {
        None => json!({"exact": origin.as_str()}),
        Some((before, after)) => {
            let (before, after) = (regex_syntax_escape(before), regex_syntax_escape(after));
            json!({"safe_regex": {"regex": format!("{before}.+{after}")}})
        }
    };
    any_message(
        "envoy.extensions.filters.http.cors.v3.CorsPolicy",
        json!({
            "allow_origin_string_match": filter.allow_origins.iter().map(origin).collect::<Value>(),
            "allow_methods": joined(&filter.allow_methods),
            "allow_headers": joined(&filter.allow_headers),
            "expose_headers": joined(&filter.expose_headers),
            "max_age": filter.max_age.to_string(),
            "allow_credentials": filter.allow_credentials,
        }),
    )
}

/// Escapes the special characters of regular expressions in a text.
fn regex_syntax_escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for one in text.chars() {
        if !one.is_alphanumeric() && !"/:-_".contains(one) {
            escaped.push('\\');
        }
        escaped.push(one);
    }
    escaped
}

fn fault(filter: &HttpFault) -> Value {
    let share = |share: &RequestFraction| fraction(share.numerator, share.denominator);
    let delay = filter
        .delay
        .as_ref()
        .map(|(delay, of)| json!({"fixed_delay": duration(*delay), "percentage": share(of)}));
    let abort = filter.abort.as_ref().map(|(status, of)| match status {
        FaultStatus::Http(status) => json!({"http_status": status, "percentage": share(of)}),
        FaultStatus::Grpc(status) => json!({"grpc_status": status, "percentage": share(of)}),
    });
    any_message(
        "envoy.extensions.filters.http.fault.v3.HTTPFault",
        json!({"delay": delay, "abort": abort}),
    )
}
