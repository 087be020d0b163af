//! What a change of policies, or of the pod's record, does to the connections that are open.
//!
//! What is denied now is cut at once. Two things have a grace, for connections that are open; new ones have none:
//!
//! - A policy that the pod's record names and nobody knows: the record and the policy come as two messages, in
//!   either order, and connections that were allowed must not end for the moment between them.
//! - A waypoint that everything has to come through from now on: connections that do not are cut after a while.
//!   Those that were led through a waypoint which is the pod's no longer go on as long as that waypoint's own
//!   connection to the pod, and that does not come through the new one.

use std::{pin::pin, time::Duration};

use ambit_authz::{Connection as Peer, Why};
use ambit_model::{PodName, Workload};
use tokio::{sync::watch, time::Instant};

use crate::{
    connection_table::{Connections, Course, Cut},
    local::LocalWorkload,
    state::SharedState,
};

/// Re-checks the connections to one instance at every change that concerns them.
#[derive(Debug)]
pub struct Recheck {
    changes: watch::Receiver<u64>,
    state: SharedState,
    name: PodName,
    connections: Connections,
    graces: Graces,
}

impl Recheck {
    /// Of the connections to `local`, from now on.
    pub fn new(local: &LocalWorkload, connections: &Connections, graces: Graces) -> Self {
        Self {
            changes: local.changes(),
            state: local.state().clone(),
            name: local.name().clone(),
            connections: connections.clone(),
            graces,
        }
    }

    /// Runs until the instance is `gone`, which this does not hold.
    pub async fn run(mut self, gone: impl Future<Output = ()>) {
        let mut gone = pin!(gone);
        loop {
            tokio::select! {
                () = &mut gone => return,
                changed = self.changes.changed() => if changed.is_err() { return },
                () = ambit_rt::sleep_until(self.graces.deadline()) => {}
            }
            let Some(workload) = self.state.local_workload(&self.name) else {
                // The record is gone: nothing new is let in; what was allowed stays until it ends.
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

/// Why a connection to `workload` may not go on, if so.
pub fn objection(
    state: &SharedState,
    workload: &Workload,
    peer: &Peer,
    course: Course,
) -> Option<Cut> {
    let decision = match course {
        Course::Direct => state.authorize(workload, peer),
        Course::ThroughWaypoint => state.authenticate(workload, peer),
    };
    match decision.why {
        _ if decision.allowed => {}
        Why::MissingPolicy(_) => return Some(Cut::MissingPolicy),
        _ => return Some(Cut::Policy),
    }
    let passes_by = course == Course::Direct && state.passes_by_waypoint(workload, peer);
    passes_by.then_some(Cut::PassesByWaypoint)
}

/// How long established connections may go on that may not be opened any more.
#[derive(Debug)]
pub struct Graces {
    missing_policy: Grace,
    waypoint: Grace,
}

impl Graces {
    /// Connections that wait for a policy may go on for `missing_policy`, those that do not come through a
    /// new waypoint for `waypoint`.
    pub fn new(missing_policy: Duration, waypoint: Duration) -> Self {
        Self {
            missing_policy: Grace::new(missing_policy),
            waypoint: Grace::new(waypoint),
        }
    }

    /// When to [`Self::recheck`] at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        let deadlines = [self.missing_policy.deadline(), self.waypoint.deadline()];
        deadlines.into_iter().flatten().min()
    }

    /// Nothing can be decided, and so nothing is waited for, until the next [`Self::recheck`].
    pub fn suspend(&mut self) {
        self.missing_policy.until = None;
        self.waypoint.until = None;
    }

    /// Decides all anew and cuts those that may not go on. Returns how many.
    pub fn recheck(
        &mut self,
        connections: &Connections,
        now: Instant,
        judge: impl Fn(&Peer, Course) -> Option<Cut>,
    ) -> usize {
        let mut missing_policy = self.missing_policy.look(now);
        let mut waypoint = self.waypoint.look(now);
        connections.recheck(|peer, course| {
            let objection = judge(peer, course)?;
            let goes_on = match objection {
                Cut::MissingPolicy => missing_policy.spares(),
                Cut::PassesByWaypoint => waypoint.spares(),
                Cut::Policy | Cut::Drain => false,
            };
            (!goes_on).then_some(objection)
        })
    }
}

/// How long connections go on that have the same reason to end.
#[derive(Debug)]
pub struct Grace {
    length: Duration,
    /// When they are cut, if there are any.
    until: Option<Instant>,
}

impl Grace {
    /// It begins when the first of them is found.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            until: None,
        }
    }

    /// When to look again at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Begins to look at all connections.
    pub fn look(&mut self, now: Instant) -> Look<'_> {
        Look {
            in_time: self.until.is_none_or(|until| now < until) && !self.length.is_zero(),
            grace: self,
            now,
            waits: false,
        }
    }
}

/// One look at all connections. When it ends, so does the grace, unless it has spared one.
#[derive(Debug)]
pub struct Look<'a> {
    grace: &'a mut Grace,
    now: Instant,
    in_time: bool,
    waits: bool,
}

impl Look<'_> {
    /// Whether a connection with this reason to end may go on for now.
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
        Graces::new(GRACE, GRACE * 3)
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
            1 => Some(Cut::MissingPolicy),
            _ => Some(Cut::Policy),
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
    async fn what_becomes_known_in_time_ends_the_waiting() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut graces = graces();
        let begin = Instant::now();
        let missing = |_: &Peer, _| Some(Cut::MissingPolicy);
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
        let mut graces = Graces::new(Duration::ZERO, GRACE);
        let missing = |_: &Peer, _| Some(Cut::MissingPolicy);
        assert_eq!(graces.recheck(&list, Instant::now(), missing), 1);
    }

    #[tokio::test]
    async fn each_reason_has_its_own_grace() {
        let list = Connections::default();
        let (_policy, mut direct) = (open(&list, 1), open(&list, 2));
        let led = open(&list, 3);
        led.handle().takes(Course::ThroughWaypoint);
        let mut graces = graces();
        let judge = |peer: &Peer, course| match (peer.destination.port(), course) {
            (1, _) => Some(Cut::MissingPolicy),
            (_, Course::Direct) => Some(Cut::PassesByWaypoint),
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
}
