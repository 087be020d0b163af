//! Flow events in JSON, one object per line.

use serde::{Deserialize, Serialize};

/// Line in a stream of flow events.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum StreamItem {
    /// Flow event of a connection or request.
    Flow(Box<Flow>),
    /// Numbers of events that matched the filter, but were dropped since the previous line.
    #[serde(rename_all = "camelCase")]
    Lost {
        /// Number of dropped traffic events: opened, closed, requests.
        sampled: u64,
        /// Number of dropped refusals and failures. They are dropped only if too many different ones occur at once.
        refusals: u64,
    },
}

/// State of one proxy's stream, in the control plane's streams, which merge those of many proxies.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum ProxyState {
    /// The proxy's stream has begun.
    Began {
        /// Name of the proxy.
        proxy: String,
    },
    /// The proxy's stream failed or ended. The control plane opens it again.
    Ended {
        /// Name of the proxy.
        proxy: String,
        /// Reason of the failure or end.
        reason: String,
    },
}

/// Kind of a flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FlowEventKind {
    /// A connection is established.
    Opened,
    /// A waypoint has finished a request with its own or an upstream's response. Refused requests are reported as
    /// `Refused` instead.
    Request,
    /// A policy, a token or a limit refused a connection or a request.
    Refused,
    /// A connection could not be established.
    Failed,
    /// An established connection has ended. The flow's `error` is set if the connection failed.
    Closed,
}

impl FlowEventKind {
    /// Whether the event is a refusal or failure, which sampling never drops.
    pub fn is_refusal(self) -> bool {
        matches!(self, Self::Refused | Self::Failed)
    }

    /// Returns the value of the event kind in JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Opened => "opened",
            Self::Request => "request",
            Self::Refused => "refused",
            Self::Failed => "failed",
            Self::Closed => "closed",
        }
    }
}

/// Transport between the reporter and its peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Transport {
    /// HBONE tunnel over mTLS.
    Hbone,
    /// Plain TCP, neither encrypted nor authenticated by the mesh.
    Plaintext,
}

/// Role of the proxy that reports a flow event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum ReporterKind {
    /// The client's node proxy.
    Source,
    /// The server's node proxy.
    Destination,
    /// Waypoint between client and server.
    Waypoint,
}

/// Proxy that reports a flow event.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Reporter {
    /// Role of the proxy in the connection.
    pub kind: ReporterKind,
    /// Name of the proxy's pod.
    pub pod: String,
    /// Namespace of the proxy's pod.
    pub namespace: String,
    /// Node of the proxy's pod.
    pub node: String,
}

/// Client or server of a connection. Unknown attributes are `None`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Peer {
    /// Name of the pod or WorkloadEntry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub workload: Option<String>,
    /// Name of the workload's owner, such as a Deployment.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub owner: Option<String>,
    /// Namespace of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub namespace: Option<String>,
    /// SPIFFE ID, if mTLS proved it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub identity: Option<String>,
    /// Address and port. For the destination of a tunnel, the address inside the tunnel, which may be a host name.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
}

/// Service that a client addressed.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ServiceName {
    /// Name of the service's Kubernetes object.
    pub name: String,
    /// Namespace of the service's Kubernetes object.
    pub namespace: String,
    /// Fully qualified host name of the service.
    pub hostname: String,
}

/// Reason why a policy, token or limit refused a connection or request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Refusal {
    /// Policy (`namespace/name`) that denied the connection or request. `None` if ALLOW policies apply and none
    /// matches, or if a token or limit caused the refusal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub policy: Option<String>,
    /// Reason of the refusal, for display.
    pub reason: String,
}

/// Summary of one HTTP request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct RequestSummary {
    /// Method of the request.
    pub method: String,
    /// Path without its query, truncated to 1 KiB.
    pub path: String,
    /// Authority of the request, truncated to 256 bytes.
    pub authority: String,
    /// `HTTP/1.1`, `HTTP/2` or `gRPC`.
    pub protocol: String,
    /// Status of the response; 0 if there was none.
    pub status: u16,
    /// Name of the route that matched, if any.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub route: Option<String>,
    /// Envoy's response-code details: `via_upstream`, or the reason of a local response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub details: Option<String>,
    /// Envoy's response flags; `-` if there are none.
    pub flags: String,
}

/// Flow event: what one proxy reports about one connection or request at one time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Flow {
    /// Time of the event in RFC 3339 format, UTC, with microseconds.
    pub time: String,
    /// Kind of the event.
    pub event: FlowEventKind,
    /// Number of events that this one represents, all equal except for time, connection, addresses, bytes and duration.
    /// More than 1 only for refusals and failures that occurred faster than the reader read them.
    #[serde(default = "default_count")]
    pub count: u64,
    /// Number of the connection, unique within the reporting process.
    pub connection: u64,
    /// Proxy that reports the event.
    pub reporter: Reporter,
    /// Client of the connection.
    pub source: Peer,
    /// Server of the connection. If a client's node proxy reports a connection through a waypoint, the waypoint's own
    /// address.
    pub destination: Peer,
    /// Service that the client addressed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub service: Option<ServiceName>,
    /// Transport between the two proxies, or between the reporting proxy and a client outside the mesh.
    pub transport: Transport,
    /// Waypoint (`namespace/name`) on the connection's path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub waypoint: Option<String>,
    /// Reason of the refusal, if the connection or request was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refusal: Option<Refusal>,
    /// Reason why the connection could not be established, or broke.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// HTTP request, in events of a waypoint.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub request: Option<RequestSummary>,
    /// Bytes from the client to the server so far.
    #[serde(default)]
    pub bytes_to_server: u64,
    /// Bytes from the server to the client so far.
    #[serde(default)]
    pub bytes_to_client: u64,
    /// Milliseconds since the connection or the request began.
    #[serde(default)]
    pub duration_ms: f64,
}

fn default_count() -> u64 {
    1
}

impl Peer {
    /// Returns the name that users know the peer by: the owner's name, or the workload's if it has no owner.
    pub fn name(&self) -> Option<&str> {
        self.owner.as_deref().or(self.workload.as_deref())
    }
}

impl Flow {
    /// Creates an event of a reporting proxy, without further attributes.
    pub fn new(event: FlowEventKind, reporter: Reporter) -> Self {
        Self {
            time: String::new(),
            event,
            count: 1,
            connection: 0,
            reporter,
            source: Peer::default(),
            destination: Peer::default(),
            service: None,
            transport: Transport::Plaintext,
            waypoint: None,
            refusal: None,
            error: None,
            request: None,
            bytes_to_server: 0,
            bytes_to_client: 0,
            duration_ms: 0.0,
        }
    }

    /// Whether two refusals or failures are similar, so that one event can represent both.
    pub fn is_similar(&self, other: &Self) -> bool {
        let peer = |one: &Peer, other: &Peer| {
            (&one.workload, &one.namespace, &one.identity)
                == (&other.workload, &other.namespace, &other.identity)
        };
        self.event == other.event
            && self.reporter == other.reporter
            && peer(&self.source, &other.source)
            && peer(&self.destination, &other.destination)
            && (&self.service, self.transport, &self.waypoint)
                == (&other.service, other.transport, &other.waypoint)
            && (&self.refusal, &self.error, &self.request)
                == (&other.refusal, &other.error, &other.request)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn flow() -> Flow {
        let reporter = Reporter {
            kind: ReporterKind::Destination,
            pod: "ztunnel-x".to_owned(),
            namespace: "istio-system".to_owned(),
            node: "node-1".to_owned(),
        };
        Flow {
            time: "2026-01-01T00:00:00.000000Z".to_owned(),
            connection: 7,
            source: Peer {
                address: Some("10.0.0.1:4000".to_owned()),
                ..Peer::default()
            },
            destination: Peer {
                workload: Some("orders-1".to_owned()),
                namespace: Some("shop".to_owned()),
                ..Peer::default()
            },
            refusal: Some(Refusal {
                policy: Some("shop/strict".to_owned()),
                reason: "explicitly denied".to_owned(),
            }),
            duration_ms: 0.5,
            ..Flow::new(FlowEventKind::Refused, reporter)
        }
    }

    #[test]
    fn event_is_one_flat_object_that_names_its_type() {
        let item = StreamItem::Flow(Box::new(flow()));
        let json = serde_json::to_value(&item).unwrap();
        assert_eq!(
            json,
            serde_json::json!({
                "type": "flow",
                "time": "2026-01-01T00:00:00.000000Z",
                "event": "refused",
                "count": 1,
                "connection": 7,
                "reporter": {
                    "kind": "destination", "pod": "ztunnel-x", "namespace": "istio-system", "node": "node-1",
                },
                "source": {"address": "10.0.0.1:4000"},
                "destination": {"workload": "orders-1", "namespace": "shop"},
                "transport": "plaintext",
                "refusal": {"policy": "shop/strict", "reason": "explicitly denied"},
                "bytesToServer": 0,
                "bytesToClient": 0,
                "durationMs": 0.5,
            })
        );
        assert_eq!(serde_json::from_value::<StreamItem>(json).unwrap(), item);
    }

    #[test]
    fn events_of_later_versions_are_read() {
        let mut json = serde_json::to_value(StreamItem::Flow(Box::new(flow()))).unwrap();
        json["later"] = serde_json::json!({"new": true});
        json.as_object_mut().unwrap().remove("count");
        let read: StreamItem = serde_json::from_value(json).unwrap();
        assert_eq!(read, StreamItem::Flow(Box::new(flow())));
    }

    #[test]
    fn alike_refusals_differ_only_in_time_connection_addresses_and_counts() {
        let mut other = flow();
        other.time = "2026-01-01T00:00:01.000000Z".to_owned();
        other.connection = 8;
        other.source.address = Some("10.0.0.1:4001".to_owned());
        other.duration_ms = 9.0;
        other.count = 3;
        assert!(flow().is_similar(&other));
        other.refusal = Some(Refusal::default());
        assert!(!flow().is_similar(&other));
        let mut other = flow();
        other.source.workload = Some("web-1".to_owned());
        assert!(!flow().is_similar(&other));
    }
}
