//! Re-check of open connections after a change of policies or of the pod's record.
//!
//! Denied connections are terminated at once. In two cases open connections have a grace period; new ones have none:
//!
//! - An unknown policy that the pod's record names: the record and the policy come as two messages, in either order,
//!   and connections that were allowed must not end for the moment between them.
//! - A new waypoint of the pod. Connections that bypass it are closed at once if a layer 7 rule could apply to them,
//!   since their requests cannot be authorized by it. Others continue until they end, or for the configured grace
//!   period. While the waypoint's rules are unknown, all are closed after a grace period. Connections through the pod's
//!   former waypoint continue as long as that waypoint's own connection to the pod, which bypasses the new one.

use std::{pin::pin, time::Duration};

use ambit_authz::{Connection as Peer, DecisionReason};
use ambit_model::{PodName, Workload};
use ambit_route::WaypointBypass;
use tokio::{sync::watch, time::Instant};

use crate::{
    connection_table::{ConnectionPath, ConnectionTable, TerminationReason},
    local::LocalWorkload,
    state::SharedState,
};

/// Grace period of connections that bypass a new waypoint with unknown rules.
const UNKNOWN_RULES_GRACE: Duration = Duration::from_secs(30);

/// Re-checks the connections to one instance at every relevant change.
#[derive(Debug)]
pub struct ConnectionRecheck {
    changes: watch::Receiver<u64>,
    state: SharedState,
    name: PodName,
    connections: ConnectionTable,
    grace_periods: GracePeriods,
}

impl ConnectionRecheck {
    /// Creates the re-check of the inbound connections of `local`.
    pub fn new(local: &LocalWorkload, connections: &ConnectionTable, graces: GracePeriods) -> Self {
        Self {
            changes: local.changes(),
            state: local.state().clone(),
            name: local.name().clone(),
            connections: connections.clone(),
            grace_periods: graces,
        }
    }

    /// Re-checks connections at every change until `gone` completes, when the instance has ended. The task does not
    /// keep the instance alive.
    pub async fn run(mut self, gone: impl Future<Output = ()>) {
        let mut gone = pin!(gone);
        loop {
            tokio::select! {
                () = &mut gone => return,
                changed = self.changes.changed() => if changed.is_err() { return },
                () = ambit_rt::sleep_until(self.grace_periods.deadline()) => {}
            }
            let Some(workload) = self.state.local_workload(&self.name) else {
                // The record is gone: new connections are refused; allowed ones stay until they end.
                self.grace_periods.suspend();
                continue;
            };
            let state = &self.state;
            let judge = |peer: &Peer, course| denial_reason(state, &workload, peer, course);
            let cut = self
                .grace_periods
                .recheck(&self.connections, Instant::now(), judge);
            if cut > 0 {
                tracing::info!(
                    pod = %self.name, connections = cut,
                    "a change of policies or of the waypoint closed connections"
                );
            }
        }
    }
}

/// Reason why an open connection would be denied if it were opened now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DenialReason {
    /// A layer 4 policy denies the connection.
    Policy,
    /// The pod's record names an unknown policy.
    MissingPolicy,
    /// The connection bypasses the pod's waypoint; the field is whether layer 7 rules could apply to it.
    Bypass(WaypointBypass),
}

/// Returns the reason why a connection to `workload` would be denied if it were opened now, if any.
pub fn denial_reason(
    state: &SharedState,
    workload: &Workload,
    peer: &Peer,
    course: ConnectionPath,
) -> Option<DenialReason> {
    let decision = match course {
        ConnectionPath::Direct => state.authorize(workload, peer),
        ConnectionPath::ThroughWaypoint => state.authenticate(workload, peer),
    };
    match decision.reason {
        _ if decision.allowed => {}
        DecisionReason::MissingPolicy(_) => return Some(DenialReason::MissingPolicy),
        _ => return Some(DenialReason::Policy),
    }
    match course {
        ConnectionPath::Direct => state
            .waypoint_bypass(workload, peer)
            .map(DenialReason::Bypass),
        ConnectionPath::ThroughWaypoint => None,
    }
}

/// Grace periods of open connections that would be denied if they were opened now.
#[derive(Debug)]
pub struct GracePeriods {
    missing_policy: GracePeriod,
    waypoint: WaypointGracePeriod,
}

impl GracePeriods {
    /// Creates the grace periods: `missing_policy` applies to connections that wait for an unknown policy; for
    /// `waypoint`, see [`WaypointGracePeriod::new`].
    pub fn new(missing_policy: Duration, waypoint: Option<Duration>) -> Self {
        Self {
            missing_policy: GracePeriod::new(missing_policy),
            waypoint: WaypointGracePeriod::new(waypoint),
        }
    }

    /// Returns the time by which [`Self::recheck`] must run again, if connections are in a grace period.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.missing_policy.deadline(), self.waypoint.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Suspends all deadlines until the next [`Self::recheck`], since no decision is possible until then.
    pub fn suspend(&mut self) {
        self.missing_policy.ends_at = None;
        self.waypoint.grace.ends_at = None;
    }

    /// Authorizes all open connections again and terminates those that are denied and have no grace period left.
    /// Returns their number.
    pub fn recheck(
        &mut self,
        connections: &ConnectionTable,
        now: Instant,
        judge: impl Fn(&Peer, ConnectionPath) -> Option<DenialReason>,
    ) -> usize {
        let mut missing_policy = self.missing_policy.begin_check(now);
        let mut waypoint = self.waypoint.begin_check(now);
        connections.recheck(|peer, course| {
            let (goes_on, cut) = match judge(peer, course)? {
                DenialReason::Policy => (false, TerminationReason::PolicyChange),
                DenialReason::MissingPolicy => (
                    missing_policy.allows_for_now(),
                    TerminationReason::MissingPolicy,
                ),
                DenialReason::Bypass(WaypointBypass::RuleMayApply) => {
                    (false, TerminationReason::WaypointRuleMayApply)
                }
                DenialReason::Bypass(bypass) => (
                    waypoint.allows_for_now(bypass),
                    TerminationReason::BypassesWaypoint,
                ),
            };
            (!goes_on).then_some(cut)
        })
    }
}

/// Grace period of open connections that bypass a new waypoint.
#[derive(Debug)]
pub struct WaypointGracePeriod {
    grace: GracePeriod,
    limits_all_bypasses: bool,
}

impl WaypointGracePeriod {
    /// Creates the grace period; `limit` applies to all connections. Without a limit, connections to which no layer 7
    /// rule could apply continue until they end.
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            grace: GracePeriod::new(limit.unwrap_or(UNKNOWN_RULES_GRACE)),
            limits_all_bypasses: limit.is_some(),
        }
    }

    /// Returns the time by which the connections must be checked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.grace.deadline()
    }

    /// Starts a check of all connections of the pod.
    pub fn begin_check(&mut self, now: Instant) -> WaypointGraceCheck<'_> {
        WaypointGraceCheck {
            grace_check: self.grace.begin_check(now),
            limits_all_bypasses: self.limits_all_bypasses,
        }
    }
}

/// Check of all connections of the pod against the grace period of a new waypoint; see [`GraceCheck`].
#[derive(Debug)]
pub struct WaypointGraceCheck<'a> {
    grace_check: GraceCheck<'a>,
    limits_all_bypasses: bool,
}

impl WaypointGraceCheck<'_> {
    /// Whether a connection with this bypass may continue until it ends.
    pub fn allows_until_end(&self, bypass: WaypointBypass) -> bool {
        bypass == WaypointBypass::NoRuleApplies && !self.limits_all_bypasses
    }

    /// Whether a connection with this bypass may continue until its grace period ends.
    pub fn allows_for_now(&mut self, bypass: WaypointBypass) -> bool {
        self.allows_until_end(bypass)
            || bypass != WaypointBypass::RuleMayApply && self.grace_check.allows_for_now()
    }
}

/// Grace period that all connections with the same denial reason share.
#[derive(Debug)]
pub struct GracePeriod {
    length: Duration,
    /// Time at which the connections are terminated; `None` without such connections.
    ends_at: Option<Instant>,
}

impl GracePeriod {
    /// Creates a grace period of `length`, which begins when a check first spares a connection.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            ends_at: None,
        }
    }

    /// Returns the time by which the connections must be checked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.ends_at
    }

    /// Starts a check of all connections of the pod.
    pub fn begin_check(&mut self, now: Instant) -> GraceCheck<'_> {
        GraceCheck {
            has_time_left: self.ends_at.is_none_or(|until| now < until) && !self.length.is_zero(),
            grace: self,
            now,
            has_spared_connection: false,
        }
    }
}

/// Check of all connections of the pod against one grace period. When the check is dropped without a spared connection,
/// the grace period is reset.
#[derive(Debug)]
pub struct GraceCheck<'a> {
    grace: &'a mut GracePeriod,
    now: Instant,
    has_time_left: bool,
    has_spared_connection: bool,
}

impl GraceCheck<'_> {
    /// Whether a denied connection may continue, since the grace period has not ended.
    pub fn allows_for_now(&mut self) -> bool {
        self.has_spared_connection |= self.has_time_left;
        self.has_time_left
    }
}

impl Drop for GraceCheck<'_> {
    fn drop(&mut self) {
        let GracePeriod {
            length,
            ends_at: until,
        } = &mut *self.grace;
        // A date that cannot be reckoned is never.
        *until = match *until {
            Some(until) if self.has_spared_connection => Some(until),
            _ if self.has_spared_connection => self.now.checked_add(*length),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use ambit_codec::Authority;

    use crate::connection_table::{ConnectionDetails, TrackedConnection};

    const GRACE: Duration = Duration::from_secs(10);

    fn graces() -> GracePeriods {
        GracePeriods::new(GRACE, Some(GRACE * 3))
    }

    fn open(list: &ConnectionTable, port: u16) -> TrackedConnection {
        let shown = ConnectionDetails {
            src: ([10, 0, 0, 1], port).into(),
            original_dst: Authority::Ip(([10, 0, 0, 2], 80).into()),
            actual_dst: None,
            protocol: "TCP",
        };
        let peer = Peer {
            source: None,
            source_ip: [10, 0, 0, 1].into(),
            destination: ([10, 0, 0, 2], port).into(),
        };
        list.add_inbound(shown, peer)
    }

    async fn termination_reason(tracked: &mut TrackedConnection) -> TerminationReason {
        tracked
            .run_until_terminated(pin!(std::future::pending::<()>()))
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn a_missing_policy_cuts_when_the_grace_is_over_and_a_denial_at_once() {
        let list = ConnectionTable::default();
        let (mut waits, mut denied) = (open(&list, 1), open(&list, 2));
        let mut graces = graces();
        let judge = |peer: &Peer, _| match peer.destination.port() {
            1 => Some(DenialReason::MissingPolicy),
            _ => Some(DenialReason::Policy),
        };
        let begin = Instant::now();
        assert_eq!(graces.recheck(&list, begin, judge), 1);
        assert_eq!(
            termination_reason(&mut denied).await,
            TerminationReason::PolicyChange
        );
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        // A later change does not prolong it.
        assert_eq!(graces.recheck(&list, begin + GRACE / 2, judge), 0);
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        assert_eq!(graces.recheck(&list, begin + GRACE, judge), 1);
        assert_eq!(
            termination_reason(&mut waits).await,
            TerminationReason::MissingPolicy
        );
        assert_eq!(graces.deadline(), None);
    }

    #[tokio::test]
    async fn policies_received_in_time_end_the_grace_period() {
        let list = ConnectionTable::default();
        let _open = open(&list, 1);
        let mut graces = graces();
        let begin = Instant::now();
        let missing = |_: &Peer, _| Some(DenialReason::MissingPolicy);
        assert_eq!(graces.recheck(&list, begin, missing), 0);
        assert_eq!(graces.recheck(&list, begin + GRACE * 2, |_, _| None), 0);
        assert_eq!(graces.deadline(), None);
        // The next one that is missing has its own grace.
        assert_eq!(graces.recheck(&list, begin + GRACE * 3, missing), 0);
        assert_eq!(graces.deadline(), Some(begin + GRACE * 4));
        graces.suspend();
        assert_eq!(graces.deadline(), None);
    }

    #[tokio::test]
    async fn without_a_grace_a_missing_policy_cuts_at_once() {
        let list = ConnectionTable::default();
        let _open = open(&list, 1);
        let mut graces = GracePeriods::new(Duration::ZERO, Some(GRACE));
        let missing = |_: &Peer, _| Some(DenialReason::MissingPolicy);
        assert_eq!(graces.recheck(&list, Instant::now(), missing), 1);
    }

    #[tokio::test]
    async fn each_reason_has_its_own_grace() {
        let list = ConnectionTable::default();
        let (_policy, mut direct) = (open(&list, 1), open(&list, 2));
        let redirected = open(&list, 3);
        redirected
            .handle()
            .set_path(ConnectionPath::ThroughWaypoint);
        let mut graces = graces();
        let judge = |peer: &Peer, course| match (peer.destination.port(), course) {
            (1, _) => Some(DenialReason::MissingPolicy),
            (_, ConnectionPath::Direct) => Some(DenialReason::Bypass(WaypointBypass::RulesUnknown)),
            (_, ConnectionPath::ThroughWaypoint) => None,
        };
        let begin = Instant::now();
        assert_eq!(graces.recheck(&list, begin, judge), 0);
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        assert_eq!(graces.recheck(&list, begin + GRACE, judge), 1);
        assert_eq!(graces.deadline(), Some(begin + GRACE * 3));
        assert_eq!(graces.recheck(&list, begin + GRACE * 3, judge), 1);
        assert_eq!(
            termination_reason(&mut direct).await,
            TerminationReason::BypassesWaypoint
        );
        assert_eq!((graces.deadline(), list.len()), (None, 1));
    }

    /// Returns the time from the first check to the termination of a connection that bypasses the waypoint; `None` if
    /// it is never terminated.
    fn time_to_termination(bypass: WaypointBypass, limit: Option<Duration>) -> Option<Duration> {
        let list = ConnectionTable::default();
        let _open = open(&list, 80);
        let mut graces = GracePeriods::new(GRACE, limit);
        let begin = Instant::now();
        let judge = |_: &Peer, _| Some(DenialReason::Bypass(bypass));
        if graces.recheck(&list, begin, judge) == 1 {
            return Some(Duration::ZERO);
        }
        let deadline = graces.deadline()?;
        assert_eq!(graces.recheck(&list, deadline, judge), 1);
        Some(deadline - begin)
    }

    #[test]
    fn grace_of_bypasses_depends_on_rules_and_setting() {
        let limit = GRACE * 3;
        for (bypass, unset, set) in [
            (
                WaypointBypass::RulesUnknown,
                Some(UNKNOWN_RULES_GRACE),
                Some(limit),
            ),
            (WaypointBypass::NoRuleApplies, None, Some(limit)),
            (
                WaypointBypass::RuleMayApply,
                Some(Duration::ZERO),
                Some(Duration::ZERO),
            ),
        ] {
            assert_eq!(time_to_termination(bypass, None), unset, "{bypass:?}");
            assert_eq!(time_to_termination(bypass, Some(limit)), set, "{bypass:?}");
        }
    }

    #[tokio::test]
    async fn a_rule_that_comes_later_cuts_a_bypass_at_once() {
        let list = ConnectionTable::default();
        let (_other, mut concerned) = (open(&list, 1), open(&list, 2));
        let mut graces = GracePeriods::new(GRACE, None);
        let begin = Instant::now();
        let judge = |bypass| {
            move |peer: &Peer, _| match peer.destination.port() {
                1 => Some(DenialReason::Bypass(WaypointBypass::NoRuleApplies)),
                _ => Some(DenialReason::Bypass(bypass)),
            }
        };
        // Not known at first: the grace that begins ends with what becomes known.
        assert_eq!(
            graces.recheck(&list, begin, judge(WaypointBypass::RulesUnknown)),
            0
        );
        assert!(graces.deadline().is_some());
        let later = begin + UNKNOWN_RULES_GRACE * 9;
        assert_eq!(
            graces.recheck(&list, later, judge(WaypointBypass::NoRuleApplies)),
            0
        );
        assert_eq!(graces.deadline(), None);
        assert_eq!(
            graces.recheck(&list, later, judge(WaypointBypass::RuleMayApply)),
            1
        );
        assert_eq!(
            termination_reason(&mut concerned).await,
            TerminationReason::WaypointRuleMayApply
        );
        assert_eq!((graces.deadline(), list.len()), (None, 1));
    }
}
