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

use ambit_authz::{Connection as Peer, Why};
use ambit_model::{PodName, Workload};
use ambit_route::Bypass;
use tokio::{sync::watch, time::Instant};

use crate::{
    connection_table::{Connections, Course, Cut},
    local::LocalWorkload,
    state::SharedState,
};

/// Grace period of connections that bypass a new waypoint with unknown rules.
const UNKNOWN_RULES_GRACE: Duration = Duration::from_secs(30);

/// Re-checks the connections to one instance at every relevant change.
#[derive(Debug)]
pub struct Recheck {
    changes: watch::Receiver<u64>,
    state: SharedState,
    name: PodName,
    connections: Connections,
    graces: Graces,
}

impl Recheck {
    /// Starts to re-check the connections of `local` at every change.
    pub fn new(local: &LocalWorkload, connections: &Connections, graces: Graces) -> Self {
        Self {
            changes: local.changes(),
            state: local.state().clone(),
            name: local.name().clone(),
            connections: connections.clone(),
            graces,
        }
    }

    /// Runs until the instance is `gone`, without keeping it alive.
    pub async fn run(mut self, gone: impl Future<Output = ()>) {
        let mut gone = pin!(gone);
        loop {
            tokio::select! {
                () = &mut gone => return,
                changed = self.changes.changed() => if changed.is_err() { return },
                () = ambit_rt::sleep_until(self.graces.deadline()) => {}
            }
            let Some(workload) = self.state.local_workload(&self.name) else {
                // The record is gone: new connections are refused; allowed ones stay until they end.
                self.graces.suspend();
                continue;
            };
            let state = &self.state;
            let judge = |peer: &Peer, course| objection(state, &workload, peer, course);
            let cut = self
                .graces
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
pub enum Objection {
    /// Denied by a layer 4 policy.
    Policy,
    /// The pod's record names an unknown policy.
    MissingPolicy,
    /// The connection bypasses the pod's waypoint; the field is whether layer 7 rules could apply to it.
    Bypass(Bypass),
}

/// Returns the reason why a connection to `workload` would be denied if it were opened now, if any.
pub fn objection(
    state: &SharedState,
    workload: &Workload,
    peer: &Peer,
    course: Course,
) -> Option<Objection> {
    let decision = match course {
        Course::Direct => state.authorize(workload, peer),
        Course::ThroughWaypoint => state.authenticate(workload, peer),
    };
    match decision.why {
        _ if decision.allowed => {}
        Why::MissingPolicy(_) => return Some(Objection::MissingPolicy),
        _ => return Some(Objection::Policy),
    }
    match course {
        Course::Direct => state.bypass(workload, peer).map(Objection::Bypass),
        Course::ThroughWaypoint => None,
    }
}

/// Grace periods of open connections that would be denied if they were opened now.
#[derive(Debug)]
pub struct Graces {
    missing_policy: Grace,
    waypoint: WaypointGrace,
}

impl Graces {
    /// Creates the grace periods: `missing_policy` applies to connections that wait for an unknown policy; for
    /// `waypoint`, see [`WaypointGrace::new`].
    pub fn new(missing_policy: Duration, waypoint: Option<Duration>) -> Self {
        Self {
            missing_policy: Grace::new(missing_policy),
            waypoint: WaypointGrace::new(waypoint),
        }
    }

    /// Returns the time by which [`Self::recheck`] must run again, if connections are in a grace period.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.missing_policy.deadline(), self.waypoint.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Suspends all deadlines until the next [`Self::recheck`], since no decision is possible until then.
    pub fn suspend(&mut self) {
        self.missing_policy.until = None;
        self.waypoint.grace.until = None;
    }

    /// Authorizes all open connections again and terminates those that are denied and have no grace period left.
    /// Returns their number.
    pub fn recheck(
        &mut self,
        connections: &Connections,
        now: Instant,
        judge: impl Fn(&Peer, Course) -> Option<Objection>,
    ) -> usize {
        let mut missing_policy = self.missing_policy.look(now);
        let mut waypoint = self.waypoint.look(now);
        connections.recheck(|peer, course| {
            let (goes_on, cut) = match judge(peer, course)? {
                Objection::Policy => (false, Cut::Policy),
                Objection::MissingPolicy => (missing_policy.spares(), Cut::MissingPolicy),
                Objection::Bypass(Bypass::Ruled) => (false, Cut::WaypointRule),
                Objection::Bypass(bypass) => (waypoint.spares(bypass), Cut::PassesByWaypoint),
            };
            (!goes_on).then_some(cut)
        })
    }
}

/// Grace period of open connections that bypass a new waypoint.
#[derive(Debug)]
pub struct WaypointGrace {
    grace: Grace,
    limits_all: bool,
}

impl WaypointGrace {
    /// Creates the grace period; `limit` applies to all connections. Without a limit, connections to which no layer 7
    /// rule could apply continue until they end.
    pub fn new(limit: Option<Duration>) -> Self {
        Self {
            grace: Grace::new(limit.unwrap_or(UNKNOWN_RULES_GRACE)),
            limits_all: limit.is_some(),
        }
    }

    /// Returns the time by which the connections must be checked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.grace.deadline()
    }

    /// Starts a check of all connections of the pod.
    pub fn look(&mut self, now: Instant) -> WaypointLook<'_> {
        WaypointLook {
            look: self.grace.look(now),
            limits_all: self.limits_all,
        }
    }
}

/// Grace periods that one check of all connections uses, see [`Look`].
#[derive(Debug)]
pub struct WaypointLook<'a> {
    look: Look<'a>,
    limits_all: bool,
}

impl WaypointLook<'_> {
    /// Whether a connection with this bypass may continue until it ends.
    pub fn exempts(&self, bypass: Bypass) -> bool {
        bypass == Bypass::Unruled && !self.limits_all
    }

    /// Whether a connection with this bypass may continue until its grace period ends.
    pub fn spares(&mut self, bypass: Bypass) -> bool {
        self.exempts(bypass) || bypass != Bypass::Ruled && self.look.spares()
    }
}

/// Grace period shared by connections with the same reason to be closed.
#[derive(Debug)]
pub struct Grace {
    length: Duration,
    /// Time at which the connections are terminated; `None` without such connections.
    until: Option<Instant>,
}

impl Grace {
    /// Creates a grace period that begins when the first such connection is found.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            until: None,
        }
    }

    /// Returns the time by which the connections must be checked again.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Starts a check of all connections of the pod.
    pub fn look(&mut self, now: Instant) -> Look<'_> {
        Look {
            in_time: self.until.is_none_or(|until| now < until) && !self.length.is_zero(),
            grace: self,
            now,
            waits: false,
        }
    }
}

/// Check of all connections of the pod. The grace period is reset at its end, unless a connection was spared.
#[derive(Debug)]
pub struct Look<'a> {
    grace: &'a mut Grace,
    now: Instant,
    in_time: bool,
    waits: bool,
}

impl Look<'_> {
    /// Whether a connection with this reason to be terminated may continue for now.
    pub fn spares(&mut self) -> bool {
        self.waits |= self.in_time;
        self.in_time
    }
}

impl Drop for Look<'_> {
    fn drop(&mut self) {
        let Grace { length, until } = &mut *self.grace;
        // A date that cannot be reckoned is never.
        *until = match *until {
            Some(until) if self.waits => Some(until),
            _ if self.waits => self.now.checked_add(*length),
            _ => None,
        };
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::connection_table::{Shown, Tracked};

    const GRACE: Duration = Duration::from_secs(10);

    fn graces() -> Graces {
        Graces::new(GRACE, Some(GRACE * 3))
    }

    fn open(list: &Connections, port: u16) -> Tracked {
        let shown = Shown {
            src: ([10, 0, 0, 1], port).into(),
            original_dst: "10.0.0.2:80".into(),
            actual_dst: String::new(),
            protocol: "TCP",
        };
        let peer = Peer {
            source: None,
            source_ip: [10, 0, 0, 1].into(),
            destination: ([10, 0, 0, 2], port).into(),
        };
        list.inbound(shown, peer)
    }

    async fn why_cut(tracked: &mut Tracked) -> Cut {
        tracked
            .unless_cut(pin!(std::future::pending::<()>()))
            .await
            .unwrap_err()
    }

    #[tokio::test]
    async fn a_missing_policy_cuts_when_the_grace_is_over_and_a_denial_at_once() {
        let list = Connections::default();
        let (mut waits, mut denied) = (open(&list, 1), open(&list, 2));
        let mut graces = graces();
        let judge = |peer: &Peer, _| match peer.destination.port() {
            1 => Some(Objection::MissingPolicy),
            _ => Some(Objection::Policy),
        };
        let begin = Instant::now();
        assert_eq!(graces.recheck(&list, begin, judge), 1);
        assert_eq!(why_cut(&mut denied).await, Cut::Policy);
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        // A later change does not prolong it.
        assert_eq!(graces.recheck(&list, begin + GRACE / 2, judge), 0);
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        assert_eq!(graces.recheck(&list, begin + GRACE, judge), 1);
        assert_eq!(why_cut(&mut waits).await, Cut::MissingPolicy);
        assert_eq!(graces.deadline(), None);
    }

    #[tokio::test]
    async fn policies_received_in_time_end_the_grace_period() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut graces = graces();
        let begin = Instant::now();
        let missing = |_: &Peer, _| Some(Objection::MissingPolicy);
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
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut graces = Graces::new(Duration::ZERO, Some(GRACE));
        let missing = |_: &Peer, _| Some(Objection::MissingPolicy);
        assert_eq!(graces.recheck(&list, Instant::now(), missing), 1);
    }

    #[tokio::test]
    async fn each_reason_has_its_own_grace() {
        let list = Connections::default();
        let (_policy, mut direct) = (open(&list, 1), open(&list, 2));
        let redirected = open(&list, 3);
        redirected.handle().takes(Course::ThroughWaypoint);
        let mut graces = graces();
        let judge = |peer: &Peer, course| match (peer.destination.port(), course) {
            (1, _) => Some(Objection::MissingPolicy),
            (_, Course::Direct) => Some(Objection::Bypass(Bypass::Unknown)),
            (_, Course::ThroughWaypoint) => None,
        };
        let begin = Instant::now();
        assert_eq!(graces.recheck(&list, begin, judge), 0);
        assert_eq!(graces.deadline(), Some(begin + GRACE));
        assert_eq!(graces.recheck(&list, begin + GRACE, judge), 1);
        assert_eq!(graces.deadline(), Some(begin + GRACE * 3));
        assert_eq!(graces.recheck(&list, begin + GRACE * 3, judge), 1);
        assert_eq!(why_cut(&mut direct).await, Cut::PassesByWaypoint);
        assert_eq!((graces.deadline(), list.len()), (None, 1));
    }

    /// Returns the time from the first check to the termination of a connection that bypasses the waypoint; `None` if
    /// it is never terminated.
    fn end_of(bypass: Bypass, limit: Option<Duration>) -> Option<Duration> {
        let list = Connections::default();
        let _open = open(&list, 80);
        let mut graces = Graces::new(GRACE, limit);
        let begin = Instant::now();
        let judge = |_: &Peer, _| Some(Objection::Bypass(bypass));
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
            (Bypass::Unknown, Some(UNKNOWN_RULES_GRACE), Some(limit)),
            (Bypass::Unruled, None, Some(limit)),
            (Bypass::Ruled, Some(Duration::ZERO), Some(Duration::ZERO)),
        ] {
            assert_eq!(end_of(bypass, None), unset, "{bypass:?}");
            assert_eq!(end_of(bypass, Some(limit)), set, "{bypass:?}");
        }
    }

    #[tokio::test]
    async fn a_rule_that_comes_later_cuts_a_bypass_at_once() {
        let list = Connections::default();
        let (_other, mut concerned) = (open(&list, 1), open(&list, 2));
        let mut graces = Graces::new(GRACE, None);
        let begin = Instant::now();
        let judge = |bypass| {
            move |peer: &Peer, _| match peer.destination.port() {
                1 => Some(Objection::Bypass(Bypass::Unruled)),
                _ => Some(Objection::Bypass(bypass)),
            }
        };
        // Not known at first: the grace that begins ends with what becomes known.
        assert_eq!(graces.recheck(&list, begin, judge(Bypass::Unknown)), 0);
        assert!(graces.deadline().is_some());
        let later = begin + UNKNOWN_RULES_GRACE * 9;
        assert_eq!(graces.recheck(&list, later, judge(Bypass::Unruled)), 0);
        assert_eq!(graces.deadline(), None);
        assert_eq!(graces.recheck(&list, later, judge(Bypass::Ruled)), 1);
        assert_eq!(why_cut(&mut concerned).await, Cut::WaypointRule);
        assert_eq!((graces.deadline(), list.len()), (None, 1));
    }
}
