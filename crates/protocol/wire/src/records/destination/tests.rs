//! Tests of traffic policies' round trips, and of policies that are rejected.

use ambit_model::{
    Balancing, DestinationHttpVersion, DestinationLimits, DestinationPolicy, DestinationSubset,
    DestinationTls, HashCookie, HashPolicy, HashSource, HashTable, LocalityDistribution,
    LocalityKey, LocalityLabel, LocalityPattern, LocalityPolicy, NamespacedHostname, OutlierPolicy,
    ProxyProtocol, RetryBudget, TcpKeepalive, TlsClientFiles, TlsRoots, Warmup,
    WaypointDestination,
};
use prost::Message;

use super::*;

/// Builds a traffic policy in which every field is set.
fn full_policy() -> DestinationPolicy {
    DestinationPolicy {
        unsupported: Some("tls".into()),
        balancing: Balancing::RoundRobin,
        warmup: Some(Warmup {
            duration: Duration::from_secs(1),
            minimum_percent: 10,
            aggression: 1500,
        }),
        locality: LocalityPolicy::Anywhere,
        limits: DestinationLimits {
            connections: 1,
            pending: Some(0),
            requests: 2,
            requests_per_connection: 3,
            retries: 4,
            retry_budget: Some(RetryBudget {
                share: 20_000,
                minimum: 3,
            }),
            connect_timeout: Some(Duration::from_millis(5)),
            idle_timeout: Some(Duration::from_millis(6)),
            max_connection_duration: Some(Duration::from_millis(7)),
            tcp_idle_timeout: Some(Duration::from_millis(8)),
            streams_per_connection: 9,
            keepalive: Some(TcpKeepalive {
                probes: Some(10),
                time: None,
                interval: Some(Duration::from_millis(11)),
            }),
        },
        outliers: Some(OutlierPolicy {
            local_failures: Some(0),
            ..OutlierPolicy::default()
        }),
        http_version: DestinationHttpVersion::AlwaysHttp2,
        tls: Some(Arc::new(DestinationTls {
            server_name: Some("a.example".into()),
            names: vec!["b.example".into(), "spiffe://c/d".into()],
            roots: TlsRoots::Pem("pem".into()),
            client: Some(TlsClientFiles {
                certificate: "/cert".into(),
                key: "/key".into(),
            }),
        })),
        proxy_protocol: Some(ProxyProtocol::V2),
    }
}

fn policies() -> Vec<DestinationPolicy> {
    let hash = |source, table| DestinationPolicy {
        balancing: Balancing::Hash(HashPolicy {
            source,
            table,
            balance_factor: 150,
        }),
        ..DestinationPolicy::default()
    };
    let locality = |locality| DestinationPolicy {
        locality,
        ..DestinationPolicy::default()
    };
    let region = |region: &str| LocalityPattern {
        region: Some(region.into()),
        ..LocalityPattern::default()
    };
    let tls = |roots| DestinationPolicy {
        tls: Some(Arc::new(DestinationTls {
            roots,
            ..DestinationTls::default()
        })),
        ..DestinationPolicy::default()
    };
    vec![
        DestinationPolicy::default(),
        full_policy(),
        DestinationPolicy {
            proxy_protocol: Some(ProxyProtocol::V1),
            ..DestinationPolicy::default()
        },
        tls(TlsRoots::System),
        tls(TlsRoots::Unverified),
        DestinationPolicy {
            http_version: DestinationHttpVersion::AsClient,
            ..DestinationPolicy::default()
        },
        tls(TlsRoots::File("/roots".into())),
        hash(HashSource::Header("x".into()), HashTable::Ring(7)),
        hash(HashSource::SourceIp, HashTable::Maglev(13)),
        hash(HashSource::Query("q".into()), HashTable::default()),
        hash(
            HashSource::Cookie(HashCookie {
                name: "id".into(),
                path: Some("/".into()),
                ttl: Some(Duration::ZERO),
                attributes: vec![("Secure".into(), "".into())],
            }),
            HashTable::default(),
        ),
        locality(LocalityPolicy::Distribute(vec![LocalityDistribution {
            from: LocalityPattern::default(),
            to: vec![(region("a"), 80), (region("b"), 20)],
        }])),
        locality(LocalityPolicy::Failover(vec![("a".into(), "b".into())])),
        locality(LocalityPolicy::Priority(vec![LocalityLabel {
            key: LocalityKey::Node,
            value: Some("n".into()),
        }])),
    ]
}

#[test]
fn destinations_read_back_what_was_written() {
    for policy in policies() {
        let destination = WaypointDestination {
            service: NamespacedHostname::new("shop", "a.shop"),
            ports: [(80, policy.clone())].into(),
            subsets: [(
                "v2".into(),
                DestinationSubset {
                    policy: policy.clone(),
                    ports: [(81, policy.clone())].into(),
                    workloads: ["a".into(), "b".into()].into(),
                },
            )]
            .into(),
            policy,
        };
        let encoded = wire::WaypointDestination::from(&destination).encode_to_vec();
        assert_eq!(
            model::WaypointDestination::decode("gw/w", &encoded),
            Ok(destination)
        );
    }
}

#[test]
fn what_is_not_understood_in_full_is_refused() {
    let destination = WaypointDestination {
        service: NamespacedHostname::new("shop", "a.shop"),
        policy: DestinationPolicy::default(),
        ports: BTreeMap::new(),
        subsets: BTreeMap::new(),
    };
    let encoded = wire::WaypointDestination::from(&destination);
    let refused = |change: fn(&mut wire::DestinationPolicy)| {
        let mut sent = encoded.clone();
        change(sent.policy.as_mut().unwrap());
        model::WaypointDestination::decode("gw/w", &sent.encode_to_vec()).unwrap_err()
    };
    refused(|policy| policy.balancing = 99);
    refused(|policy| {
        policy.tls = Some(wire::DestinationTls {
            key_file: "/key".to_owned(),
            ..wire::DestinationTls::default()
        });
    });
    refused(|policy| policy.balancing = wire::DestinationBalancing::ConsistentHash.into());
    let mut later = encoded.encode_to_vec();
    // Field 100, a varint.
    later.extend([0xa0, 0x06, 0x01]);
    assert!(model::WaypointDestination::decode("gw/w", &later).is_err());
    assert!(model::WaypointDestination::decode("gw/w", &[]).is_err());
}
