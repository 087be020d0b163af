//! Builds flow events of connections from the data of their access log and metrics.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use ambit_flow::{
    Flow, FlowEventKind, Peer, Refusal, Reporter, ReporterKind, ServiceName, Transport,
};
use ambit_model::{Identity, Workload};
use ambit_telemetry::{
    AccessLog, Direction, Metrics, ProxyIdentity, SecurityPolicy, TrafficLabels, WorkloadLabels,
    log_denied,
};
use time::{OffsetDateTime, macros::format_description};

use crate::local::LocalPod;

/// Maximum length of error texts and paths in flow events, in bytes.
const MAX_TEXT_BYTES: usize = 1024;

/// Builds a flow event with the current time.
pub fn new_flow(event: FlowEventKind, reporter: Reporter) -> Flow {
    let format =
        format_description!("[year]-[month]-[day]T[hour]:[minute]:[second].[subsecond digits:6]Z");
    let time = OffsetDateTime::from(SystemTime::now()).format(format);
    Flow {
        // Fails for no time that a clock shows.
        time: time.unwrap_or_default(),
        ..Flow::new(event, reporter)
    }
}

/// Describes the proxy as reporter of a flow event; `side` is the node proxy's side of the connection (source or
/// destination).
pub fn reporter(origin: &ProxyIdentity, side: ReporterKind) -> Reporter {
    Reporter {
        kind: match origin.is_waypoint {
            true => ReporterKind::Waypoint,
            false => side,
        },
        pod: origin.pod.clone(),
        namespace: origin.namespace.clone(),
        node: origin.node.clone(),
    }
}

/// Converts a duration to milliseconds.
pub fn milliseconds(duration: Duration) -> f64 {
    duration.as_secs_f64() * 1000.0
}

/// Truncates a peer's text to [`MAX_TEXT_BYTES`], and appends three dots to truncated text.
pub fn truncate_text(text: &str) -> String {
    match text.get(..text.floor_char_boundary(MAX_TEXT_BYTES)) {
        Some(begin) if begin.len() < text.len() => format!("{begin}..."),
        _ => text.to_owned(),
    }
}

/// Converts a waypoint's name in records, `namespace/name.namespace.svc…`, to `namespace/name`; returns an address
/// unchanged.
pub(crate) fn short_waypoint(name: &str) -> String {
    let is_address = |host: &str| host.parse::<std::net::IpAddr>().is_ok();
    match name.split_once('/') {
        Some((namespace, host)) if !is_address(host) => {
            let short = host.split_once('.').map_or(host, |(short, _)| short);
            format!("{namespace}/{short}")
        }
        _ => name.to_owned(),
    }
}

/// Connection data for a flow event that is neither in the access log nor in the metric labels.
pub(crate) struct ConnectionData<'a> {
    pub(crate) connection_id: u64,
    pub(crate) waypoint: Option<String>,
    pub(crate) policy: Option<&'a String>,
    pub(crate) error: Option<&'a str>,
    /// Bytes that the local application sent.
    pub(crate) sent: u64,
    /// Bytes that the local application received.
    pub(crate) received: u64,
    pub(crate) duration: Duration,
}

/// Builds the flow event of a connection.
pub(crate) fn connection_flow(
    kind: FlowEventKind,
    origin: &ProxyIdentity,
    (log, labels): (&AccessLog, &TrafficLabels),
    connection: ConnectionData<'_>,
) -> Flow {
    let (reporter_kind, to_server, to_client) = match log.direction {
        Direction::Outbound => (ReporterKind::Source, connection.sent, connection.received),
        Direction::Inbound => (
            ReporterKind::Destination,
            connection.received,
            connection.sent,
        ),
    };
    let owner = |party: Option<&WorkloadLabels>| {
        let owner = party.map(|party| party.workload.to_string());
        owner.filter(|owner| !owner.is_empty())
    };
    let error = connection.error.map(truncate_text);
    let is_refused = kind == FlowEventKind::Refused;
    Flow {
        connection: connection.connection_id,
        source: Peer {
            workload: text(log.src_workload.as_ref()),
            owner: owner(labels.source.as_deref()),
            namespace: text(log.src_namespace.as_ref()),
            identity: text(log.src_identity.as_ref()),
            address: Some(log.src.to_string()),
        },
        destination: Peer {
            workload: text(log.dst_workload.as_ref()),
            owner: owner(labels.destination.as_deref()),
            namespace: text(log.dst_namespace.as_ref()),
            identity: text(log.dst_identity.as_ref()),
            address: text(log.dst_hbone.as_ref()).or_else(|| Some(log.dst.to_string())),
        },
        service: labels.service.as_ref().map(|service| ServiceName {
            name: service.name.to_string(),
            namespace: service.namespace.to_string(),
            hostname: service.hostname.to_string(),
        }),
        transport: match labels.security {
            SecurityPolicy::MutualTls => Transport::Hbone,
            SecurityPolicy::Unknown => Transport::Plaintext,
        },
        waypoint: connection.waypoint,
        refusal: is_refused.then(|| Refusal {
            policy: connection.policy.cloned(),
            reason: error.clone().unwrap_or_default(),
        }),
        error: error.filter(|_| !is_refused),
        bytes_to_server: to_server,
        bytes_to_client: to_client,
        duration_ms: milliseconds(connection.duration),
        ..new_flow(kind, reporter(origin, reporter_kind))
    }
}

/// Logs a connection that was denied or failed when only its addresses were known, and emits its flow event. `pod` is
/// the workload on this side, if any.
pub fn report_denied(
    metrics: &Metrics,
    pod: Option<&LocalPod>,
    (src, dst): (SocketAddr, SocketAddr),
    direction: Direction,
    error: &str,
) {
    log_denied(src, dst, direction, error);
    let flows = metrics.flows();
    if !flows.has_readers() {
        return;
    }
    let own = pod.map(|pod| peer(&pod.workload, None)).unwrap_or_default();
    let (kind, source, destination) = match direction {
        Direction::Outbound => (ReporterKind::Source, own, Peer::default()),
        Direction::Inbound => (ReporterKind::Destination, Peer::default(), own),
    };
    flows.report(Flow {
        source: Peer {
            address: Some(src.to_string()),
            ..source
        },
        destination: Peer {
            address: Some(dst.to_string()),
            ..destination
        },
        error: Some(truncate_text(error)),
        connection: flows.next_connection_id(),
        ..new_flow(
            FlowEventKind::Failed,
            reporter(flows.proxy_identity(), kind),
        )
    });
}

/// Describes a workload as one peer of a flow event; `identity` is its identity if mTLS proved it.
pub fn peer(workload: &Workload, identity: Option<&Identity>) -> Peer {
    let known = |text: &str| (!text.is_empty()).then(|| text.to_owned());
    Peer {
        workload: known(&workload.name),
        owner: known(&workload.workload_name),
        namespace: known(&workload.namespace),
        identity: text(identity),
        address: None,
    }
}

fn text<T: ToString>(of: Option<&T>) -> Option<String> {
    of.map(T::to_string)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waypoints_have_the_names_of_their_gateways() {
        for (name, short) in [
            ("shop/waypoint.shop.svc.cluster.local", "shop/waypoint"),
            ("net/10.0.0.1", "net/10.0.0.1"),
            ("waypoint", "waypoint"),
        ] {
            assert_eq!(short_waypoint(name), short);
        }
    }

    #[test]
    fn texts_of_peers_are_truncated_between_characters() {
        let long = "ä".repeat(MAX_TEXT_BYTES);
        assert_eq!(truncate_text(&long).len(), MAX_TEXT_BYTES + 3);
        let odd = format!("a{long}");
        assert_eq!(truncate_text(&odd).len(), MAX_TEXT_BYTES + 2);
        assert_eq!(truncate_text("short"), "short");
    }
}
