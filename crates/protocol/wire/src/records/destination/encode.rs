//! Encodes services' traffic policies.

use std::collections::BTreeMap;

use ambit_model as model;

use super::super::encode_fields;
use crate::ambit as wire;

impl From<&model::WaypointDestination> for wire::WaypointDestination {
    fn from(from: &model::WaypointDestination) -> Self {
        let subset = |(name, of): (&model::ArcStr, &model::DestinationSubset)| {
            let workloads = of.workloads.iter();
            wire::DestinationSubset {
                name: name.to_string(),
                policy: Some((&of.policy).into()),
                ports: encode_port_policies(&of.ports),
                workloads: workloads.map(ToString::to_string).collect(),
            }
        };
        Self {
            service: Some((&from.service).into()),
            policy: Some((&from.policy).into()),
            ports: encode_port_policies(&from.ports),
            subsets: from.subsets.iter().map(subset).collect(),
        }
    }
}

fn encode_port_policies(
    of: &BTreeMap<u16, model::DestinationPolicy>,
) -> Vec<wire::DestinationPort> {
    let port = |(port, policy): (&u16, &model::DestinationPolicy)| wire::DestinationPort {
        port: (*port).into(),
        policy: Some(policy.into()),
    };
    of.iter().map(port).collect()
}

impl From<&model::DestinationPolicy> for wire::DestinationPolicy {
    fn from(from: &model::DestinationPolicy) -> Self {
        let (balancing, hash) = match &from.balancing {
            model::Balancing::LeastRequest => (wire::DestinationBalancing::LeastRequest, None),
            model::Balancing::RoundRobin => (wire::DestinationBalancing::RoundRobin, None),
            model::Balancing::Random => (wire::DestinationBalancing::Random, None),
            model::Balancing::Hash(hash) => {
                (wire::DestinationBalancing::ConsistentHash, Some(hash))
            }
        };
        Self {
            unsupported: encode_fields::encode_optional(from.unsupported.as_ref()),
            balancing: balancing.into(),
            hash: hash.map(Into::into),
            warmup: from.warmup.map(|warmup| wire::DestinationWarmup {
                duration: encode_fields::encode_milliseconds(Some(warmup.duration)),
                minimum_percent: warmup.minimum_percent,
                aggression: warmup.aggression,
            }),
            locality: Some((&from.locality).into()),
            limits: Some(limits(&from.limits)),
            outliers: from.outliers.map(|of| wire::DestinationOutliers {
                server_errors: of.server_errors,
                gateway_errors: of.gateway_errors,
                local_failures: of.local_failures,
                interval: encode_fields::encode_milliseconds(Some(of.interval)),
                base_ejection: encode_fields::encode_milliseconds(Some(of.base_ejection)),
                max_ejection_percent: of.max_ejection_percent,
                min_health_percent: of.min_health_percent,
            }),
            http_version: match from.http_version {
                model::DestinationHttpVersion::AsDeclared => {
                    wire::DestinationHttpVersion::AsDeclared
                }
                model::DestinationHttpVersion::AsClient => wire::DestinationHttpVersion::AsClient,
                model::DestinationHttpVersion::AlwaysHttp2 => {
                    wire::DestinationHttpVersion::AlwaysHttp2
                }
            }
            .into(),
            tls: from.tls.as_deref().map(Into::into),
            proxy_protocol: match from.proxy_protocol {
                None => wire::DestinationProxyProtocol::NoHeader,
                Some(model::ProxyProtocol::V1) => wire::DestinationProxyProtocol::Text,
                Some(model::ProxyProtocol::V2) => wire::DestinationProxyProtocol::Binary,
            }
            .into(),
        }
    }
}

impl From<&model::DestinationTls> for wire::DestinationTls {
    fn from(from: &model::DestinationTls) -> Self {
        use wire::destination_tls::Roots;
        let client = from.client.as_ref();
        Self {
            server_name: encode_fields::encode_optional(from.server_name.as_ref()),
            names: from.names.iter().map(ToString::to_string).collect(),
            roots: match &from.roots {
                model::TlsRoots::System => None,
                model::TlsRoots::Pem(text) => Some(Roots::Pem(text.to_string())),
                model::TlsRoots::File(path) => Some(Roots::File(path.to_string())),
                model::TlsRoots::Unverified => Some(Roots::Unverified(true)),
            },
            certificate_file: encode_fields::encode_optional(
                client.map(|files| &files.certificate),
            ),
            key_file: encode_fields::encode_optional(client.map(|files| &files.key)),
        }
    }
}

impl From<&model::HashPolicy> for wire::DestinationHash {
    fn from(from: &model::HashPolicy) -> Self {
        use wire::destination_hash::{Source, Table};
        let source = match &from.source {
            model::HashSource::Header(name) => Source::Header(name.to_string()),
            model::HashSource::Cookie(cookie) => Source::Cookie(wire::DestinationCookie {
                name: cookie.name.to_string(),
                path: encode_fields::encode_optional(cookie.path.as_ref()),
                ttl: cookie
                    .ttl
                    .map(|ttl| encode_fields::encode_milliseconds(Some(ttl))),
                attributes: cookie
                    .attributes
                    .iter()
                    .map(|(name, value)| wire::HttpHeader {
                        name: name.to_string(),
                        value: value.to_string(),
                    })
                    .collect(),
            }),
            model::HashSource::SourceIp => Source::SourceIp(true),
            model::HashSource::Query(name) => Source::Query(name.to_string()),
        };
        let table = match from.table {
            model::HashTable::Ring(points) => Table::Ring(points),
            model::HashTable::Maglev(size) => Table::Maglev(size),
        };
        Self {
            source: Some(source),
            table: Some(table),
            balance_factor: from.balance_factor,
        }
    }
}

impl From<&model::LocalityPolicy> for wire::DestinationLocality {
    fn from(from: &model::LocalityPolicy) -> Self {
        use wire::DestinationLocalityMode as Mode;
        let with = |mode: Mode| Self {
            mode: mode.into(),
            ..Self::default()
        };
        match from {
            model::LocalityPolicy::ServicePreference => with(Mode::OfService),
            model::LocalityPolicy::Anywhere => with(Mode::Anywhere),
            model::LocalityPolicy::Distribute(all) => Self {
                distribute: all.iter().map(encode_distribution).collect(),
                ..with(Mode::Distribute)
            },
            model::LocalityPolicy::Failover(pairs) => Self {
                failover: pairs
                    .iter()
                    .map(|(from, to)| wire::DestinationFailover {
                        from: from.to_string(),
                        to: to.to_string(),
                    })
                    .collect(),
                ..with(Mode::Failover)
            },
            model::LocalityPolicy::Priority(labels) => Self {
                priority: labels.iter().map(encode_locality_label).collect(),
                ..with(Mode::Priority)
            },
        }
    }
}

fn encode_distribution(from: &model::LocalityDistribution) -> wire::DestinationShares {
    let share = |(to, share): &(model::LocalityPattern, u32)| wire::DestinationShare {
        locality: Some(locality_pattern(to)),
        share: *share,
    };
    wire::DestinationShares {
        from: Some(locality_pattern(&from.from)),
        to: from.to.iter().map(share).collect(),
    }
}

fn locality_pattern(from: &model::LocalityPattern) -> wire::LocalityPattern {
    wire::LocalityPattern {
        region: encode_fields::encode_optional(from.region.as_ref()),
        zone: encode_fields::encode_optional(from.zone.as_ref()),
        subzone: encode_fields::encode_optional(from.subzone.as_ref()),
    }
}

fn encode_locality_label(from: &model::LocalityLabel) -> wire::DestinationLabel {
    let key = match from.key {
        model::LocalityKey::Region => wire::DestinationLabelKey::Region,
        model::LocalityKey::Zone => wire::DestinationLabelKey::Zone,
        model::LocalityKey::Subzone => wire::DestinationLabelKey::Subzone,
        model::LocalityKey::Node => wire::DestinationLabelKey::Node,
        model::LocalityKey::Network => wire::DestinationLabelKey::Network,
        model::LocalityKey::Cluster => wire::DestinationLabelKey::Cluster,
    };
    wire::DestinationLabel {
        key: key.into(),
        value: encode_fields::encode_optional(from.value.as_ref()),
    }
}

fn limits(from: &model::DestinationLimits) -> wire::DestinationLimits {
    wire::DestinationLimits {
        connections: from.connections,
        pending: from.pending,
        requests: from.requests,
        requests_per_connection: from.requests_per_connection,
        retries: from.retries,
        retry_budget: from
            .retry_budget
            .map(|budget| wire::DestinationRetryBudget {
                share: budget.share,
                minimum: budget.minimum,
            }),
        connect_timeout: encode_fields::encode_milliseconds(from.connect_timeout),
        idle_timeout: encode_fields::encode_milliseconds(from.idle_timeout),
        max_connection_duration: encode_fields::encode_milliseconds(from.max_connection_duration),
        tcp_idle_timeout: encode_fields::encode_milliseconds(from.tcp_idle_timeout),
        streams_per_connection: from.streams_per_connection,
        keepalive: from.keepalive.map(|of| wire::DestinationKeepalive {
            probes: of.probes.unwrap_or_default(),
            time: encode_fields::encode_milliseconds(of.time),
            interval: encode_fields::encode_milliseconds(of.interval),
        }),
    }
}
