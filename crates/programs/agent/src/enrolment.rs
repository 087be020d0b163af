//! State machine of enrolment: the desired capture of each pod, its observed state, and the next step. Pure.
//!
//! For every pod of the node the goal (in, out, gone) follows from labels and phase, the observed state is recorded,
//! and the next step is the first difference. One step a pod is in flight at a time, and its outcome counts only for
//! the namespace that it changed. So every order of events ends in the same state: plugin before source, a new sandbox
//! for the same uid, label on and off while steps run, restarts of agent or proxy.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use ambit_k8s_api::enablement::Enablement;
use ambit_model::ArcStr;
use ambit_netplan::{ProbePorts, RedirectionSpec};
use ambit_zds::PodUid;

use crate::source::{EarlierObjects, Labels, PodView, SourceEvent};

mod annotations;
mod call;
mod event;
mod late_capture;
mod parked;
mod pod;
mod report;
mod requests;
mod scan;
mod scan_schedule;
mod step;

use annotations::redirection_spec;
use parked::{ParkedCall, ParkedCalls};
use pod::{Goal, NextAction, Pod, RuleState, RunningStep};
use scan_schedule::ScanSchedule;

pub use annotations::AnnotationError;
pub use call::{CniAdd, PluginReply, PodRef, RequestId};
pub use event::{Effect, Event, ScanTarget};
pub use step::{ProbeStep, ProbeTargets, ProxyStep, RedirectionStep, Step, StepId, WriteStatus};

/// Settings of enrolment, which all pods share.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Decides by labels which pods belong to the mesh.
    pub enablement: Enablement,
    /// Redirection of a pod without annotations and probe ports.
    pub redirection: RedirectionSpec,
    /// Whether connections of the node's processes are exempt only on the ports that a pod's probes and hooks name,
    /// rather than on every port.
    pub exempt_probe_ports_only: bool,
}

/// Numbers of pods by state, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PodCounts {
    /// Number of pods that belong to the mesh.
    pub desired: usize,
    /// Number of captured pods.
    pub captured: usize,
    /// Number of pods whose last step failed.
    pub failing: usize,
    /// Number of captured pods with a warning about their redirection.
    pub warned: usize,
}

/// State machine that enrols the pods of this node.
#[derive(Debug)]
pub struct Enrolment<N> {
    settings: Settings,
    namespaces: BTreeMap<ArcStr, Labels>,
    pods: BTreeMap<PodUid, Pod<N>>,
    parked_calls: ParkedCalls<N>,
    scan_schedule: ScanSchedule,
    is_source_synced: bool,
    next_step_id: u64,
    membership: Option<BTreeMap<ArcStr, bool>>,
    /// Pods and namespace labels that the previous agent recorded; dropped once the initial pods are known.
    earlier_objects: Option<EarlierObjects>,
}

impl<N: Clone + PartialEq> Enrolment<N> {
    /// Creates the state machine without pods.
    pub fn new(settings: Settings) -> Self {
        Self {
            settings,
            namespaces: BTreeMap::new(),
            pods: BTreeMap::new(),
            parked_calls: ParkedCalls::default(),
            scan_schedule: ScanSchedule::default(),
            is_source_synced: false,
            next_step_id: 0,
            membership: None,
            earlier_objects: None,
        }
    }

    /// Whether the source has sent all objects that existed at the agent's start, and they were processed.
    pub fn is_ready(&self) -> bool {
        self.scan_schedule.is_initial_scan_done()
    }

    /// Returns the UIDs of the pods that exist.
    pub fn uids(&self) -> BTreeSet<PodUid> {
        self.pods.keys().cloned().collect()
    }

    /// Counts the pods by state.
    pub fn counts(&self) -> PodCounts {
        let mut counts = PodCounts::default();
        for pod in self.pods.values() {
            let Ok(goal) = self.goal(pod) else {
                counts.desired += 1;
                counts.failing += 1;
                continue;
            };
            counts.desired += usize::from(matches!(goal, Goal::Enrolled(_)));
            counts.captured += usize::from(pod.is_captured(&goal));
            counts.failing += usize::from(pod.failure.is_some());
            counts.warned += usize::from(!pod.warnings.is_empty());
        }
        counts
    }

    /// Returns the network namespaces of running pods that have, or may have, redirection.
    pub fn captured_netns(&self) -> Vec<N> {
        let pods = self.pods.values();
        let captured = pods.filter(|pod| {
            pod.rule_state != RuleState::None && !matches!(self.goal(pod), Ok(Goal::Deleted))
        });
        captured.filter_map(|pod| pod.netns.clone()).collect()
    }

    /// Whether a pod that left the mesh still has redirection, or a node proxy still serves it.
    pub fn is_unenrolling(&self) -> bool {
        let mut leaving = self
            .pods
            .values()
            .filter(|pod| matches!(self.goal(pod), Ok(Goal::Unenrolled)));
        leaving.any(|pod| {
            pod.may_be_served || pod.exempted_probes.is_some() || pod.running_step.is_some()
        })
    }

    /// Returns the time at which the next [`Event::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        let pods = self.pods.values().filter_map(Pod::deadline);
        pods.chain(self.parked_calls.deadline())
            .chain(self.scan_schedule.deadline())
            .min()
    }

    /// Handles an event, and returns the effects to carry out.
    pub fn on_event(&mut self, event: Event<N>, now: Instant) -> Vec<Effect<N>> {
        let mut effects = Vec::new();
        match event {
            Event::Source(event) => self.on_source_event(event, now, &mut effects),
            Event::CniAdd(request, add) => self.on_cni_add(request, add, now, &mut effects),
            Event::IsMember(request, which) => {
                self.park_call(request, ParkedCall::IsMember(which), now, &mut effects);
            }
            Event::Scanned(found) => self.on_scanned(found, now, &mut effects),
            Event::ScanFailed => self.scan_schedule.on_scan_failed(now),
            Event::StepDone { uid, id, result } => {
                self.on_step_done(&uid, id, result, now, &mut effects);
            }
            Event::Repaired { uid, what } => {
                // Elsewhere it has just been put in place, or replaced what an unenrolment left.
                if let Some(pod) = self
                    .pods
                    .get_mut(&uid)
                    .filter(|pod| pod.expects_rules_in_place)
                {
                    tracing::warn!(pod = %pod.view.name, what, "redirection had drifted and is repaired");
                    pod.repair_count = pod.repair_count.saturating_add(1);
                }
            }
            Event::Applied {
                uid,
                method,
                warnings,
            } => {
                let backend = self.settings.redirection.backend;
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.set_method(method, backend);
                    pod.set_warnings(warnings);
                }
            }
            Event::ProxySynced => {
                for uid in self.pod_uids() {
                    if let Some(failure) = self.pods.get_mut(&uid).and_then(|p| p.failure.as_mut())
                    {
                        failure.retry_at = now;
                    }
                    self.start_next_step(&uid, now, &mut effects);
                }
            }
            Event::Reconcile => self.on_reconcile(now, &mut effects),
            Event::Tick => self.on_tick(now, &mut effects),
        }
        effects
    }

    fn pod_uids(&self) -> Vec<PodUid> {
        self.pods.keys().cloned().collect()
    }

    fn on_source_event(&mut self, event: SourceEvent, now: Instant, effects: &mut Vec<Effect<N>>) {
        match event {
            SourceEvent::Pod(view) => {
                let uid = view.uid.clone();
                self.update_pod(view, now);
                self.start_next_step(&uid, now, effects);
            }
            SourceEvent::PodGone(uid) => {
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.is_deleted = true;
                    pod.failure = None;
                }
                self.start_next_step(&uid, now, effects);
            }
            SourceEvent::Namespace(name, labels) => {
                self.namespaces.insert(name.clone(), labels);
                self.advance_pods_of_namespace(&name, now, effects);
            }
            SourceEvent::NamespaceGone(name) => {
                self.namespaces.remove(&name);
                self.advance_pods_of_namespace(&name, now, effects);
            }
            SourceEvent::Recorded(record) => self.earlier_objects = Some(record),
            SourceEvent::Synced => {
                self.is_source_synced = true;
                self.mark_late_captures();
                self.scan_schedule.request_scan(now);
            }
        }
        if self.is_source_synced {
            self.write_membership(effects);
            self.resume_parked_calls(now, effects);
            self.scan_if_due(now, effects);
        }
    }

    fn update_pod(&mut self, view: PodView, now: Instant) {
        let Some(pod) = self.pods.get_mut(&view.uid) else {
            let mut pod = Pod::new(view, !self.is_source_synced);
            pod.capture_is_late = self.is_source_synced && self.is_late_when_first_seen(&pod.view);
            self.pods.insert(pod.view.uid.clone(), pod);
            return;
        };
        pod.is_deleted = false;
        // An ended pod loses its addresses in its status; what we know is needed to the end.
        let moved = !view.addresses.is_empty() && view.addresses != pod.view.addresses;
        // The plugin's namespace is confirmed now; any other means another sandbox.
        let unexpected = moved && (view.addresses != pod.addresses || pod.netns.is_none());
        if moved {
            pod.addresses.clone_from(&view.addresses);
        }
        let uid = view.uid.clone();
        pod.view = view;
        let belongs = |pod: &Pod<N>| matches!(self.goal(pod), Ok(Goal::Enrolled(_)));
        if unexpected && self.pods.get(&uid).is_some_and(belongs) {
            self.scan_schedule.scan_soon(now);
        }
    }

    fn advance_pods_of_namespace(
        &mut self,
        name: &str,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        for uid in self.pod_uids() {
            if self
                .pods
                .get(&uid)
                .is_some_and(|pod| *pod.view.name.namespace == *name)
            {
                self.start_next_step(&uid, now, effects);
            }
        }
    }

    fn goal(&self, pod: &Pod<N>) -> Result<Goal, AnnotationError> {
        if pod.is_deleted || pod.view.terminal {
            return Ok(Goal::Deleted);
        }
        if !self.belongs_to_mesh(&pod.view) {
            return Ok(Goal::Unenrolled);
        }
        let mut spec = redirection_spec(&self.settings.redirection, &pod.view.annotations)?;
        // Unless the settings exempt every port of every pod.
        if self.settings.exempt_probe_ports_only
            && let Some(ports) = &pod.view.probe_ports
        {
            spec.probe_ports = ProbePorts::Only(ports.clone());
        }
        Ok(Goal::Enrolled(spec))
    }

    /// Whether a pod belongs to the mesh. As long as its namespace is unknown, only the pod's own labels count.
    fn belongs_to_mesh(&self, view: &PodView) -> bool {
        let none = Labels::new();
        let labels = self.namespaces.get(&view.name.namespace).unwrap_or(&none);
        self.settings.enablement.includes(view, labels)
    }

    /// Starts the pod's next step, unless one is in flight or it must wait.
    fn start_next_step(&mut self, uid: &PodUid, now: Instant, effects: &mut Vec<Effect<N>>) {
        // Before everything is known, a missing label may be that of a namespace still to come, and
        // a pod that seems untouched may be one that an agent before us has captured.
        if !self.scan_schedule.is_initial_scan_done() {
            return;
        }
        self.clear_late_capture(uid);
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        if pod.running_step.is_some() {
            return;
        }
        let goal = match self.goal(pod) {
            Ok(goal) => goal,
            Err(error) => {
                let text = format!("pod {}: {error}", pod.view.name);
                self.report_failure(uid, &text, effects);
                self.reply_to_waiting_calls(uid, &PluginReply::Refused(text), effects);
                return;
            }
        };
        if pod.is_captured(&goal) {
            self.reply_to_waiting_calls(uid, &PluginReply::Captured, effects);
            self.clear_failure(uid, effects);
        } else if !matches!(goal, Goal::Enrolled(_)) {
            let text = format!(
                "pod {} does not belong to the mesh (any more)",
                pod.view.name
            );
            self.reply_to_waiting_calls(uid, &PluginReply::Refused(text), effects);
        }
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        match pod.next_action(&goal, now) {
            NextAction::Step(step) => {
                let id = StepId(self.next_step_id);
                self.next_step_id += 1;
                pod.may_be_served |= matches!(step, Step::Proxy(ProxyStep::Announce { .. }));
                pod.running_step = Some(RunningStep {
                    id,
                    step: step.clone(),
                });
                effects.push(Effect::Step {
                    uid: uid.clone(),
                    id,
                    step,
                });
            }
            NextAction::NeedNetns if !pod.addresses.is_empty() => {
                self.scan_schedule.request_scan_for_missing(now)
            }
            // Not started yet: the plugin will bring it.
            NextAction::NeedNetns | NextAction::Wait => {}
            NextAction::Settled => match goal {
                Goal::Enrolled(_) => {}
                // Its descriptor is not needed any more.
                Goal::Unenrolled => pod.forget_netns(),
                Goal::Deleted if pod.is_deleted => {
                    self.pods.remove(uid);
                }
                Goal::Deleted => pod.forget_netns(),
            },
        }
    }

    fn on_step_done(
        &mut self,
        uid: &PodUid,
        id: StepId,
        result: Result<(), String>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let Some(busy) = pod.running_step.take_if(|busy| busy.id == id) else {
            return;
        };
        match result {
            Ok(()) => pod.on_step_done(busy.step, now),
            Err(text) => {
                let text = format!("pod {}: {text}", pod.view.name);
                let about = busy.step.netns();
                let stale = about.is_some() && about != pod.netns.as_ref();
                if !stale {
                    pod.on_step_failed(&busy.step, text.clone(), now);
                    let waited = !pod.waiting_calls.is_empty();
                    if !matches!(busy.step, Step::Status(_)) {
                        self.report_failure(uid, &text, effects);
                    }
                    let reply = match busy.step {
                        Step::Proxy(ProxyStep::Announce { .. }) => PluginReply::TryLater(text),
                        _ => PluginReply::Failed(text),
                    };
                    self.reply_to_waiting_calls(uid, &reply, effects);
                    if waited && let Some(pod) = self.pods.get_mut(uid) {
                        // The runtime tears the sandbox down and makes a new one.
                        pod.forget_netns();
                        pod.failure = None;
                    }
                }
            }
        }
        self.start_next_step(uid, now, effects);
        self.scan_if_due(now, effects);
    }

    /// Reports a failure to the pod's owner, unless the same failure was reported last.
    fn report_failure(&mut self, uid: &PodUid, text: &str, effects: &mut Vec<Effect<N>>) {
        let Some(pod) = self.pods.get_mut(uid).filter(|pod| !pod.is_deleted) else {
            return;
        };
        if pod.reported_failure.as_deref() != Some(text) {
            pod.reported_failure = Some(text.to_owned());
            effects.push(Effect::ReportFailure {
                uid: uid.clone(),
                pod: pod.view.name.clone(),
                failure: Some(text.to_owned()),
            });
        }
    }

    fn clear_failure(&mut self, uid: &PodUid, effects: &mut Vec<Effect<N>>) {
        if let Some(pod) = self.pods.get_mut(uid)
            && pod.reported_failure.take().is_some()
        {
            effects.push(Effect::ReportFailure {
                uid: uid.clone(),
                pod: pod.view.name.clone(),
                failure: None,
            });
        }
    }

    fn on_reconcile(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        if !self.is_ready() {
            return;
        }
        self.set_probe_members(effects);
        for uid in self.pod_uids() {
            if let Some(pod) = self.pods.get_mut(&uid)
                && matches!(pod.rule_state, RuleState::Applied(_))
            {
                // The sandbox of a pod that is being deleted may be coming down: what the runtime takes
                // away there is not to be put back.
                if pod.view.deleting {
                    pod.check_netns_alive = true;
                } else {
                    pod.rule_state = RuleState::Unknown;
                }
            }
            self.start_next_step(&uid, now, effects);
        }
        self.scan_schedule.request_scan(now);
        self.scan_if_due(now, effects);
    }

    /// Replaces the members of the node's probe set by the addresses and ports of captured pods, once the addresses of
    /// all are known.
    fn set_probe_members(&self, effects: &mut Vec<Effect<N>>) {
        let captured: Vec<_> = self
            .pods
            .iter()
            .filter(|(_, pod)| {
                pod.exempted_probes.is_some() || matches!(self.goal(pod), Ok(Goal::Enrolled(_)))
            })
            .collect();
        let unsettled = |pod: &Pod<N>| {
            let step = pod.running_step.as_ref().map(|busy| &busy.step);
            // Until this agent has written the pod's probes, those that an earlier one wrote stay.
            let is_earlier = pod.expects_rules_in_place && pod.exempted_probes.is_none();
            pod.addresses.is_empty() || is_earlier || matches!(step, Some(Step::Probes(_)))
        };
        if captured.iter().any(|(_, pod)| unsettled(pod)) {
            return;
        }
        let members = captured
            .into_iter()
            .filter_map(|(uid, pod)| {
                let ports = pod.exempted_probes.as_ref()?.ports.clone();
                let addresses = pod.addresses.clone();
                Some((uid.clone(), ProbeTargets { addresses, ports }))
            })
            .collect();
        effects.push(Effect::SetProbeMembers(members));
    }

    fn on_tick(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        for uid in self.pod_uids() {
            let deadline = self.pods.get(&uid).and_then(Pod::deadline);
            if deadline.is_some_and(|deadline| deadline <= now) {
                self.start_next_step(&uid, now, effects);
                if let Some(pod) = self.pods.get_mut(&uid) {
                    pod.clear_elapsed_deadlines(now);
                }
            }
        }
        if self.is_source_synced {
            self.resume_parked_calls(now, effects);
            self.scan_if_due(now, effects);
        } else {
            self.expire_parked_calls(now, effects);
        }
    }

    fn write_membership(&mut self, effects: &mut Vec<Effect<N>>) {
        let enablement = &self.settings.enablement;
        let mut membership: BTreeMap<ArcStr, bool> = self
            .namespaces
            .iter()
            .map(|(name, labels)| (name.clone(), enablement.includes_namespace(name, labels)))
            .collect();
        for pod in self.pods.values().filter(|pod| !pod.is_deleted) {
            if self.belongs_to_mesh(&pod.view) {
                membership.insert(pod.view.name.namespace.clone(), true);
            }
        }
        if self.membership.as_ref() != Some(&membership) {
            self.membership = Some(membership.clone());
            effects.push(Effect::WriteMembership(membership));
        }
    }
}

#[cfg(test)]
mod tests;
