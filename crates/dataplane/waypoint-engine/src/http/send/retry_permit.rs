//! Permits for retries: from the default retry budget of the destination, or from the retry limit or budget of its
//! `DestinationRule`.

use std::sync::Arc;

use ambit_resilience::LimitPermit;

use crate::{
    http::backend::endpoint::DestinationDecision,
    retry_budget::{ActiveRequest, RetryBudgetPermit},
    session::Session,
};

/// Permit of one retry, released when the attempt ends.
pub(in crate::http) enum RetryPermit {
    /// Permit from the default retry budget of the destination.
    Budget {
        #[expect(dead_code, reason = "what it does is to be held")]
        permit: RetryBudgetPermit,
    },
    /// Permit within the retry limit or retry budget of a DestinationRule.
    Rule {
        #[expect(dead_code, reason = "what it does is to be held")]
        slot: LimitPermit,
    },
}

impl RetryPermit {
    /// Takes a permit for a retry; `None` if the limit or budget is exhausted.
    pub(in crate::http) fn acquire(
        session: &Session,
        decision: Option<&Arc<DestinationDecision>>,
        active: &ActiveRequest,
    ) -> Option<Self> {
        let limits_retries = |decision: &&Arc<DestinationDecision>| {
            let limits = decision.port.limits();
            limits.retries > 0 || limits.retry_budget.is_some()
        };
        match decision.filter(limits_retries) {
            Some(decision) => {
                let slot = decision
                    .port
                    .take_retry_slot(session.shard.waypoint.rule_context())
                    .ok()?;
                Some(Self::Rule { slot })
            }
            None => active.acquire_retry().map(|permit| Self::Budget { permit }),
        }
    }
}
