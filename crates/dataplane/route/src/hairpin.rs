//! Hairpin: redirects connections that bypass a pod's waypoint to that waypoint.

use std::net::{IpAddr, SocketAddr};

use ambit_model::{ArcStr, Identity, Protocol, Workload};
use rand::RngCore;

use crate::{MeshTable, Route, RouteError, outbound::RouteClient};

/// Whether layer 7 rules of a waypoint could apply to a connection that bypasses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaypointBypass {
    /// The control plane does not publish the layer 7 rules of the waypoint.
    RulesUnknown,
    /// No layer 7 rule could apply to the connection.
    NoRuleApplies,
    /// A layer 7 rule could apply to the connection.
    RuleMayApply,
}

impl MeshTable {
    /// Whether a connection to the local workload bypasses the workload's waypoint, which all connections must use.
    ///
    /// A connection from the waypoint is recognized by its proved identity. A captured pod under the same service
    /// account has that identity, too, from its node proxy, but is no endpoint of the waypoint.
    pub fn bypasses_waypoint(
        &self,
        local: &Workload,
        peer: Option<&Identity>,
        peer_ip: IpAddr,
    ) -> bool {
        let attached = local.endpoint_waypoint.as_ref();
        let Some(attached) = attached.filter(|attached| attached.enforce) else {
            return false;
        };
        // Nothing can come through a waypoint before it comes to the waypoint.
        if self.is_waypoint_pod(local, attached) {
            return false;
        }
        if !peer.is_some_and(|peer| attached.identities.contains(peer)) {
            return true;
        }
        let peer = self.workloads.by_ip(&local.network, peer_ip);
        peer.is_some_and(|peer| {
            let is_captured = peer.protocol() == Protocol::Hbone && !peer.native_tunnel();
            is_captured && !self.is_waypoint_pod(&peer.to_model(), attached)
        })
    }

    /// Returns whether layer 7 rules of the waypoint could apply to a connection to `port` of the local workload;
    /// `None` unless the connection [bypasses](Self::bypasses_waypoint) the waypoint.
    pub fn waypoint_bypass(
        &self,
        local: &Workload,
        peer: Option<&Identity>,
        peer_ip: IpAddr,
        port: u16,
    ) -> Option<WaypointBypass> {
        if !self.bypasses_waypoint(local, peer, peer_ip) {
            return None;
        }
        let attached = local.endpoint_waypoint.as_ref();
        let Some(rules) = attached.and_then(|attached| attached.rules.as_ref()) else {
            return Some(WaypointBypass::RulesUnknown);
        };
        // Gateways and waypoints call for others under their own identity.
        let is_caller_itself = self
            .workloads
            .by_ip(&local.network, peer_ip)
            .is_some_and(|one| !one.native_tunnel() && one.template().application_tunnel.is_none());
        let caller = peer.filter(|_| is_caller_itself);
        Some(match rules.iter().any(|rule| rule.covers(caller, port)) {
            true => WaypointBypass::RuleMayApply,
            false => WaypointBypass::NoRuleApplies,
        })
    }

    /// Routes a connection to `dst` that [bypasses](Self::bypasses_waypoint) the local workload's waypoint to that
    /// waypoint. As for [`Self::outbound_excluding`], `failed` lists tried endpoints. There is no route to a waypoint
    /// that would attribute redirected callers to the workload itself.
    pub fn hairpin(
        &self,
        local: &Workload,
        dst: SocketAddr,
        failed: &[ArcStr],
        rng: &mut dyn RngCore,
    ) -> Result<Route, RouteError> {
        let Some(attached) = &local.endpoint_waypoint else {
            return Err(RouteError::NoDestination {
                workload: local.uid.clone(),
            });
        };
        if attached.refuse {
            return Err(RouteError::BypassesWaypoint {
                waypoint: attached.waypoint.destination.to_string(),
                of: local.uid.clone(),
            });
        }
        let caller = RouteClient {
            source: local,
            failed_workloads: failed,
        };
        self.route_to_waypoint(caller, dst, attached.into(), &local.uid, None, rng)
    }
}
