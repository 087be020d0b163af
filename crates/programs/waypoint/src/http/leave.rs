//! Whether a request may be sent again: by the budget of its destination, or as a rule has it.

use std::sync::Arc;

use ambit_resilience::Slot;

use super::endpoint::Ruling;
use crate::{
    budget::{Active, Permit},
    session::Session,
};

/// The right to send a request again, until it is over.
pub(super) enum Leave {
    /// By the budget that every destination has.
    Usual {
        #[expect(dead_code, reason = "what it does is to be held")]
        permit: Permit,
    },
    /// As a rule has it.
    Ruled {
        #[expect(dead_code, reason = "what it does is to be held")]
        slot: Slot,
    },
}

impl Leave {
    pub(super) fn of(
        session: &Session,
        ruling: Option<&Arc<Ruling>>,
        active: &Active,
    ) -> Option<Self> {
        let says_how_many = |ruling: &&Arc<Ruling>| {
            let limits = ruling.port.limits();
            limits.retries > 0 || limits.retry_budget.is_some()
        };
        match ruling.filter(says_how_many) {
            Some(ruling) => {
                let slot = ruling.port.retry(session.shard.waypoint.around()).ok()?;
                Some(Self::Ruled { slot })
            }
            None => active.permit().map(|permit| Self::Usual { permit }),
        }
    }
}
