//! What a change of policies does to the connections that are open.
//!
//! What is denied now is cut at once. A policy that the pod's record names and nobody knows is another
//! matter: the record and the policy come as two messages, in either order, and connections that were
//! allowed must not end for the moment between them. They have a grace; new connections have none.

use std::time::Duration;

use ambit_authz::{Connection as Peer, Decision, Why};
use tokio::time::Instant;

use crate::connections::{Connections, Cut};

/// The standing connections of one pod.
#[derive(Debug)]
pub(crate) struct Standing {
    grace: Duration,
    /// When those that wait for a policy are cut, if any do.
    until: Option<Instant>,
}

impl Standing {
    /// Connections that wait for a policy may go on for `grace`.
    pub(crate) fn new(grace: Duration) -> Self {
        Self { grace, until: None }
    }

    /// When to [`Self::recheck`] at the latest.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.until
    }

    /// Nothing can be decided, and so nothing is waited for, until the next [`Self::recheck`].
    pub(crate) fn suspend(&mut self) {
        self.until = None;
    }

    /// Decides all anew and cuts those that may not go on. Returns how many.
    pub(crate) fn recheck(
        &mut self,
        connections: &Connections,
        now: Instant,
        decide: impl Fn(&Peer) -> Decision,
    ) -> usize {
        let in_time = self.until.is_none_or(|until| now < until) && !self.grace.is_zero();
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
            _ if waits => now.checked_add(self.grace),
            _ => None,
        };
        cut
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use super::*;
    use crate::connections::{Shown, Tracked};

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
        let mut standing = Standing::new(GRACE);
        let decide = |peer: &Peer| match peer.destination.port() {
            1 => decision(Why::MissingPolicy("ns/coming".into())),
            _ => decision(Why::Denied),
        };
        let begin = Instant::now();
        assert_eq!(standing.recheck(&list, begin, decide), 1);
        assert_eq!(why_cut(&mut denied).await, Cut::Policy);
        assert_eq!(standing.deadline(), Some(begin + GRACE));
        // A later change does not prolong it.
        assert_eq!(standing.recheck(&list, begin + GRACE / 2, decide), 0);
        assert_eq!(standing.deadline(), Some(begin + GRACE));
        assert_eq!(standing.recheck(&list, begin + GRACE, decide), 1);
        assert_eq!(why_cut(&mut waits).await, Cut::MissingPolicy);
        assert_eq!(standing.deadline(), None);
    }

    #[tokio::test]
    async fn what_becomes_known_in_time_ends_the_waiting() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut standing = Standing::new(GRACE);
        let begin = Instant::now();
        let missing = |_: &Peer| decision(Why::MissingPolicy("ns/coming".into()));
        assert_eq!(standing.recheck(&list, begin, missing), 0);
        let allowed = |_: &Peer| decision(Why::NoPolicies);
        assert_eq!(standing.recheck(&list, begin + GRACE * 2, allowed), 0);
        assert_eq!(standing.deadline(), None);
        // The next one that is missing has its own grace.
        assert_eq!(standing.recheck(&list, begin + GRACE * 3, missing), 0);
        assert_eq!(standing.deadline(), Some(begin + GRACE * 4));
        standing.suspend();
        assert_eq!(standing.deadline(), None);
    }

    #[tokio::test]
    async fn without_a_grace_a_missing_policy_cuts_at_once() {
        let list = Connections::default();
        let _open = open(&list, 1);
        let mut standing = Standing::new(Duration::ZERO);
        let missing = |_: &Peer| decision(Why::MissingPolicy("ns/coming".into()));
        assert_eq!(standing.recheck(&list, Instant::now(), missing), 1);
    }
}
