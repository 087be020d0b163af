//! Recorded calls: lines of access logs of node proxies (text or JSON) and of waypoints (Istio's default text or JSON),
//! and open connections, which have no line yet.

use std::{collections::BTreeMap, net::SocketAddr};

use ambit_model::Identity;
use serde_json::{Map, Value};

use crate::{access_log::AccessLogLine, dump::ConnectionsDump};

/// Suffix of values that a waypoint truncates in its access log.
const TRUNCATED_SUFFIX: &str = "...";

/// One connection or request that a proxy recorded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObservedCall {
    /// Address of the client.
    pub(crate) from: SocketAddr,
    /// Verified identity of the client, if the record has it.
    pub(crate) identity: Option<Identity>,
    /// Address of the called pod or service.
    pub(crate) to: SocketAddr,
    pub(crate) observer: Observer,
}

/// Proxy that recorded the call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Observer {
    /// Node proxy of the called pod.
    NodeProxy,
    /// Waypoint of the called service or pod.
    Waypoint(WaypointCall),
}

/// Fields of a call that only a waypoint records.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct WaypointCall {
    /// Host name of the called service; `None` if the waypoint did not forward the call.
    pub(crate) host: Option<String>,
    /// Server name (SNI) of a TLS passthrough connection.
    pub(crate) sni: Option<String>,
    /// HTTP request; `None` for other connections.
    pub(crate) request: Option<Request>,
}

/// Attributes of an HTTP request that access logs record.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Request {
    pub(crate) method: String,
    /// Path without the query.
    pub(crate) path: String,
    pub(crate) authority: String,
    /// Recorded headers by lower-case name.
    pub(crate) headers: BTreeMap<&'static str, String>,
}

impl Request {
    /// Whether the access log truncated the path or the authority.
    pub(crate) fn is_truncated(&self) -> bool {
        self.path.ends_with(TRUNCATED_SUFFIX) || self.authority.ends_with(TRUNCATED_SUFFIX)
    }
}

/// Parses an access log line of a node proxy or waypoint; `None` if it is not one, or lacks fields that policies need.
pub(crate) fn parse_line(line: &str) -> Option<ObservedCall> {
    let line = line.trim();
    if line.starts_with('{') {
        let map: Map<String, Value> = serde_json::from_str(line).ok()?;
        let field = |name: &str| {
            let text = map.get(name)?.as_str()?;
            (!text.is_empty() && text != "-").then_some(text)
        };
        return match map.contains_key("downstream_remote_address") {
            true => from_waypoint_log(field),
            false => from_node_proxy_log(field),
        };
    }
    if line.starts_with('[') {
        let fields = split_fields(line);
        let words = fields
            .get(1)
            .map(|request| request.splitn(3, ' ').collect());
        let request: Vec<&str> = words.unwrap_or_default();
        return from_waypoint_log(|name| {
            let text = match name {
                "method" => request.first().copied(),
                "path" => request.get(1).copied(),
                _ => {
                    let (_, place) = WAYPOINT_LOG_FIELDS
                        .iter()
                        .find(|(known, _)| *known == name)?;
                    fields.get(*place).map(String::as_str)
                }
            };
            text.filter(|text| !text.is_empty() && *text != "-")
        });
    }
    let line = AccessLogLine::parse(line)?;
    from_node_proxy_log(|name| line.field(name))
}

/// Returns the open connections to pods in a node proxy's dump.
pub(crate) fn open_connections(dump: &ConnectionsDump) -> Vec<ObservedCall> {
    let pods = dump.workload_state.values();
    let inbound = pods.filter_map(|pod| pod.connections.get("inbound"));
    let connections = inbound.flatten().filter_map(|connection| {
        // Another proxy does not tell who it is.
        let identity = match connection.src_identity()? {
            Value::String(identity) => Some(identity.parse().ok()?),
            _ => None,
        };
        Some(ObservedCall {
            from: connection.src.parse().ok()?,
            identity,
            // The address of a redirection is not the called one.
            to: connection.original_dst.parse().ok()?,
            observer: Observer::NodeProxy,
        })
    });
    connections.collect()
}

/// Fields of a waypoint's JSON log format, and the position of each in its text format.
const WAYPOINT_LOG_FIELDS: [(&str, usize); 8] = [
    ("x_forwarded_for", 11),
    ("user_agent", 12),
    ("request_id", 13),
    ("authority", 14),
    ("upstream_cluster", 16),
    ("downstream_local_address", 18),
    ("downstream_remote_address", 19),
    ("requested_server_name", 20),
];

/// Splits a text log line at spaces outside quotes. Quoted values contain no quotes.
fn split_fields(line: &str) -> Vec<String> {
    let mut fields = vec![String::new()];
    let mut is_quoted = false;
    for c in line.chars() {
        match c {
            '"' => is_quoted = !is_quoted,
            ' ' if !is_quoted => fields.push(String::new()),
            c => {
                if let Some(last) = fields.last_mut() {
                    last.push(c);
                }
            }
        }
    }
    fields
}

/// Parses the fields of a node proxy's log line; `None` unless the line is from the destination's proxy, which
/// authorizes a connection and logs it when it ends or is refused.
fn from_node_proxy_log<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<ObservedCall> {
    let is_over = field("duration").is_some() || field("error").is_some();
    if field("direction") != Some("inbound") || !is_over {
        return None;
    }
    let inside = field("dst.hbone_addr").and_then(|address| address.parse().ok());
    let to = match inside {
        Some(inside) => inside,
        None => field("dst.addr")?.parse().ok()?,
    };
    let identity = match field("src.identity") {
        Some(text) => Some(text.parse().ok()?),
        None => None,
    };
    Some(ObservedCall {
        from: field("src.addr")?.parse().ok()?,
        identity,
        to,
        observer: Observer::NodeProxy,
    })
}

fn from_waypoint_log<'a>(field: impl Fn(&str) -> Option<&'a str>) -> Option<ObservedCall> {
    let owned = |name: &str| field(name).map(str::to_owned);
    // The name of a service, or for instance inbound-vip|80|http|web.shop.svc.cluster.local.
    let host = field("upstream_cluster").and_then(|name| name.rsplit('|').next());
    let headers = [
        ("user-agent", "user_agent"),
        ("x-forwarded-for", "x_forwarded_for"),
        ("x-request-id", "request_id"),
    ];
    let headers = headers.into_iter();
    let request = owned("method").map(|method| Request {
        method,
        path: field("path")
            .and_then(|path| path.split(['?', '#']).next())
            .unwrap_or_default()
            .to_owned(),
        authority: owned("authority").unwrap_or_default(),
        headers: headers
            .filter_map(|(header, member)| Some((header, owned(member)?)))
            .collect(),
    });
    Some(ObservedCall {
        from: field("downstream_remote_address")?.parse().ok()?,
        identity: None,
        to: field("downstream_local_address")?.parse().ok()?,
        observer: Observer::Waypoint(WaypointCall {
            host: host.map(str::to_owned),
            sni: owned("requested_server_name"),
            request,
        }),
    })
}
