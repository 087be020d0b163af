//! State of one pod's enrolment, and its next step.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ambit_netplan::{Backend, RedirectionSpec};
use ambit_zds::WorkloadInfo;

use super::{
    call::RequestId,
    step::{ProbeStep, ProbeTargets, ProxyStep, RedirectionStep, Step, StepId, WriteStatus},
};
use crate::{
    capture::CaptureMethod,
    source::{PodView, RedirectionStatus},
};

/// Initial and maximum retry delay after a failed step.
const RETRY_DELAY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Time for which the proxy's listeners stay after a pod's redirection was removed, until other proxies learn that the
/// pod accepts no HBONE any more.
const LISTENER_LINGER_TIME: Duration = Duration::from_secs(2);

/// Desired state of a pod's enrolment.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Goal {
    /// The pod is captured with this redirection.
    Enrolled(RedirectionSpec),
    /// The pod runs and is not captured.
    Unenrolled,
    /// The pod has ended or was deleted, so that its network namespace vanishes.
    Deleted,
}

/// Last known state of the redirection rules in a pod's network namespace.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum RuleState {
    /// Rules may be in place: an earlier agent may have applied them, or they are to be compared with the kernel
    /// again.
    Unknown,
    None,
    Applied(RedirectionSpec),
}

/// Step of a pod that an executor is carrying out.
#[derive(Clone, Debug)]
pub(super) struct RunningStep<N> {
    pub(super) id: StepId,
    pub(super) step: Step<N>,
}

/// Failure of a pod's last step, and the time of its retry.
#[derive(Clone, Debug)]
pub(super) struct StepFailure {
    pub(super) retry_at: Instant,
    pub(super) delay: Duration,
    /// Whether the pod's status annotation was set to pending for this failure, or could not be written.
    pub(super) is_reported: bool,
    /// Error of the step that failed, as text for operators.
    pub(super) error: String,
}

/// Next step of a pod, or the reason why none is due.
#[derive(Debug)]
pub(super) enum NextAction<N> {
    Step(Step<N>),
    /// The next step needs the pod's network namespace, which a scan has to find first.
    NeedNetns,
    /// No step is due before [`Pod::deadline`], unless an event arrives.
    Wait,
    Settled,
}

#[derive(Debug)]
pub(super) struct Pod<N> {
    pub(super) view: PodView,
    pub(super) is_deleted: bool,
    /// Addresses of the pod that the plugin sent, used until the pod's status has addresses.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) netns: Option<N>,
    /// Time at which `netns` was set, so that the result of an older scan does not replace the namespace.
    pub(super) netns_since: Option<Instant>,
    /// Namespace other than `netns` that one scan has found; a second scan must confirm it.
    pub(super) suspect_netns: Option<N>,
    /// Name and addresses of the pod as last announced to a proxy, which has acknowledged them for `netns`.
    pub(super) announced_info: Option<WorkloadInfo>,
    /// Whether a node proxy may serve the pod in any namespace: the pod was announced, successfully or not, or kept for
    /// proxies of an earlier agent, and not withdrawn since.
    pub(super) may_be_served: bool,
    pub(super) rule_state: RuleState,
    /// Whether to compare the redirection with the kernel if the next scan finds the pod running.
    pub(super) check_netns_alive: bool,
    /// Addresses and ports exempt for kubelet's probes; an entry without addresses means that they are unknown.
    pub(super) exempted_probes: Option<ProbeTargets>,
    /// Status that was last written to the pod's annotation; `None` if the observed one is still valid.
    pub(super) written_status: Option<RedirectionStatus>,
    pub(super) running_step: Option<RunningStep<N>>,
    pub(super) failure: Option<StepFailure>,
    pub(super) linger_until: Option<Instant>,
    /// Calls of the plugin that wait until this pod is captured.
    pub(super) waiting_calls: Vec<RequestId>,
    /// Whether redirection rules should be in place: this or an earlier agent applied them, and they were not released
    /// since.
    pub(super) expects_rules_in_place: bool,
    /// Whether the pod belonged to the mesh when its sandbox was created, but started uncaptured.
    pub(super) capture_is_late: bool,
    /// Number of times that the pod's redirection was repaired.
    pub(super) repair_count: u32,
    /// Method by which the pod was captured last.
    pub(super) method: Option<CaptureMethod>,
    /// Warnings of the last step that do not impair the redirection.
    pub(super) warnings: Vec<String>,
    /// Failure that was last reported to the pod's owner; cleared when the pod is captured.
    pub(super) reported_failure: Option<String>,
}

impl<N: Clone + PartialEq> Pod<N> {
    /// Creates the state of a pod. `existed_at_start`: the pod existed at the agent's start, so that its redirection is
    /// unknown.
    pub(super) fn new(view: PodView, existed_at_start: bool) -> Self {
        Self {
            addresses: view.addresses.clone(),
            expects_rules_in_place: existed_at_start && view.reported == RedirectionStatus::Enabled,
            view,
            is_deleted: false,
            netns: None,
            netns_since: None,
            suspect_netns: None,
            announced_info: None,
            may_be_served: false,
            rule_state: if existed_at_start {
                RuleState::Unknown
            } else {
                RuleState::None
            },
            check_netns_alive: false,
            exempted_probes: None,
            written_status: None,
            running_step: None,
            failure: None,
            linger_until: None,
            waiting_calls: Vec::new(),
            capture_is_late: false,
            repair_count: 0,
            method: None,
            warnings: Vec::new(),
            reported_failure: None,
        }
    }

    /// Returns the current value of the pod's status annotation, as last written or observed.
    pub(super) fn reported_status(&self) -> RedirectionStatus {
        self.written_status.unwrap_or(self.view.reported)
    }

    pub(super) fn workload_info(&self) -> WorkloadInfo {
        WorkloadInfo {
            pod: self.view.name.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Sets the pod's network namespace. A different one resets the state of redirection and listeners.
    pub(super) fn set_netns(&mut self, netns: N, now: Instant) {
        self.suspect_netns = None;
        if self.netns.as_ref() == Some(&netns) {
            return;
        }
        let first = self.netns_since.is_none();
        let expects_redirection = first && self.expects_rules_in_place;
        self.forget_netns();
        self.expects_rules_in_place = expects_redirection;
        // It may be one that an agent before us has filled.
        self.rule_state = RuleState::Unknown;
        self.netns = Some(netns);
        self.netns_since = Some(now);
        self.failure = None;
    }

    pub(super) fn forget_netns(&mut self) {
        self.netns = None;
        self.netns_since = None;
        self.announced_info = None;
        self.rule_state = RuleState::None;
        self.expects_rules_in_place = false;
        self.linger_until = None;
        self.method = None;
        self.warnings.clear();
    }

    /// Sets the method of capture, and logs it, with the reason if rules capture the pod instead of BPF programs: as a
    /// warning if the agent is set to BPF programs.
    pub(super) fn set_method(&mut self, method: CaptureMethod, backend: Backend) {
        if self.method.as_ref() == Some(&method) {
            return;
        }
        let pod = &self.view.name;
        match &method {
            CaptureMethod::RulesInsteadOfBpf(reason) => {
                let text = "rules capture the pod, not BPF programs";
                if backend == Backend::Bpf {
                    tracing::warn!(%pod, reason, text);
                } else {
                    tracing::info!(%pod, reason, text);
                }
            }
            CaptureMethod::Bpf => tracing::info!(%pod, "BPF programs capture the pod"),
            CaptureMethod::Rules => {}
        }
        self.method = Some(method);
    }

    /// Replaces the warnings, and logs new ones.
    pub(super) fn set_warnings(&mut self, warnings: Vec<String>) {
        for warning in warnings.iter().filter(|one| !self.warnings.contains(one)) {
            tracing::warn!(pod = %self.view.name, warning, "the pod is captured with a warning");
        }
        self.warnings = warnings;
    }

    /// Whether redirection, listeners and probe exemption of the pod are as `goal` demands.
    pub(super) fn is_captured(&self, goal: &Goal) -> bool {
        let Goal::Enrolled(spec) = goal else {
            return false;
        };
        self.announced_info.as_ref() == Some(&self.workload_info())
            && self.rule_state == RuleState::Applied(spec.clone())
            && (self.addresses.is_empty() || self.exempted_probes == Some(self.probe_targets(spec)))
    }

    fn probe_targets(&self, spec: &RedirectionSpec) -> ProbeTargets {
        ProbeTargets {
            addresses: self.addresses.clone(),
            ports: spec.probe_ports.clone(),
        }
    }

    /// Returns the pod's next step towards `goal`, if no step is in flight.
    pub(super) fn next_action(&self, goal: &Goal, now: Instant) -> NextAction<N> {
        if let Some(failure) = &self.failure {
            // Peers send plaintext to a pod that is not called captured. One whose redirection has been put
            // in place stays so whatever fails afterwards: without a proxy its connections are refused,
            // and none of them is to be downgraded.
            let annotated = self.reported_status() == RedirectionStatus::Enabled
                && !self.expects_rules_in_place;
            if matches!(goal, Goal::Enrolled(_)) && annotated && !failure.is_reported {
                return NextAction::Step(self.write_status(RedirectionStatus::Pending));
            }
            if failure.retry_at > now {
                return NextAction::Wait;
            }
        }
        match goal {
            Goal::Enrolled(spec) => self.next_while_enrolled(spec, goal),
            Goal::Unenrolled => self.next_while_unenrolled(now),
            Goal::Deleted => self.next_while_deleted(),
        }
    }

    /// Returns the next step of enrolment; listeners are started before rules are applied.
    fn next_while_enrolled(&self, spec: &RedirectionSpec, goal: &Goal) -> NextAction<N> {
        let Some(netns) = self.netns.clone() else {
            // As after a reboot: the annotation is of another sandbox.
            return match self.reported_status() {
                RedirectionStatus::Enabled => {
                    NextAction::Step(self.write_status(RedirectionStatus::Pending))
                }
                RedirectionStatus::None | RedirectionStatus::Pending => NextAction::NeedNetns,
            };
        };
        let info = self.workload_info();
        if self.announced_info.as_ref() != Some(&info) {
            return NextAction::Step(Step::Proxy(ProxyStep::Announce { info, netns }));
        }
        if self.rule_state != RuleState::Applied(spec.clone()) {
            return NextAction::Step(Step::Redirection(RedirectionStep::Apply {
                info,
                cgroup_alias: self.view.cgroup_alias.clone(),
                netns,
                spec: spec.clone(),
                close_pre_capture: self.capture_is_late,
            }));
        }
        if !self.is_captured(goal) {
            let targets = self.probe_targets(spec);
            return NextAction::Step(Step::Probes(ProbeStep::Exempt(targets)));
        }
        if self.written_status != Some(RedirectionStatus::Enabled) {
            return NextAction::Step(self.write_status(RedirectionStatus::Enabled));
        }
        NextAction::Settled
    }

    /// Returns the next step of unenrolment; rules are removed before listeners.
    fn next_while_unenrolled(&self, now: Instant) -> NextAction<N> {
        if let (Some(netns), true) = (&self.netns, self.rule_state != RuleState::None) {
            return NextAction::Step(Step::Redirection(RedirectionStep::Release {
                netns: netns.clone(),
            }));
        }
        if self.reported_status() != RedirectionStatus::None {
            return NextAction::Step(self.write_status(RedirectionStatus::None));
        }
        // An earlier agent may have left redirection: without the proxy the pod's connections would be refused.
        if self.may_be_served && self.netns.is_none() {
            return NextAction::NeedNetns;
        }
        if self.may_be_served {
            return match self.linger_until {
                Some(until) if until > now => NextAction::Wait,
                _ => NextAction::Step(Step::Proxy(ProxyStep::Withdraw)),
            };
        }
        self.next_probe_removal()
    }

    fn next_while_deleted(&self) -> NextAction<N> {
        // With the object gone only what we wrote elsewhere is left of it.
        let reported = if self.is_deleted {
            self.written_status.unwrap_or_default()
        } else {
            self.reported_status()
        };
        if reported != RedirectionStatus::None {
            return NextAction::Step(self.write_status(RedirectionStatus::None));
        }
        if self.may_be_served {
            return NextAction::Step(Step::Proxy(ProxyStep::Withdraw));
        }
        self.next_probe_removal()
    }

    fn next_probe_removal(&self) -> NextAction<N> {
        if self.exempted_probes.is_some() {
            NextAction::Step(Step::Probes(ProbeStep::Remove))
        } else {
            NextAction::Settled
        }
    }

    fn write_status(&self, status: RedirectionStatus) -> Step<N> {
        Step::Status(WriteStatus {
            pod: self.view.name.clone(),
            status,
        })
    }

    /// Returns the time at which the result of [`Self::next_action`] may change without an event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.running_step.is_some() {
            return None;
        }
        let retry = self.failure.as_ref().map(|failure| failure.retry_at);
        retry.into_iter().chain(self.linger_until).min()
    }

    /// Clears deadlines that have passed, so that they do not trigger further ticks.
    pub(super) fn clear_elapsed_deadlines(&mut self, now: Instant) {
        if self.running_step.is_none() {
            self.failure.take_if(|failure| failure.retry_at <= now);
            self.linger_until.take_if(|until| *until <= now);
        }
    }

    /// Records that a step of the pod succeeded.
    pub(super) fn on_step_done(&mut self, step: Step<N>, now: Instant) {
        match (&step, &mut self.failure) {
            (Step::Status(write), Some(failure)) if write.status == RedirectionStatus::Pending => {
                failure.is_reported = true;
            }
            (_, failure) => *failure = None,
        }
        // A step in a namespace that is no longer the pod's does not count.
        if step
            .netns()
            .is_some_and(|netns| self.netns.as_ref() != Some(netns))
        {
            return;
        }
        match step {
            Step::Proxy(ProxyStep::Announce { info, .. }) => {
                self.announced_info = Some(info);
                self.linger_until = None;
            }
            Step::Proxy(ProxyStep::Withdraw) => {
                self.announced_info = None;
                self.may_be_served = false;
                self.linger_until = None;
            }
            Step::Redirection(RedirectionStep::Apply { spec, .. }) => {
                self.rule_state = RuleState::Applied(spec);
                self.expects_rules_in_place = true;
                self.capture_is_late = false;
            }
            Step::Redirection(RedirectionStep::Release { .. }) => {
                self.rule_state = RuleState::None;
                self.expects_rules_in_place = false;
                self.linger_until = self.may_be_served.then(|| now + LISTENER_LINGER_TIME);
            }
            Step::Probes(ProbeStep::Exempt(targets)) => self.exempted_probes = Some(targets),
            Step::Probes(ProbeStep::Remove) => self.exempted_probes = None,
            Step::Status(write) => self.written_status = Some(write.status),
        }
    }

    /// Records that a step of the pod failed; the step is retried with increasing delay.
    pub(super) fn on_step_failed(&mut self, step: &Step<N>, text: String, now: Instant) {
        // What failed half way is not known any more.
        match step {
            Step::Redirection(_) => self.rule_state = RuleState::Unknown,
            Step::Probes(ProbeStep::Exempt(targets)) => {
                let mut unknown = targets.clone();
                unknown.addresses.clear();
                self.exempted_probes = Some(unknown);
            }
            Step::Status(write) if write.status == RedirectionStatus::Pending => {
                if let Some(failure) = &mut self.failure {
                    failure.is_reported = true;
                    return;
                }
            }
            Step::Proxy(_) | Step::Probes(ProbeStep::Remove) | Step::Status(_) => {}
        }
        let delay = self
            .failure
            .as_ref()
            .map_or(RETRY_DELAY.0, |last| (last.delay * 2).min(RETRY_DELAY.1));
        self.failure = Some(StepFailure {
            retry_at: now + delay,
            delay,
            is_reported: false,
            error: text,
        });
    }
}
