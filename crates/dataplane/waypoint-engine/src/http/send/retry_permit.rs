//! Permits for retries: from the default retry budget of the destination, or from the retry limit or budget of its
//! `DestinationRule`.

use std::sync::Arc;

use ambit_resilience::Slot;

use crate::{
    http::backend::endpoint::DestinationDecision,
    retry_budget::{Active, Permit},
    session::Session,
};

/// Permit of one retry, released when the attempt ends.
pub(in crate::http) enum RetryPermit {
    /// Permit from the default retry budget of the destination.
    Budget {
        #[expect(dead_code, reason = "what it does is to be held")]
        permit: Permit,
    },
    /// Permit within the retry limit or retry budget of a DestinationRule.
    Rule {
        #[expect(dead_code, reason = "what it does is to be held")]
        slot: Slot,
    },
}

impl RetryPermit {
    /// Takes a permit for a retry; `None` if the limit or budget is exhausted.
    pub(in crate::http) fn of(
        session: &Session,
        decision: Option<&Arc<DestinationDecision>>,
        active: &Active,
    ) -> Option<Self> {
        let limits_retries = |decision: &&Arc<DestinationDecision>| {
            let limits = decision.port.limits();
            limits.retries > 0 || limits.retry_budget.is_some()
        };
        match decision.filter(limits_retries) {
            Some(decision) => {
                let slot = decision
                    .port
                    .retry(session.shard.waypoint.rule_context())
                    .ok()?;
                Some(Self::Rule { slot })
            }
            None => active.permit().map(|permit| Self::Budget { permit }),
        }
    }
}
