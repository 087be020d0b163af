//! One attempt to get a response from an endpoint.

use std::time::Duration;

use ambit_proxy::LocalPod;
use http::{Method, Request, Response};
use hyper::body::Incoming;

use super::retry_state::RetryState;
use crate::{
    hops::Hops,
    http::backend::upstream_failure::UpstreamFailure,
    message::{self, Body, Version},
    retry_mark::RetryMark,
    session::Session,
    upstream::{
        Checkout, ConnectOptions, ConnectParameters, HttpKey, Reuse, ReuseLimits, Upstream,
        forwarded_for_waypoint,
    },
};

/// Attempt that ended without a response.
pub(super) struct FailedAttempt {
    pub(super) upstream_failure: UpstreamFailure,
    /// Request to be retried, if nothing of it was sent.
    pub(super) unsent_request: Option<Request<Body>>,
}

/// Attempt to send a request to an endpoint.
pub(super) struct Attempt<'a> {
    pub(super) session: &'a Session,
    pub(super) own: &'a LocalPod,
    pub(super) upstream: &'a Upstream,
    pub(super) version: Version,
    pub(super) options: ConnectOptions<'a>,
    pub(super) hops: Hops,
    pub(super) retry_mark: RetryMark,
}

impl Attempt<'_> {
    /// Sends the request within the timeout, on a pooled connection or a new one; `None` if the attempt timed out.
    ///
    /// A repeatable request is sent once more, on a new connection, if the endpoint closes its pooled one before a
    /// response: the connection failed, not the endpoint, so that this counts as no retry.
    pub(super) async fn send(
        &self,
        request: Request<Body>,
        retrying: &RetryState<'_>,
        timeout: Option<Duration>,
    ) -> Option<Result<Response<Incoming>, FailedAttempt>> {
        let trying = self.send_unlimited(request, retrying);
        match timeout {
            None => Some(trying.await),
            Some(timeout) => tokio::time::timeout(timeout, trying).await.ok(),
        }
    }

    async fn send_unlimited(
        &self,
        mut request: Request<Body>,
        retrying: &RetryState<'_>,
    ) -> Result<Response<Incoming>, FailedAttempt> {
        self.complete(&mut request);
        let Self {
            session,
            upstream,
            version,
            options,
            ..
        } = *self;
        let caller = &session.caller;
        let applied = upstream.applied_services(session.target.service_name());
        let key = HttpKey::new(upstream, version)
            .with_tls(options.tls.map(|tls| tls.key()))
            .with_preamble(options.preamble.cloned())
            .for_caller(caller.identity.as_ref(), caller.address.ip())
            .with_applied_services(applied);
        let pool = &session.shard.upstreams.http;
        let sent = |error| FailedAttempt {
            upstream_failure: UpstreamFailure::request_failure(&error, version),
            unsent_request: None,
        };
        // Only extended CONNECT requests are sent, each on a connection of its own.
        let is_connect = *request.method() == Method::CONNECT;
        let reuse = match retrying.is_repeatable() {
            true => Reuse::Any,
            false => Reuse::Recent,
        };
        let reuse_limits = ReuseLimits::from_destination_limits(options.limits);
        let check_out = || {
            let pooled = (!is_connect).then(|| pool.check_out(&key, reuse_limits, reuse));
            pooled.flatten()
        };
        // The endpoint may have closed an idle connection in the meantime.
        while let Some(pooled) = check_out() {
            let error = match pooled.send(pool, request, Some(&session.share)).await {
                Ok(response) => return Ok(response),
                Err(error) => error,
            };
            let is_closed = error.is_closed_connection();
            if let Some(unsent) = error.unsent_request {
                request = unsent;
                continue;
            }
            let repeated = is_closed.then(|| retrying.repeated_request()).flatten();
            let Some(mut again) = repeated else {
                return Err(sent(error.error));
            };
            self.complete(&mut again);
            request = again;
            break;
        }
        let checkout = match self.open_connection(&key, is_connect).await {
            Ok(checkout) => checkout,
            Err(error) => {
                let reader = caller.identity.as_ref().map(|one| &*one.namespace);
                return Err(FailedAttempt {
                    upstream_failure: UpstreamFailure::connect_failure(&*error, reader),
                    unsent_request: Some(request),
                });
            }
        };
        let responded = checkout.send(pool, request, Some(&session.share)).await;
        responded.map_err(|error| FailedAttempt {
            unsent_request: error.unsent_request,
            ..sent(error.error)
        })
    }

    /// Writes the scheme of an HTTP/2 request; and the hop count and the retry mark, if the next hop is a waypoint.
    fn complete(&self, request: &mut Request<Body>) {
        let (headers, is_next) = (request.headers_mut(), self.upstream.is_waypoint());
        self.hops.write(headers, is_next);
        self.retry_mark.write(headers, is_next);
        if self.options.tls.is_some() && self.version == Version::Http2 {
            message::set_https_scheme(request);
        }
    }

    async fn open_connection(
        &self,
        key: &HttpKey,
        is_connect: bool,
    ) -> Result<Checkout, Box<dyn std::error::Error + Send + Sync>> {
        let session = self.session;
        let connect = ConnectParameters {
            upstream: self.upstream,
            own_pod: self.own,
            // Callers share HTTP connections, so that tunnels name none of them.
            forwarded: &forwarded_for_waypoint(self.own),
            applied_services: key.applied_services(),
            options: self.options,
            hops: None,
            identity: None,
            memory: Some(&session.memory),
        };
        let upstreams = &session.shard.upstreams;
        let (pool, share) = (&upstreams.http, &session.share);
        let stream = upstreams.connect(connect).await?;
        if is_connect {
            return Ok(pool.handshake_extended_connect(key, stream, share).await?);
        }
        let reuse_limits = ReuseLimits::from_destination_limits(self.options.limits);
        Ok(pool
            .handshake(key, stream, reuse_limits, Some(share))
            .await?)
    }
}
