//! Observers of the decisions about a request: the record of a served request, or the explanation of a predicted
//! request.

use std::sync::Arc;

use ambit_jwt::RejectionReason;
use ambit_l7::{authz::HttpDecision, route::Rule};
use http::uri::PathAndQuery;

use super::record::RequestRecord;

/// Receives the decisions about one request.
pub(in crate::http) trait RequestObserver {
    /// Records the request's normalized host and target.
    fn on_normalized(&mut self, host: &str, target: &PathAndQuery);
    /// Records that JWT authentication rejected the request.
    fn on_unauthenticated(&mut self, why: &RejectionReason);
    /// Records the decision of the authorization policies.
    fn on_policy_decision(&mut self, decision: &HttpDecision);
    /// Records the route rule that matches the request.
    fn on_route_selected(&mut self, rule: &Arc<Rule>);
}

impl RequestObserver for RequestRecord {
    fn on_normalized(&mut self, host: &str, target: &PathAndQuery) {
        Self::record_target(self, host, target);
    }

    fn on_unauthenticated(&mut self, why: &RejectionReason) {
        self.record_unauthenticated(why.response_code_details());
    }

    fn on_policy_decision(&mut self, decision: &HttpDecision) {
        Self::record_policy_decision(self, decision);
    }

    fn on_route_selected(&mut self, rule: &Arc<Rule>) {
        self.route = Some(match &rule.name {
            Some(name) => format!("{}/{name}", rule.route),
            None => rule.route.to_string(),
        });
    }
}
