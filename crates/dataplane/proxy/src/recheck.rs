//! What a change of policies does to the connections that are open.
//!
//! What is denied now is cut at once. A policy that the pod's record names and nobody knows is different: the
//! record and the policy come as two messages, in either order, and connections that were allowed must not end
//! for the moment between them. They have a grace; new connections have none.

use std::{pin::pin, time::Duration};

use ambit_authz::{Connection as Peer, Decision, Why};
use ambit_model::PodName;
use tokio::{sync::watch, time::Instant};

use crate::{
    connection_table::{Connections, Cut},
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
    grace: Grace,
}

impl Recheck {
    /// Of the connections to `local`, from now on. Those that wait for a policy may go on for `grace`.
    pub fn new(local: &LocalWorkload, connections: &Connections, grace: Duration) -> Self {
        Self {
            changes: local.changes(),
            state: local.state().clone(),
            name: local.name().clone(),
            connections: connections.clone(),
            grace: Grace::new(grace),
        }
    }

    /// Runs until the instance is `gone`, which this does not hold.
    pub async fn run(mut self, gone: impl Future<Output = ()>) {
        let mut gone = pin!(gone);
        loop {
            tokio::select! {
                () = &mut gone => return,
                changed = self.changes.changed() => if changed.is_err() { return },
                () = ambit_rt::sleep_until(self.grace.deadline()) => {}
            }
            let Some(workload) = self.state.local_workload(&self.name) else {
                // The record is gone: nothing new is let in; what was allowed stays until it ends.
                self.grace.suspend();
                continue;
            };
            let state = &self.state;
            let cut = self
                .grace
                .recheck(&self.connections, Instant::now(), |peer| {
                    state.authorize(&workload, peer)
                });
            if cut > 0 {
                tracing::info!(pod = %self.name, connections = cut, "policy change closed connections");
            }
        }
    }
}

/// How long established connections wait for policies that are not known yet.
#[derive(Debug)]
pub struct Grace {
    length: Duration,
    /// When those that wait for a policy are cut, if any do.
    until: Option<Instant>,
}

impl Grace {
    /// Connections that wait for a policy may go on for `length`.
    pub fn new(length: Duration) -> Self {
        Self {
            length,
            until: None,
        }
    }

    /// When to [`Self::recheck`] at the latest.
    pub fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Nothing can be decided, and so nothing is waited for, until the next [`Self::recheck`].
    pub fn suspend(&mut self) {
        self.until = None;
    }

    /// Decides all anew and cuts those that may not go on. Returns how many.
    pub fn recheck(
        &mut self,
        connections: &Connections,
        now: Instant,
        decide: impl Fn(&Peer) -> Decision,
    ) -> usize {
        let in_time = self.until.is_none_or(|until| now < until) && !self.length.is_zero();
        let mut waits = false;
        let cut = connections.recheck(|peer| {
            let decision = decide(peer);
            match decision.why {
                _ if decision.allowed => None,
                Why::MissingPolicy(_) if in_time => {
                    waits = true;
                    None
                }
                Why::MissingPolicy(_) => Some(Cut::MissingPolicy),
                _ => Some(Cut::Policy),
            }
        });
        // A date that cannot be reckoned is never.
        self.until = match self.until {
            until @ Some(_) if waits => until,
            _ if waits => now.checked_add(self.length),
            _ => None,
        };
        cut
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::connection_table::{Shown, Tracked};

    const GRACE: Duration = Duration::from_secs(10);

    fn decision(why: Why) -> Decision {
        Decision {
            allowed: matches!(why, Why::NoPolicies),
            decided_by: None,
            why,
            dry_run: Vec::new(),
        }
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
        let mut grace = Grace::new(GRACE);
        let decide = |peer: &Peer| match peer.destination.port() {
            1 => decision(Why::MissingPolicy("ns/coming".into())),
            _ => decision(Why::Denied),
        };
        let begin = Instant::now();
        assert_eq!(grace.recheck(&list, begin, decide), 1);
        assert_eq!(why_cut(&mut denied).await, Cut::Policy);
        assert_eq!(grace.deadline(), Some(begin + GRACE));
        // A later change does not prolong it.
        assert_eq!(grace.recheck(&list, begin + GRACE / 2, decide), 0);
        assert_eq!(grace.deadline(), Some(begin + GRACE));
        assert_eq!(grace.recheck(&list, begin + GRACE, decide), 1);
        assert_eq!(why_cut(&mut waits).await, Cut::MissingPolicy);
        assert_eq!(grace.deadline(), None);
    }

    #[tokio::test]
    async fn what_becomes_known_in_time_ends_the_waiting() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut grace = Grace::new(GRACE);
        let begin = Instant::now();
        let missing = |_: &Peer| decision(Why::MissingPolicy("ns/coming".into()));
        assert_eq!(grace.recheck(&list, begin, missing), 0);
        let allowed = |_: &Peer| decision(Why::NoPolicies);
        assert_eq!(grace.recheck(&list, begin + GRACE * 2, allowed), 0);
        assert_eq!(grace.deadline(), None);
        // The next one that is missing has its own grace.
        assert_eq!(grace.recheck(&list, begin + GRACE * 3, missing), 0);
        assert_eq!(grace.deadline(), Some(begin + GRACE * 4));
        grace.suspend();
        assert_eq!(grace.deadline(), None);
    }

    #[tokio::test]
    async fn without_a_grace_a_missing_policy_cuts_at_once() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut grace = Grace::new(Duration::ZERO);
        let missing = |_: &Peer| decision(Why::MissingPolicy("ns/coming".into()));
        assert_eq!(grace.recheck(&list, Instant::now(), missing), 1);
    }
}
