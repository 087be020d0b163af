//! What was judged of a request, kept for as long as it is under way: when policies change it is judged again, and
//! nothing more of what they now deny passes.

use std::sync::Arc;

use ambit_l7::authz::{Connection, HttpDecision, Request};
use ambit_model::ArcStr;
use http::{HeaderMap, Method};
use parking_lot::Mutex;
use tokio::sync::watch;

use super::authorizer::is_still_admitted;
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
    /// The provider that has admitted it, and the headers with which it came.
    asked: Option<(ArcStr, HeaderMap)>,
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
        asked: Option<(ArcStr, HeaderMap)>,
    ) -> (HttpDecision, Option<Self>) {
        // From before the decision on, so that no change is missed.
        let changes = session.shard.waypoint.published.watch();
        let inner = Inner {
            session: session.clone(),
            method,
            host,
            path,
            headers,
            asked,
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
        if self.0.is_admitted() {
            Ok(())
        } else {
            Err(NoLonger)
        }
    }

    /// Ends when it is not allowed any more.
    pub(super) async fn revoked(&self) {
        let mut changes = self.0.session.shard.waypoint.published.watch();
        loop {
            if !self.0.is_admitted() {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Inner {
    /// Whether nothing that has changed keeps it from going on.
    fn is_admitted(&self) -> bool {
        let (by, came) = match &self.asked {
            Some((by, came)) => (Some(by), came),
            None => (None, &self.headers),
        };
        let policies = self.session.shard.waypoint.published.policies();
        let asking = policies.asks(self.session.target.scope(), &self.facts(came));
        is_still_admitted(&asking, by) && self.judge().is_allowed()
    }

    fn facts<'a>(&'a self, headers: &'a HeaderMap) -> Request<'a> {
        let method = self.method.as_str();
        facts(&self.session, method, &self.host, &self.path, headers)
    }

    fn judge(&self) -> HttpDecision {
        let request = self.facts(&self.headers);
        let policies = self.session.shard.waypoint.published.policies();
        policies.evaluate(self.session.target.scope(), &request)
    }
}

/// What policies judge of a request.
pub(super) fn facts<'a>(
    session: &'a Session,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    headers: &'a HeaderMap,
) -> Request<'a> {
    Request {
        connection: Connection {
            remote_ip: session.remote_ip(headers),
            ..session.connection(None)
        },
        method,
        host,
        path,
        headers,
    }
}
