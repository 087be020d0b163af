//! Scans of /proc for network namespaces: their times, their pods, and their results.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ambit_zds::PodUid;

use super::{Effect, Enrolment, Goal, Rules, ScanTarget};
use crate::source::{PodView, Status};

/// First and longest pause between scans while pods are missing.
const PAUSE: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(30));

/// One scan runs at a time, for all pods that want one.
#[derive(Debug)]
pub(super) struct Scanning {
    running_since: Option<Instant>,
    /// Time of the next scan.
    due: Option<Instant>,
    pause: Duration,
    initial_done: bool,
}

impl Default for Scanning {
    fn default() -> Self {
        Self {
            running_since: None,
            due: None,
            pause: PAUSE.0,
            initial_done: false,
        }
    }
}

impl Scanning {
    pub(super) fn initial_done(&self) -> bool {
        self.initial_done
    }

    pub(super) fn deadline(&self) -> Option<Instant> {
        self.due.filter(|_| self.running_since.is_none())
    }

    /// Requests a scan.
    pub(super) fn want(&mut self, now: Instant) {
        self.due = Some(now);
    }

    /// A pod's namespace is missing: scan now if the last scan is old enough, else when due.
    pub(super) fn want_missing(&mut self, now: Instant) {
        if self.due.is_none() && self.running_since.is_none() {
            self.due = Some(now);
        }
    }

    /// Schedules the next scan after a failure, with increasing delay.
    pub(super) fn failed(&mut self, now: Instant) {
        self.running_since = None;
        self.scan_after_pause(now);
    }

    fn scan_after_pause(&mut self, now: Instant) {
        let due = now + self.pause;
        self.pause = (self.pause * 2).min(PAUSE.1);
        self.due = Some(self.due.map_or(due, |earlier| earlier.min(due)));
    }

    /// Schedules a scan now and soon after, since something has changed.
    pub(super) fn hasten(&mut self, now: Instant) {
        self.pause = PAUSE.0;
        self.want(now);
    }
}

impl<N: Clone + PartialEq> Enrolment<N> {
    pub(super) fn scan_if_due(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        let due = self.scanning.due.is_some_and(|due| due <= now);
        if !due || self.scanning.running_since.is_some() {
            return;
        }
        self.scanning.due = None;
        let initial = !self.scanning.initial_done;
        let targets: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, pod)| {
                // At first also pods outside: an agent before us may have left them captured.
                let in_question = initial || matches!(self.goal(pod), Ok(Goal::In(_)));
                in_question && !pod.gone && could_be_found(&pod.view) && !pod.addresses.is_empty()
            })
            .map(|(uid, pod)| ScanTarget {
                uid: uid.clone(),
                cgroup_alias: pod.view.cgroup_alias.clone(),
                addresses: pod.addresses.clone(),
            })
            .collect();
        if targets.is_empty() {
            if initial {
                self.initial_scan_done(now, effects);
            }
            return;
        }
        self.scanning.running_since = Some(now);
        effects.push(Effect::Scan(targets));
    }

    pub(super) fn on_scanned(
        &mut self,
        found: BTreeMap<PodUid, N>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        let Some(started) = self.scanning.running_since.take() else {
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
                    pod.suspect = None;
                    if std::mem::take(&mut pod.look_if_alive) {
                        pod.rules = Rules::Unknown;
                    }
                }
                // Processes of an old sandbox may be around while a new one is being made: another
                // namespace is believed when two scans in a row agree on it.
                Some(_) if known_before => {
                    if pod.suspect.as_ref() == Some(&netns) {
                        tracing::warn!(pod = %pod.view.name, "the pod has a new network namespace");
                        // It started anew, and the plugin did not call.
                        pod.capture_is_late |= pod.expects_redirection;
                        pod.set_netns(netns, now);
                    } else {
                        pod.suspect = Some(netns);
                        self.scanning.want(now + PAUSE.0);
                    }
                }
                Some(_) => {}
            }
            if self.scanning.initial_done {
                self.advance(&uid, now, effects);
            }
        }
        if !self.scanning.initial_done {
            self.initial_scan_done(now, effects);
        }
        self.scan_again_for_missing(now);
    }

    fn initial_scan_done(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        self.scanning.initial_done = true;
        let mut keep = std::collections::BTreeSet::new();
        for uid in self.uids() {
            let Some(pod) = self.pods.get(&uid) else {
                continue;
            };
            let goal = self.goal(pod);
            if matches!(goal, Ok(Goal::In(_)) | Err(_)) {
                keep.insert(pod.view.name.clone());
                if pod.netns.is_none() {
                    effects.push(Effect::Hold(uid.clone()));
                }
            } else if matches!(goal, Ok(Goal::Out)) && pod.view.reported == Status::Enabled {
                // It left while no agent looked: a proxy serves it until all others know.
                effects.push(Effect::Hold(uid.clone()));
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.maybe_served = true;
                }
            }
            // Orders given now are part of the first snapshot.
            self.advance(&uid, now, effects);
        }
        effects.push(Effect::PruneStatus(keep));
        effects.push(Effect::OpenZds);
    }

    fn scan_again_for_missing(&mut self, now: Instant) {
        let missing = self.pods.values().any(|pod| {
            pod.netns.is_none()
                && !pod.addresses.is_empty()
                && matches!(self.goal(pod), Ok(Goal::In(_)))
        });
        if missing {
            self.scanning.scan_after_pause(now);
        } else {
            self.scanning.pause = PAUSE.0;
        }
    }
}

/// Pods in the node's own namespace are never looked for, ended ones have no processes.
fn could_be_found(view: &PodView) -> bool {
    !view.host_network && !view.terminal
}
