//! Schedules writes of pods' status annotations from their desired and observed values, and from the writes in flight
//! or delayed. Pure.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ambit_model::PodName;
use ambit_zds::PodUid;

use crate::source::RedirectionStatus;

/// Initial and maximum retry delay after a failed write.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Delay after a write of an annotation: events about older versions of the pod may still arrive, and other controllers
/// may write the annotation too.
const SETTLE_DELAY: Duration = Duration::from_secs(2);
/// Maximum concurrent writes of annotations.
const MAX_CONCURRENT_WRITES: usize = 8;

/// Write of a pod's status annotation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct AnnotationPatch {
    pub(super) uid: PodUid,
    pub(super) pod: PodName,
    pub(super) status: RedirectionStatus,
}

/// Outcome of writing an annotation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum WriteOutcome {
    Done,
    /// The pod to annotate no longer exists.
    NoPod,
    Failed,
}

#[derive(Debug)]
struct AnnotationState {
    pod: PodName,
    desired: Option<RedirectionStatus>,
    observed: Option<RedirectionStatus>,
    is_writing: bool,
    /// Whether the last write failed.
    has_failed: bool,
    not_before: Option<Instant>,
    retry_delay: Duration,
}

/// Desired and observed status annotations of this node's pods.
#[derive(Debug, Default)]
pub(super) struct PodAnnotations {
    pods: BTreeMap<PodUid, AnnotationState>,
}

impl PodAnnotations {
    /// Sets the desired value of a pod's annotation.
    pub(super) fn set_desired(&mut self, uid: PodUid, pod: PodName, status: RedirectionStatus) {
        if status == RedirectionStatus::None && !self.pods.contains_key(&uid) {
            // Its object is gone, and the annotation with it.
            return;
        }
        let entry = self.entry(uid, pod);
        entry.desired = Some(status);
        entry.not_before = None;
        entry.retry_delay = RETRY_DELAY.0;
    }

    /// Records the value of a pod's annotation as observed by the source.
    pub(super) fn set_observed(&mut self, uid: PodUid, pod: PodName, status: RedirectionStatus) {
        self.entry(uid, pod).observed = Some(status);
    }

    /// Retries failed writes at once, since the API server responds again.
    pub(super) fn retry_now(&mut self) {
        for entry in self.pods.values_mut() {
            if entry.has_failed {
                entry.not_before = None;
                entry.retry_delay = RETRY_DELAY.0;
            }
        }
    }

    pub(super) fn remove_pod(&mut self, uid: &PodUid) {
        self.pods.remove(uid);
    }

    fn entry(&mut self, uid: PodUid, pod: PodName) -> &mut AnnotationState {
        self.pods.entry(uid).or_insert(AnnotationState {
            pod,
            desired: None,
            observed: None,
            is_writing: false,
            has_failed: false,
            not_before: None,
            retry_delay: RETRY_DELAY.0,
        })
    }

    /// Returns the writes that are due now, and marks them as in flight.
    pub(super) fn take_due_patches(&mut self, now: Instant) -> Vec<AnnotationPatch> {
        let mut room =
            MAX_CONCURRENT_WRITES - self.pods.values().filter(|entry| entry.is_writing).count();
        let mut patches = Vec::new();
        for (uid, entry) in &mut self.pods {
            let Some(status) = entry.pending_write() else {
                continue;
            };
            if room == 0 || entry.not_before.is_some_and(|at| at > now) {
                continue;
            }
            room -= 1;
            entry.is_writing = true;
            patches.push(AnnotationPatch {
                uid: uid.clone(),
                pod: entry.pod.clone(),
                status,
            });
        }
        patches
    }

    /// Returns the time at which [`Self::take_due_patches`] may return writes without a new event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        let waiting = self
            .pods
            .values()
            .filter(|entry| entry.pending_write().is_some());
        waiting.filter_map(|entry| entry.not_before).min()
    }

    pub(super) fn on_written(
        &mut self,
        patch: &AnnotationPatch,
        outcome: WriteOutcome,
        now: Instant,
    ) {
        let Some(entry) = self.pods.get_mut(&patch.uid) else {
            return;
        };
        entry.is_writing = false;
        entry.has_failed = outcome == WriteOutcome::Failed;
        match outcome {
            WriteOutcome::Done => {
                entry.observed = Some(patch.status);
                entry.retry_delay = RETRY_DELAY.0;
                if entry.desired == Some(patch.status) {
                    entry.not_before = Some(now + SETTLE_DELAY);
                }
            }
            WriteOutcome::NoPod => {
                self.pods.remove(&patch.uid);
            }
            WriteOutcome::Failed => {
                entry.not_before = Some(now + entry.retry_delay);
                entry.retry_delay = (entry.retry_delay * 2).min(RETRY_DELAY.1);
            }
        }
    }
}

impl AnnotationState {
    fn pending_write(&self) -> Option<RedirectionStatus> {
        self.desired
            .filter(|desired| !self.is_writing && self.observed != Some(*desired))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod() -> PodName {
        PodName {
            name: "web".into(),
            namespace: "shop".into(),
            service_account: "sa".into(),
        }
    }

    fn statuses(annotations: &mut PodAnnotations, now: Instant) -> Vec<RedirectionStatus> {
        let due = annotations.take_due_patches(now);
        due.into_iter().map(|patch| patch.status).collect()
    }

    #[test]
    fn correct_annotations_are_not_written() {
        let now = Instant::now();
        let mut annotations = PodAnnotations::default();
        annotations.set_observed("u".into(), pod(), RedirectionStatus::Enabled);
        assert_eq!(statuses(&mut annotations, now), []);
        annotations.set_desired("u".into(), pod(), RedirectionStatus::Enabled);
        assert_eq!(statuses(&mut annotations, now), []);
        annotations.set_desired("u".into(), pod(), RedirectionStatus::None);
        assert_eq!(statuses(&mut annotations, now), [RedirectionStatus::None]);
        assert_eq!(statuses(&mut annotations, now), [], "one at a time");
    }

    #[test]
    fn only_the_latest_wish_is_written_however_long_the_api_server_was_away() {
        let now = Instant::now();
        let mut annotations = PodAnnotations::default();
        annotations.set_desired("u".into(), pod(), RedirectionStatus::Pending);
        let patch = annotations.take_due_patches(now).remove(0);
        annotations.set_desired("u".into(), pod(), RedirectionStatus::None);
        annotations.on_written(&patch, WriteOutcome::Failed, now);
        annotations.set_desired("u".into(), pod(), RedirectionStatus::Enabled);
        assert_eq!(
            statuses(&mut annotations, now),
            [RedirectionStatus::Enabled]
        );
    }

    #[test]
    fn failures_are_retried_with_increasing_delay() {
        let mut now = Instant::now();
        let mut annotations = PodAnnotations::default();
        annotations.set_desired("u".into(), pod(), RedirectionStatus::Enabled);
        let mut pauses = Vec::new();
        for _ in 0..9 {
            let patch = annotations.take_due_patches(now).remove(0);
            annotations.on_written(&patch, WriteOutcome::Failed, now);
            assert_eq!(statuses(&mut annotations, now), []);
            let at = annotations.deadline().unwrap();
            pauses.push((at - now).as_millis());
            now = at;
        }
        assert_eq!(pauses[..3], [500, 1000, 2000]);
        assert_eq!(pauses[8], 30_000);
        let patch = annotations.take_due_patches(now).remove(0);
        annotations.on_written(&patch, WriteOutcome::Failed, now);
        annotations.retry_now();
        assert_eq!(
            statuses(&mut annotations, now),
            [RedirectionStatus::Enabled],
            "not in half a minute"
        );
    }

    #[test]
    fn foreign_writes_are_corrected_without_a_race() {
        let now = Instant::now();
        let mut annotations = PodAnnotations::default();
        annotations.set_desired("u".into(), pod(), RedirectionStatus::Enabled);
        let patch = annotations.take_due_patches(now).remove(0);
        annotations.on_written(&patch, WriteOutcome::Done, now);
        annotations.set_observed("u".into(), pod(), RedirectionStatus::None);
        assert_eq!(statuses(&mut annotations, now), []);
        assert_eq!(
            statuses(&mut annotations, now + SETTLE_DELAY),
            [RedirectionStatus::Enabled]
        );
    }

    #[test]
    fn pods_that_are_gone_are_forgotten_and_many_are_written_in_turn() {
        let now = Instant::now();
        let mut annotations = PodAnnotations::default();
        for n in 0..20 {
            annotations.set_desired(format!("u{n:02}").into(), pod(), RedirectionStatus::Enabled);
        }
        let first = annotations.take_due_patches(now);
        assert_eq!(first.len(), MAX_CONCURRENT_WRITES);
        for patch in &first {
            annotations.on_written(patch, WriteOutcome::NoPod, now);
        }
        annotations.remove_pod(&"u19".into());
        annotations.set_desired("u19".into(), pod(), RedirectionStatus::None);
        assert_eq!(
            annotations.take_due_patches(now).len(),
            MAX_CONCURRENT_WRITES
        );
        assert_eq!(annotations.pods.len(), 11);
    }
}
