//! Codec of services' traffic policies (`DestinationRule`): connection limits, TLS, load balancing and outlier
//! detection.

mod encode;
#[cfg(test)]
mod tests;

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use ambit_model as model;
use prost::Message as _;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname, none_if_empty},
};
use crate::{
    ambit as wire,
    decode::{DecodeError, RecordDecodeError, decode_enum, decode_port, decode_strictly},
    unknown::AMBIT_V1_WAYPOINTDESTINATION,
};

impl RecordCodec for model::WaypointDestination {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointDestination";
    const SHORT_NAME: &'static str = "WPDDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointDestination::from(self).encode_to_vec()
    }

    fn decode(_name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read = decode_strictly("waypoint_destination", &AMBIT_V1_WAYPOINTDESTINATION, bytes)
            .and_then(destination);
        read.map_err(RecordDecodeError::without_substitute)
    }
}

fn destination(from: wire::WaypointDestination) -> Result<model::WaypointDestination, DecodeError> {
    let mut subsets = BTreeMap::new();
    for of in from.subsets {
        let name = none_if_empty(of.name);
        let name = name.ok_or_else(|| DecodeError::missing("destination_subset.name"))?;
        let workloads = of.workloads.into_iter();
        let subset = model::DestinationSubset {
            policy: policy(of.policy)?,
            ports: decode_port_policies(of.ports)?,
            workloads: workloads.map(Into::into).collect(),
        };
        subsets.insert(name, subset);
    }
    Ok(model::WaypointDestination {
        service: decode_hostname("waypoint_destination.service", from.service)?,
        policy: policy(from.policy)?,
        ports: decode_port_policies(from.ports)?,
        subsets,
    })
}

fn decode_port_policies(
    from: Vec<wire::DestinationPort>,
) -> Result<BTreeMap<u16, model::DestinationPolicy>, DecodeError> {
    let mut ports = BTreeMap::new();
    for of in from {
        let number = decode_port("destination_port.port", of.port)?;
        ports.insert(number, policy(of.policy)?);
    }
    Ok(ports)
}

fn decode_milliseconds(of: u64) -> Option<Duration> {
    (of > 0).then(|| Duration::from_millis(of))
}

fn policy(from: Option<wire::DestinationPolicy>) -> Result<model::DestinationPolicy, DecodeError> {
    let from = from.ok_or_else(|| DecodeError::missing("waypoint_destination.policy"))?;
    let balancing = match decode_enum("destination_policy.balancing", from.balancing)? {
        wire::DestinationBalancing::LeastRequest => model::Balancing::LeastRequest,
        wire::DestinationBalancing::RoundRobin => model::Balancing::RoundRobin,
        wire::DestinationBalancing::Random => model::Balancing::Random,
        wire::DestinationBalancing::ConsistentHash => {
            let hash = from.hash;
            let hash = hash.ok_or_else(|| DecodeError::missing("destination_policy.hash"))?;
            model::Balancing::Hash(hash_policy(hash)?)
        }
    };
    Ok(model::DestinationPolicy {
        unsupported: none_if_empty(from.unsupported),
        balancing,
        warmup: from.warmup.map(|warmup| model::Warmup {
            duration: Duration::from_millis(warmup.duration),
            minimum_percent: warmup.minimum_percent,
            aggression: warmup.aggression,
        }),
        locality: locality(from.locality.unwrap_or_default())?,
        limits: limits(from.limits.unwrap_or_default()),
        outliers: from.outliers.map(|of| model::OutlierPolicy {
            server_errors: of.server_errors,
            gateway_errors: of.gateway_errors,
            local_failures: of.local_failures,
            interval: Duration::from_millis(of.interval),
            base_ejection: Duration::from_millis(of.base_ejection),
            max_ejection_percent: of.max_ejection_percent,
            min_health_percent: of.min_health_percent,
        }),
        http_version: match decode_enum("destination_policy.http_version", from.http_version)? {
            wire::DestinationHttpVersion::AsDeclared => model::DestinationHttpVersion::AsDeclared,
            wire::DestinationHttpVersion::AsClient => model::DestinationHttpVersion::AsClient,
            wire::DestinationHttpVersion::AlwaysHttp2 => model::DestinationHttpVersion::AlwaysHttp2,
        },
        tls: from.tls.map(tls).transpose()?.map(Arc::new),
        proxy_protocol: match decode_enum("destination_policy.proxy_protocol", from.proxy_protocol)?
        {
            wire::DestinationProxyProtocol::NoHeader => None,
            wire::DestinationProxyProtocol::Text => Some(model::ProxyProtocol::V1),
            wire::DestinationProxyProtocol::Binary => Some(model::ProxyProtocol::V2),
        },
    })
}

fn tls(from: wire::DestinationTls) -> Result<model::DestinationTls, DecodeError> {
    use wire::destination_tls::Roots;
    Ok(model::DestinationTls {
        server_name: none_if_empty(from.server_name),
        names: from.names.into_iter().map(Into::into).collect(),
        roots: match from.roots {
            None => model::TlsRoots::System,
            Some(Roots::Pem(text)) => model::TlsRoots::Pem(text.into()),
            Some(Roots::File(path)) => model::TlsRoots::File(path.into()),
            Some(Roots::Unverified(true)) => model::TlsRoots::Unverified,
            Some(Roots::Unverified(false)) => model::TlsRoots::System,
        },
        client: match (
            none_if_empty(from.certificate_file),
            none_if_empty(from.key_file),
        ) {
            (None, None) => None,
            (Some(certificate), Some(key)) => Some(model::TlsClientFiles { certificate, key }),
            (None, Some(_)) => {
                return Err(DecodeError::missing("destination_tls.certificate_file"));
            }
            (Some(_), None) => return Err(DecodeError::missing("destination_tls.key_file")),
        },
    })
}

fn hash_policy(from: wire::DestinationHash) -> Result<model::HashPolicy, DecodeError> {
    use wire::destination_hash::{Source, Table};
    let source = match from.source {
        Some(Source::Header(name)) => model::HashSource::Header(name.into()),
        Some(Source::Cookie(cookie)) => model::HashSource::Cookie(model::HashCookie {
            name: cookie.name.into(),
            path: none_if_empty(cookie.path),
            ttl: cookie.ttl.map(Duration::from_millis),
            attributes: cookie
                .attributes
                .into_iter()
                .map(|one| (one.name.into(), one.value.into()))
                .collect(),
        }),
        Some(Source::SourceIp(_)) => model::HashSource::SourceIp,
        Some(Source::Query(name)) => model::HashSource::Query(name.into()),
        None => return Err(DecodeError::missing("destination_hash.source")),
    };
    let table = match from.table {
        Some(Table::Ring(points)) => model::HashTable::Ring(points),
        Some(Table::Maglev(size)) => model::HashTable::Maglev(size),
        None => return Err(DecodeError::missing("destination_hash.table")),
    };
    Ok(model::HashPolicy {
        source,
        table,
        balance_factor: from.balance_factor,
    })
}

fn locality(from: wire::DestinationLocality) -> Result<model::LocalityPolicy, DecodeError> {
    use wire::DestinationLocalityMode as Mode;
    Ok(match decode_enum("destination_locality.mode", from.mode)? {
        Mode::OfService => model::LocalityPolicy::ServicePreference,
        Mode::Anywhere => model::LocalityPolicy::Anywhere,
        Mode::Distribute => model::LocalityPolicy::Distribute(
            from.distribute
                .into_iter()
                .map(decode_distribution)
                .collect(),
        ),
        Mode::Failover => model::LocalityPolicy::Failover(
            from.failover
                .into_iter()
                .map(|pair| (pair.from.into(), pair.to.into()))
                .collect(),
        ),
        Mode::Priority => {
            model::LocalityPolicy::Priority(decode_all(from.priority, decode_locality_label)?)
        }
    })
}

fn decode_distribution(from: wire::DestinationShares) -> model::LocalityDistribution {
    let share =
        |to: wire::DestinationShare| (locality_pattern(to.locality.unwrap_or_default()), to.share);
    model::LocalityDistribution {
        from: locality_pattern(from.from.unwrap_or_default()),
        to: from.to.into_iter().map(share).collect(),
    }
}

fn locality_pattern(from: wire::LocalityPattern) -> model::LocalityPattern {
    model::LocalityPattern {
        region: none_if_empty(from.region),
        zone: none_if_empty(from.zone),
        subzone: none_if_empty(from.subzone),
    }
}

fn decode_locality_label(
    from: wire::DestinationLabel,
) -> Result<model::LocalityLabel, DecodeError> {
    let key = match decode_enum("destination_label.key", from.key)? {
        wire::DestinationLabelKey::Region => model::LocalityKey::Region,
        wire::DestinationLabelKey::Zone => model::LocalityKey::Zone,
        wire::DestinationLabelKey::Subzone => model::LocalityKey::Subzone,
        wire::DestinationLabelKey::Node => model::LocalityKey::Node,
        wire::DestinationLabelKey::Network => model::LocalityKey::Network,
        wire::DestinationLabelKey::Cluster => model::LocalityKey::Cluster,
    };
    Ok(model::LocalityLabel {
        key,
        value: none_if_empty(from.value),
    })
}

fn limits(from: wire::DestinationLimits) -> model::DestinationLimits {
    model::DestinationLimits {
        connections: from.connections,
        pending: from.pending,
        requests: from.requests,
        requests_per_connection: from.requests_per_connection,
        retries: from.retries,
        retry_budget: from.retry_budget.map(|budget| model::RetryBudget {
            share: budget.share,
            minimum: budget.minimum,
        }),
        connect_timeout: decode_milliseconds(from.connect_timeout),
        idle_timeout: decode_milliseconds(from.idle_timeout),
        max_connection_duration: decode_milliseconds(from.max_connection_duration),
        tcp_idle_timeout: decode_milliseconds(from.tcp_idle_timeout),
        streams_per_connection: from.streams_per_connection,
        keepalive: from.keepalive.map(|of| model::TcpKeepalive {
            probes: (of.probes > 0).then_some(of.probes),
            time: decode_milliseconds(of.time),
            interval: decode_milliseconds(of.interval),
        }),
    }
}
