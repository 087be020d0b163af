//! State machine of the certificate store: decides which certificate to fetch, and when. No IO, tasks or wall clock:
//! callers pass in the time, and certificates are opaque.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, HashMap},
    sync::Arc,
    time::{Duration, Instant, SystemTime},
};

use ambit_model::Identity;
use ambit_rt::Backoff;
use ambit_tls::WorkloadCert;

use super::options::CertificatesOptions;
use crate::FetchError;

/// Priority of a certificate's fetch.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Priority {
    /// Renewal, or retry of a failed fetch.
    Background,
    /// Prefetch for a new pod.
    Warmup,
    /// Fetch for which a connection waits.
    RealTime,
}

/// Remaining lifetime of a certificate, measured when it is received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Lifetime {
    pub(super) renew_in: Duration,
    pub(super) expires_in: Duration,
}

impl Lifetime {
    /// Returns the remaining lifetime of a certificate, or an error if it has expired.
    pub(super) fn remaining(cert: &WorkloadCert, now: SystemTime) -> Result<Self, FetchError> {
        if cert.is_expired(now) {
            return Err(FetchError::Expired);
        }
        let until = |moment: SystemTime| moment.duration_since(now).unwrap_or(Duration::ZERO);
        let expires_in = until(cert.not_after());
        // A CA whose clock is behind may issue certificates past half of their lifetime: renewing at
        // once would be a busy loop, so wait for half of the remaining time.
        let renew_in = match until(cert.renewal_time()) {
            Duration::ZERO => expires_in / 2,
            renew_in => renew_in,
        };
        Ok(Self {
            renew_in,
            expires_in,
        })
    }
}

#[derive(Debug)]
pub(super) enum Event<C = Arc<WorkloadCert>, E = Arc<FetchError>> {
    Request(Identity, Priority),
    Forget(Identity),
    /// The CA has replaced the identity's certificate unasked, so that it must be fetched.
    Renew(Identity),
    /// The identity's certificate has expired by the wall clock, which this state machine does not read. Happens after
    /// the host was suspended or its clock was set.
    Expired(Identity),
    /// A fetch succeeded. Fields: identity, attempt number, lifetime, certificate.
    Fetched(Identity, u64, Lifetime, C),
    /// The CA rejected a fetch. Fields: identity, attempt number, error, random number in `0.0..1.0` for the backoff.
    Failed(Identity, u64, E, f64),
    /// The CA could not be reached, or could not process the request. The fields are those of [`Event::Failed`].
    Unreachable(Identity, u64, E, f64),
    Tick,
}

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Effect<C = Arc<WorkloadCert>, E = Arc<FetchError>> {
    /// Starts a fetch for the identity. The caller reports its result with this attempt number.
    Fetch(Identity, u64),
    Publish(Identity, C),
    PublishError(Identity, E),
    Report {
        identity: Identity,
        error: E,
        /// Whether the previous certificate remains in use.
        previous_remains: bool,
        retry_in: Duration,
    },
}

struct Entry {
    phase: Phase,
    /// Expiry of the current certificate.
    expires_at: Option<Instant>,
    backoff: Backoff,
    /// Whether the last fetch failed.
    is_failing: bool,
    /// Whether the CA replaced the certificate while it was being fetched, so that it must be fetched again.
    is_replaced: bool,
}

/// Outage of the CA. Each failed identity retries with growing backoff. In addition, while any identity lacks a
/// certificate, one of them is tried every [`CertificatesOptions::probe_cap`]; when the CA responds, all retry at once.
struct Outage {
    backoff: Backoff,
    next_probe: Instant,
    /// Time of the next log line about the outage.
    next_report: Instant,
}

/// Interval between log lines about a CA outage.
const OUTAGE_REPORT_INTERVAL: Duration = Duration::from_secs(15);

#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    /// Due, and waiting for a free fetch slot, under this priority and due time.
    Queued(Priority, Instant),
    /// Waiting for the renewal or retry at this time.
    Scheduled(Instant),
    Fetching(u64),
}

/// State of all certificates in the store, and of their fetches.
pub(super) struct State {
    options: CertificatesOptions,
    entries: HashMap<Identity, Entry>,
    /// Fetches that wait for a free slot: highest priority first, then earliest due.
    ready_queue: BTreeSet<(Reverse<Priority>, Instant, Identity)>,
    /// Scheduled renewals and retries by time.
    timers: BTreeSet<(Instant, Identity)>,
    outage: Option<Outage>,
    fetches_in_flight: usize,
    last_attempt: u64,
}

impl State {
    pub(super) fn new(options: CertificatesOptions) -> Self {
        Self {
            options,
            entries: HashMap::new(),
            ready_queue: BTreeSet::new(),
            timers: BTreeSet::new(),
            outage: None,
            fetches_in_flight: 0,
            last_attempt: 0,
        }
    }

    /// Returns the time at which the caller must send the next [`Event::Tick`], if any.
    pub(super) fn next_wake(&self) -> Option<Instant> {
        let timer = self.timers.first().map(|(due, _)| *due);
        let probe = self.outage.as_ref().map(|outage| outage.next_probe);
        timer.into_iter().chain(probe).min()
    }

    /// Handles one event. The caller must carry out the returned effects in order.
    pub(super) fn on_event<C, E: Clone>(
        &mut self,
        event: Event<C, E>,
        now: Instant,
    ) -> Vec<Effect<C, E>> {
        let mut effects = Vec::new();
        match event {
            Event::Request(identity, priority) => self.request(identity, priority, now),
            Event::Forget(identity) => self.forget(&identity),
            Event::Renew(identity) => self.renew(identity, now),
            Event::Expired(identity) => self.on_expired(identity, now),
            Event::Fetched(identity, attempt, life, cert) => {
                if self.finish_fetch(&identity, attempt) {
                    self.on_fetched(&identity, life, now);
                    effects.push(Effect::Publish(identity, cert));
                }
                self.on_ca_reachable(now);
            }
            Event::Failed(identity, attempt, error, random) => {
                self.on_ca_reachable(now);
                if self.finish_fetch(&identity, attempt) {
                    self.on_fetch_failed(identity, error, random, now, &mut effects);
                }
            }
            Event::Unreachable(identity, attempt, error, random) => {
                let entry = self.entries.get(&identity);
                let is_known = entry.is_some_and(|entry| entry.is_failing);
                if self.finish_fetch(&identity, attempt) {
                    self.on_fetch_failed(identity, error, random, now, &mut effects);
                }
                let is_report_due = self.on_ca_unreachable(random, now);
                if is_known && !is_report_due {
                    effects.retain(|effect| !matches!(effect, Effect::Report { .. }));
                }
            }
            Event::Tick => {}
        }
        self.probe(now);
        self.start_due_fetches(now, &mut effects);
        effects
    }

    fn request(&mut self, identity: Identity, priority: Priority, now: Instant) {
        let Some(entry) = self.entries.get_mut(&identity) else {
            self.ready_queue
                .insert((Reverse(priority), now, identity.clone()));
            let backoff = Backoff::new(self.options.backoff_initial, self.options.backoff_cap, 0.2);
            let phase = Phase::Queued(priority, now);
            self.entries.insert(
                identity,
                Entry {
                    phase,
                    expires_at: None,
                    backoff,
                    is_failing: false,
                    is_replaced: false,
                },
            );
            return;
        };
        // Certificates in a fetch, or with a scheduled renewal or retry, stay as they are.
        if let Phase::Queued(old, due) = entry.phase
            && old < priority
        {
            entry.phase = Phase::Queued(priority, due);
            self.ready_queue
                .remove(&(Reverse(old), due, identity.clone()));
            self.ready_queue.insert((Reverse(priority), due, identity));
        }
    }

    fn forget(&mut self, identity: &Identity) {
        match self.entries.remove(identity).map(|entry| entry.phase) {
            Some(Phase::Queued(priority, due)) => {
                self.ready_queue
                    .remove(&(Reverse(priority), due, identity.clone()));
            }
            Some(Phase::Scheduled(due)) => {
                self.timers.remove(&(due, identity.clone()));
            }
            // Its result will be ignored.
            Some(Phase::Fetching(_)) | None => {}
        }
    }

    fn renew(&mut self, identity: Identity, now: Instant) {
        let Some(entry) = self.entries.get_mut(&identity) else {
            return;
        };
        match entry.phase {
            Phase::Scheduled(due) => {
                entry.phase = Phase::Queued(Priority::Warmup, now);
                self.timers.remove(&(due, identity.clone()));
                self.ready_queue
                    .insert((Reverse(Priority::Warmup), now, identity));
            }
            // Its result may be the one before.
            Phase::Fetching(_) => entry.is_replaced = true,
            Phase::Queued(..) => {}
        }
    }

    fn on_expired(&mut self, identity: Identity, now: Instant) {
        let Some(entry) = self.entries.get_mut(&identity) else {
            return;
        };
        // Once expiry is known, further reports do not hasten the retries.
        if entry.expires_at.take().is_some()
            && let Phase::Scheduled(due) = entry.phase
        {
            entry.phase = Phase::Queued(Priority::RealTime, now);
            self.timers.remove(&(due, identity.clone()));
            self.ready_queue
                .insert((Reverse(Priority::RealTime), now, identity));
        }
    }

    /// Marks a fetch attempt as finished. Returns whether its result is still wanted.
    fn finish_fetch(&mut self, identity: &Identity, attempt: u64) -> bool {
        self.fetches_in_flight = self.fetches_in_flight.saturating_sub(1);
        self.entries
            .get(identity)
            .is_some_and(|entry| entry.phase == Phase::Fetching(attempt))
    }

    fn on_fetched(&mut self, identity: &Identity, life: Lifetime, now: Instant) {
        let Some(entry) = self.entries.get_mut(identity) else {
            return;
        };
        entry.expires_at = Some(now + life.expires_in);
        entry.backoff.reset();
        entry.is_failing = false;
        // At least a second, so that certificates with no lifetime cannot cause a busy loop.
        let due = match std::mem::take(&mut entry.is_replaced) {
            true => now,
            false => now + life.renew_in.max(Duration::from_secs(1)),
        };
        entry.phase = Phase::Scheduled(due);
        self.timers.insert((due, identity.clone()));
    }

    fn on_fetch_failed<C, E: Clone>(
        &mut self,
        identity: Identity,
        error: E,
        random: f64,
        now: Instant,
        effects: &mut Vec<Effect<C, E>>,
    ) {
        let Some(entry) = self.entries.get_mut(&identity) else {
            return;
        };
        entry.is_failing = true;
        let delay = entry.backoff.next_delay(random);
        let kept = entry.expires_at.filter(|expires| *expires > now);
        let due = match kept {
            _ if std::mem::take(&mut entry.is_replaced) => now,
            // At expiry another attempt decides whether the certificate must be dropped.
            Some(expires) => (now + delay).min(expires),
            None => now + delay,
        };
        entry.phase = Phase::Scheduled(due);
        self.timers.insert((due, identity.clone()));
        if kept.is_none() {
            entry.expires_at = None;
            effects.push(Effect::PublishError(identity.clone(), error.clone()));
        }
        let retry_in = due.saturating_duration_since(now);
        effects.push(Effect::Report {
            identity,
            error,
            previous_remains: kept.is_some(),
            retry_in,
        });
    }

    /// Records that the CA could not be reached: begins an outage and schedules the next probe. Returns whether to log
    /// the outage, also for identities that have failed before.
    fn on_ca_unreachable(&mut self, random: f64, now: Instant) -> bool {
        let CertificatesOptions {
            probe_initial,
            probe_cap,
            backoff_cap,
            ..
        } = self.options;
        let is_urgent = self.lacks_any_certificate();
        let outage = self.outage.get_or_insert_with(|| Outage {
            backoff: Backoff::new(probe_initial, probe_cap, 0.2),
            next_probe: now,
            next_report: now,
        });
        if self.fetches_in_flight == 0 || outage.next_probe <= now {
            let delay = outage.backoff.next_delay(random);
            outage.next_probe = now + if is_urgent { delay } else { backoff_cap };
        }
        let is_report_due = outage.next_report <= now;
        if is_report_due {
            outage.next_report = now + OUTAGE_REPORT_INTERVAL;
        }
        is_report_due
    }

    /// Whether any identity has no certificate after a failed fetch, so that its connections fail.
    fn lacks_any_certificate(&self) -> bool {
        let mut entries = self.entries.values();
        entries.any(|entry| entry.is_failing && entry.expires_at.is_none())
    }

    /// Ends an outage after a response of the CA: retries every failed identity at once, with its backoff reset.
    fn on_ca_reachable(&mut self, now: Instant) {
        if self.outage.take().is_none() {
            return;
        }
        for (identity, entry) in &mut self.entries {
            if !entry.is_failing {
                continue;
            }
            entry.backoff.reset();
            if let Phase::Scheduled(due) = entry.phase {
                self.timers.remove(&(due, identity.clone()));
                entry.phase = Phase::Queued(Priority::Warmup, now);
                let key = (Reverse(Priority::Warmup), now, identity.clone());
                self.ready_queue.insert(key);
            }
        }
    }

    /// Starts the fetch of one waiting identity, if a probe of the CA is due. Ends the outage when no identity waits
    /// for the CA.
    fn probe(&mut self, now: Instant) {
        let Some(outage) = &mut self.outage else {
            return;
        };
        if now < outage.next_probe {
            return;
        }
        let is_failing = |identity: &Identity| {
            let entry = self.entries.get(identity);
            entry.is_some_and(|entry| entry.is_failing)
        };
        let mut failing = self
            .timers
            .iter()
            .filter(|(_, identity)| is_failing(identity));
        match failing.next().cloned() {
            Some((due, identity)) => {
                self.timers.remove(&(due, identity.clone()));
                if let Some(entry) = self.entries.get_mut(&identity) {
                    entry.phase = Phase::Queued(Priority::RealTime, now);
                    self.ready_queue
                        .insert((Reverse(Priority::RealTime), now, identity));
                }
                // No further probe until the result of this one, or until it must have timed out.
                outage.next_probe = now + self.options.probe_cap;
            }
            None if self.entries.values().any(|entry| entry.is_failing) => {
                outage.next_probe = now + self.options.probe_cap;
            }
            None => self.outage = None,
        }
    }

    fn start_due_fetches<C, E>(&mut self, now: Instant, effects: &mut Vec<Effect<C, E>>) {
        while self.timers.first().is_some_and(|(due, _)| *due <= now) {
            let Some((due, identity)) = self.timers.pop_first() else {
                break;
            };
            if let Some(entry) = self.entries.get_mut(&identity) {
                entry.phase = Phase::Queued(Priority::Background, due);
                self.ready_queue
                    .insert((Reverse(Priority::Background), due, identity));
            }
        }
        while self.fetches_in_flight < self.options.max_parallel_fetches.max(1) {
            let Some((_, _, identity)) = self.ready_queue.pop_first() else {
                break;
            };
            if let Some(entry) = self.entries.get_mut(&identity) {
                self.last_attempt += 1;
                self.fetches_in_flight += 1;
                entry.phase = Phase::Fetching(self.last_attempt);
                effects.push(Effect::Fetch(identity, self.last_attempt));
            }
        }
    }
}

#[cfg(test)]
mod tests;
