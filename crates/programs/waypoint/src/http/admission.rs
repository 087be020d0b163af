//! What was judged of a request, kept for as long as it is under way: when policies change it is judged again, and
//! nothing more of what they now deny passes.
//!
//! What its tokens have proved is not proved again: a token that expires meanwhile was valid when the request began. But
//! it counts only as long as somebody would still believe it: when the rule, the audience or the key that it was valid
//! by is withdrawn, the request is judged as one without that token.

use std::sync::Arc;

use ambit_jwt::{Authenticated, Claims};
use ambit_l7::authz::{Connection, HttpDecision, Request};
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::session::Session;

/// A request that policies have admitted.
#[derive(Clone, Debug)]
pub(super) struct Admission(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    session: Arc<Session>,
    method: Method,
    host: String,
    path: String,
    headers: HeaderMap,
    proved: Authenticated,
    changes: Mutex<watch::Receiver<u64>>,
}

/// A policy changed, and the request may not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy changed and denies the request now")]
pub(super) struct NoLonger;

impl Admission {
    /// Judges a request.
    ///
    /// # Errors
    /// With the decision, if it is denied.
    pub(super) fn of(
        session: &Arc<Session>,
        method: Method,
        host: String,
        path: String,
        headers: HeaderMap,
        proved: Authenticated,
    ) -> (HttpDecision, Option<Self>) {
        // From before the decision on, so that no change is missed.
        let changes = session.shard.waypoint.published.watch();
        let inner = Inner {
            session: session.clone(),
            method,
            host,
            path,
            headers,
            proved,
            changes: Mutex::new(changes),
        };
        let decision = inner.judge();
        let admitted = decision.is_allowed();
        (decision, admitted.then(|| Self(Arc::new(inner))))
    }

    /// Whether it is still allowed. Cheap while nothing changes.
    ///
    /// # Errors
    /// When it is not.
    pub(super) fn check(&self) -> Result<(), NoLonger> {
        {
            let mut changes = self.0.changes.lock();
            if !changes.has_changed().unwrap_or(false) {
                return Ok(());
            }
            changes.mark_unchanged();
        }
        if self.0.judge().is_allowed() {
            Ok(())
        } else {
            Err(NoLonger)
        }
    }

    /// Ends when it is not allowed any more.
    pub(super) async fn revoked(&self) {
        let mut changes = self.0.session.shard.waypoint.published.watch();
        loop {
            if !self.0.judge().is_allowed() {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Inner {
    /// With several tokens, the claims of each have to be enough.
    fn judge(&self) -> HttpDecision {
        if self.proved.is_empty() {
            return self.judge_with(None);
        }
        let all = self.session.shard.waypoint.published.authentications();
        let service = self.session.target.service_name();
        let mut last = None;
        for claims in all.still_believed(service, &self.proved) {
            let decision = self.judge_with(Some(claims));
            if !decision.is_allowed() {
                return decision;
            }
            last = Some(decision);
        }
        last.unwrap_or_else(|| self.judge_with(None))
    }

    fn judge_with(&self, claims: Option<&Claims>) -> HttpDecision {
        let caller = &self.session.caller;
        let request = Request {
            connection: Connection {
                source: caller.identity.as_ref(),
                source_ip: caller.address.ip(),
                remote_ip: self.session.remote_ip(&self.headers),
                destination: self.session.target.address(),
                sni: None,
            },
            method: self.method.as_str(),
            host: &self.host,
            path: &self.path,
            headers: &self.headers,
            claims,
        };
        let policies = self.session.shard.waypoint.published.policies();
        policies.evaluate(self.session.target.scope(), &request)
    }
}
