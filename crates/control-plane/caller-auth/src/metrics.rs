//! Metrics of callers: outcomes of their authentication, and connections that the control plane closed.

use ambit_rt::metrics::{PlainCounter, start_series};
use prometheus_client::{encoding::EncodeLabelSet, metrics::family::Family, registry::Registry};

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// Outcomes of token verification.
const TOKEN_OUTCOMES: [&str; 3] = ["accepted", "refused", "unavailable"];

/// Counters of callers of the control plane. A clone counts into the same metrics.
#[derive(Clone, Debug)]
pub struct CallerMetrics {
    closed_connections: Family<ReasonLabels, PlainCounter>,
    token_verifications: Family<OutcomeLabels, PlainCounter>,
}

impl Default for CallerMetrics {
    fn default() -> Self {
        let metrics = Self {
            closed_connections: Family::default(),
            token_verifications: Family::default(),
        };
        let outcomes = TOKEN_OUTCOMES.map(|outcome| OutcomeLabels { outcome });
        start_series(&metrics.token_verifications, outcomes);
        metrics
    }
}

impl CallerMetrics {
    /// Adds the counters to a registry.
    pub fn register(&self, registry: &mut Registry) {
        registry.register(
            "ambit_callers_closed",
            "Connections closed for want of a caller that stays, by reason",
            self.closed_connections.clone(),
        );
        registry.register(
            "ambit_calls_authenticated",
            "Calls, by the result of their authentication",
            self.token_verifications.clone(),
        );
    }

    /// Counts a connection that was closed because its caller is unauthenticated or may not keep long-lived streams.
    pub fn count_closed_connection(&self, reason: &'static str) {
        self.closed_connections
            .get_or_create(&ReasonLabels { reason })
            .inc();
    }

    /// Counts a call by the outcome of its token's verification: accepted, refused, or unavailable.
    pub(crate) fn count_token(&self, outcome: &'static str) {
        self.token_verifications
            .get_or_create(&OutcomeLabels { outcome })
            .inc();
    }
}
