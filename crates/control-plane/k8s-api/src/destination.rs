//! Spec of a `DestinationRule`; field names as in Istio's definition.
//!
//! Unknown fields are errors. Numbers are parsed as wider types than their valid range, so that an
//! error can name the value.

use std::collections::BTreeMap;

use k8s_openapi::{NamespaceResourceScope, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{
    istio::{WorkloadSelector, custom_resource},
    status::{self, Status},
};

custom_resource! {
    /// Traffic policy for requests to a service: load balancing, connection pools, outlier detection, TLS.
    DestinationRule, DestinationRuleSpec, "networking.istio.io", "destinationrules", NamespaceResourceScope
}

macro_rules! settings {
    ($($(#[$doc:meta])* $name:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
        #[serde(rename_all = "camelCase", default, deny_unknown_fields)]
        #[expect(missing_docs, reason = "the fields are the contract's")]
        pub struct $name {
            $($(#[$of_field])* pub $field: $type,)*
        })*
    };
}

settings! {
    /// Specification of a [`DestinationRule`].
    DestinationRuleSpec {
        host: String,
        traffic_policy: Option<TrafficPolicy>,
        subsets: Vec<Subset>,
        export_to: Vec<String>,
        workload_selector: Option<WorkloadSelector>,
    }
    /// Subset of a service's endpoints, selected by labels.
    Subset {
        name: String,
        labels: BTreeMap<String, String>,
        traffic_policy: Option<TrafficPolicy>,
    }
    /// Traffic policy for requests to the endpoints of a service or subset.
    TrafficPolicy {
        load_balancer: Option<LoadBalancer>,
        connection_pool: Option<ConnectionPool>,
        outlier_detection: Option<OutlierDetection>,
        tls: Option<ClientTls>,
        port_level_settings: Vec<PortTrafficPolicy>,
        tunnel: Option<Value>,
        proxy_protocol: Option<ProxyProtocol>,
        retry_budget: Option<RetryBudget>,
    }
    /// PROXY protocol header that connections to endpoints begin with.
    ProxyProtocol {
        version: Option<String>,
    }
    /// Traffic policy of one service port, which replaces the policy of all ports.
    PortTrafficPolicy {
        port: Option<PortSelector>,
        load_balancer: Option<LoadBalancer>,
        connection_pool: Option<ConnectionPool>,
        outlier_detection: Option<OutlierDetection>,
        tls: Option<ClientTls>,
    }
    /// Selection of a service port by its number.
    PortSelector {
        number: i64,
    }
    /// Load balancing settings: algorithm, locality, warmup.
    LoadBalancer {
        simple: Option<SimpleBalancer>,
        consistent_hash: Option<ConsistentHash>,
        locality_lb_setting: Option<LocalityBalancer>,
        warmup_duration_secs: Option<String>,
        warmup: Option<Warmup>,
    }
    /// Consistent-hash load balancing: the hashed attribute, and the hash table.
    ConsistentHash {
        http_header_name: Option<String>,
        http_cookie: Option<HashCookie>,
        use_source_ip: Option<bool>,
        http_query_parameter_name: Option<String>,
        ring_hash: Option<RingHash>,
        maglev: Option<Maglev>,
        minimum_ring_size: Option<i64>,
    }
    /// Cookie whose value is hashed.
    HashCookie {
        name: String,
        path: Option<String>,
        ttl: Option<String>,
        attributes: Vec<CookieAttribute>,
    }
    /// Further attribute of a generated hash cookie.
    CookieAttribute {
        name: String,
        value: String,
    }
    /// Settings of ring hashing (ketama).
    RingHash {
        minimum_ring_size: Option<i64>,
    }
    /// Settings of Maglev hashing.
    Maglev {
        table_size: Option<i64>,
    }
    /// Locality load balancing: weights, failover or priorities.
    LocalityBalancer {
        distribute: Vec<Distribute>,
        failover: Vec<Failover>,
        failover_priority: Vec<String>,
        enabled: Option<bool>,
    }
    /// Weights of destination localities for clients in one locality.
    Distribute {
        from: String,
        to: BTreeMap<String, i64>,
    }
    /// Failover from one region to another.
    Failover {
        from: String,
        to: String,
    }
    /// Slow start: reduced traffic for new endpoints.
    Warmup {
        duration: Option<String>,
        minimum_percent: Option<f64>,
        aggression: Option<f64>,
    }
    /// Limits of connection pools.
    ConnectionPool {
        tcp: Option<TcpPool>,
        http: Option<HttpPool>,
    }
    /// Limits and timeouts of connections, for TCP and HTTP.
    TcpPool {
        max_connections: Option<i64>,
        connect_timeout: Option<String>,
        tcp_keepalive: Option<KeepaliveProbes>,
        max_connection_duration: Option<String>,
        idle_timeout: Option<String>,
    }
    /// TCP keepalive settings of connections.
    KeepaliveProbes {
        probes: Option<i64>,
        time: Option<String>,
        interval: Option<String>,
    }
    /// Limits and timeouts of HTTP requests and connections.
    HttpPool {
        http1_max_pending_requests: Option<i64>,
        http2_max_requests: Option<i64>,
        max_requests_per_connection: Option<i64>,
        max_retries: Option<i64>,
        idle_timeout: Option<String>,
        h2_upgrade_policy: Option<String>,
        use_client_protocol: Option<bool>,
        max_concurrent_streams: Option<i64>,
    }
    /// Outlier detection: ejection of failing endpoints from load balancing.
    OutlierDetection {
        consecutive_errors: Option<i64>,
        split_external_local_origin_errors: Option<bool>,
        consecutive_local_origin_failures: Option<i64>,
        consecutive_gateway_errors: Option<i64>,
        #[serde(rename = "consecutive5xxErrors")]
        consecutive_5xx_errors: Option<i64>,
        interval: Option<String>,
        base_ejection_time: Option<String>,
        max_ejection_percent: Option<i64>,
        min_health_percent: Option<i64>,
    }
    /// TLS that the proxy originates to endpoints.
    ClientTls {
        mode: TlsMode,
        client_certificate: Option<String>,
        private_key: Option<String>,
        ca_certificates: Option<String>,
        credential_name: Option<String>,
        subject_alt_names: Vec<String>,
        sni: Option<String>,
        insecure_skip_verify: Option<bool>,
        ca_crl: Option<String>,
    }
    /// Retry budget: maximum retries in percent of active requests.
    RetryBudget {
        percent: Option<f64>,
        min_retry_concurrency: Option<i64>,
    }
}

/// Load balancing algorithms that have no settings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the values are the contract's")]
pub enum SimpleBalancer {
    #[default]
    Unspecified,
    LeastConn,
    Random,
    Passthrough,
    RoundRobin,
    LeastRequest,
}

/// Mode of TLS that the proxy originates to endpoints.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
#[expect(missing_docs, reason = "the values are the contract's")]
pub enum TlsMode {
    #[default]
    Disable,
    Simple,
    Mutual,
    IstioMutual,
}
