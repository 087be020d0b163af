//! Late captures: pods of the mesh that started before they were captured.
//!
//! A pod of the mesh starts only when it is captured, since the plugin waits. If the plugin was not called (its
//! configuration was deleted before a boot) or could not know (the pod opted in by its own label while the agent was
//! unavailable), the pod starts uncaptured. It is captured as soon as it is found, but its connections from before, in
//! both directions, are plaintext without identity and policy. They violate the pod's policies, so they are closed when
//! its capture is in place.
//!
//! A pod that was labelled while it ran differs: its connections continue (hitless). The two cases must never be
//! confused, so a capture counts as late only if the pod certainly belonged to the mesh before its sandbox was created,
//! and an agent ran on the node:
//! - this agent observed the pod before the pod had an address, and the pod has belonged to the mesh ever since;
//! - the pod was captured in another sandbox than the current one: by this agent, or according to its annotation at
//!   this agent's start;
//! - the previous agent did not know the pod, and the pod belonged to the mesh by its own label at its creation, or by
//!   the labels of its namespace that the previous agent recorded. Its labels must be unchanged since its creation
//!   ([`PodView::unchanged`]).
//!
//! In every other case the order is unknown, and its connections are kept and listed. They are also kept if the
//! sandbox is found captured, by this or by another agent; parts that a failed attempt has left do not count.

use ambit_zds::PodUid;

use super::{Enrolment, pod::Goal};
use crate::source::{EarlierObjects, Labels, PodView, RedirectionStatus};

impl<N: Clone + PartialEq> Enrolment<N> {
    /// Whether a pod that appears while this agent runs belonged to the mesh before it was captured, so that its
    /// capture is late.
    pub(super) fn is_late_when_first_seen(&self, view: &PodView) -> bool {
        let runs = !view.addresses.is_empty();
        let came_with_label = view.unchanged && self.opts_in(view, &Labels::new());
        self.belongs_to_mesh(view) && (!runs || came_with_label)
    }

    /// Determines which of the pods that existed at the start are captured late, once all namespaces are known.
    pub(super) fn mark_late_captures(&mut self) {
        let record = self.earlier_objects.take();
        let late: Vec<PodUid> = self
            .pods
            .iter()
            .filter(|(uid, pod)| {
                let view = &pod.view;
                let newer = |record: &EarlierObjects| {
                    let none = Labels::new();
                    let namespace = record.namespaces.get(&view.name.namespace);
                    view.unchanged
                        && !record.pods.contains(*uid)
                        && self.opts_in(view, namespace.unwrap_or(&none))
                };
                self.belongs_to_mesh(view)
                    && (view.addresses.is_empty()
                        || view.reported == RedirectionStatus::Enabled
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

    /// Clears `capture_is_late` of a pod outside the mesh: if the pod joins later, it joins while it runs.
    pub(super) fn clear_late_capture(&mut self, uid: &PodUid) {
        let outside = |pod: &super::Pod<N>| matches!(self.goal(pod), Ok(Goal::Unenrolled));
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
