//! On-demand requests to the control plane for records that a connection needs (`XDS_ON_DEMAND`).
//!
//! A record that is not received in time is an error and does not count as absent: a delay must not cause a plain
//! connection to a destination that has a waypoint or accepts only tunnels.

use std::net::SocketAddr;

use ambit_model::{NetworkAddress, Workload, canonical_socket_address};
use ambit_route::{InboundError, InboundRequest, InboundRoute, MeshTable, Route, RouteError};
use tokio::{
    sync::oneshot,
    time::{Instant, timeout_at},
};

use super::{AddressDemand, LOCAL_WORKLOAD_TIMEOUT, SharedState};

/// Maximum on-demand requests for one connection: the service, its waypoint, the waypoint's gateway, and some
/// reserve.
const MAX_DEMAND_ROUNDS: usize = 6;

/// The control plane did not respond before the deadline.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct DemandTimeout;

impl SharedState {
    pub(super) async fn subscribe_and_wait(
        &self,
        name: String,
        deadline: Instant,
    ) -> Result<(), DemandTimeout> {
        let Some(demands) = &self.0.demands else {
            return Ok(());
        };
        let (done, answered) = oneshot::channel();
        let ask = async {
            demands
                .send(AddressDemand {
                    name,
                    resolved_sender: done,
                })
                .await
                .map_err(|_| DemandTimeout)?;
            answered.await.map_err(|_| DemandTimeout)
        };
        timeout_at(deadline, ask).await.map_err(|_| DemandTimeout)?
    }

    pub(super) async fn find_on_demand(
        &self,
        source: &Workload,
        dst: SocketAddr,
        look: impl Fn(&MeshTable) -> Result<Route, RouteError> + Sync,
    ) -> Result<Route, RouteError> {
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        let address =
            NetworkAddress::new(source.network.clone(), canonical_socket_address(dst).ip());
        if !self.table().has_address(&address) {
            self.subscribe_once(address.to_string(), deadline).await?;
        }
        self.route_with_demands(deadline, || look(&self.table()))
            .await
    }

    /// Routes with `look`. When it reports a missing record (for instance a waypoint), requests the record from the
    /// control plane and tries again.
    ///
    /// # Errors
    ///
    /// When there is no route, or no response before the deadline.
    pub async fn route_with_demands(
        &self,
        deadline: Instant,
        look: impl Fn() -> Result<Route, RouteError> + Sync,
    ) -> Result<Route, RouteError> {
        for _ in 0..MAX_DEMAND_ROUNDS {
            let route = look();
            let Some(missing) = route.as_ref().err().and_then(RouteError::missing_record) else {
                return route;
            };
            self.subscribe_once(missing.to_owned(), deadline).await?;
            let again = look();
            if again == route {
                return again;
            }
        }
        look()
    }

    /// Subscribes to a record by its name, one of its addresses (`network/ip`) or, for a service,
    /// `namespace/hostname`. Does nothing with wildcard subscriptions.
    ///
    /// # Errors
    ///
    /// When no response arrives in time.
    pub async fn subscribe_to_record(
        &self,
        name: String,
        deadline: Instant,
    ) -> Result<(), RouteError> {
        self.subscribe_once(name, deadline).await
    }

    async fn subscribe_once(&self, key: String, deadline: Instant) -> Result<(), RouteError> {
        self.subscribe_and_wait(key.clone(), deadline)
            .await
            .map_err(|DemandTimeout| RouteError::ControlPlaneTimeout { key })
    }

    /// Routes an inbound tunnel before its authorization. In on-demand mode, a request for an address that is not the
    /// pod's first fetches that address's record: the pod may be its waypoint.
    pub async fn inbound(
        &self,
        request: &InboundRequest<'_>,
    ) -> Result<InboundRoute, InboundError> {
        let route = self.table().inbound(request);
        let Err(InboundError::IpMismatch { asked, .. }) = &route else {
            return route;
        };
        let address = NetworkAddress::new(request.local_workload.network.clone(), *asked);
        if self.0.demands.is_none() || self.table().has_address(&address) {
            return route;
        }
        let deadline = Instant::now() + LOCAL_WORKLOAD_TIMEOUT;
        match self.subscribe_and_wait(address.to_string(), deadline).await {
            Ok(()) => self.table().inbound(request),
            Err(DemandTimeout) => route,
        }
    }
}
