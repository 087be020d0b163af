//! Counters of one edge over the last half minute, by the kind of reporter: client, server and waypoint report the same
//! traffic, and the page shows it once.

use std::time::Duration;

use ambit_flow::{Flow, FlowEventKind, ReporterKind};
use serde::Serialize;

use super::Transport;

/// Length of the sliding window from which rates are computed.
pub(super) const WINDOW_LENGTH: Duration = Duration::from_secs(30);
const SLICE_COUNT: usize = 10;
const SLICE_LENGTH: Duration = Duration::from_secs(3);
/// Number of buckets of the latency histogram. Each upper bound is twice the previous one; the first is 0.25 ms.
const LATENCY_BUCKETS: usize = 20;
const FIRST_BUCKET_MS: f64 = 0.25;

/// Counters of one time slice, from reporters of one kind.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counters {
    opened: u64,
    requests: u64,
    /// Number of requests with a status of 500 or above, or without a response.
    errors: u64,
    refused: u64,
    failed: u64,
    encrypted: u64,
    plaintext: u64,
    /// Histogram of request durations; `openings` is that of connection set-up times.
    latencies: [u32; LATENCY_BUCKETS],
    connect_times: [u32; LATENCY_BUCKETS],
}

/// Sliding window over one edge's counters.
#[derive(Debug)]
pub(super) struct SlidingWindow {
    slices: [[Counters; 3]; SLICE_COUNT],
    /// Number of the current time slice: time since the start divided by [`SLICE_LENGTH`].
    current_slice: u64,
    started_at: Duration,
}

/// Rates, latencies and transport of one edge within the window.
#[derive(Debug, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct TrafficRates {
    /// Connections opened per second.
    pub(super) connections: f64,
    /// Requests per second; 0 if no waypoint reports them.
    pub(super) requests: f64,
    /// Failed requests or connections per second.
    pub(super) errors: f64,
    /// Rejected requests and connections per second.
    pub(super) refused: f64,
    /// Median latency of requests, or of connection set-ups without requests, in milliseconds.
    pub(super) p50_ms: Option<f64>,
    /// 99th percentile of the latency in milliseconds.
    pub(super) p99_ms: Option<f64>,
    /// Number of reported connections and requests over HBONE.
    pub(super) encrypted: u64,
    /// Number of reported connections and requests in plaintext.
    pub(super) plaintext: u64,
}

impl SlidingWindow {
    pub(super) fn new(now: Duration) -> Self {
        Self {
            slices: Default::default(),
            current_slice: slice_number(now),
            started_at: now,
        }
    }

    pub(super) fn add(&mut self, flow: &Flow, has_transport: bool, now: Duration) {
        self.advance(slice_number(now));
        let reporter = match flow.reporter.kind {
            ReporterKind::Source => 0,
            ReporterKind::Destination => 1,
            ReporterKind::Waypoint => 2,
        };
        let slice = self.slices.get_mut(slice_index(self.current_slice));
        if let Some(counters) = slice.and_then(|slice| slice.get_mut(reporter)) {
            counters.add(flow);
            if has_transport {
                counters.add_transport(flow);
            }
        }
    }

    /// Advances the window to the time slice `to`, and clears the slices in between.
    fn advance(&mut self, to: u64) {
        let passed = to
            .saturating_sub(self.current_slice)
            .min(SLICE_COUNT as u64);
        for step in 1..=passed {
            // The slices just behind `to` are the ones that were not counted in.
            let stale = to - passed + step;
            if let Some(slice) = self.slices.get_mut(slice_index(stale)) {
                *slice = Default::default();
            }
        }
        self.current_slice = self.current_slice.max(to);
    }

    pub(super) fn rates(&self, now: Duration) -> TrafficRates {
        let to = slice_number(now);
        let mut sums = [Counters::default(); 3];
        for age in 0..SLICE_COUNT as u64 {
            let Some(slice) = self.current_slice.checked_sub(age) else {
                break;
            };
            if to.saturating_sub(slice) >= SLICE_COUNT as u64 {
                break;
            }
            let counted = self.slices.get(slice_index(slice));
            for (sum, counters) in sums.iter_mut().zip(counted.into_iter().flatten()) {
                sum.add_counters(counters);
            }
        }
        let age = now.saturating_sub(self.started_at).as_secs_f64();
        compute_rates(&sums, age.clamp(1.0, WINDOW_LENGTH.as_secs_f64()))
    }
}

fn slice_number(now: Duration) -> u64 {
    now.as_secs() / SLICE_LENGTH.as_secs()
}

fn slice_index(number: u64) -> usize {
    usize::try_from(number % SLICE_COUNT as u64).unwrap_or_default()
}

impl Counters {
    fn add(&mut self, flow: &Flow) {
        let count = flow.count;
        match flow.event {
            FlowEventKind::Opened => {
                self.opened = self.opened.saturating_add(count);
                add_to_histogram(&mut self.connect_times, flow.duration_ms);
            }
            FlowEventKind::Request => {
                self.requests = self.requests.saturating_add(count);
                let status = flow.request.as_ref().map_or(0, |request| request.status);
                if status == 0 || status >= 500 {
                    self.errors = self.errors.saturating_add(count);
                }
                add_to_histogram(&mut self.latencies, flow.duration_ms);
            }
            FlowEventKind::Refused => self.refused = self.refused.saturating_add(count),
            FlowEventKind::Failed => self.failed = self.failed.saturating_add(count),
            FlowEventKind::Closed => {}
        }
    }

    fn add_transport(&mut self, flow: &Flow) {
        let count = flow.count;
        match flow.transport {
            Transport::Hbone => self.encrypted = self.encrypted.saturating_add(count),
            Transport::Plaintext => self.plaintext = self.plaintext.saturating_add(count),
        }
    }

    fn add_counters(&mut self, other: &Self) {
        for (sum, more) in [
            (&mut self.opened, other.opened),
            (&mut self.requests, other.requests),
            (&mut self.errors, other.errors),
            (&mut self.refused, other.refused),
            (&mut self.failed, other.failed),
            (&mut self.encrypted, other.encrypted),
            (&mut self.plaintext, other.plaintext),
        ] {
            *sum = sum.saturating_add(more);
        }
        for (sums, more) in [
            (&mut self.latencies, &other.latencies),
            (&mut self.connect_times, &other.connect_times),
        ] {
            for (sum, more) in sums.iter_mut().zip(more) {
                *sum = sum.saturating_add(*more);
            }
        }
    }
}

fn add_to_histogram(steps: &mut [u32; LATENCY_BUCKETS], ms: f64) {
    let mut bound = FIRST_BUCKET_MS;
    let mut index = 0;
    while ms > bound && index < LATENCY_BUCKETS - 1 {
        bound *= 2.0;
        index += 1;
    }
    if let Some(count) = steps.get_mut(index) {
        *count = count.saturating_add(1);
    }
}

/// Returns the upper bound, in milliseconds, of the histogram bucket that contains a quantile; `None` without samples.
fn quantile(steps: &[u32; LATENCY_BUCKETS], share: f64) -> Option<f64> {
    let total: f64 = steps.iter().map(|count| f64::from(*count)).sum();
    if total == 0.0 {
        return None;
    }
    let (mut below, mut bound) = (0.0, FIRST_BUCKET_MS);
    for count in steps {
        below += f64::from(*count);
        if below >= total * share {
            break;
        }
        bound *= 2.0;
    }
    Some(bound)
}

fn compute_rates([source, destination, waypoint]: &[Counters; 3], seconds: f64) -> TrafficRates {
    // A server's refusal is a failure to its client, which reports it, too.
    let refused = source
        .refused
        .max(destination.refused)
        .max(waypoint.refused);
    let failed = source.failed.saturating_sub(refused);
    let failed = failed
        .max(destination.failed)
        .saturating_add(waypoint.failed);
    let openings = match source.opened {
        0 => &destination.connect_times,
        _ => &source.connect_times,
    };
    let latencies = match waypoint.requests {
        0 => openings,
        _ => &waypoint.latencies,
    };
    // Node proxies know of both ends; a waypoint of its client.
    let by_proxies = |of: fn(&Counters) -> u64| of(source).saturating_add(of(destination));
    let is_by_proxies = by_proxies(|one| one.encrypted) > 0 || by_proxies(|one| one.plaintext) > 0;
    let transport = |of: fn(&Counters) -> u64| match is_by_proxies {
        true => by_proxies(of),
        false => of(waypoint),
    };
    TrafficRates {
        connections: rate(source.opened.max(destination.opened), seconds),
        requests: rate(waypoint.requests, seconds),
        errors: rate(failed.saturating_add(waypoint.errors), seconds),
        refused: rate(refused, seconds),
        p50_ms: quantile(latencies, 0.5),
        p99_ms: quantile(latencies, 0.99),
        encrypted: transport(|one| one.encrypted),
        plaintext: transport(|one| one.plaintext),
    }
}

fn rate(count: u64, seconds: f64) -> f64 {
    #[expect(clippy::cast_precision_loss, reason = "a rate for people")]
    let count = count as f64;
    // Hundredths are enough, and keep answers short.
    (count / seconds * 100.0).round() / 100.0
}
