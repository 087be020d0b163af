//! Actions of routes: `envoy.config.route.v3.RouteAction`, `RedirectAction` and `DirectResponseAction`.

use std::time::Duration;

use ambit_l7::route::{DEFAULT_BACKOFF, MAX_BACKOFF_MULTIPLE};
use ambit_model::{
    ArcStr, HttpBackend, HttpFilter, HttpMirror, HttpRedirect, HttpRetry, HttpRewrite,
    HttpRouteRule, PathChange,
};
use serde_json::{Map, Value, json};

use super::{
    super::{
        names::{BLACK_HOLE, ClusterNames},
        proto_json::{duration, remove_empty_fields},
        snapshot::{backend_key, mirror_key},
    },
    filters::{fraction, is_unsupported_on_weighted_cluster, weighted_cluster_fields},
};
use crate::{http::DEFAULT_RETRIES, record_store::to_json};

/// Envoy's retry conditions (`retry_on`) equivalent to the default without a retry policy: requests that were not
/// processed are retried. In addition, idempotent requests without a body are retried after a reset or a 503.
const DEFAULT_RETRY_ON: &str = "connect-failure,refused-stream,reset-before-request";
/// Envoy's retry conditions (`retry_on`) for a rule with a retry policy: no response, or a status that the rule names.
const RETRY_ON: &str =
    "connect-failure,refused-stream,reset,retriable-status-codes,cancelled,unavailable";

/// Renders the action of a port without routes, which forwards to the cluster of the service itself.
pub(super) fn own_cluster_action(cluster: &str) -> Value {
    json!({
        "cluster": cluster,
        // Zero disables the timeout.
        "timeout": "0s",
        "retry_policy": {"retry_on": DEFAULT_RETRY_ON, "num_retries": DEFAULT_RETRIES},
    })
}

/// Renders the action of a route rule, with its field name in the Envoy route (`route`, `redirect` or
/// `direct_response`).
pub(super) fn action(
    names: &ClusterNames,
    rule: &HttpRouteRule,
    unsupported: Option<&str>,
) -> Map<String, Value> {
    let mut filters = rule.filters.iter();
    let redirect = filters.find_map(|filter| match filter {
        HttpFilter::Redirect(redirect) => Some(redirect),
        _ => None,
    });
    let weight: u64 = rule.backends.iter().map(|to| u64::from(to.weight)).sum();
    let (field, action) = match (unsupported, redirect) {
        (Some(why), _) => ("direct_response", error_response(why)),
        (None, Some(to)) => ("redirect", redirect_response(to)),
        (None, None) if weight == 0 => ("direct_response", error_response("no backend")),
        (None, None) => ("route", route_to_backends(names, rule)),
    };
    [(field.to_owned(), action)].into_iter().collect()
}

/// Renders the settings of a rule for which Envoy's messages have no field; null without such settings.
pub(super) fn metadata(rule: &HttpRouteRule, session: Option<Value>) -> Value {
    let backend = |backend: &HttpBackend| {
        let beyond = backend
            .filters
            .iter()
            .filter(|one| is_unsupported_on_weighted_cluster(one));
        let filters: Vec<_> = beyond.map(to_json).collect();
        let error = backend.service.as_ref().err().map(ArcStr::as_str);
        if filters.is_empty() && error.is_none() {
            return None;
        }
        Some(json!({"weight": backend.weight, "filters": filters, "error": error}))
    };
    let backends: Vec<_> = rule.backends.iter().filter_map(backend).collect();
    match remove_empty_fields(json!({"session": session, "backends": backends})) {
        Value::Object(fields) if fields.is_empty() => Value::Null,
        fields => fields,
    }
}

fn error_response(why: &str) -> Value {
    json!({"status": 500, "body": {"inline_string": why}})
}

fn redirect_response(redirect: &HttpRedirect) -> Value {
    let (path, prefix) = match &redirect.path {
        None => (None, None),
        Some(PathChange::Full(path)) => (Some(path.as_str()), None),
        Some(PathChange::Prefix(prefix) | PathChange::Matched(prefix)) => {
            (None, Some(prefix.as_str()))
        }
    };
    json!({
        "scheme_redirect": redirect.scheme.as_deref(),
        "host_redirect": redirect.hostname.as_deref(),
        "port_redirect": redirect.port,
        "path_redirect": path,
        "prefix_rewrite": prefix,
        "response_code": match redirect.status {
            301 => "MOVED_PERMANENTLY",
            303 => "SEE_OTHER",
            307 => "TEMPORARY_REDIRECT",
            308 => "PERMANENT_REDIRECT",
            _ => "FOUND",
        },
    })
}

fn route_to_backends(names: &ClusterNames, rule: &HttpRouteRule) -> Value {
    let mut fields = destination(names, &rule.backends);
    let timeout = rule.timeouts.request.unwrap_or(Duration::ZERO);
    fields.insert("timeout".to_owned(), duration(timeout));
    let per_attempt = rule.timeouts.backend_request;
    let retry = retry_policy(rule.retry.as_ref(), per_attempt);
    fields.insert("retry_policy".to_owned(), retry);
    let mut mirrors = Vec::new();
    for filter in &rule.filters {
        match filter {
            HttpFilter::Rewrite(to) => fields.extend(rewrite(to)),
            HttpFilter::Mirror(to) => mirrors.push(mirror(names, to)),
            _ => {}
        }
    }
    fields.insert("request_mirror_policies".to_owned(), mirrors.into());
    fields.into()
}

/// Renders the cluster of a route, or several with weights. Unusable backends keep their weight, and requests to them
/// receive 500.
fn destination(names: &ClusterNames, backends: &[HttpBackend]) -> Map<String, Value> {
    let name = |to: &HttpBackend| {
        let key = backend_key(to);
        key.map_or_else(|| BLACK_HOLE.to_owned(), |key| names.name_of_cluster(&key))
    };
    let mut fields = Map::new();
    let unusable = backends.iter().any(|backend| backend.service.is_err());
    if unusable {
        let status = "INTERNAL_SERVER_ERROR".into();
        fields.insert("cluster_not_found_response_code".to_owned(), status);
    }
    if let [one] = backends
        && one.filters.is_empty()
    {
        fields.insert("cluster".to_owned(), name(one).into());
        return fields;
    }
    let weighted = backends.iter().map(|backend| {
        let mut fields = weighted_cluster_fields(&backend.filters);
        fields.insert("name".to_owned(), name(backend).into());
        fields.insert("weight".to_owned(), backend.weight.into());
        Value::Object(fields)
    });
    let clusters = json!({"clusters": weighted.collect::<Value>()});
    fields.insert("weighted_clusters".to_owned(), clusters);
    fields
}

fn retry_policy(retry: Option<&HttpRetry>, attempt_timeout: Option<Duration>) -> Value {
    let per_attempt = attempt_timeout.map(duration);
    let Some(retry) = retry else {
        return json!({
            "retry_on": DEFAULT_RETRY_ON,
            "num_retries": DEFAULT_RETRIES,
            "per_try_timeout": per_attempt,
        });
    };
    let backoff = retry.backoff.filter(|backoff| !backoff.is_zero());
    let backoff = backoff.unwrap_or(DEFAULT_BACKOFF);
    json!({
        "retry_on": RETRY_ON,
        "num_retries": retry.attempts,
        "retriable_status_codes": retry.codes,
        "per_try_timeout": per_attempt,
        "retry_back_off": {
            "base_interval": duration(backoff),
            "max_interval": duration(backoff.saturating_mul(MAX_BACKOFF_MULTIPLE)),
        },
    })
}

fn rewrite(to: &HttpRewrite) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Some(host) = &to.hostname {
        fields.insert("host_rewrite_literal".to_owned(), host.as_str().into());
    }
    match &to.path {
        None => {}
        Some(PathChange::Prefix(prefix) | PathChange::Matched(prefix)) => {
            fields.insert("prefix_rewrite".to_owned(), prefix.as_str().into());
        }
        Some(PathChange::Full(path)) => {
            let rewrite = json!({
                "pattern": {"regex": "^/.*$"},
                // An unescaped backslash would refer to a group.
                "substitution": path.replace('\\', "\\\\"),
            });
            fields.insert("regex_rewrite".to_owned(), rewrite);
        }
    }
    fields
}

fn mirror(names: &ClusterNames, to: &HttpMirror) -> Value {
    json!({
        "cluster": names.name_of_cluster(&mirror_key(to)),
        "runtime_fraction": {"default_value": fraction(to.numerator, to.denominator)},
    })
}
