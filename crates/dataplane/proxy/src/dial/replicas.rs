//! Opens tunnels to one of several replicas: pods of a waypoint, or endpoints of a service.
//!
//! A connection fails over from a replica that does not respond, or reports that it cannot serve: no application data
//! has been sent by then. A connection that a replica has accepted never moves to another one.

use std::{net::IpAddr, pin::pin};

use ambit_hbone::{DialError, Pool, Tunnel, TunnelError};
use ambit_model::ArcStr;
use ambit_route::HboneRoute;
use http::{HeaderMap, StatusCode};
use tokio::time::{Instant, timeout_at};

use super::{ConnectError, Dialer};

/// Maximum replicas that are tried for one connection, all within the connect timeout.
const MAX_ATTEMPTS: u32 = 3;

impl Dialer {
    /// Opens a tunnel for `route`. When a replica fails, `another` finds the next route, excluding the workloads with
    /// the passed uids. Also returns the route that was used.
    ///
    /// # Errors
    ///
    /// When no replica could be connected to, or one refuses.
    pub async fn open_replica_tunnel<R>(
        &self,
        pool: &Pool,
        mut route: HboneRoute,
        source_ip: IpAddr,
        headers: HeaderMap,
        another: impl Fn(Vec<ArcStr>) -> R,
    ) -> Result<(Tunnel, HboneRoute), ConnectError>
    where
        R: Future<Output = Option<HboneRoute>>,
    {
        let begun = Instant::now();
        let share = self.http2_settings.connect_timeout / MAX_ATTEMPTS;
        let mut failed = Vec::new();
        for attempt in 1..MAX_ATTEMPTS {
            failed.push(route.workload.uid().clone());
            let next = {
                let mut tunnel = pin!(self.open_tunnel(pool, &route, source_ip, headers.clone()));
                let error = match timeout_at(begun + share * attempt, &mut tunnel).await {
                    Ok(Err(error)) if is_before_acceptance(&error) => Some(error),
                    Ok(result) => return with_route(result, &route),
                    Err(_elapsed) => None,
                };
                let Some(next) = another(failed.clone()).await else {
                    let result = match error {
                        Some(error) => Err(error),
                        None => tunnel.await,
                    };
                    return with_route(result, &route);
                };
                tracing::info!(
                    waypoint = route.waypoint.as_deref(),
                    service = route.service.as_ref().map(|service| service.hostname.as_str()),
                    replica = %route.addr, next = %next.addr,
                    error = error.map(|error| crate::report::format_error_chain(&error)),
                    "a replica does not take a connection: another one is tried"
                );
                next
            };
            route = next;
        }
        let result = self.open_tunnel(pool, &route, source_ip, headers).await;
        with_route(result, &route)
    }
}

/// Whether the error occurred before the replica accepted the tunnel, and another replica may accept it.
pub(super) fn is_before_acceptance(error: &ConnectError) -> bool {
    match error {
        ConnectError::Tunnel(TunnelError::Dial(error)) => {
            !matches!(**error, DialError::Prepare { .. })
        }
        ConnectError::Tunnel(TunnelError::Stream(_)) | ConnectError::WorkloadRemoved { .. } => true,
        ConnectError::Tunnel(TunnelError::Status(status)) => {
            *status == StatusCode::SERVICE_UNAVAILABLE
        }
        _ => false,
    }
}

/// Returns the tunnel with its route, or the error with the name of the route's waypoint.
fn with_route(
    result: Result<Tunnel, ConnectError>,
    route: &HboneRoute,
) -> Result<(Tunnel, HboneRoute), ConnectError> {
    match (result, &route.waypoint) {
        (Ok(tunnel), _) => Ok((tunnel, route.clone())),
        (Err(error), None) => Err(error),
        (Err(error), Some(waypoint)) => Err(ConnectError::Waypoint {
            waypoint: waypoint.clone(),
            source: Box::new(error),
        }),
    }
}
