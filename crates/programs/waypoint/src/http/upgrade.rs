//! Upgrades of HTTP/1.1 connections, WebSocket for instance: asked for, and switched to.
//!
//! HTTP/2 is not upgraded to: requests that nobody has judged would follow.

use std::sync::Arc;

use ambit_telemetry::http::ResponseFlag;
use http::{
    HeaderMap, HeaderValue, Method, Request, Response, StatusCode, Version,
    header::{CONNECTION, UPGRADE},
};
use hyper::{body::Incoming, upgrade::OnUpgrade};
use hyper_util::rt::TokioIo;
use tokio::io::AsyncWriteExt as _;

use super::{admission::Admission, headers, reply::Reply};
use crate::{
    message::{self, Body},
    session::Session,
};

/// An upgrade that a client asks for.
#[derive(Debug)]
pub(super) struct Upgrade {
    protocol: HeaderValue,
}

/// A client's connection, to be had when it is done with HTTP: of a request that asks for something else.
#[derive(Debug)]
pub(super) struct Leftover(Option<OnUpgrade>);

impl Leftover {
    /// Of a request, as it came.
    pub(super) fn of(request: &mut Request<Incoming>) -> Self {
        let asks = request.headers().contains_key(UPGRADE) || *request.method() == Method::CONNECT;
        Self(asks.then(|| hyper::upgrade::on(request)))
    }
}

impl Drop for Leftover {
    /// What was not switched is closed in order: the server only drops it, and so cuts off the answer.
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

/// The upgrade that a request asks for, if it is one that is passed on. Before headers of one hop are removed.
pub(super) fn requested(request: &Request<Incoming>) -> Option<Upgrade> {
    let headers = request.headers();
    let asks = headers
        .get_all(CONNECTION)
        .iter()
        .flat_map(|value| value.as_bytes().split(|byte| *byte == b','))
        .any(|token| token.trim_ascii().eq_ignore_ascii_case(b"upgrade"));
    let mut protocols = headers.get_all(UPGRADE).iter();
    let protocol = protocols.next()?.clone();
    let is_one = protocols.next().is_none();
    let is_http = protocol.as_bytes().get(..2).is_some_and(|start| {
        start.eq_ignore_ascii_case(b"h2") || start.eq_ignore_ascii_case(b"ht")
    });
    if !asks || !is_one || is_http || request.version() != Version::HTTP_11 {
        return None;
    }
    Some(Upgrade { protocol })
}

impl Upgrade {
    /// Asks the application for it.
    pub(super) fn ask(&self, headers: &mut HeaderMap) {
        headers.insert(CONNECTION, HeaderValue::from_static("upgrade"));
        headers.insert(UPGRADE, self.protocol.clone());
    }
}

/// The application has switched: what follows is passed through.
pub(super) fn switch(
    session: &Arc<Session>,
    upgrade: Option<Upgrade>,
    leftover: &mut Leftover,
    admission: Admission,
    mut response: Response<Incoming>,
) -> Result<Response<Body>, Reply> {
    let refused = || {
        let flag = ResponseFlag::UpstreamProtocolError;
        Reply::new(StatusCode::BAD_GATEWAY, "upstream protocol error", flag)
    };
    let upgrade = upgrade.ok_or_else(refused)?;
    let client = leftover.0.take().ok_or_else(refused)?;
    let server = hyper::upgrade::on(&mut response);
    let all = response.headers_mut();
    headers::remove_hop_by_hop(all).map_err(|_| refused())?;
    upgrade.ask(all);
    let session = session.clone();
    ambit_rt::spawn("upgraded connection", async move {
        let (client, server) = match tokio::try_join!(client, server) {
            Ok(both) => both,
            Err(error) => return tracing::debug!(%error, "an upgrade came to nothing"),
        };
        let (mut client, mut server) = (TokioIo::new(client), TokioIo::new(server));
        let mut drain = session.shard.waypoint.lifecycle.drain_watcher();
        tokio::select! {
            copied = tokio::io::copy_bidirectional(&mut client, &mut server) => {
                if let Err(error) = copied {
                    tracing::debug!(%error, "an upgraded connection broke");
                }
            }
            () = drain.cut() => {}
            () = admission.revoked() => {
                tracing::info!(caller = %session.caller.address, "an upgraded connection is closed: a policy denies it now");
            }
        }
    });
    Ok(response.map(|_| message::text("")))
}
