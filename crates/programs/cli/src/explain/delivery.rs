//! Second leg of a connection through a waypoint: from the waypoint to the pod, whose policies see the waypoint as the
//! caller.

use std::net::IpAddr;

use ambit_authz::{Connection, PolicySet};
use ambit_model::{Identity, Workload};
use serde::Serialize;

use super::policies::{PolicyReport, policy_reports, reason_text};
use crate::dump::EndpointWaypoint;

/// Decision of the server's policies on the connection from the waypoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct WaypointDelivery {
    /// SPIFFE identity of the waypoint.
    pub(crate) identity: String,
    pub(crate) allowed: bool,
    /// Policy that decides; `None` if the decision is a default.
    pub(crate) decided_by: Option<String>,
    /// Reason of the decision in words.
    pub(crate) why: String,
    pub(crate) policies: Vec<PolicyReport>,
}

impl WaypointDelivery {
    /// Evaluates the server's policies for each identity of its waypoint, and returns the decision that refuses, if
    /// there is one; `None` if the waypoint's identities are unknown.
    pub(super) fn evaluate_delivery(
        attached: &EndpointWaypoint,
        workloads: &[Workload],
        policies: &PolicySet,
        (server, connection): (&Workload, &Connection),
    ) -> Option<Self> {
        let judge = |text: &String| {
            let identity: Identity = text.parse().ok()?;
            let own = workloads.iter().filter(|one| one.identity() == identity);
            let mut ips = own.flat_map(|one| one.workload_ips.iter().copied());
            let is_same = |ip: &IpAddr| ip.is_ipv4() == connection.source_ip.is_ipv4();
            let of_waypoint = Connection {
                source_ip: ips.find(is_same).unwrap_or(connection.source_ip),
                source: Some(identity),
                destination: connection.destination,
            };
            let explanation = policies.explain(server, &of_waypoint);
            let decision = &explanation.decision;
            Some(Self {
                identity: text.clone(),
                allowed: decision.allowed,
                decided_by: decision.decided_by.as_ref().map(ToString::to_string),
                why: reason_text(&decision.reason).to_owned(),
                policies: policy_reports(&explanation),
            })
        };
        let mut all: Vec<_> = attached.identities.iter().filter_map(judge).collect();
        all.sort_by_key(|one| one.allowed);
        all.into_iter().next()
    }
}
