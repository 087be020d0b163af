//! Clusters (`envoy.config.cluster.v3.Cluster`): load balancing, connection limits and outlier detection of a
//! destination, as its `DestinationRule` or `BackendTLSPolicy` sets them. A limit that Ambit does not set is dumped as
//! the greatest number, since a missing field would mean Envoy's default.

mod tls;

use ambit_model::{
    AppProtocol, Balancing, DestinationHttpVersion, DestinationLimits, DestinationPolicy,
    HashTable, LocalityPolicy, OutlierPolicy, Service, Warmup,
};
use ambit_proxy::dial::CONNECT_TIMEOUT;
use serde_json::{Value, json};

use super::{
    names::{BLACK_HOLE, ClusterKey, MAIN_INTERNAL, ProxyKind},
    proto_json::{ambit_metadata, any_message, duration, merge_fields},
};
use crate::{record_store::to_json, retry_budget};

/// Value of Envoy's circuit breakers that means no limit.
const UNLIMITED: u32 = u32::MAX;

/// Renders the cluster of a destination.
pub(super) fn cluster(
    name: &str,
    key: &ClusterKey,
    service: &Service,
    policy: Option<&DestinationPolicy>,
    resolves_hosts: bool,
) -> Value {
    let default = DestinationPolicy::default();
    let is_ruled = policy.is_some();
    let policy = policy.unwrap_or(&default);
    let limits = &policy.limits;
    let mut fields = json!({
        "name": name,
        "connect_timeout": duration(limits.connect_timeout.unwrap_or(CONNECT_TIMEOUT)),
        "lb_policy": lb_policy(policy, key.kind, is_ruled),
        "circuit_breakers": circuit_breakers(limits),
        "outlier_detection": policy.outliers.as_ref().map(outlier_detection),
        "common_lb_config": common_lb_config(policy),
        "transport_socket": policy.tls.as_ref().map(|tls| tls::transport_socket(tls, service)),
        "upstream_connection_options": limits.keepalive.map(|keepalive| json!({"tcp_keepalive": {
            "keepalive_probes": keepalive.probes,
            "keepalive_time": keepalive.time.map(|time| time.as_secs()),
            "keepalive_interval": keepalive.interval.map(|interval| interval.as_secs()),
        }})),
        "typed_extension_protocol_options": (key.kind == ProxyKind::Http).then(|| json!({
            "envoy.extensions.upstreams.http.v3.HttpProtocolOptions":
                http_options(policy, service.app_protocol(key.port)),
        })),
        "metadata": metadata(policy, key.kind, service),
    });
    let more = match resolves_hosts {
        true => json!({"cluster_type": {
            "name": "envoy.clusters.dynamic_forward_proxy",
            "typed_config": any_message(
                "envoy.extensions.clusters.dynamic_forward_proxy.v3.ClusterConfig",
                json!({"dns_cache_config": {"name": name}}),
            ),
        }}),
        false => json!({
            "type": "EDS",
            "eds_cluster_config": {"eds_config": {"ads": {}}, "service_name": name},
        }),
    };
    merge_fields(&mut fields, more);
    merge_fields(&mut fields, lb_config(policy));
    any_message("envoy.config.cluster.v3.Cluster", fields)
}

/// Renders the two clusters that every waypoint has: the one for unusable backends, and the internal listener that
/// receives the content of tunnels.
pub(super) fn builtin_clusters() -> [Value; 2] {
    let fixed = |name: &str, endpoints: Value| {
        any_message(
            "envoy.config.cluster.v3.Cluster",
            json!({
                "name": name,
                "type": "STATIC",
                "connect_timeout": duration(CONNECT_TIMEOUT),
                "load_assignment": {"cluster_name": name, "endpoints": endpoints},
            }),
        )
    };
    let address = json!({"envoy_internal_address": {"server_listener_name": MAIN_INTERNAL}});
    let listener = json!([{"lb_endpoints": [{"endpoint": {"address": address}}]}]);
    [fixed(BLACK_HOLE, json!([])), fixed(MAIN_INTERNAL, listener)]
}

/// Renders the load-balancing policy of a cluster. TCP connections without a `DestinationRule` go to a random endpoint,
/// by weight.
fn lb_policy(policy: &DestinationPolicy, kind: ProxyKind, has_rule: bool) -> &'static str {
    match &policy.balancing {
        _ if kind == ProxyKind::Tcp && !has_rule => "RANDOM",
        Balancing::LeastRequest => "LEAST_REQUEST",
        Balancing::RoundRobin => "ROUND_ROBIN",
        Balancing::Random => "RANDOM",
        Balancing::Hash(hash) => match hash.table {
            HashTable::Ring(_) => "RING_HASH",
            HashTable::Maglev(_) => "MAGLEV",
        },
    }
}

/// Renders the settings of a cluster's load-balancing algorithm, such as those of the ring hash.
fn lb_config(policy: &DestinationPolicy) -> Value {
    let slow_start = |warmup: Warmup| {
        json!({"slow_start_config": {
            "slow_start_window": duration(warmup.duration),
            "aggression": {
                "default_value": f64::from(warmup.aggression) / 1000.0,
                "runtime_key": "aggression",
            },
            "min_weight_percent": {"value": warmup.minimum_percent},
        }})
    };
    let warmup = policy.warmup.map(slow_start);
    match &policy.balancing {
        Balancing::LeastRequest => json!({"least_request_lb_config": warmup}),
        Balancing::RoundRobin => json!({"round_robin_lb_config": warmup}),
        Balancing::Random => json!({}),
        Balancing::Hash(hash) => match hash.table {
            HashTable::Ring(size) => json!({"ring_hash_lb_config": {"minimum_ring_size": size}}),
            HashTable::Maglev(size) => json!({"maglev_lb_config": {"table_size": size}}),
        },
    }
}

fn circuit_breakers(limits: &DestinationLimits) -> Value {
    let limit = |of: u32| if of == 0 { UNLIMITED } else { of };
    let budget = match limits.retry_budget {
        Some(budget) => json!({
            "budget_percent": {"value": f64::from(budget.share) / 1000.0},
            "min_retry_concurrency": budget.minimum,
        }),
        None if limits.retries > 0 => Value::Null,
        None => json!({
            "budget_percent": {"value": retry_budget::RETRY_PERCENT},
            "min_retry_concurrency": retry_budget::MIN_RETRIES,
        }),
    };
    let retries = limits.retry_budget.is_none().then_some(limits.retries);
    let retries = retries.filter(|retries| *retries > 0);
    json!({"thresholds": [{
        "max_connections": limit(limits.connections),
        "max_pending_requests": limits.pending.unwrap_or(UNLIMITED),
        "max_requests": limit(limits.requests),
        "max_retries": retries,
        "retry_budget": budget,
    }]})
}

fn outlier_detection(policy: &OutlierPolicy) -> Value {
    let enforced = |errors: u32| if errors > 0 { 100 } else { 0 };
    json!({
        "consecutive_5xx": policy.server_errors,
        "enforcing_consecutive_5xx": enforced(policy.server_errors),
        "consecutive_gateway_failure": policy.gateway_errors,
        "enforcing_consecutive_gateway_failure": enforced(policy.gateway_errors),
        "split_external_local_origin_errors": policy.local_failures.is_some(),
        "consecutive_local_origin_failure": policy.local_failures,
        "interval": duration(policy.interval),
        "base_ejection_time": duration(policy.base_ejection),
        "max_ejection_percent": policy.max_ejection_percent,
        "enforcing_success_rate": 0,
    })
}

fn common_lb_config(policy: &DestinationPolicy) -> Value {
    let outliers = policy.outliers.as_ref();
    let panic = outliers.map(|outliers| json!({"value": outliers.min_health_percent}));
    let factor = match &policy.balancing {
        Balancing::Hash(hash) if hash.balance_factor > 0 => Some(hash.balance_factor),
        _ => None,
    };
    if panic.is_none() && factor.is_none() {
        return Value::Null;
    }
    json!({
        "healthy_panic_threshold": panic,
        "consistent_hashing_lb_config": factor.map(|factor| json!({"hash_balance_factor": factor})),
    })
}

fn http_options(policy: &DestinationPolicy, declared: AppProtocol) -> Value {
    let limits = &policy.limits;
    let per_connection = Some(limits.requests_per_connection).filter(|requests| *requests > 0);
    let streams = Some(limits.streams_per_connection).filter(|streams| *streams > 0);
    let mut fields = json!({"common_http_protocol_options": {
        "idle_timeout": limits.idle_timeout.map(duration),
        "max_connection_duration": limits.max_connection_duration.map(duration),
        "max_requests_per_connection": per_connection,
    }});
    let http2 = json!({"http2_protocol_options": {"max_concurrent_streams": streams}});
    let version = match (policy.http_version, declared) {
        (DestinationHttpVersion::AlwaysHttp2, _)
        | (DestinationHttpVersion::AsDeclared, AppProtocol::Http2 | AppProtocol::Grpc) => {
            json!({"explicit_http_config": http2})
        }
        (DestinationHttpVersion::AsDeclared, AppProtocol::Http11) => {
            json!({"explicit_http_config": {"http_protocol_options": {}}})
        }
        (DestinationHttpVersion::AsClient | DestinationHttpVersion::AsDeclared, _) => {
            json!({"use_downstream_protocol_config": http2})
        }
    };
    merge_fields(&mut fields, version);
    any_message(
        "envoy.extensions.upstreams.http.v3.HttpProtocolOptions",
        fields,
    )
}

/// Renders the cluster's metadata: the service in Istio's `filter_metadata`, and settings for which Envoy's messages
/// have no field.
fn metadata(policy: &DestinationPolicy, kind: ProxyKind, service: &Service) -> Value {
    // Envoy has the limits of TCP connections in listeners.
    let limits = Some(&policy.limits).filter(|_| kind == ProxyKind::Tcp);
    let hash = match &policy.balancing {
        Balancing::Hash(hash) => Some(to_json(&hash.source)),
        _ => None,
    };
    let locality =
        (policy.locality != LocalityPolicy::ServicePreference).then(|| to_json(&policy.locality));
    let mut metadata = json!({"filter_metadata": {"istio": {"services": [{
        "host": service.hostname.as_str(),
        "name": service.name.as_str(),
        "namespace": service.namespace.as_str(),
    }]}}});
    let more = ambit_metadata(json!({
        "hash": hash,
        "locality": locality,
        "tcpIdleTimeout": limits.and_then(|limits| limits.tcp_idle_timeout).map(duration),
        "maxConnectionDuration": limits.and_then(|limits| limits.max_connection_duration).map(duration),
        "proxyProtocol": policy.proxy_protocol.map(|version| to_json(&version)),
        "unsupported": policy.unsupported.as_deref(),
    }));
    if let (Some(all), Some(more)) = (
        metadata.get_mut("filter_metadata"),
        more.get("filter_metadata"),
    ) {
        merge_fields(all, more.clone());
    }
    metadata
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use ambit_model::{DestinationTls, NamespacedHostname, TlsRoots};

    use super::*;

    fn rendered(policy: Option<&DestinationPolicy>, kind: ProxyKind) -> Value {
        let service = Service {
            name: "web".into(),
            namespace: "shop".into(),
            hostname: "web.shop.svc".into(),
            ..Service::default()
        };
        let key = ClusterKey {
            service: NamespacedHostname::new("shop", "web.shop.svc"),
            port: 80,
            subset: None,
            kind,
        };
        cluster("name", &key, &service, policy, false)
    }

    #[test]
    fn cluster_without_a_rule_has_only_the_retry_budget() {
        let cluster = rendered(None, ProxyKind::Http);
        let thresholds = &cluster["circuit_breakers"]["thresholds"][0];
        assert_eq!(thresholds["max_requests"], u32::MAX);
        assert_eq!(thresholds["retry_budget"]["min_retry_concurrency"], 3);
        assert_eq!(cluster["type"], "EDS");
        assert_eq!(cluster["connect_timeout"], "10s");
        assert!(cluster.get("outlier_detection").is_none(), "{cluster}");
        assert_eq!(rendered(None, ProxyKind::Tcp)["lb_policy"], "RANDOM");
    }

    #[test]
    fn rule_is_shown_as_circuit_breakers_ejection_and_tls() {
        let mut policy = DestinationPolicy {
            balancing: Balancing::RoundRobin,
            outliers: Some(OutlierPolicy {
                interval: Duration::from_millis(1500),
                ..OutlierPolicy::default()
            }),
            tls: Some(Arc::new(DestinationTls {
                server_name: Some("outside.example".into()),
                names: vec!["spiffe://cluster.local/ns/a/sa/b".into()],
                roots: TlsRoots::System,
                client: None,
            })),
            ..DestinationPolicy::default()
        };
        policy.limits.connections = 7;
        let cluster = rendered(Some(&policy), ProxyKind::Http);
        assert_eq!(cluster["lb_policy"], "ROUND_ROBIN");
        let thresholds = &cluster["circuit_breakers"]["thresholds"][0];
        assert_eq!(thresholds["max_connections"], 7);
        assert_eq!(cluster["outlier_detection"]["consecutive_5xx"], 5);
        assert_eq!(cluster["outlier_detection"]["interval"], "1.500000000s");
        let tls = &cluster["transport_socket"]["typed_config"];
        assert_eq!(tls["sni"], "outside.example");
        let validation = &tls["common_tls_context"]["validation_context"];
        let san = &validation["match_typed_subject_alt_names"][0];
        assert_eq!(san["san_type"], "URI");
    }
}
