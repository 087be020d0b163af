//! Upgrades of HTTP/1.1 connections, such as WebSocket; and WebSocket over HTTP/2 (RFC 8441).
//!
//! Only protocols that a setting names (`AMBIT_UPGRADES`, `websocket` by default) are passed on, for a GET without a
//! body that names exactly one protocol. From other requests the upgrade is removed, and they and the bytes behind them
//! are handled as ordinary requests. HTTP/2 and TLS cannot be configured: unauthorized requests would follow. An
//! application that switches protocols without a request for it violates HTTP (502). So does one that switches to
//! WebSocket without accepting the key of the request (RFC 6455, section 4.2.2): it may have responded to another
//! request. A request without a valid key is not an upgrade.
//!
//! WebSocket over HTTP/2 is an extended CONNECT. Policies, routes and logs see it as the equivalent GET with `Upgrade:
//! websocket`, as in Envoy: rules for one version's WebSocket apply to the other's. An application of HTTP/1.1 receives
//! that GET, one whose port is declared as HTTP/2 an extended CONNECT. Other protocols than `websocket` have no known
//! form in HTTP/1.1, and would make the application a proxy: they are refused.

use std::sync::Arc;

use ambit_model::{AppProtocol, ArcStr};
use ambit_telemetry::http::ResponseFlag;
use aws_lc_rs::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode,
    header::{CONNECTION, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY, UPGRADE},
};
use hyper::{
    body::{Body as _, Incoming},
    ext::Protocol,
    upgrade::OnUpgrade,
};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rand::Rng as _;
use tokio::io::AsyncWriteExt as _;

use super::{admit::admission::Admission, reply::Reply, send::window_bytes};
use crate::{
    config::WEBSOCKET,
    counting_io::{CountingIo, wait_for_client_reset},
    headers,
    message::{self, Body, Version},
    session::Session,
    tunnel_windows,
};

/// GUID that RFC 6455, section 1.3, defines for the WebSocket handshake.
const WEBSOCKET_GUID: &[u8] = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
/// Length of a decoded `Sec-WebSocket-Key`, in bytes (RFC 6455, section 4.1).
const KEY_BYTES: usize = 16;

/// Protocol upgrade that a client requests.
#[derive(Debug)]
pub(super) struct Upgrade {
    protocol: HeaderValue,
    /// Key for the WebSocket handshake with an HTTP/1.1 application (`Sec-WebSocket-Key`).
    key: Option<WebSocketKey>,
    /// Whether the client requests the upgrade by an extended CONNECT (HTTP/2, RFC 8441).
    is_extended_connect: bool,
}

/// Value of `Sec-WebSocket-Key`: sixteen bytes, base64-encoded.
#[derive(Clone, Debug)]
struct WebSocketKey(HeaderValue);

/// Request extension that marks a request received as extended CONNECT, with a generated key for an HTTP/1.1
/// application, since HTTP/2 has none.
#[derive(Clone, Debug)]
struct ExtendedConnect(WebSocketKey);

/// Converts an extended CONNECT to the equivalent upgrade request, if WebSocket is allowed.
pub(super) fn convert_extended_connect(request: &mut Request<Incoming>, upgrades: &[ArcStr]) {
    if *request.method() != Method::CONNECT || !upgrades.iter().any(|one| one == WEBSOCKET) {
        return;
    }
    let protocol = request.extensions().get::<Protocol>();
    if protocol.is_none_or(|protocol| protocol.as_str() != WEBSOCKET) {
        return;
    }
    let key = STANDARD.encode(rand::rng().random::<[u8; KEY_BYTES]>());
    let Ok(key) = HeaderValue::from_str(&key) else {
        return;
    };
    *request.method_mut() = Method::GET;
    let headers = request.headers_mut();
    headers.remove(SEC_WEBSOCKET_KEY);
    headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static(WEBSOCKET));
    let extensions = request.extensions_mut();
    extensions.remove::<Protocol>();
    extensions.insert(ExtendedConnect(WebSocketKey(key)));
}

/// Handle to the client's connection, which the waypoint takes over if the upgrade succeeds.
#[derive(Debug)]
pub(super) struct PendingUpgrade(Option<OnUpgrade>);

impl PendingUpgrade {
    /// Takes hyper's upgrade handle from a received request that may switch protocols.
    pub(super) fn take_from(request: &mut Request<Incoming>) -> Self {
        let has_upgrade =
            request.headers().contains_key(UPGRADE) || *request.method() == Method::CONNECT;
        Self(has_upgrade.then(|| hyper::upgrade::on(request)))
    }
}

impl Drop for PendingUpgrade {
    /// Shuts the connection down gracefully if it has not switched protocols: hyper would truncate the response
    /// otherwise.
    fn drop(&mut self) {
        let Some(connection) = self.0.take() else {
            return;
        };
        ambit_rt::spawn("declined upgrade", async move {
            if let Ok(connection) = connection.await {
                let _closed = TokioIo::new(connection).shutdown().await;
            }
        });
    }
}

/// Parses the requested upgrade; `None` if its protocol is not one of `upgrades`. Must be called before hop-by-hop
/// headers are removed.
pub(super) fn parse_requested(request: &Request<Incoming>, upgrades: &[ArcStr]) -> Option<Upgrade> {
    let headers = request.headers();
    let has_upgrade = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    let protocol = single_protocol(headers)?.clone();
    let is_known = upgrades
        .iter()
        .any(|one| is_protocol(&protocol, one.as_bytes()));
    let extended = request.extensions().get::<ExtendedConnect>();
    let is_extended = extended.is_some();
    let key = match extended {
        Some(ExtendedConnect(key)) => Some(key.clone()),
        None if is_protocol(&protocol, WEBSOCKET.as_bytes()) => {
            Some(WebSocketKey::from_headers(headers)?)
        }
        None => None,
    };
    let is_http11 = request.version() == http::Version::HTTP_11;
    let may_ask = is_extended || is_http11 && request.body().is_end_stream();
    let is_upgrade = has_upgrade && is_known && may_ask && *request.method() == Method::GET;
    is_upgrade.then_some(Upgrade {
        protocol,
        key,
        is_extended_connect: is_extended,
    })
}

/// Returns the value of `Upgrade`, if it names a single protocol.
fn single_protocol(headers: &HeaderMap) -> Option<&HeaderValue> {
    let mut protocols = headers.get_all(UPGRADE).iter();
    let first = protocols.next()?;
    protocols.next().is_none().then_some(first)
}

fn is_protocol(protocol: &HeaderValue, other: &[u8]) -> bool {
    protocol.as_bytes().eq_ignore_ascii_case(other)
}

impl Upgrade {
    /// Removes the upgrade headers of a request that is not forwarded as an upgrade.
    pub(super) fn remove_upgrade_headers(headers: &mut HeaderMap) {
        for name in headers::UPGRADE_REQUEST_HEADERS {
            headers.remove(name);
        }
    }

    /// Adds the upgrade headers to the forwarded request.
    pub(super) fn write_headers(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }

    /// Returns the HTTP version in which the upgrade is sent to an application with this declared protocol.
    pub(super) fn version(&self, declared: AppProtocol) -> Version {
        match declared {
            AppProtocol::Http2 | AppProtocol::Grpc if self.is_extended_connect => Version::Http2,
            _ => Version::Http1,
        }
    }

    /// Converts an upgrade received as extended CONNECT for a connection of this HTTP version.
    pub(super) fn convert_for(&self, version: Version, request: &mut Request<Body>) {
        let Some(WebSocketKey(key)) = self.key.as_ref().filter(|_| self.is_extended_connect) else {
            return;
        };
        let headers = request.headers_mut();
        match version {
            Version::Http1 => drop(headers.insert(SEC_WEBSOCKET_KEY, key.clone())),
            Version::Http2 => {
                headers.remove(CONNECTION);
                headers.remove(UPGRADE);
                *request.method_mut() = Method::CONNECT;
                let protocol = Protocol::from_static(WEBSOCKET);
                request.extensions_mut().insert(protocol);
            }
        }
    }

    /// Whether the application's response accepts the requested upgrade.
    ///
    /// # Errors
    /// When the response violates the upgrade protocol; the error is the reply to the client.
    pub(super) fn is_accepted_by(
        &self,
        version: Version,
        answer: &Response<Incoming>,
    ) -> Result<bool, Reply> {
        let status = answer.status();
        let headers = answer.headers();
        let is_accepted = || self.key.as_ref().is_none_or(|key| key.is_accepted(headers));
        if !self.is_extended_connect {
            let is_switched = status == StatusCode::SWITCHING_PROTOCOLS;
            let is_requested = |to| is_protocol(to, self.protocol.as_bytes());
            if is_switched && !(single_protocol(headers).is_some_and(is_requested) && is_accepted())
            {
                return Err(violation_reply());
            }
            return Ok(is_switched);
        }
        let is_switched = match version {
            Version::Http1 => status == StatusCode::SWITCHING_PROTOCOLS && is_accepted(),
            Version::Http2 => status == StatusCode::OK,
        };
        if !is_switched && (status.is_success() || status.is_informational()) {
            return Err(violation_reply());
        }
        Ok(is_switched)
    }
}

impl WebSocketKey {
    /// Parses `Sec-WebSocket-Key` of a request; `None` if it is missing or invalid.
    fn from_headers(headers: &HeaderMap) -> Option<Self> {
        let mut keys = headers.get_all(SEC_WEBSOCKET_KEY).iter();
        let key = keys.next()?;
        let bytes = STANDARD.decode(key.as_bytes()).ok()?;
        (bytes.len() == KEY_BYTES && keys.next().is_none()).then(|| Self(key.clone()))
    }

    /// Whether the response accepts this key by its `Sec-WebSocket-Accept` header.
    fn is_accepted(&self, headers: &HeaderMap) -> bool {
        let concatenated = [self.0.as_bytes(), WEBSOCKET_GUID].concat();
        let expected = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, &concatenated));
        let mut accepts = headers.get_all(SEC_WEBSOCKET_ACCEPT).iter();
        accepts
            .next()
            .is_some_and(|accepts| accepts == expected.as_str())
            && accepts.next().is_none()
    }
}

/// Bytes charged for an upgraded connection: a copy buffer and a buffered prefix on either side. Windows of HTTP/2
/// streams are charged separately.
const UPGRADED_CONNECTION_BYTES: usize = 4 * (8 << 10);

/// Returns the reply for an application that violates the upgrade protocol (502).
fn violation_reply() -> Reply {
    let flag = ResponseFlag::UpstreamProtocolError;
    Reply::new(StatusCode::BAD_GATEWAY, "upstream protocol error", flag)
}

/// Relays bytes between client and application after the protocol switch.
pub(super) fn switch_protocols(
    session: &Arc<Session>,
    upgrade: Option<Upgrade>,
    version: Version,
    pending_upgrade: &mut PendingUpgrade,
    admission: Admission,
    mut response: Response<Incoming>,
) -> Result<Response<Body>, Reply> {
    let upgrade = upgrade.ok_or_else(violation_reply)?;
    // An HTTP/1 client's tunnel is no longer charged once hyper has ended its connection.
    let tunnel = if upgrade.is_extended_connect {
        0
    } else {
        tunnel_windows::TUNNEL_COST_BYTES
    };
    let bytes = UPGRADED_CONNECTION_BYTES + tunnel + window_bytes(version);
    let taken = session.memory.charge_tunnel(bytes);
    let permit = taken.map_err(Reply::overloaded)?;
    let client = pending_upgrade.0.take().ok_or_else(violation_reply)?;
    let server = hyper::upgrade::on(&mut response);
    let all = response.headers_mut();
    headers::remove_hop_by_hop(all).map_err(|_| violation_reply())?;
    headers::remove_mesh_only_response_headers(all);
    if upgrade.is_extended_connect {
        all.remove(SEC_WEBSOCKET_ACCEPT);
        *response.status_mut() = StatusCode::OK;
    } else {
        upgrade.write_headers(all);
    }
    let session = session.clone();
    let share = session.share.clone();
    let running = share.run(async move {
        let _permit = permit;
        let (client, server) = match tokio::try_join!(client, server) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
        };
        let (near, far) = (
            Mutex::new(TokioIo::new(client)),
            Mutex::new(TokioIo::new(server)),
        );
        let (mut client, mut server) = (CountingIo::new(&near, drop), CountingIo::new(&far, drop));
        let mut drain = session.shard.waypoint.lifecycle.drain_watcher();
        tokio::select! {
            biased;
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => {
                if let Err(error) = copied {
                    tracing::debug!(%error, "an upgraded connection broke");
                }
            }
            error = wait_for_client_reset(&near) => {
                tracing::debug!(%error, "an upgraded connection's client has gone");
            }
            () = drain.wait_until_deadline() => {}
            () = admission.wait_until_revoked() => {
                tracing::info!(caller = %session.caller.address, "an upgraded connection is closed: a policy denies it now");
            }
        }
    });
    ambit_rt::spawn("upgraded connection", running);
    Ok(response.map(|_| message::text_body("")))
}
