//! Looks up the endpoint of a sticky session ([`super::affinity`]), and its route.

use ambit_proxy::LocalPod;
use ambit_route::{BackendEndpoint, Route};

use super::{
    affinity::{self, SessionEndpoint},
    destination::Destination,
};
use crate::session::Session;

impl Destination {
    /// Finds the endpoint of the destination whose hash the session value contains.
    pub(in crate::http) fn find_session_endpoint(
        &self,
        session: &Session,
        mark: u64,
    ) -> SessionEndpoint {
        let waypoint = &session.shard.waypoint;
        let own = waypoint.local.current_pod(None);
        let Some((name, port)) = self.port(session) else {
            return SessionEndpoint::AtOtherWaypoint;
        };
        let request = self.backend_request(session, &own, &[]);
        let table = waypoint.state.table();
        let revision = table.backend_revision(&request, name, &mut rand::rng());
        if revision.is_none() {
            return SessionEndpoint::AtOtherWaypoint;
        }
        affinity::find_by_hash(table.backend_endpoints(&request, name, port), mark)
    }

    /// Returns the route to an endpoint of the destination.
    pub(in crate::http) fn route_to(
        &self,
        session: &Session,
        own: &LocalPod,
        to: &BackendEndpoint,
    ) -> Option<Route> {
        let waypoint = &session.shard.waypoint;
        let (name, _) = self.port(session)?;
        let request = self.backend_request(session, own, &[]);
        let table = waypoint.state.table();
        let route = table.route_to_endpoint(&request, name, to, &mut rand::rng());
        route.ok()
    }
}
