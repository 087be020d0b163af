//! Outlier detection: ejects failing endpoints from load balancing for a time.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering::Relaxed},
    time::{Duration, Instant},
};

use ambit_model::{ArcStr, OutlierPolicy};

use crate::host::{Host, reset_counter};

/// Maximum duration of an ejection, as in Envoy by default. A longer configured base duration takes precedence.
const MAX_EJECTION_TIME: Duration = Duration::from_secs(300);

/// Outcome of a request or connection for outlier detection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndpointOutcome {
    /// The endpoint responded with this HTTP status.
    Response(u16),
    /// The endpoint accepted a connection whose responses are not observed, such as TCP.
    Connected,
    /// The connection failed, broke before a response, or timed out.
    Failed,
}

/// Failure because of which an endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum OutlierCause {
    /// Consecutive 5xx responses.
    ServerErrors,
    /// Consecutive responses with status 502, 503 or 504.
    GatewayErrors,
    /// Consecutive connections that failed.
    LocalFailures,
}

impl OutlierCause {
    /// All reasons for ejections.
    pub const ALL: [Self; 3] = [Self::ServerErrors, Self::GatewayErrors, Self::LocalFailures];

    /// Returns Envoy's name of the reason in its ejection log.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::ServerErrors => "5xx",
            Self::GatewayErrors => "GatewayFailure",
            Self::LocalFailures => "LocalOriginFailure",
        }
    }
}

/// Ejection of an endpoint from load balancing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ejection {
    /// Reason for the ejection.
    pub cause: OutlierCause,
    /// Duration of the ejection.
    pub duration: Duration,
}

/// Counts the outcome of a request at an endpoint. Returns the cause if the endpoint must be ejected. Takes no lock.
pub(crate) fn count_outcome(
    host: &Host,
    policy: &OutlierPolicy,
    outcome: EndpointOutcome,
) -> Option<OutlierCause> {
    let more = |count: &std::sync::atomic::AtomicU32, most: u32| {
        let now = count.fetch_add(1, Relaxed).saturating_add(1);
        most > 0 && now >= most
    };
    let status = match (outcome, policy.local_failures) {
        (EndpointOutcome::Failed, Some(most)) => {
            return more(&host.local_failures, most).then_some(OutlierCause::LocalFailures);
        }
        (EndpointOutcome::Failed, None) => 503,
        (EndpointOutcome::Connected, _) => 200,
        (EndpointOutcome::Response(status), _) => status,
    };
    reset_counter(&host.local_failures);
    let is_gateway = matches!(status, 502..=504);
    if !is_gateway {
        reset_counter(&host.gateway_errors);
    }
    if !(500..600).contains(&status) {
        reset_counter(&host.server_errors);
        return None;
    }
    // Counts both, whichever fault ejects first.
    let by_gateway = is_gateway && more(&host.gateway_errors, policy.gateway_errors);
    let by_server = more(&host.server_errors, policy.server_errors);
    match (by_gateway, by_server) {
        (true, _) => Some(OutlierCause::GatewayErrors),
        (_, true) => Some(OutlierCause::ServerErrors),
        _ => None,
    }
}

/// Current and recent ejections of a destination's endpoints, by uid.
#[derive(Debug, Default)]
pub(crate) struct EjectionRecords(HashMap<ArcStr, EjectionRecord>);

#[derive(Debug)]
struct EjectionRecord {
    host: Arc<Host>,
    /// Number of recent ejections; each makes the next ejection longer.
    ejection_count: u32,
    /// End of the current ejection; `None` if the endpoint is not ejected.
    ejected_until: Option<Instant>,
    /// End of the last ejection, from which the time without ejections is measured.
    last_ejection_end: Instant,
}

impl EjectionRecords {
    /// Whether the policy's maximum percentage allows one more ejected endpoint.
    fn allows_ejection(&self, policy: &OutlierPolicy, total: usize) -> bool {
        let ejected = self.ejected_count() + 1;
        let share = total * usize::try_from(policy.max_ejection_percent.min(100)).unwrap_or(100);
        let is_one_of_several = ejected == 1 && total > 1 && policy.max_ejection_percent > 0;
        is_one_of_several || ejected * 100 <= share
    }

    /// Returns the number of ejected endpoints.
    pub(crate) fn ejected_count(&self) -> usize {
        let records = self.0.values();
        records
            .filter(|record| record.ejected_until.is_some())
            .count()
    }

    /// Returns the time at which an endpoint's ejection ends, if it is ejected.
    pub(crate) fn ejected_until(&self, uid: &ArcStr) -> Option<Instant> {
        self.0.get(uid)?.ejected_until
    }

    /// Ejects an endpoint, unless it is ejected already or the policy's maximum percentage of `total` endpoints is
    /// reached. Returns the duration of the ejection.
    pub(crate) fn eject(
        &mut self,
        host: &Arc<Host>,
        policy: &OutlierPolicy,
        total: usize,
        now: Instant,
    ) -> Option<Duration> {
        if host.is_ejected() || !self.allows_ejection(policy, total) {
            return None;
        }
        let record = self
            .0
            .entry(host.uid.clone())
            .or_insert_with(|| EjectionRecord {
                host: host.clone(),
                ejection_count: 0,
                ejected_until: None,
                last_ejection_end: now,
            });
        let quiet = now
            .saturating_duration_since(record.last_ejection_end)
            .as_millis();
        let forgotten = quiet / policy.interval.as_millis().max(1);
        let forgotten = u32::try_from(forgotten).unwrap_or(u32::MAX);
        record.ejection_count = record
            .ejection_count
            .saturating_sub(forgotten)
            .saturating_add(1);
        let longest = MAX_EJECTION_TIME.max(policy.base_ejection);
        let duration = policy.base_ejection.saturating_mul(record.ejection_count);
        let duration = duration.min(longest);
        record.ejected_until = Some(now + duration);
        host.is_ejected.store(true, Relaxed);
        Some(duration)
    }

    /// Ends the ejections that are due; returns the time at which the next one ends.
    pub(crate) fn end_due_ejections(&mut self, now: Instant) -> Option<Instant> {
        for record in self.0.values_mut() {
            if record.ejected_until.is_some_and(|until| until <= now) {
                record.ejected_until = None;
                record.last_ejection_end = now;
                reset_counter(&record.host.server_errors);
                reset_counter(&record.host.gateway_errors);
                reset_counter(&record.host.local_failures);
                record.host.is_ejected.store(false, Relaxed);
            }
        }
        self.0
            .values()
            .filter_map(|record| record.ejected_until)
            .min()
    }

    /// Removes the records of endpoints that do not exist any more.
    pub(crate) fn retain_hosts(&mut self, is_current: impl Fn(&ArcStr) -> bool) {
        self.0.retain(|uid, _| is_current(uid));
    }

    /// Ends all ejections, and forgets how many there were.
    pub(crate) fn clear_ejections(&mut self) {
        for (_, record) in self.0.drain() {
            record.host.is_ejected.store(false, Relaxed);
        }
    }
}
