//! Calls that the waypoint itself makes: to authorization providers, rate-limit services, telemetry collectors, and
//! services that plugins call.
//!
//! Calls go to services of the mesh: by tunnel to endpoints that have one, through the service's waypoint if it has
//! one, else in plaintext; over TLS where a `DestinationRule` or a `BackendTLSPolicy` requires it, and after the header
//! of the PROXY protocol where a `DestinationRule` requires that. Other settings of these objects do not apply to
//! calls.
//!
//! Calls that the mesh's settings name use the waypoint's own identity. A call for an object of a namespace has the
//! identity that is reserved for that namespace ([`Identity::of_waypoint_calls`]). To a service of this very waypoint
//! it passes through the waypoint like a client's request: policies authorize it as a call of the namespace.

mod charge;
mod identities;

use std::sync::Arc;

use ambit_model::{ArcStr, DestinationLimits, Identity, NamespacedHostname};
use ambit_proxy::Local;
use ambit_route::BackendRequest;
use http::{Request, Response};
use hyper::body::Incoming;

use crate::{
    destination::{NoUpstream, Port},
    hops::Hops,
    message::{self, Body, Version},
    on_behalf::OnBehalf,
    origination::TlsUpstream,
    upstream::{
        Connect, ConnectOptions, HttpKey, Preamble, ReuseLimits, Upstream, UpstreamError,
        own_client,
    },
    upstream_lookup,
    waypoint::Shard,
};

pub(crate) use charge::{CallCharge, CollectError};
pub use identities::follow as follow_identities;

/// Error of a call without a response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the control plane does not name the waypoint's own pod")]
    NoOwn,
    #[error(transparent)]
    Rule(#[from] NoUpstream),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the connection broke before the answer")]
    Http(#[from] hyper::Error),
}

/// Service that the waypoint itself calls.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    pub(crate) service: &'a NamespacedHostname,
    pub(crate) port: u16,
    pub(crate) caller: CallFor<'a>,
    /// Number of waypoints that the causing request has passed, to end routing loops.
    pub(crate) hops: Hops,
    /// Caller for whose request the waypoint calls: the caller's memory budget is charged, and HTTP/2 connections,
    /// whose receive windows are shared, are used for this caller alone.
    pub(crate) on_behalf: Option<&'a OnBehalf>,
}

/// Party on whose behalf a call is made, which decides the identity of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallFor<'a> {
    /// The mesh's administrator: a call that the mesh's settings name, under the waypoint's own identity.
    Mesh,
    /// An object of this namespace: the call uses the identity reserved for the namespace.
    Namespace(&'a str),
}

impl CallFor<'_> {
    /// Returns the identity under which the call is made, or `None` for the waypoint's own.
    fn identity(self, trust_domain: &ArcStr) -> Option<Identity> {
        match self {
            Self::Mesh => None,
            Self::Namespace(namespace) => {
                Some(Identity::of_waypoint_calls(trust_domain.clone(), namespace))
            }
        }
    }
}

/// Sends a request to a service of the mesh on a pooled or new connection, and returns the response. The calling
/// function must limit the time and the size of the body.
///
/// # Errors
/// When neither of two endpoints is reachable, or the endpoint does not respond.
pub(crate) async fn request(
    shard: &Shard,
    callee: Callee<'_>,
    version: Version,
    mut request: Request<Body>,
) -> Result<Response<Incoming>, CallError> {
    let own = own(shard).await?;
    let pool = &shard.upstreams.http;
    let identity = callee.caller.identity(&shard.waypoint.config.trust_domain);
    let mut failed = Vec::new();
    loop {
        let upstream = choose_upstream(shard, &own, callee, &failed).await?;
        let port = ruled(shard, callee, &upstream)?;
        let over = tls_upstream(shard, callee, version, port.as_deref());
        let key = HttpKey::new(&upstream, version).with_tls(over.map(|over| over.key()));
        let preamble = preamble(&own, port.as_deref(), &upstream);
        let key = key
            .with_identity(identity.clone())
            .with_preamble(preamble.clone());
        let key = match callee.on_behalf {
            Some(caller) => key.for_caller(caller.identity.as_ref(), caller.ip),
            None => key,
        };
        let applied = upstream.applied_services(None);
        let key = key.with_applied(applied.clone());
        if over.is_some() && version == Version::Http2 {
            message::secure(&mut request);
        }
        let _load = pool.load(upstream.endpoint());
        callee
            .hops
            .write(request.headers_mut(), upstream.is_waypoint());
        // A connection that waited may have been closed by its endpoint in the meantime.
        while let Some(pooled) = pool.take(&key, &DestinationLimits::default()) {
            match pooled.send(pool, request, None).await {
                Ok(response) => return Ok(response),
                Err(error) => match error.unsent {
                    Some(unsent) => request = unsent,
                    None => return Err(error.error.into()),
                },
            }
        }
        let connect = Connect {
            upstream: &upstream,
            own: &own,
            forwarded: &own_client(&own),
            applied: &applied,
            options: ConnectOptions {
                limits: &DestinationLimits::default(),
                tls: over,
                preamble: preamble.as_ref(),
            },
            hops: None,
            identity: identity.as_ref(),
            memory: callee.on_behalf.map(|caller| &caller.memory),
        };
        match shard.upstreams.connect(connect).await {
            Ok(stream) => {
                let reuse_limits = ReuseLimits::of(&DestinationLimits::default());
                let checkout = pool.begin(&key, stream, reuse_limits, None).await?;
                let sent = checkout.send(pool, request, None).await;
                return sent.map_err(|error| error.error.into());
            }
            Err(error) => try_another(&upstream, &mut failed, error)?,
        }
    }
}

/// Returns the waypoint's own workload, once the published destination rules are known, since some forbid plaintext.
async fn own(shard: &Shard) -> Result<Arc<Local>, CallError> {
    shard.waypoint.published.known().await;
    shard.waypoint.local.known().await.ok_or(CallError::NoOwn)
}

/// Returns the `DestinationRule` state of the called port; `None` if the service has its own waypoint, which applies
/// the rule.
fn ruled(
    shard: &Shard,
    callee: Callee<'_>,
    upstream: &Upstream,
) -> Result<Option<Arc<Port>>, NoUpstream> {
    if upstream.is_waypoint() {
        return Ok(None);
    }
    let rule = shard.waypoint.published.destination(callee.service);
    let port = rule.map(|rule| rule.port(callee.port));
    if let Some(port) = &port {
        port.supported()?;
    }
    Ok(port)
}

/// Returns the TLS settings for the connection to the endpoint, if the destination's rule requires TLS.
fn tls_upstream<'a>(
    shard: &'a Shard,
    callee: Callee<'a>,
    version: Version,
    port: Option<&'a Port>,
) -> Option<TlsUpstream<'a>> {
    let origination = port?.tls()?;
    Some(TlsUpstream {
        origination,
        config: &shard.waypoint.config,
        host: &callee.service.hostname,
        version: Some(version),
    })
}

async fn choose_upstream(
    shard: &Shard,
    own: &Local,
    Callee {
        service,
        port,
        caller,
        ..
    }: Callee<'_>,
    failed: &[ArcStr],
) -> Result<Upstream, CallError> {
    let waypoint = &shard.waypoint;
    waypoint.learn_service(service).await;
    let http = &shard.upstreams.http;
    let load = |endpoint| http.load_of(endpoint);
    let look = || {
        let request = BackendRequest {
            waypoint: &own.workload,
            own: match caller {
                CallFor::Mesh => Some(&waypoint.address),
                CallFor::Namespace(_) => None,
            },
            is_target: false,
            failed,
            dialled: None,
        };
        let table = waypoint.state.table();
        table.backend(&request, service, port, Some(&load), &mut rand::rng())
    };
    let route = waypoint.completed(look).await;
    let route = route.map_err(UpstreamError::from)?;
    Ok(upstream_lookup::resolve(route, waypoint).await?)
}

/// Returns the PROXY protocol header with the waypoint's own address, if the callee's rule requires one.
fn preamble(own: &Local, port: Option<&Port>, upstream: &Upstream) -> Option<Preamble> {
    Preamble::of(
        port?.policy(),
        upstream,
        own_client(own).client,
        upstream.endpoint(),
    )
}

/// Excludes an unreachable endpoint from the next attempt; returns the error after the second unreachable endpoint.
fn try_another(
    upstream: &Upstream,
    failed: &mut Vec<ArcStr>,
    error: UpstreamError,
) -> Result<(), CallError> {
    match upstream.workload() {
        Some(workload) if failed.is_empty() => {
            failed.push(workload.uid().clone());
            Ok(())
        }
        _ => Err(error.into()),
    }
}
