//! Late captures: pods of the mesh that started before they were captured.
//!
//! A pod of the mesh starts only when it is captured: the plugin waits. Where the plugin was not called (its
//! configuration was deleted before a boot) or could not know (the pod opted in by its own label while the agent was
//! away), the pod starts without. It is captured as soon as it is found, but what it has opened before, and what was
//! opened to it, is in plaintext, without identity and policy. Such a pod must not have had any of these connections,
//! so they are closed when its capture is in place.
//!
//! A pod that was labelled while it ran is another matter: its connections go on (hitless). The two must
//! never be taken for each other, so a capture counts as late only where it is certain that the pod
//! belonged to the mesh before its sandbox was made, and an agent was there on the node:
//! - this agent heard of the pod before the pod had an address, and it belonged then and ever since;
//! - it had been captured, in another sandbox than the one that is found now: by us, or according to its annotation at
//!   our start;
//! - the agent before us did not know the pod, and it belonged by its own label as it was created, or by
//!   the labels of its namespace that the agent before us has recorded. Its labels must be as they were
//!   created ([`PodView::unchanged`]).
//!
//! In every other case the order is not known, and its connections are kept and listed. They are also kept where any
//! redirection is found in the sandbox, ours or that of another agent: then the pod has been captured before.

use ambit_zds::PodUid;

use super::{Enrolment, pod::Goal};
use crate::source::{Labels, PodView, Record, Status};

impl<N: Clone + PartialEq> Enrolment<N> {
    /// Whether capture is late for a pod that the running agent observes for the first time.
    pub(super) fn is_late_at_first_sight(&self, view: &PodView) -> bool {
        let runs = !view.addresses.is_empty();
        let came_with_label = view.unchanged && self.opts_in(view, &Labels::new());
        self.belongs(view) && (!runs || came_with_label)
    }

    /// Evaluates the pods that existed at the start, once all namespaces are known.
    pub(super) fn judge_initial_pods(&mut self) {
        let record = self.record.take();
        let late: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, pod)| {
                let view = &pod.view;
                let newer = |record: &Record| {
                    let none = Labels::new();
                    let namespace = record.namespaces.get(&view.name.namespace);
                    view.unchanged
                        && !record.pods.contains(*uid)
                        && self.opts_in(view, namespace.unwrap_or(&none))
                };
                self.belongs(view)
                    && (view.addresses.is_empty()
                        || view.reported == Status::Enabled
                        || record.as_ref().is_some_and(newer))
            })
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in late {
            if let Some(pod) = self.pods.get_mut(&uid) {
                pod.capture_is_late = true;
            }
        }
    }

    /// Clears the mark of a pod that was observed outside the mesh, since it joins while it runs.
    pub(super) fn forget_lateness_outside(&mut self, uid: &PodUid) {
        let outside = |pod: &super::Pod<N>| matches!(self.goal(pod), Ok(Goal::Out));
        if self.pods.get(uid).is_some_and(outside)
            && let Some(pod) = self.pods.get_mut(uid)
        {
            pod.capture_is_late = false;
        }
    }

    fn opts_in(&self, view: &PodView, namespace: &Labels) -> bool {
        self.settings.enablement.includes(view, namespace)
    }
}
