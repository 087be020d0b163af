//! Pre-capture connections of a pod: opened before the pod was captured, and not carried by the proxy. They continue in
//! plaintext, and are listed in dumps. A setting closes all of them; inbound ones are closed when a policy begins to
//! deny them, and, like the proxy's own, when all connections to the pod must pass its waypoint.

use std::{
    collections::BTreeMap,
    io,
    net::IpAddr,
    pin::pin,
    sync::{Arc, Weak},
    time::Duration,
};

use ambit_authz::{Connection as Peer, Decision, DecisionReason};
use ambit_codec::Authority;
use ambit_model::Workload;
use ambit_proxy::{
    ConnectionDetails, WaypointBypass,
    recheck::{WaypointGraceCheck, WaypointGracePeriod},
};
use ambit_sys::{
    addresses::gateways_of,
    tcp_sockets::{self, Direction, TcpSocket, TcpStateFilter, UnproxiedSocket},
};
use ambit_telemetry::PreCaptureCloseCause;
use tokio::time::Instant;

use crate::pod::Pod;

/// Delays of attempts to close the pre-capture connections of a new pod. The agent redirects as soon as the pod is
/// served; a connection opened just before may still be in its handshake at the first attempt.
const CLOSE_ATTEMPT_DELAYS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_secs(2),
    Duration::from_secs(10),
];

/// Delays of searches for a new pod's pre-capture connections; the last one is after probes from before the capture
/// have ended.
const CHECK_DELAYS: [Duration; 3] = [
    Duration::from_millis(500),
    Duration::from_millis(1500),
    PROBE_GRACE,
];

/// Time after a pod's capture in which a connection from the node may be a probe that began before.
const PROBE_GRACE: Duration = Duration::from_secs(60);

/// Returns the pre-capture connections that are open now, for dumps.
pub(crate) fn connection_details(pod: &Pod) -> Vec<ConnectionDetails> {
    let found = find_sockets(pod, TcpStateFilter::Established).unwrap_or_else(|error| {
        tracing::debug!(pod = %pod.name(), %error, "cannot look for plaintext connections");
        Vec::new()
    });
    found
        .iter()
        .map(|UnproxiedSocket { socket, .. }| ConnectionDetails {
            src: socket.local,
            original_dst: Authority::Ip(socket.remote),
            actual_dst: Some(socket.remote),
            protocol: "CLEAR",
        })
        .collect()
}

/// Closes a pod's pre-capture connections, repeatedly while some may still be established.
pub(crate) async fn close_connections(pod: Arc<Pod>) {
    let pod = to_weak(pod);
    for pause in CLOSE_ATTEMPT_DELAYS {
        tokio::time::sleep(pause).await;
        let Some(pod) = pod.upgrade() else { return };
        let found = match find_sockets(&pod, TcpStateFilter::Open) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(pod = %pod.name(), %error, "cannot look for plaintext connections");
                return;
            }
        };
        for UnproxiedSocket { socket, .. } in found {
            if destroy(&pod, &socket, PreCaptureCloseCause::Setting) {
                let TcpSocket { local, remote, .. } = socket;
                tracing::info!(
                    pod = %pod.name(), %local, %remote,
                    "closed a plaintext connection from before the pod's capture"
                );
            }
        }
    }
}

/// Closes a pod's inbound pre-capture connections when a policy starts to deny them (STRICT or any other), and when a
/// waypoint becomes required, see [`WaypointGracePeriod`]. Connections that were already denied at capture continue,
/// since a setting decides about them; so do connections within the pod, and for a while those that may be kubelet's.
/// Completes when none are left.
pub(crate) async fn enforce_policies(pod: Arc<Pod>) {
    let mut changes = pod.state.watch_pod(pod.name());
    let mut gone = pin!(pod.terminated());
    let mut grace = WaypointGracePeriod::new(pod.config.waypoint_grace);
    let pod = to_weak(pod);
    let mut earlier = PreCaptureConnections::default();
    let mut looks = CHECK_DELAYS.into_iter();
    let mut next = Some(Duration::ZERO);
    let probes_end = Instant::now() + PROBE_GRACE;
    loop {
        let is_change = tokio::select! {
            () = &mut gone => return,
            changed = changes.changed() => match changed {
                Ok(()) => true,
                Err(_) => return,
            },
            () = ambit_rt::sleep_until(grace.deadline()) => true,
            () = sleep_if_some(next), if next.is_some() => false,
        };
        if !is_change {
            next = looks.next();
        }
        let Some(pod) = pod.upgrade() else { return };
        // Until the control plane has published the pod, no decision about it is possible.
        let Some(workload) = pod.state.local_workload(pod.name()) else {
            continue;
        };
        let found = match find_sockets(&pod, TcpStateFilter::Open) {
            Ok(found) => found,
            Err(error) => {
                tracing::warn!(pod = %pod.name(), %error, "cannot look for plaintext connections");
                return;
            }
        };
        // Before its capture the pod had no address by which probes are recognised.
        let kubelet = kubelet_addresses(&pod);
        let may_be_probe = |socket: &TcpSocket| {
            Instant::now() < probes_end && kubelet.contains(&socket.remote.ip())
        };
        let inbound = found
            .into_iter()
            .filter(|found| found.direction == Direction::Inbound);
        let sockets: Vec<_> = inbound.map(|found| found.socket).collect();
        let refused = {
            let mut look = grace.begin_check(Instant::now());
            let evaluate = |socket: &TcpSocket| evaluate(&pod, &workload, socket);
            earlier.newly_denied(sockets, &mut look, may_be_probe, evaluate)
        };
        for (socket, evaluation) in refused {
            if destroy(&pod, &socket, PreCaptureCloseCause::Policy) {
                let TcpSocket { local, remote, .. } = socket;
                let Evaluation { decision, .. } = evaluation;
                let policy = decision.decided_by.as_ref().map(ToString::to_string);
                let reason = match decision.allowed {
                    true => "everything has to come through the workload's waypoint".to_owned(),
                    false => decision.to_string(),
                };
                tracing::info!(
                    pod = %pod.name(), src = %remote, dst = %local, policy, reason,
                    "closed a plaintext connection from before the pod's capture, which is now refused"
                );
            }
        }
        // Capture is complete at the last check but one: no more connections can appear.
        if looks.len() == 0 && earlier.is_empty() {
            return;
        }
    }
}

/// Downgrades the reference to the pod for a task that waits, so that the task does not keep a removed pod and its
/// namespace alive.
fn to_weak(pod: Arc<Pod>) -> Weak<Pod> {
    Arc::downgrade(&pod)
}

/// Returns the addresses from which kubelet may have connected before the capture.
fn kubelet_addresses(pod: &Pod) -> Vec<IpAddr> {
    let mut addresses = gateways_of(&pod.netns).unwrap_or_default();
    addresses.extend(pod.config.node_ip);
    addresses
}

async fn sleep_if_some(pause: Option<Duration>) {
    match pause {
        Some(pause) => tokio::time::sleep(pause).await,
        None => std::future::pending().await,
    }
}

/// Policy decision about a pre-capture connection, and whether the connection bypasses a required waypoint.
struct Evaluation {
    decision: Decision,
    bypass: Option<WaypointBypass>,
}

/// Evaluates a pre-capture connection as if the proxy had just accepted it, from a peer without a principal.
fn evaluate(pod: &Pod, workload: &Workload, socket: &TcpSocket) -> Evaluation {
    let peer = Peer {
        source: None,
        source_ip: socket.remote.ip(),
        destination: socket.local,
    };
    Evaluation {
        decision: pod.state.authorize(workload, &peer),
        bypass: pod.state.waypoint_bypass(workload, &peer),
    }
}

/// Inbound pre-capture connections by socket cookie, each with whether it was allowed at the last check.
#[derive(Debug, Default)]
struct PreCaptureConnections(BTreeMap<u64, bool>);

impl PreCaptureConnections {
    fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns open connections that were allowed at the last check and are denied now, except for connections for
    /// which `is_spared` is true.
    fn newly_denied(
        &mut self,
        found: Vec<TcpSocket>,
        waypoint: &mut WaypointGraceCheck<'_>,
        is_spared: impl Fn(&TcpSocket) -> bool,
        evaluate: impl Fn(&TcpSocket) -> Evaluation,
    ) -> Vec<(TcpSocket, Evaluation)> {
        let before = std::mem::take(&mut self.0);
        let mut refused = Vec::new();
        for socket in found {
            let was_allowed = before.get(&socket.cookie()).copied();
            let evaluation = evaluate(&socket);
            let by_policy = match evaluation.decision.reason {
                // An unknown decision is not a change.
                DecisionReason::MissingPolicy(_) => was_allowed.unwrap_or(true),
                _ => evaluation.decision.allowed,
            };
            let allowed = by_policy
                && evaluation.bypass.is_none_or(|bypass| match was_allowed {
                    Some(true) => waypoint.allows_for_now(bypass),
                    _ => waypoint.allows_until_end(bypass),
                });
            if was_allowed == Some(true) && !allowed {
                if is_spared(&socket) {
                    self.0.insert(socket.cookie(), true);
                } else {
                    refused.push((socket, evaluation));
                }
            } else {
                self.0.insert(socket.cookie(), allowed);
            }
        }
        refused
    }
}

/// Destroys the application's socket of a pre-capture connection, and counts it. Returns whether it was open.
fn destroy(pod: &Pod, socket: &TcpSocket, cause: PreCaptureCloseCause) -> bool {
    let metrics = &pod.metrics;
    match tcp_sockets::destroy(&pod.netns, socket) {
        Ok(()) => {
            metrics.count_pre_capture_connection(cause, true);
            true
        }
        // The connection has ended by itself.
        Err(error) if error.kind() == io::ErrorKind::NotFound => false,
        Err(error) => {
            metrics.count_pre_capture_connection(cause, false);
            let TcpSocket { local, remote, .. } = socket;
            tracing::warn!(
                pod = %pod.name(), %local, %remote, %error,
                "cannot close a plaintext connection from before the pod's capture; restart the pod"
            );
            false
        }
    }
}

fn find_sockets(pod: &Pod, state: TcpStateFilter) -> io::Result<Vec<UnproxiedSocket>> {
    let mark = pod.config.packet_mark.unwrap_or_default();
    tcp_sockets::unproxied_sockets(&pod.netns, mark, state)
}

#[cfg(test)]
mod tests {
    use ambit_model::ArcStr;

    use super::*;

    fn socket() -> TcpSocket {
        let (local, remote) = ("10.0.0.1:80", "10.0.0.9:4000");
        TcpSocket::new(local.parse().unwrap(), remote.parse().unwrap(), 0)
    }

    fn decision(allowed: bool, why: DecisionReason) -> Decision {
        Decision {
            allowed,
            decided_by: None,
            reason: why,
            dry_run_matches: Vec::new(),
        }
    }

    fn evaluation(allowed: bool, why: DecisionReason) -> Evaluation {
        Evaluation {
            decision: decision(allowed, why),
            bypass: None,
        }
    }

    fn refused(earlier: &mut PreCaptureConnections, allowed: bool, why: DecisionReason) -> usize {
        let evaluate = |_: &TcpSocket| evaluation(allowed, why.clone());
        let mut grace = WaypointGracePeriod::new(Some(Duration::ZERO));
        let mut look = grace.begin_check(Instant::now());
        earlier
            .newly_denied(vec![socket()], &mut look, |_| false, evaluate)
            .len()
    }

    #[test]
    fn new_waypoint_closes_bypassing_connections_after_a_grace() {
        let evaluate = |passes_by: bool| {
            move |_: &TcpSocket| Evaluation {
                bypass: passes_by.then_some(WaypointBypass::RulesUnknown),
                ..evaluation(true, DecisionReason::NoPolicies)
            }
        };
        let length = Duration::from_secs(30);
        let mut grace = WaypointGracePeriod::new(Some(length));
        let mut earlier = PreCaptureConnections::default();
        let begin = Instant::now();
        let mut refused = |earlier: &mut PreCaptureConnections, now, passes_by| {
            let mut look = grace.begin_check(now);
            earlier
                .newly_denied(vec![socket()], &mut look, |_| false, evaluate(passes_by))
                .len()
        };
        assert_eq!(refused(&mut earlier, begin, false), 0);
        assert_eq!(refused(&mut earlier, begin, true), 0);
        // The policy is removed in time.
        assert_eq!(refused(&mut earlier, begin + length, false), 0);
        assert_eq!(refused(&mut earlier, begin + length, true), 0);
        assert_eq!(refused(&mut earlier, begin + length * 2, true), 1);
        // At capture the waypoint is required already: the setting decides.
        let mut earlier = PreCaptureConnections::default();
        assert_eq!(refused(&mut earlier, begin, true), 0);
        assert_eq!(refused(&mut earlier, begin + length, true), 0);
    }

    #[test]
    fn bypass_continues_until_a_layer_7_rule_could_apply() {
        let mut earlier = PreCaptureConnections::default();
        let mut grace = WaypointGracePeriod::new(None);
        let begin = Instant::now();
        let mut refused = |after: u64, bypass| {
            let mut look = grace.begin_check(begin + Duration::from_secs(after));
            let evaluate = |_: &TcpSocket| Evaluation {
                bypass: Some(bypass),
                ..evaluation(true, DecisionReason::NoPolicies)
            };
            earlier
                .newly_denied(vec![socket()], &mut look, |_| false, evaluate)
                .len()
        };
        assert_eq!(refused(0, WaypointBypass::NoRuleApplies), 0);
        assert_eq!(refused(3600, WaypointBypass::NoRuleApplies), 0);
        assert_eq!(refused(3600, WaypointBypass::RuleMayApply), 1);
    }

    #[test]
    fn only_newly_denied_connections_are_closed() {
        let mut earlier = PreCaptureConnections::default();
        // At capture the mode is STRICT already: the setting decides, and other changes do not
        // close the connection.
        assert_eq!(refused(&mut earlier, false, DecisionReason::Denied), 0);
        assert_eq!(
            refused(&mut earlier, false, DecisionReason::NoAllowPolicyMatched),
            0
        );
        // Allowed for some time, and then denied.
        assert_eq!(refused(&mut earlier, true, DecisionReason::NoPolicies), 0);
        assert_eq!(refused(&mut earlier, false, DecisionReason::Denied), 1);
        assert!(earlier.is_empty());
    }

    #[test]
    fn connections_from_the_node_are_spared_while_possibly_probes() {
        let mut earlier = PreCaptureConnections::default();
        let mut grace = WaypointGracePeriod::new(Some(Duration::ZERO));
        let mut refused = |allowed, is_spared| {
            let mut look = grace.begin_check(Instant::now());
            let evaluate = |_: &TcpSocket| evaluation(allowed, DecisionReason::Denied);
            earlier
                .newly_denied(vec![socket()], &mut look, |_| is_spared, evaluate)
                .len()
        };
        assert_eq!(refused(true, true), 0);
        assert_eq!(refused(false, true), 0);
        assert_eq!(refused(false, true), 0);
        assert_eq!(refused(false, false), 1);
    }

    #[test]
    fn policy_that_has_not_arrived_closes_nothing() {
        let mut earlier = PreCaptureConnections::default();
        let missing = DecisionReason::MissingPolicy(ArcStr::from("shop/strict"));
        assert_eq!(refused(&mut earlier, true, DecisionReason::NoPolicies), 0);
        assert_eq!(refused(&mut earlier, false, missing), 0);
        assert_eq!(refused(&mut earlier, false, DecisionReason::Denied), 1);
    }

    #[test]
    fn ended_connections_are_removed() {
        let mut earlier = PreCaptureConnections::default();
        assert_eq!(refused(&mut earlier, true, DecisionReason::NoPolicies), 0);
        let mut grace = WaypointGracePeriod::new(Some(Duration::ZERO));
        let mut look = grace.begin_check(Instant::now());
        let evaluate = |_: &TcpSocket| evaluation(true, DecisionReason::NoPolicies);
        let none = earlier.newly_denied(Vec::new(), &mut look, |_| false, evaluate);
        assert!(none.is_empty() && earlier.is_empty());
    }
}
