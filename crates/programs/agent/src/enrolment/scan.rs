//! Scans of the node's processes for pods' network namespaces: which pods to search, and how results are applied.

use std::{collections::BTreeMap, time::Instant};

use ambit_zds::PodUid;

use super::{
    Enrolment,
    event::{Effect, ScanTarget},
    pod::{Goal, Pod, RuleState},
    scan_schedule::SCAN_DELAY,
};
use crate::source::{PodView, RedirectionStatus};

impl<N: Clone + PartialEq> Enrolment<N> {
    pub(super) fn scan_if_due(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        let due = self.scan_schedule.due_at.is_some_and(|due| due <= now);
        if !due || self.scan_schedule.running_since.is_some() {
            return;
        }
        self.scan_schedule.due_at = None;
        let initial = !self.scan_schedule.is_initial_scan_done;
        let targets: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, pod)| {
                // At first also pods outside: an agent before us may have left them captured.
                let in_question = initial
                    || matches!(self.goal(pod), Ok(Goal::Enrolled(_)))
                    || self.needs_netns(pod);
                in_question
                    && !pod.is_deleted
                    && is_scannable(&pod.view)
                    && !pod.addresses.is_empty()
            })
            .map(|(uid, pod)| ScanTarget {
                uid: uid.clone(),
                cgroup_alias: pod.view.cgroup_alias.clone(),
                addresses: pod.addresses.clone(),
            })
            .collect();
        if targets.is_empty() {
            if initial {
                self.on_initial_scan_done(now, effects);
            }
            return;
        }
        self.scan_schedule.running_since = Some(now);
        effects.push(Effect::Scan(targets));
    }

    pub(super) fn on_scanned(
        &mut self,
        found: BTreeMap<PodUid, N>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        let Some(started) = self.scan_schedule.running_since.take() else {
            return;
        };
        for (uid, netns) in found {
            let Some(pod) = self.pods.get_mut(&uid) else {
                continue;
            };
            let known_before = pod.netns_since.is_none_or(|since| since < started);
            match &pod.netns {
                None => pod.set_netns(netns, now),
                Some(current) if *current == netns => {
                    pod.suspect_netns = None;
                    if std::mem::take(&mut pod.check_netns_alive) {
                        pod.rule_state = RuleState::Unknown;
                    }
                }
                // Processes of an old sandbox may be around while a new one is being made: another
                // namespace is believed when two scans in a row agree on it.
                Some(_) if known_before => {
                    if pod.suspect_netns.as_ref() == Some(&netns) {
                        tracing::warn!(pod = %pod.view.name, "the pod has a new network namespace");
                        // It started anew, and the plugin did not call.
                        pod.capture_is_late |= pod.expects_rules_in_place;
                        pod.set_netns(netns, now);
                    } else {
                        pod.suspect_netns = Some(netns);
                        self.scan_schedule.request_scan(now + SCAN_DELAY.0);
                    }
                }
                Some(_) => {}
            }
            if self.scan_schedule.is_initial_scan_done {
                self.start_next_step(&uid, now, effects);
            }
        }
        if !self.scan_schedule.is_initial_scan_done {
            self.on_initial_scan_done(now, effects);
        }
        self.scan_again_for_missing(now);
    }

    fn on_initial_scan_done(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        self.scan_schedule.is_initial_scan_done = true;
        let mut keep = std::collections::BTreeSet::new();
        for uid in self.pod_uids() {
            let Some(pod) = self.pods.get(&uid) else {
                continue;
            };
            let goal = self.goal(pod);
            let is_kept = if matches!(goal, Ok(Goal::Enrolled(_)) | Err(_)) {
                keep.insert(pod.view.name.clone());
                pod.netns.is_none()
            } else {
                // It left while no agent looked: a proxy serves it until all others know.
                matches!(goal, Ok(Goal::Unenrolled))
                    && pod.view.reported == RedirectionStatus::Enabled
            };
            if is_kept && let Some(pod) = self.pods.get_mut(&uid) {
                pod.may_be_served = true;
                effects.push(Effect::HoldPod(uid.clone()));
            }
            // Orders given now are part of the first snapshot.
            self.start_next_step(&uid, now, effects);
        }
        effects.push(Effect::PruneStatus(keep));
        effects.push(Effect::OpenZds);
    }

    /// Whether the pod's next step needs its namespace, which is not known: to capture the pod, or to release it.
    fn needs_netns(&self, pod: &Pod<N>) -> bool {
        let is_needed = match self.goal(pod) {
            Ok(Goal::Enrolled(_)) => true,
            Ok(Goal::Unenrolled) => pod.may_be_served,
            Ok(Goal::Deleted) | Err(_) => false,
        };
        is_needed && pod.netns.is_none()
    }

    fn scan_again_for_missing(&mut self, now: Instant) {
        let mut pods = self.pods.values();
        if pods.any(|pod| !pod.addresses.is_empty() && self.needs_netns(pod)) {
            self.scan_schedule.scan_after_pause(now);
        } else {
            self.scan_schedule.retry_delay = SCAN_DELAY.0;
        }
    }
}

/// Whether a scan can find the pod: pods of the node's network namespace are never searched, and ended pods have no
/// processes.
fn is_scannable(view: &PodView) -> bool {
    !view.host_network && !view.terminal
}
