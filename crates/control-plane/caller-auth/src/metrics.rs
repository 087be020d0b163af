//! Metrics of callers: outcomes of their authentication, and connections that the control plane closed.

use ambit_rt::metrics::{PlainCounter, start_series};
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family, registry::Registry};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

/// Outcomes of token verification.
const TOKEN_OUTCOMES: [&str; 3] = ["accepted", "refused", "unavailable"];

/// Counters of callers of the control plane. A clone counts into the same metrics.
#[derive(Clone, Debug)]
pub struct CallerMetrics {
    callers_closed: Family<Reason, PlainCounter>,
    tokens: Family<Outcome, PlainCounter>,
}

impl Default for CallerMetrics {
    fn default() -> Self {
        let metrics = Self {
            callers_closed: Family::default(),
            tokens: Family::default(),
        };
        let outcomes = TOKEN_OUTCOMES.map(|outcome| Outcome { outcome });
        start_series(&metrics.tokens, outcomes);
        metrics
    }
}

impl CallerMetrics {
    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ambit_callers_closed",
            "Connections closed for want of a caller that stays, by reason",
            self.callers_closed.clone(),
        );
        registry.register(
            "ambit_calls_authenticated",
            "Calls, by the result of their authentication",
            self.tokens.clone(),
        );
    }

    /// Counts a connection that was closed because its caller is unauthenticated or may not keep long-lived streams.
    pub fn count_closed_connection(&self, reason: &'static str) {
        self.callers_closed.get_or_create(&Reason { reason }).inc();
    }

    /// Counts a call by the outcome of its token's verification: accepted, refused, or unavailable.
    pub(crate) fn count_token(&self, outcome: &'static str) {
        self.tokens.get_or_create(&Outcome { outcome }).inc();
    }
}
