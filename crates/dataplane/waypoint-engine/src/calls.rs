//! Calls that the waypoint itself makes: to authorization providers, rate-limit services, telemetry collectors, and
//! services that plugins call.
//!
//! Calls go to services of the mesh: by tunnel to endpoints that have one, through the service's waypoint if it has
//! one, else in plaintext; over TLS where a `DestinationRule` or a `BackendTLSPolicy` requires it, and after the header
//! of the PROXY protocol where a `DestinationRule` requires that. Other settings of these objects do not apply to
//! calls.
//!
//! Calls that the mesh's settings name use the waypoint's own identity. A call for an object of a namespace has the
//! identity that is reserved for that namespace ([`Identity::for_waypoint_calls`]). To a service of this very waypoint
//! it passes through the waypoint like a client's request: policies authorize it as a call of the namespace.

mod charge;
mod identities;

use std::sync::Arc;

use ambit_model::{ArcStr, DestinationLimits, Identity, NamespacedHostname};
use ambit_proxy::LocalPod;
use ambit_route::BackendRequest;
use http::{Request, Response};
use hyper::body::Incoming;

use crate::{
    call_initiator::CallInitiator,
    destination::{DestinationPort, NoUpstream},
    hops::Hops,
    message::{self, Body, Version},
    tls_origination::TlsUpstream,
    upstream::{
        ConnectOptions, ConnectParameters, HttpKey, ProxyProtocolHeader, Reuse, ReuseLimits,
        Upstream, UpstreamError, forwarded_for_waypoint,
    },
    upstream_lookup,
    waypoint::Shard,
};

pub(crate) use charge::{CallCharge, CallResponseError};
pub use identities::maintain_certificates;

/// Reason why a call that the waypoint itself makes has no response.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CallError {
    #[error("the control plane does not name the waypoint's own pod")]
    NoOwnWorkload,
    #[error(transparent)]
    DestinationRule(#[from] NoUpstream),
    #[error(transparent)]
    Upstream(#[from] UpstreamError),
    #[error("the connection broke before the answer")]
    Http(#[from] hyper::Error),
}

/// Service that the waypoint itself calls, with the parameters of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Callee<'a> {
    pub(crate) service: &'a NamespacedHostname,
    pub(crate) port: u16,
    pub(crate) caller: CallIdentity<'a>,
    /// Number of waypoints that the client's request behind the call has passed, to end routing loops.
    pub(crate) hops: Hops,
    /// Caller for whose request the waypoint calls: the caller's memory budget is charged, and HTTP/2 connections,
    /// whose receive windows are shared, are used for this caller alone.
    pub(crate) initiator: Option<&'a CallInitiator>,
}

/// Party on whose behalf a call is made, which decides the identity of the call.
#[derive(Clone, Copy, Debug)]
pub(crate) enum CallIdentity<'a> {
    /// Administrator of the mesh: the mesh's settings name the callee, and the call uses the waypoint's own identity.
    Waypoint,
    /// Namespace whose object names the callee: the call uses the identity reserved for the namespace.
    Namespace(&'a str),
}

impl CallIdentity<'_> {
    /// Returns the identity under which the call is made, or `None` for the waypoint's own.
    fn identity(self, trust_domain: &ArcStr) -> Option<Identity> {
        match self {
            Self::Waypoint => None,
            Self::Namespace(namespace) => Some(Identity::for_waypoint_calls(
                trust_domain.clone(),
                namespace,
            )),
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
    let own = own_workload(shard).await?;
    let pool = &shard.upstreams.http;
    let identity = callee.caller.identity(&shard.waypoint.config.trust_domain);
    let mut failed = Vec::new();
    loop {
        let upstream = choose_upstream(shard, &own, callee, &failed).await?;
        let port = destination_rule_port(shard, callee, &upstream)?;
        let over = tls_upstream(shard, callee, version, port.as_deref());
        let key = HttpKey::new(&upstream, version).with_tls(over.map(|over| over.key()));
        let preamble = proxy_protocol_header(&own, port.as_deref(), &upstream);
        let key = key
            .with_identity(identity.clone())
            .with_preamble(preamble.clone());
        let key = match callee.initiator {
            Some(caller) => key.for_caller(caller.identity.as_ref(), caller.ip),
            None => key,
        };
        let applied = upstream.applied_services(None);
        let key = key.with_applied_services(applied.clone());
        if over.is_some() && version == Version::Http2 {
            message::set_https_scheme(&mut request);
        }
        let _load = pool.count_request(upstream.endpoint());
        callee
            .hops
            .write(request.headers_mut(), upstream.is_waypoint());
        // A connection that waited may have been closed by its endpoint in the meantime.
        let limits = ReuseLimits::for_calls();
        while let Some(pooled) = pool.check_out(&key, limits, Reuse::Recent) {
            match pooled.send(pool, request, None).await {
                Ok(response) => return Ok(response),
                Err(error) => match error.unsent_request {
                    Some(unsent) => request = unsent,
                    None => return Err(error.error.into()),
                },
            }
        }
        let connect = ConnectParameters {
            upstream: &upstream,
            own_pod: &own,
            forwarded: &forwarded_for_waypoint(&own),
            applied_services: &applied,
            options: ConnectOptions {
                limits: &DestinationLimits::default(),
                tls: over,
                preamble: preamble.as_ref(),
            },
            hops: None,
            identity: identity.as_ref(),
            memory: callee.initiator.map(|caller| &caller.memory),
        };
        match shard.upstreams.connect(connect).await {
            Ok(stream) => {
                let checkout = pool.handshake(&key, stream, limits, None).await?;
                let sent = checkout.send(pool, request, None).await;
                return sent.map_err(|error| error.error.into());
            }
            Err(error) => exclude_failed_endpoint(&upstream, &mut failed, error)?,
        }
    }
}

/// Returns the waypoint's own workload, once the published destination rules are known, since some forbid plaintext.
async fn own_workload(shard: &Shard) -> Result<Arc<LocalPod>, CallError> {
    shard.waypoint.published.wait_until_complete().await;
    shard
        .waypoint
        .local
        .wait_until_published()
        .await
        .ok_or(CallError::NoOwnWorkload)
}

/// Returns the `DestinationRule` state of the called port; `None` if the service has its own waypoint, which applies
/// the rule.
fn destination_rule_port(
    shard: &Shard,
    callee: Callee<'_>,
    upstream: &Upstream,
) -> Result<Option<Arc<DestinationPort>>, NoUpstream> {
    if upstream.is_waypoint() {
        return Ok(None);
    }
    let rule = shard.waypoint.published.destination(callee.service);
    let port = rule.map(|rule| rule.port(callee.port));
    if let Some(port) = &port {
        port.check_supported()?;
    }
    Ok(port)
}

/// Returns the TLS settings for the connection to the endpoint, if the destination's rule requires TLS.
fn tls_upstream<'a>(
    shard: &'a Shard,
    callee: Callee<'a>,
    version: Version,
    port: Option<&'a DestinationPort>,
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
    own: &LocalPod,
    Callee {
        service,
        port,
        caller,
        ..
    }: Callee<'_>,
    failed_workloads: &[ArcStr],
) -> Result<Upstream, CallError> {
    let waypoint = &shard.waypoint;
    waypoint.request_service_record(service).await;
    let http = &shard.upstreams.http;
    let load = |endpoint| http.active_requests(endpoint);
    let look = || {
        let request = BackendRequest {
            waypoint: &own.workload,
            own_address: match caller {
                CallIdentity::Waypoint => Some(&waypoint.address),
                CallIdentity::Namespace(_) => None,
            },
            is_called_service: false,
            failed_workloads,
            dialed_ip: None,
        };
        let table = waypoint.state.table();
        table.route_to_backend(&request, service, port, Some(&load), &mut rand::rng())
    };
    let route = waypoint.find_complete_route(look).await;
    let route = route.map_err(UpstreamError::from)?;
    Ok(upstream_lookup::resolve(route, waypoint).await?)
}

/// Returns the PROXY protocol header with the waypoint's own address, if the callee's rule requires one.
fn proxy_protocol_header(
    own: &LocalPod,
    port: Option<&DestinationPort>,
    upstream: &Upstream,
) -> Option<ProxyProtocolHeader> {
    ProxyProtocolHeader::for_policy(
        port?.policy(),
        upstream,
        forwarded_for_waypoint(own).client,
        upstream.endpoint(),
    )
}

/// Excludes an unreachable endpoint, so that the call is retried at another one. Returns the error after the second
/// unreachable endpoint.
fn exclude_failed_endpoint(
    upstream: &Upstream,
    failed_workloads: &mut Vec<ArcStr>,
    error: UpstreamError,
) -> Result<(), CallError> {
    match upstream.workload() {
        Some(workload) if failed_workloads.is_empty() => {
            failed_workloads.push(workload.uid().clone());
            Ok(())
        }
        _ => Err(error.into()),
    }
}
