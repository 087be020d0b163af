//! Route configurations (`envoy.config.route.v3.RouteConfiguration`): one virtual host for each HTTP port of a service,
//! with the routes in the order in which the waypoint evaluates them. The called address selects the configuration, so
//! its virtual host matches all hosts. Clients of a namespace with consumer routes have a configuration of their own.

mod action;
mod filters;
mod matching;

use ambit_l7::route::{RuleMatch, applies_to_port};
use ambit_model::{HttpRoute, HttpRouteMatch, HttpRouteRule, RouteName};
use serde_json::{Map, Value, json};

use super::{
    names::{ClusterNames, ProxyKind, route_configuration_name},
    proto_json::{any_message, remove_empty_fields},
    snapshot::ServedPort,
};

/// Renders the route configuration of a service port, for clients of a namespace or for all others.
pub(super) fn configuration(
    names: &ClusterNames,
    port: &ServedPort,
    clients: Option<&str>,
) -> Value {
    let host = &port.service.hostname;
    any_message(
        "envoy.config.route.v3.RouteConfiguration",
        json!({
            "name": route_configuration_name(host, port.port, clients),
            "virtual_hosts": [{
                "name": format!("{host}:{}", port.port),
                "domains": ["*"],
                "routes": routes(names, port, clients),
            }],
            "validate_clusters": false,
        }),
    )
}

fn routes(names: &ClusterNames, port: &ServedPort, clients: Option<&str>) -> Value {
    let table = port.served.routes(port.port, clients);
    if !table.has_routes() {
        let itself = names.name_of_cluster(&port.own_cluster(ProxyKind::Http));
        return json!([{
            "name": "default",
            "match": {"prefix": "/"},
            "route": action::own_cluster_action(&itself),
        }]);
    }
    let records = port.served.http_routes();
    let routes = table
        .matches()
        .map(|of| route(names, port.port, clients, records, &of));
    routes.collect()
}

/// Renders the Envoy route for one match of a route rule. Envoy responds with 404 if no route matches, as the waypoint
/// does.
fn route(
    names: &ClusterNames,
    port: u16,
    clients: Option<&str>,
    records: &[HttpRoute],
    of: &RuleMatch<'_>,
) -> Value {
    let rule = of.rule;
    let is_record = |record: &&HttpRoute| {
        record.name == rule.route
            && record.clients.as_deref() == clients
            && applies_to_port(record, port)
    };
    let default = HttpRouteRule::default();
    let record = records.iter().find(is_record);
    let record = record.and_then(|record| record.rules.get(rule.rule_index));
    let record = record.unwrap_or(&default);
    let everything = HttpRouteMatch::default();
    let matched = record.matches.get(of.match_index).unwrap_or(&everything);
    let name = match &rule.name {
        Some(name) => format!("{}/{name}", rule.route),
        None => format!("{}/{}", rule.route, rule.rule_index),
    };
    let mut fields = Map::new();
    fields.insert("name".to_owned(), name.into());
    fields.insert("match".to_owned(), matching::route_match(matched));
    fields.insert("metadata".to_owned(), metadata(&rule.route, record));
    fields.extend(filters::route_fields(&record.filters));
    fields.extend(action::action(
        names,
        record,
        rule.rejection_reason.as_deref(),
    ));
    remove_empty_fields(fields.into())
}

/// Renders the metadata that names the route object. A `VirtualService` has its own name. Other kinds have the name of
/// the `VirtualService` that Istio would generate from an `HTTPRoute`, since `istioctl` knows no other kind there; no
/// real `VirtualService` can have such a name.
fn metadata(name: &RouteName, record: &HttpRouteRule) -> Value {
    let RouteName {
        kind,
        namespace,
        name,
    } = name;
    let called = match kind.as_str() {
        "VirtualService" => name.to_string(),
        kind => format!("{kind}~{name}"),
    };
    let config =
        format!("/apis/networking.istio.io/v1/namespaces/{namespace}/virtual-service/{called}");
    let session = record.session.as_ref().map(crate::record_store::to_json);
    json!({"filter_metadata": {
        "istio": {"config": config},
        "ambit": action::metadata(record, session),
    }})
}
