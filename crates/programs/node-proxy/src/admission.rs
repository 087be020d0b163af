//! Admission of every connection to the pod, with a tunnel or without: a slot for its setup, and
//! the pod's policies.

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

/// Connection that policies do not allow.
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
    /// Evaluates the policies for a connection in the pod's table, with the pod's current record:
    /// an earlier change is visible here, and a later one to the recheck. A connection that must
    /// pass the waypoint first is authorized there; only PeerAuthentication applies here, where the
    /// real peer is known. Returns the record, and the path of the connection.
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

    /// Returns the denial for a decision; `None` if it allows the connection.
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

    /// Returns the policy that denies, if one does.
    pub(crate) fn policy(&self) -> Option<&str> {
        match self {
            Self::By(policy) | Self::Missing(policy) | Self::NotUnderstood { policy, .. } => {
                Some(policy)
            }
            Self::NoneAllowed | Self::Gone => None,
        }
    }

    /// Returns the policies that deny `peer`: the deciding one, or the ALLOW policies if none of
    /// them matches.
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

/// Returns the pod's current record, and the required path of a connection to it.
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

/// Takes a slot for a connection from `peer`; logs if there is none.
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

/// Takes a slot for a connection from `peer`; counts if there is none.
pub(crate) fn counted_slot(pod: &Pod, peer: SocketAddr) -> Result<Slot, Full> {
    pod.in_flight
        .begin(peer.ip())
        .inspect_err(|full| pod.metrics.setup_refused(full.limit()))
}

/// Resolves the caller by its address, and records it in the report.
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
