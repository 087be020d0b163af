//! Flow events as lines of text. Peers choose some of the texts: control characters and bidirectional controls are
//! escaped.

use ambit_flow::{Flow, Peer, StreamItem, Transport};

use crate::output::escape_unprintable;

/// Flow event formatted as columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FlowRow {
    pub(crate) time: String,
    pub(crate) event: String,
    pub(crate) from: String,
    pub(crate) to: String,
    pub(crate) path: String,
    pub(crate) details: String,
    pub(crate) bytes: String,
    pub(crate) duration: String,
}

impl FlowRow {
    /// Formats a flow event as columns.
    pub(crate) fn from_flow(flow: &Flow) -> Self {
        let time = flow.time.get(11..23).unwrap_or(&flow.time);
        Self {
            time: escape_unprintable(time),
            event: match flow.count {
                1 => flow.event.as_str().to_owned(),
                count => format!("{} x{count}", flow.event.as_str()),
            },
            from: format_peer(&flow.source),
            to: format_server(flow),
            path: format_path(flow),
            details: format_details(flow),
            bytes: format!("{}/{}", flow.bytes_to_server, flow.bytes_to_client),
            duration: format!("{:.1}ms", flow.duration_ms),
        }
    }
}

/// Formats a flow event as a line of text.
pub(super) fn format_item(item: &StreamItem) -> Option<String> {
    match item {
        StreamItem::Flow(flow) => {
            let FlowRow {
                time,
                event,
                from,
                to,
                path,
                details,
                bytes,
                duration,
            } = FlowRow::from_flow(flow);
            Some(format!(
                "{time} {event:<8} {from} -> {to} ({path}) {details} [{bytes} bytes, {duration}]"
            ))
        }
        StreamItem::Lost { sampled, refusals } => Some(format_lost(*sampled, *refusals)),
    }
}

/// Formats a flow event as a line of JSON.
pub(super) fn to_json(item: &StreamItem) -> Option<String> {
    serde_json::to_string(item).ok()
}

/// Describes how many events and refusals proxies did not send.
pub(crate) fn format_lost(sampled: u64, refusals: u64) -> String {
    let refusals = match refusals {
        0 => String::new(),
        count => format!(" and {count} refusals"),
    };
    format!("-- sampled: {sampled} further events{refusals} are not shown")
}

/// Describes a client or server by its workload, or else by its identity or address.
pub(crate) fn format_peer(peer: &Peer) -> String {
    let text = match (&peer.namespace, peer.name()) {
        (Some(namespace), Some(name)) => format!("{namespace}/{name}"),
        (None, Some(name)) => name.to_owned(),
        (_, None) => {
            let known = peer.identity.as_ref().or(peer.address.as_ref());
            known.cloned().unwrap_or_else(|| "?".to_owned())
        }
    };
    escape_unprintable(&text)
}

/// Describes the server: the service, and the workload behind it.
pub(crate) fn format_server(flow: &Flow) -> String {
    let workload = format_peer(&flow.destination);
    match &flow.service {
        // The workload is the waypoint's pod, then.
        Some(service) if flow.waypoint.is_some() && flow.request.is_none() => {
            escape_unprintable(&format!("{}/{}", service.namespace, service.name))
        }
        Some(service) => {
            let service = escape_unprintable(&format!("{}/{}", service.namespace, service.name));
            match workload == service || flow.destination.workload.is_none() {
                true => service,
                false => format!("{service} ({workload})"),
            }
        }
        None => workload,
    }
}

/// Describes the transport, and the waypoint on the path, if any.
pub(crate) fn format_path(flow: &Flow) -> String {
    let transport = match flow.transport {
        Transport::Hbone => "mTLS",
        Transport::Plaintext => "plaintext",
    };
    match &flow.waypoint {
        Some(waypoint) => format!("{transport}, waypoint {}", escape_unprintable(waypoint)),
        None => transport.to_owned(),
    }
}

/// Describes the HTTP request, if any, and the reason of a refusal or failure.
pub(crate) fn format_details(flow: &Flow) -> String {
    let mut parts = Vec::new();
    if let Some(request) = &flow.request {
        parts.push(format!(
            "{} {}{} {}",
            escape_unprintable(&request.method),
            escape_unprintable(&request.authority),
            escape_unprintable(&request.path),
            request.status
        ));
        parts.extend(request.route.iter().map(|route| escape_unprintable(route)));
    }
    if let Some(refusal) = &flow.refusal {
        parts.extend(
            refusal
                .policy
                .iter()
                .map(|policy| escape_unprintable(policy)),
        );
        parts.push(escape_unprintable(&refusal.reason));
    }
    parts.extend(flow.error.iter().map(|error| escape_unprintable(error)));
    parts.join("; ")
}

#[cfg(test)]
pub(crate) mod tests {
    use ambit_flow::{FlowEventKind, Refusal, Reporter, ReporterKind, RequestSummary, ServiceName};

    use super::*;

    pub(crate) fn flow() -> Flow {
        let reporter = Reporter {
            kind: ReporterKind::Source,
            pod: "ztunnel-1".to_owned(),
            namespace: "istio-system".to_owned(),
            node: "node-1".to_owned(),
        };
        Flow {
            time: "2026-01-01T12:34:56.789012Z".to_owned(),
            connection: 1,
            source: Peer {
                workload: Some("web-1".to_owned()),
                owner: Some("web".to_owned()),
                namespace: Some("shop".to_owned()),
                ..Peer::default()
            },
            destination: Peer {
                workload: Some("orders-1".to_owned()),
                owner: Some("orders".to_owned()),
                namespace: Some("shop".to_owned()),
                ..Peer::default()
            },
            transport: Transport::Hbone,
            bytes_to_server: 12,
            bytes_to_client: 34,
            duration_ms: 1.25,
            ..Flow::new(FlowEventKind::Opened, reporter)
        }
    }

    fn text(flow: Flow) -> String {
        format_item(&StreamItem::Flow(Box::new(flow))).unwrap()
    }

    #[test]
    fn events_are_lines() {
        assert_eq!(
            text(flow()),
            "12:34:56.789 opened   shop/web -> shop/orders (mTLS)  [12/34 bytes, 1.2ms]"
        );
        let refused = Flow {
            event: FlowEventKind::Refused,
            count: 3,
            transport: Transport::Plaintext,
            source: Peer {
                address: Some("10.0.0.9:1234".to_owned()),
                ..Peer::default()
            },
            refusal: Some(Refusal {
                policy: Some("shop/strict".to_owned()),
                reason: "explicitly denied".to_owned(),
            }),
            ..flow()
        };
        assert_eq!(
            text(refused),
            "12:34:56.789 refused x3 10.0.0.9:1234 -> shop/orders (plaintext) shop/strict; explicitly denied \
             [12/34 bytes, 1.2ms]"
        );
        let request = Flow {
            event: FlowEventKind::Request,
            waypoint: Some("shop/waypoint".to_owned()),
            service: Some(ServiceName {
                name: "orders".to_owned(),
                namespace: "shop".to_owned(),
                hostname: "orders.shop.svc.cluster.local".to_owned(),
            }),
            request: Some(RequestSummary {
                method: "GET".to_owned(),
                path: "/a".to_owned(),
                authority: "orders".to_owned(),
                status: 200,
                route: Some("HTTPRoute/shop/orders".to_owned()),
                ..RequestSummary::default()
            }),
            ..flow()
        };
        assert_eq!(
            text(request),
            "12:34:56.789 request  shop/web -> shop/orders (mTLS, waypoint shop/waypoint) GET orders/a 200; \
             HTTPRoute/shop/orders [12/34 bytes, 1.2ms]"
        );
    }

    #[test]
    fn hostile_names_move_no_cursor_and_turn_no_text() {
        let hostile = "\u{1b}[2J\u{202e}evil\u{9b}1m\r\n\u{2066}";
        let shown = text(Flow {
            source: Peer {
                workload: Some(hostile.to_owned()),
                ..Peer::default()
            },
            waypoint: Some(hostile.to_owned()),
            error: Some(hostile.to_owned()),
            request: Some(RequestSummary {
                method: hostile.to_owned(),
                path: hostile.to_owned(),
                authority: hostile.to_owned(),
                route: Some(hostile.to_owned()),
                ..RequestSummary::default()
            }),
            refusal: Some(Refusal {
                policy: Some(hostile.to_owned()),
                reason: hostile.to_owned(),
            }),
            ..flow()
        });
        let is_hostile = |c: char| {
            c.is_control() || matches!(c, '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
        };
        assert!(!shown.chars().any(is_hostile), "{shown:?}");
        assert!(shown.contains("evil"), "{shown}");
    }

    #[test]
    fn sampling_is_shown() {
        let item = StreamItem::Lost {
            sampled: 5,
            refusals: 2,
        };
        let shown = format_item(&item).unwrap();
        assert_eq!(
            shown,
            "-- sampled: 5 further events and 2 refusals are not shown"
        );
    }
}
