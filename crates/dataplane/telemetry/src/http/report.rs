//! Record of one finished request or connection, and its access-log line in Istio's default formats.

use std::{
    fmt::{Display, Write as _},
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use ambit_codec::{push_escaped_text, push_json_string};
use time::OffsetDateTime;

use super::{ResponseCode, ResponseFlags};

#[cfg(test)]
mod tests;

/// Format of access-log lines. Both formats truncate texts of requests to 1 KiB, and escape everything but printable
/// ASCII.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AccessLogFormat {
    /// Istio's default line, starting with the time in brackets.
    #[default]
    Text,
    /// Istio's default JSON object.
    Json,
}

/// Record of a finished request or connection; fields of requests are `None` for other protocols than HTTP.
#[derive(Clone, Copy, Debug)]
pub struct HttpRequestReport<'a> {
    /// Start time of the request.
    pub started: SystemTime,
    /// Time from the start of the request to the last byte of the response.
    pub duration: Duration,
    /// Method of the request.
    pub method: Option<&'a [u8]>,
    /// Path and query, as forwarded to the upstream.
    pub path: Option<&'a [u8]>,
    /// HTTP version, for instance `HTTP/1.1`.
    pub protocol: Option<&'a str>,
    /// HTTP status that the downstream received.
    pub response_code: ResponseCode,
    /// Envoy's response flags.
    pub flags: ResponseFlags,
    /// Response-code details, for instance `via_upstream`.
    pub code_details: Option<&'a str>,
    /// Reason why the waypoint closed the downstream connection, if it did.
    pub termination_details: Option<&'a str>,
    /// Reason why no connection to the upstream could be opened.
    pub upstream_failure: Option<&'a str>,
    /// Bytes of the request's body.
    pub request_bytes: u64,
    /// Bytes of the response's body.
    pub response_bytes: u64,
    /// Number of gRPC messages in the request.
    pub request_messages: u64,
    /// Number of gRPC messages in the response.
    pub response_messages: u64,
    /// Time from the start of the request to the upstream's response headers.
    pub upstream_time: Option<Duration>,
    /// Value of the header `x-forwarded-for`.
    pub forwarded_for: Option<&'a [u8]>,
    /// Value of the header `user-agent`.
    pub user_agent: Option<&'a [u8]>,
    /// Value of the header `x-request-id`.
    pub request_id: Option<&'a [u8]>,
    /// Authority of the request.
    pub authority: Option<&'a [u8]>,
    /// Address of the upstream endpoint.
    pub upstream_host: Option<SocketAddr>,
    /// Name of the upstream cluster.
    pub upstream_cluster: Option<&'a str>,
    /// Local address of the upstream connection.
    pub upstream_local: Option<SocketAddr>,
    /// Address that the downstream connected to.
    pub downstream_local: SocketAddr,
    /// Address of the downstream client.
    pub downstream_remote: SocketAddr,
    /// Server name (SNI) of TLS passthrough.
    pub server_name: Option<&'a [u8]>,
    /// Name of the route that matched.
    pub route: Option<&'a str>,
    /// AUDIT policy that matched, if any. Not in Istio's formats, and written only if present.
    pub audit_policy: Option<&'a str>,
    /// Host outside of the mesh to which the request was sent, for wildcard hosts and originated TLS. Written only if
    /// present.
    pub external_host: Option<&'a str>,
    /// SAN for which the certificate of the host in `remote` was verified. Written only if present.
    pub external_san: Option<&'a str>,
}

impl HttpRequestReport<'_> {
    /// Creates a record with only the times and the downstream side.
    pub fn new(
        started: SystemTime,
        duration: Duration,
        downstream_remote: SocketAddr,
        downstream_local: SocketAddr,
    ) -> Self {
        Self {
            started,
            duration,
            method: None,
            path: None,
            protocol: None,
            response_code: ResponseCode::default(),
            flags: ResponseFlags::default(),
            code_details: None,
            termination_details: None,
            upstream_failure: None,
            request_bytes: 0,
            response_bytes: 0,
            request_messages: 0,
            response_messages: 0,
            upstream_time: None,
            forwarded_for: None,
            user_agent: None,
            request_id: None,
            authority: None,
            upstream_host: None,
            upstream_cluster: None,
            upstream_local: None,
            downstream_local,
            downstream_remote,
            server_name: None,
            route: None,
            audit_policy: None,
            external_host: None,
            external_san: None,
        }
    }

    /// Formats the record as an access-log line, including the line feed.
    pub fn format_line(&self, format: AccessLogFormat) -> String {
        let mut line = String::with_capacity(512);
        match format {
            AccessLogFormat::Text => self.write_text_line(&mut line),
            AccessLogFormat::Json => self.write_json_line(&mut line),
        }
        line.push('\n');
        line
    }

    fn write_text_line(&self, line: &mut String) {
        let mut out = TextWriter(line);
        out.0.push('[');
        out.unquoted(Some(timestamp(self.started)));
        out.0.push_str("] \"");
        out.unquoted_peer_text(self.method);
        out.space().unquoted_peer_text(self.path);
        out.space()
            .unquoted_peer_text(self.protocol.map(str::as_bytes));
        out.0.push_str("\" ");
        out.unquoted(Some(self.response_code));
        out.space().unquoted(Some(self.flags));
        out.space()
            .unquoted_peer_text(self.code_details.map(str::as_bytes));
        out.space()
            .unquoted_peer_text(self.termination_details.map(str::as_bytes));
        out.space().quoted(self.upstream_failure.map(str::as_bytes));
        out.space().unquoted(Some(self.request_bytes));
        out.space().unquoted(Some(self.response_bytes));
        out.space().unquoted(Some(self.duration.as_millis()));
        out.space()
            .unquoted(self.upstream_time.map(|time| time.as_millis()));
        for value in [
            self.forwarded_for,
            self.user_agent,
            self.request_id,
            self.authority,
        ] {
            out.space().quoted(value);
        }
        let upstream = self.upstream_host.map(|address| address.to_string());
        out.space().quoted(upstream.as_deref().map(str::as_bytes));
        out.space()
            .unquoted_peer_text(self.upstream_cluster.map(str::as_bytes));
        out.space().unquoted(self.upstream_local);
        out.space().unquoted(Some(self.downstream_local));
        out.space().unquoted(Some(self.downstream_remote));
        out.space().unquoted_peer_text(self.server_name);
        out.space()
            .unquoted_peer_text(self.route.map(str::as_bytes));
        if let Some(policy) = self.audit_policy {
            out.0.push_str(" audit=");
            out.quoted(Some(policy.as_bytes()));
        }
        if let Some(remote) = self.external_host {
            out.0.push_str(" remote=");
            out.quoted(Some(remote.as_bytes()));
        }
        if let Some(identity) = self.external_san {
            out.0.push_str(" remote_identity=");
            out.quoted(Some(identity.as_bytes()));
        }
    }

    fn write_json_line(&self, line: &mut String) {
        let mut out = JsonWriter {
            line,
            has_any: false,
        };
        out.display("start_time", Some(timestamp(self.started)));
        out.string("method", self.method);
        out.string("path", self.path);
        out.text("protocol", self.protocol);
        out.number("response_code", self.response_code);
        out.display("response_flags", Some(self.flags));
        out.text("response_code_details", self.code_details);
        out.text("connection_termination_details", self.termination_details);
        out.text("upstream_transport_failure_reason", self.upstream_failure);
        out.number("bytes_received", self.request_bytes);
        out.number("bytes_sent", self.response_bytes);
        out.number("duration", self.duration.as_millis());
        let upstream_time = self.upstream_time.map(|time| time.as_millis());
        out.display("upstream_service_time", upstream_time);
        out.string("x_forwarded_for", self.forwarded_for);
        out.string("user_agent", self.user_agent);
        out.string("request_id", self.request_id);
        out.string("authority", self.authority);
        out.display("upstream_host", self.upstream_host);
        out.text("upstream_cluster", self.upstream_cluster);
        out.display("upstream_local_address", self.upstream_local);
        out.display("downstream_local_address", Some(self.downstream_local));
        out.display("downstream_remote_address", Some(self.downstream_remote));
        out.string("requested_server_name", self.server_name);
        out.text("route_name", self.route);
        if self.audit_policy.is_some() {
            out.text("audit", self.audit_policy);
        }
        if self.external_host.is_some() {
            out.text("remote", self.external_host);
        }
        if self.external_san.is_some() {
            out.text("remote_identity", self.external_san);
        }
        line.push('}');
    }
}

/// Formats a time as Envoy does: UTC with milliseconds.
fn timestamp(time: SystemTime) -> impl Display {
    let time = OffsetDateTime::from(time);
    std::fmt::from_fn(move |f| {
        write!(
            f,
            "{:04}-{:02}-{:02}T{:02}:{:02}:{:02}.{:03}Z",
            time.year(),
            u8::from(time.month()),
            time.day(),
            time.hour(),
            time.minute(),
            time.second(),
            time.millisecond()
        )
    })
}

/// Writes the fields of a text line; missing values are dashes.
struct TextWriter<'a>(&'a mut String);

impl TextWriter<'_> {
    fn space(&mut self) -> &mut Self {
        self.0.push(' ');
        self
    }

    /// Writes a trusted value, which the waypoint itself produced, without quotes or escaping.
    fn unquoted(&mut self, value: Option<impl Display>) {
        match value {
            // Writing to a string cannot fail.
            Some(value) => {
                let _ = write!(self.0, "{value}");
            }
            None => self.0.push('-'),
        }
    }

    fn unquoted_peer_text(&mut self, value: Option<&[u8]>) {
        push_escaped_text(self.0, non_empty(value), true);
    }

    fn quoted(&mut self, value: Option<&[u8]>) {
        self.0.push('"');
        push_escaped_text(self.0, non_empty(value), false);
        self.0.push('"');
    }
}

fn non_empty(value: Option<&[u8]>) -> &[u8] {
    value.filter(|value| !value.is_empty()).unwrap_or(b"-")
}

/// Writes the members of a JSON line; missing values are `null`.
struct JsonWriter<'a> {
    line: &'a mut String,
    has_any: bool,
}

impl JsonWriter<'_> {
    fn string(&mut self, key: &str, value: Option<&[u8]>) {
        self.key(key);
        match value {
            Some(value) => push_json_string(self.line, value),
            None => self.line.push_str("null"),
        }
    }

    fn text(&mut self, key: &str, value: Option<&str>) {
        self.string(key, value.map(str::as_bytes));
    }

    /// Writes a value of the waypoint itself as a JSON string, without escaping.
    fn display(&mut self, key: &str, value: Option<impl Display>) {
        self.key(key);
        let _ = match value {
            Some(value) => write!(self.line, "\"{value}\""),
            None => self.line.write_str("null"),
        };
    }

    fn number(&mut self, key: &str, value: impl Display) {
        self.key(key);
        let _ = write!(self.line, "{value}");
    }

    fn key(&mut self, key: &str) {
        let separator = if self.has_any { ',' } else { '{' };
        self.has_any = true;
        let _ = write!(self.line, "{separator}\"{key}\":");
    }
}
