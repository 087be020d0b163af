//! Admits inbound connections of a pod, with a tunnel or without: limits concurrent setups, and evaluates the pod's
//! policies.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ambit_authz::{Connection as Peer, Decision, Why};
use ambit_model::{Action, Identity};
use ambit_proxy::{
    Course, Local, Report,
    connection_table::Handle,
    flow,
    in_flight::{Full, Slot},
    report::chain,
};
use ambit_telemetry::Direction;

use crate::pod::Pod;

/// Reason why an inbound connection is not allowed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Denied {
    #[error("connection closed due to policy rejection: explicitly denied by: {0}")]
    By(String),
    #[error("connection closed due to policy rejection: allow policies exist, but none allowed")]
    NoneAllowed,
    #[error("connection closed due to policy rejection: policy {0} of the workload is not known")]
    Missing(String),
    #[error("connection closed due to policy rejection: policy {policy} is not understood: {why}")]
    NotUnderstood { policy: String, why: String },
    #[error("the workload is gone")]
    Gone,
}

impl Denied {
    /// Evaluates the policies for a connection that is in the pod's connection table already, with the pod's current
    /// record: the record includes every earlier change, and later ones are left to the recheck. A connection that must
    /// pass the waypoint first is authorized there; only PeerAuthentication applies here, where the real peer is known.
    /// Returns the record, and the course of the connection: direct or through the waypoint.
    pub(crate) fn check(
        pod: &Pod,
        peer: &Peer,
        listed: &Handle,
    ) -> Result<(Arc<Local>, Course), Self> {
        let (local, course) = course(pod, peer)?;
        listed.takes(course);
        let decision = match course {
            Course::ThroughWaypoint => pod.state.authenticate(&local.workload, peer),
            Course::Direct => pod.state.authorize(&local.workload, peer),
        };
        for dry in &decision.dry_run {
            tracing::info!(target: "rbac", pod = %pod.name(), policy = ?dry, "dry-run policy matches");
        }
        // PeerAuthentication, the only policy for connections redirected to the waypoint, is never a dry run.
        if course == Course::Direct {
            for policy in pod.state.would_refuse(&local.workload, peer) {
                tracing::info!(target: "rbac", pod = %pod.name(), %policy, "dry-run policy would refuse");
                pod.metrics.dry_run_denied(&policy);
            }
        }
        if pod.config.authz_policy_info_logging {
            tracing::info!(
                target: "rbac",
                pod = %pod.name(),
                allowed = decision.allowed,
                policy = decision.decided_by.as_ref().map(ToString::to_string),
                "decided"
            );
        }
        match Self::of(decision) {
            None => Ok((local, course)),
            Some(denied) => Err(denied),
        }
    }

    /// Converts a policy decision to the reason of the denial; `None` if it allows the connection.
    pub(crate) fn of(decision: Decision) -> Option<Self> {
        if decision.allowed {
            return None;
        }
        Some(match (decision.why, decision.decided_by) {
            (Why::NotUnderstood(why), Some(policy)) => Self::NotUnderstood {
                policy: policy.to_string(),
                why: why.to_string(),
            },
            (Why::MissingPolicy(name), _) => Self::Missing(name.to_string()),
            (_, Some(policy)) => Self::By(policy.to_string()),
            (_, None) => Self::NoneAllowed,
        })
    }

    /// Returns the policy that denies the connection, unless no single policy does.
    pub(crate) fn policy(&self) -> Option<&str> {
        match self {
            Self::By(policy) | Self::Missing(policy) | Self::NotUnderstood { policy, .. } => {
                Some(policy)
            }
            Self::NoneAllowed | Self::Gone => None,
        }
    }

    /// Returns the policies that deny `peer`: the deciding one, or the ALLOW policies of which none matches.
    pub(crate) fn policies(&self, pod: &Pod, local: &Local, peer: &Peer) -> Vec<String> {
        match self {
            Self::By(policy) | Self::Missing(policy) | Self::NotUnderstood { policy, .. } => {
                vec![policy.clone()]
            }
            Self::NoneAllowed => {
                let explanation = pod.state.explain(&local.workload, peer);
                let allowing = explanation.policies.iter();
                let allowing = allowing.filter(|one| one.action == Action::Allow && !one.dry_run);
                allowing.map(|one| one.policy.to_string()).collect()
            }
            Self::Gone => Vec::new(),
        }
    }
}

/// Returns the pod's current record, and whether a connection of `peer` is direct or must pass the waypoint.
///
/// # Errors
/// When the pod has no record.
pub(crate) fn course(pod: &Pod, peer: &Peer) -> Result<(Arc<Local>, Course), Denied> {
    let local = pod.local.now(None);
    if !local.is_known {
        return Err(Denied::Gone);
    }
    let course = match pod.state.passes_by_waypoint(&local.workload, peer) {
        true => Course::ThroughWaypoint,
        false => Course::Direct,
    };
    Ok((local, course))
}

/// Acquires a slot for the setup of a connection from `peer`; logs and counts the connection as denied if there is
/// none.
pub(crate) fn slot(pod: &Pod, peer: SocketAddr, local: SocketAddr) -> Option<Slot> {
    counted_slot(pod, peer)
        .inspect_err(|full| {
            let own = pod.local.now(None);
            let ends = (peer, local);
            flow::denied(
                &pod.metrics,
                Some(&own),
                ends,
                Direction::Inbound,
                &chain(full),
            );
        })
        .ok()
}

/// Acquires a slot for the setup of a connection from `peer`; counts the connection as refused if there is none.
pub(crate) fn counted_slot(pod: &Pod, peer: SocketAddr) -> Result<Slot, Full> {
    pod.in_flight
        .begin(peer.ip())
        .inspect_err(|full| pod.metrics.setup_refused(full.limit()))
}

/// Looks up the client's workload by its address, and records it as the source in the report.
pub(crate) fn record_source(
    report: &mut Report,
    pod: &Pod,
    local: &Local,
    ip: IpAddr,
    proven: Option<&Identity>,
) {
    let network = &local.workload.network;
    let found = pod.state.table().workload_by_ip(network, ip).cloned();
    if let Some(workload) = found {
        report.source(&workload.to_model(), proven);
    }
}

#[cfg(test)]
mod tests;
