//! Observers of the decisions about a request: the record of a served request, and the explanation of a predicted one.

use std::sync::Arc;

use ambit_jwt::Denial;
use ambit_l7::{authz::HttpDecision, route::Rule};
use http::uri::PathAndQuery;

use super::record::Record;

/// Receives the decisions about one request.
pub(in crate::http) trait Observer {
    /// Records the request's normalized host and target.
    fn normalized(&mut self, host: &str, target: &PathAndQuery);
    /// Records that JWT authentication rejected the request.
    fn unauthenticated(&mut self, why: &Denial);
    /// Records the decision of the authorization policies.
    fn policies_decided(&mut self, decision: &HttpDecision);
    /// Records the route rule that matches the request.
    fn routed(&mut self, rule: &Arc<Rule>);
}

impl Observer for Record {
    fn normalized(&mut self, host: &str, target: &PathAndQuery) {
        Self::normalized(self, host, target);
    }

    fn unauthenticated(&mut self, why: &Denial) {
        self.not_authenticated(why.details());
    }

    fn policies_decided(&mut self, decision: &HttpDecision) {
        Self::policies_decided(self, decision);
    }

    fn routed(&mut self, rule: &Arc<Rule>) {
        self.route = Some(match &rule.name {
            Some(name) => format!("{}/{name}", rule.route),
            None => rule.route.to_string(),
        });
    }
}
