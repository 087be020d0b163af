//! Admits inbound connections of a pod, with a tunnel or without: limits concurrent setups, and evaluates the pod's
//! policies.

use std::{
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ambit_authz::{Connection as Peer, Decision, DecisionReason};
use ambit_model::{Action, Identity};
use ambit_proxy::{
    ConnectionPath, LocalPod, Report,
    connection_table::ConnectionHandle,
    flow,
    in_flight::{SetupLimitReached, SetupPermit},
    report::format_error_chain,
};
use ambit_telemetry::Direction;

use crate::pod::Pod;

/// Reason why an inbound connection is not allowed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DenialReason {
    #[error("connection closed due to policy rejection: explicitly denied by: {0}")]
    ByPolicy(String),
    #[error("connection closed due to policy rejection: allow policies exist, but none allowed")]
    NoAllowPolicyMatched,
    #[error("connection closed due to policy rejection: policy {0} of the workload is not known")]
    MissingPolicy(String),
    #[error("connection closed due to policy rejection: policy {policy} is not understood: {why}")]
    UnsupportedPolicy { policy: String, why: String },
    #[error("the workload is gone")]
    PodGone,
}

impl DenialReason {
    /// Evaluates the policies for a connection that is in the pod's connection table already, with the pod's current
    /// record: the record includes every earlier change, and later ones are left to the recheck. A connection that must
    /// pass the waypoint first is authorized there; only PeerAuthentication applies here, where the real peer is known.
    /// Returns the record, and the connection's path: direct or through the waypoint.
    pub(crate) fn authorize(
        pod: &Pod,
        peer: &Peer,
        listed: &ConnectionHandle,
    ) -> Result<(Arc<LocalPod>, ConnectionPath), Self> {
        let (local, course) = connection_path(pod, peer)?;
        listed.set_path(course);
        let decision = match course {
            ConnectionPath::ThroughWaypoint => pod.state.authenticate(&local.workload, peer),
            ConnectionPath::Direct => pod.state.authorize(&local.workload, peer),
        };
        for dry in &decision.dry_run_matches {
            tracing::info!(target: "rbac", pod = %pod.name(), policy = ?dry, "dry-run policy matches");
        }
        // PeerAuthentication, the only policy for connections redirected to the waypoint, is never a dry run.
        if course == ConnectionPath::Direct {
            for policy in pod.state.dry_run_denials(&local.workload, peer) {
                tracing::info!(target: "rbac", pod = %pod.name(), %policy, "dry-run policy would refuse");
                pod.metrics.count_dry_run_denial(&policy);
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
        match Self::from_decision(decision) {
            None => Ok((local, course)),
            Some(denied) => Err(denied),
        }
    }

    /// Converts a policy decision to the reason of the denial; `None` if it allows the connection.
    pub(crate) fn from_decision(decision: Decision) -> Option<Self> {
        if decision.allowed {
            return None;
        }
        Some(match (decision.reason, decision.decided_by) {
            (DecisionReason::InvalidPolicy(why), Some(policy)) => Self::UnsupportedPolicy {
                policy: policy.to_string(),
                why: why.to_string(),
            },
            (DecisionReason::MissingPolicy(name), _) => Self::MissingPolicy(name.to_string()),
            (_, Some(policy)) => Self::ByPolicy(policy.to_string()),
            (_, None) => Self::NoAllowPolicyMatched,
        })
    }

    /// Returns the policy that denies the connection, unless no single policy does.
    pub(crate) fn policy(&self) -> Option<&str> {
        match self {
            Self::ByPolicy(policy)
            | Self::MissingPolicy(policy)
            | Self::UnsupportedPolicy { policy, .. } => Some(policy),
            Self::NoAllowPolicyMatched | Self::PodGone => None,
        }
    }

    /// Returns the policies that deny `peer`: the deciding one, or the ALLOW policies of which none matches.
    pub(crate) fn policies(&self, pod: &Pod, local: &LocalPod, peer: &Peer) -> Vec<String> {
        match self {
            Self::ByPolicy(policy)
            | Self::MissingPolicy(policy)
            | Self::UnsupportedPolicy { policy, .. } => {
                vec![policy.clone()]
            }
            Self::NoAllowPolicyMatched => {
                let explanation = pod.state.explain(&local.workload, peer);
                let allowing = explanation.policies.iter();
                let allowing = allowing.filter(|one| one.action == Action::Allow && !one.dry_run);
                allowing.map(|one| one.policy.to_string()).collect()
            }
            Self::PodGone => Vec::new(),
        }
    }
}

/// Returns the pod's current record, and whether a connection of `peer` is direct or must pass the waypoint.
///
/// # Errors
/// When the pod has no record.
pub(crate) fn connection_path(
    pod: &Pod,
    peer: &Peer,
) -> Result<(Arc<LocalPod>, ConnectionPath), DenialReason> {
    let local = pod.local_workload.current_pod(None);
    if !local.is_published {
        return Err(DenialReason::PodGone);
    }
    let course = match pod.state.bypasses_waypoint(&local.workload, peer) {
        true => ConnectionPath::ThroughWaypoint,
        false => ConnectionPath::Direct,
    };
    Ok((local, course))
}

/// Acquires a permit for the setup of a connection from `peer`; if the limit is reached, logs and counts the connection
/// as denied.
pub(crate) fn acquire_setup_permit(
    pod: &Pod,
    peer: SocketAddr,
    local: SocketAddr,
) -> Option<SetupPermit> {
    acquire_counted_permit(pod, peer)
        .inspect_err(|full| {
            let own = pod.local_workload.current_pod(None);
            let ends = (peer, local);
            flow::report_denied(
                &pod.metrics,
                Some(&own),
                ends,
                Direction::Inbound,
                &format_error_chain(full),
            );
        })
        .ok()
}

/// Acquires a permit for the setup of a connection from `peer`; if the limit is reached, counts the connection as
/// refused.
pub(crate) fn acquire_counted_permit(
    pod: &Pod,
    peer: SocketAddr,
) -> Result<SetupPermit, SetupLimitReached> {
    pod.setup_counters
        .try_acquire(peer.ip())
        .inspect_err(|full| pod.metrics.count_refused_setup(full.limit()))
}

/// Looks up the client's workload by its address, and records it as the source in the report.
pub(crate) fn record_source(
    report: &mut Report,
    pod: &Pod,
    local: &LocalPod,
    ip: IpAddr,
    proven: Option<&Identity>,
) {
    let network = &local.workload.network;
    let found = pod.state.table().workload_by_ip(network, ip).cloned();
    if let Some(workload) = found {
        report.set_source(&workload.to_model(), proven);
    }
}

#[cfg(test)]
mod tests;
