//! Bounded queue of flow events for one reader, which counts the events that were dropped.

use std::{
    collections::VecDeque,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_flow::{Flow, StreamItem};

/// Maximum queued events; the limit applies separately to traffic and to refused connections.
const MAX_QUEUED_EVENTS: usize = 1024;
/// Number of queued refusals above which a refusal is counted with a similar one instead of queued.
const AGGREGATION_THRESHOLD: usize = 64;
/// Maximum number of recent refusals with which a new refusal is compared.
const MAX_COMPARED_EVENTS: usize = 64;
/// Rate limit of traffic events for each reader, in events per second; excess events are dropped.
const EVENTS_PER_SECOND: f64 = 4_000.0;
/// Time without a read after which a reader with a full queue is disconnected.
const MAX_STALL: Duration = Duration::from_secs(15);

/// Queue of flow events for one reader.
#[derive(Debug)]
pub(super) struct Queue {
    queued_events: VecDeque<(Arc<Flow>, u64)>,
    queued_refusals: usize,
    lost_events: (u64, u64),
    /// Token bucket of the rate limit: remaining events, and the time for which that number was computed.
    budget: (f64, Instant),
    last_read_at: Instant,
}

/// Result of adding an event to a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QueueOutcome {
    /// The event was queued, counted with a similar one, or counted as lost.
    Accepted,
    /// The reader must be disconnected, since it has read nothing for [`MAX_STALL`].
    Stalled,
}

impl Queue {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            queued_events: VecDeque::new(),
            queued_refusals: 0,
            lost_events: (0, 0),
            budget: (EVENTS_PER_SECOND, now),
            last_read_at: now,
        }
    }

    /// Queues an event, counts it with a similar one, or counts it as lost.
    pub(super) fn add(&mut self, flow: Arc<Flow>, now: Instant) -> QueueOutcome {
        let is_refusal = flow.event.is_refusal();
        let fits = match is_refusal {
            true if self.queued_refusals >= AGGREGATION_THRESHOLD
                && self.merge_into_similar(&flow) =>
            {
                return QueueOutcome::Accepted;
            }
            true => self.queued_refusals < MAX_QUEUED_EVENTS,
            false => {
                self.queued_events.len() - self.queued_refusals < MAX_QUEUED_EVENTS
                    && self.is_in_budget(now)
            }
        };
        if fits {
            self.queued_refusals += usize::from(is_refusal);
            let count = flow.count;
            self.queued_events.push_back((flow, count));
            return QueueOutcome::Accepted;
        }
        match is_refusal {
            true => self.lost_events.1 += flow.count,
            false => self.lost_events.0 += flow.count,
        }
        if now.saturating_duration_since(self.last_read_at) > MAX_STALL
            && !self.queued_events.is_empty()
        {
            return QueueOutcome::Stalled;
        }
        QueueOutcome::Accepted
    }

    /// Counts a refusal with the latest similar one among the last [`MAX_COMPARED_EVENTS`]. Returns false
    /// if there is none.
    fn merge_into_similar(&mut self, flow: &Flow) -> bool {
        let refusals = self.queued_events.iter_mut().rev();
        let refusals = refusals.filter(|(other, _)| other.event.is_refusal());
        let alike = refusals
            .take(MAX_COMPARED_EVENTS)
            .find(|(other, _)| other.is_similar(flow));
        if let Some((_, count)) = alike {
            *count += flow.count;
            return true;
        }
        false
    }

    fn is_in_budget(&mut self, now: Instant) -> bool {
        let (budget, since) = self.budget;
        let earned = now.saturating_duration_since(since).as_secs_f64() * EVENTS_PER_SECOND;
        let budget = (budget + earned).min(EVENTS_PER_SECOND);
        let is_in_budget = budget >= 1.0;
        self.budget = (budget - f64::from(u8::from(is_in_budget)), now);
        is_in_budget
    }

    /// Removes and returns at most `most` events, with the numbers of lost events.
    pub(super) fn take_batch(&mut self, most: usize, now: Instant) -> Vec<StreamItem> {
        self.last_read_at = now;
        let taken = self
            .queued_events
            .drain(..most.min(self.queued_events.len()));
        let mut items: Vec<_> = taken
            .map(|(flow, count)| {
                let mut flow = Arc::unwrap_or_clone(flow);
                flow.count = count;
                StreamItem::Flow(Box::new(flow))
            })
            .collect();
        self.queued_refusals = match self.queued_events.is_empty() {
            true => 0,
            false => {
                let left = self.queued_events.iter();
                left.filter(|(flow, _)| flow.event.is_refusal()).count()
            }
        };
        if self.lost_events != (0, 0) {
            let (sampled, refusals) = std::mem::take(&mut self.lost_events);
            items.push(StreamItem::Lost { sampled, refusals });
        }
        items
    }
}

#[cfg(test)]
mod tests {
    use super::{super::tests::flow, *};
    use ambit_flow::FlowEventKind;

    fn counts(items: &[StreamItem]) -> (u64, u64, u64) {
        items
            .iter()
            .fold((0, 0, 0), |(flows, sampled, refusals), item| match item {
                StreamItem::Flow(flow) => (flows + flow.count, sampled, refusals),
                StreamItem::Lost {
                    sampled: more,
                    refusals: refused,
                } => (flows, sampled + more, refusals + refused),
            })
    }

    fn refused_from(workload: usize) -> Arc<Flow> {
        let mut refused = flow(FlowEventKind::Refused);
        refused.source.workload = Some(format!("client-{workload}"));
        Arc::new(refused)
    }

    #[test]
    fn events_that_do_not_fit_are_counted() {
        let now = Instant::now();
        let mut queue = Queue::new(now);
        for _ in 0..MAX_QUEUED_EVENTS + 10 {
            queue.add(Arc::new(flow(FlowEventKind::Opened)), now);
        }
        assert_eq!(counts(&queue.take_batch(usize::MAX, now)), (1024, 10, 0));
        assert_eq!(queue.take_batch(usize::MAX, now), []);
    }

    #[test]
    fn events_beyond_the_rate_are_sampled_evenly() {
        let mut now = Instant::now();
        let mut queue = Queue::new(now);
        let (mut seen, mut lost) = (0, 0);
        for _ in 0..10 {
            let second: Vec<_> = (0..100)
                .map(|_| {
                    for _ in 0..100 {
                        now += Duration::from_micros(100);
                        queue.add(Arc::new(flow(FlowEventKind::Request)), now);
                    }
                    let (flows, sampled, _) = counts(&queue.take_batch(usize::MAX, now));
                    lost += sampled;
                    flows
                })
                .collect();
            seen = second.iter().sum();
            // Every part of a second has events after the first burst.
            assert!(second.iter().all(|flows| *flows >= 39), "{second:?}");
        }
        assert!((3_990..=4_010).contains(&seen), "{seen}");
        assert!(lost > 50_000, "{lost}");
    }

    #[test]
    fn refusals_are_not_sampled_with_the_rest() {
        let now = Instant::now();
        let mut queue = Queue::new(now);
        for _ in 0..100_000 {
            queue.add(Arc::new(flow(FlowEventKind::Closed)), now);
        }
        for client in 0..500 {
            queue.add(refused_from(client), now);
        }
        let items = queue.take_batch(usize::MAX, now);
        let refused = items.iter().filter(
            |item| matches!(item, StreamItem::Flow(flow) if flow.event == FlowEventKind::Refused),
        );
        assert_eq!(refused.count(), 500);
    }

    #[test]
    fn similar_refusals_are_counted_when_many_are_queued() {
        let now = Instant::now();
        let mut queue = Queue::new(now);
        for _ in 0..100_000 {
            queue.add(refused_from(1), now);
            queue.add(refused_from(2), now);
        }
        let items = queue.take_batch(usize::MAX, now);
        assert!(items.len() <= AGGREGATION_THRESHOLD + 2, "{}", items.len());
        assert_eq!(counts(&items), (200_000, 0, 0));
    }

    #[test]
    fn too_many_different_refusals_are_counted_as_lost() {
        let now = Instant::now();
        let mut queue = Queue::new(now);
        for client in 0..2000 {
            queue.add(refused_from(client), now);
        }
        assert_eq!(counts(&queue.take_batch(usize::MAX, now)), (1024, 0, 976));
    }

    #[test]
    fn reader_that_reads_nothing_is_stalled() {
        let start = Instant::now();
        let mut queue = Queue::new(start);
        let late = start + MAX_STALL + Duration::from_secs(1);
        for _ in 0..MAX_QUEUED_EVENTS {
            assert_eq!(
                queue.add(Arc::new(flow(FlowEventKind::Opened)), start),
                QueueOutcome::Accepted
            );
        }
        assert_eq!(
            queue.add(Arc::new(flow(FlowEventKind::Opened)), start),
            QueueOutcome::Accepted
        );
        let stalled = queue.add(Arc::new(flow(FlowEventKind::Opened)), late);
        assert_eq!(stalled, QueueOutcome::Stalled);
        queue.take_batch(1, late);
        queue.add(Arc::new(flow(FlowEventKind::Opened)), late);
        assert_eq!(
            queue.add(Arc::new(flow(FlowEventKind::Opened)), late),
            QueueOutcome::Accepted
        );
    }
}
