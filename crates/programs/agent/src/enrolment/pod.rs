//! State of one pod's enrolment, and its next step.

use std::{
    net::IpAddr,
    time::{Duration, Instant},
};

use ambit_netplan::RedirectionSpec;
use ambit_zds::WorkloadInfo;

use super::{
    call::RequestId,
    step::{ProbeStep, ProbeTargets, ProxyStep, RedirectionStep, Step, StepId, WriteStatus},
};
use crate::source::{PodView, Status};

/// Initial and maximum retry delay after a failed step.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(15));

/// Time for which the proxy's listeners stay after an unenrolled pod's redirection was removed, until other proxies
/// learn that the pod accepts no HBONE.
const LINGER: Duration = Duration::from_secs(2);

/// Desired state of a pod's enrolment.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Goal {
    /// The pod is captured with this redirection.
    In(RedirectionSpec),
    /// The pod runs and is not captured.
    Out,
    /// The pod has ended or was deleted, so that its network namespace vanishes.
    Gone,
}

/// Last known state of a pod's redirection.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Rules {
    /// Redirection may be in place: an earlier agent may have applied it, or it is to be compared with the kernel
    /// again.
    Unknown,
    None,
    Applied(RedirectionSpec),
}

/// Step that is in flight.
#[derive(Clone, Debug)]
pub(super) struct Busy<N> {
    pub(super) id: StepId,
    pub(super) step: Step<N>,
}

/// Failure of the last step, and its retry.
#[derive(Clone, Debug)]
pub(super) struct Failure {
    pub(super) retry_at: Instant,
    pub(super) delay: Duration,
    /// Whether the pod's status was set to pending for this failure, or could not be written.
    pub(super) reported: bool,
    /// Error of the step, as text for operators.
    pub(super) text: String,
}

/// Result of determining a pod's next step.
#[derive(Debug)]
pub(super) enum Next<N> {
    Step(Step<N>),
    /// The next step needs the pod's network namespace, which has to be found first.
    NeedNetns,
    /// No step is due before [`Pod::deadline`], unless an event arrives.
    Wait,
    Settled,
}

#[derive(Debug)]
pub(super) struct Pod<N> {
    pub(super) view: PodView,
    pub(super) gone: bool,
    /// Addresses that the plugin sent, until the pod's status has addresses.
    pub(super) addresses: Vec<IpAddr>,
    pub(super) netns: Option<N>,
    /// Time at which `netns` was set, so that the result of an older scan does not replace it.
    pub(super) netns_since: Option<Instant>,
    /// Different namespace that one scan has found; a second scan must confirm it.
    pub(super) suspect: Option<N>,
    /// Workload as announced to a proxy, which has acknowledged it for `netns`.
    pub(super) announced: Option<WorkloadInfo>,
    /// Whether a proxy may serve the pod in any namespace: it was announced, successfully or not, and not withdrawn
    /// since.
    pub(super) maybe_served: bool,
    pub(super) rules: Rules,
    /// Whether to compare the redirection with the kernel if the next scan finds the pod running.
    pub(super) look_if_alive: bool,
    /// Addresses and ports exempt for kubelet's probes; an entry without addresses means that they are unknown.
    pub(super) probes: Option<ProbeTargets>,
    /// Last status that was written to the annotation; `None` if the observed one is still valid.
    pub(super) status: Option<Status>,
    pub(super) busy: Option<Busy<N>>,
    pub(super) failure: Option<Failure>,
    pub(super) linger_until: Option<Instant>,
    /// Plugin calls that wait until this pod is captured.
    pub(super) waiters: Vec<RequestId>,
    /// Whether redirection should be in place: this or an earlier agent applied it, and it was not released since.
    pub(super) expects_redirection: bool,
    /// Whether the pod belonged to the mesh when its sandbox was created, but started uncaptured.
    pub(super) capture_is_late: bool,
    /// Number of times that the pod's redirection was repaired.
    pub(super) drifts: u32,
    /// Warnings of the last step that do not impair the redirection.
    pub(super) warnings: Vec<String>,
    /// Failure last reported to the pod's owner; cleared when the pod is captured.
    pub(super) complaint: Option<String>,
}

impl<N: Clone + PartialEq> Pod<N> {
    /// Creates the state of a pod. `was_there`: the pod existed at the agent's start, so that its redirection is
    /// unknown.
    pub(super) fn new(view: PodView, was_there: bool) -> Self {
        Self {
            addresses: view.addresses.clone(),
            expects_redirection: was_there && view.reported == Status::Enabled,
            view,
            gone: false,
            netns: None,
            netns_since: None,
            suspect: None,
            announced: None,
            maybe_served: false,
            rules: if was_there {
                Rules::Unknown
            } else {
                Rules::None
            },
            look_if_alive: false,
            probes: None,
            status: None,
            busy: None,
            failure: None,
            linger_until: None,
            waiters: Vec::new(),
            capture_is_late: false,
            drifts: 0,
            warnings: Vec::new(),
            complaint: None,
        }
    }

    /// Returns the current value of the pod's status annotation, as last written or observed.
    pub(super) fn reads(&self) -> Status {
        self.status.unwrap_or(self.view.reported)
    }

    pub(super) fn info(&self) -> WorkloadInfo {
        WorkloadInfo {
            pod: self.view.name.clone(),
            addresses: self.addresses.clone(),
        }
    }

    /// Sets the pod's network namespace. A different one resets the state of redirection and listeners.
    pub(super) fn set_netns(&mut self, netns: N, now: Instant) {
        self.suspect = None;
        if self.netns.as_ref() == Some(&netns) {
            return;
        }
        let first = self.netns_since.is_none();
        let expects_redirection = first && self.expects_redirection;
        self.forget_netns();
        self.expects_redirection = expects_redirection;
        // It may be one that an agent before us has filled.
        self.rules = Rules::Unknown;
        self.netns = Some(netns);
        self.netns_since = Some(now);
        self.failure = None;
    }

    pub(super) fn forget_netns(&mut self) {
        self.netns = None;
        self.netns_since = None;
        self.announced = None;
        self.rules = Rules::None;
        self.expects_redirection = false;
        self.linger_until = None;
        self.warnings.clear();
    }

    /// Replaces the warnings, and logs new ones.
    pub(super) fn warn(&mut self, warnings: Vec<String>) {
        for warning in warnings.iter().filter(|one| !self.warnings.contains(one)) {
            tracing::warn!(pod = %self.view.name, warning, "the pod is captured with a warning");
        }
        self.warnings = warnings;
    }

    /// Whether redirection, listeners and probe exemption are as `goal` demands.
    pub(super) fn is_captured(&self, goal: &Goal) -> bool {
        let Goal::In(spec) = goal else { return false };
        self.announced.as_ref() == Some(&self.info())
            && self.rules == Rules::Applied(spec.clone())
            && (self.addresses.is_empty() || self.probes == Some(self.probe_targets(spec)))
    }

    fn probe_targets(&self, spec: &RedirectionSpec) -> ProbeTargets {
        ProbeTargets {
            addresses: self.addresses.clone(),
            ports: spec.probe_ports.clone(),
        }
    }

    /// Returns the next step towards `goal`, if no step is in flight.
    pub(super) fn next(&self, goal: &Goal, now: Instant) -> Next<N> {
        if let Some(failure) = &self.failure {
            // Peers send plaintext to a pod that is not called captured. One whose redirection has been put
            // in place stays so whatever fails afterwards: without a proxy its connections are refused,
            // and none of them is to be downgraded.
            let annotated = self.reads() == Status::Enabled && !self.expects_redirection;
            if matches!(goal, Goal::In(_)) && annotated && !failure.reported {
                return Next::Step(self.write_status(Status::Pending));
            }
            if failure.retry_at > now {
                return Next::Wait;
            }
        }
        match goal {
            Goal::In(spec) => self.next_in(spec, goal),
            Goal::Out => self.next_out(now),
            Goal::Gone => self.next_gone(),
        }
    }

    /// Returns the next step of enrolment; listeners are started before rules are applied.
    fn next_in(&self, spec: &RedirectionSpec, goal: &Goal) -> Next<N> {
        let Some(netns) = self.netns.clone() else {
            // As after a reboot: the annotation is of another sandbox.
            return match self.reads() {
                Status::Enabled => Next::Step(self.write_status(Status::Pending)),
                Status::None | Status::Pending => Next::NeedNetns,
            };
        };
        let info = self.info();
        if self.announced.as_ref() != Some(&info) {
            return Next::Step(Step::Proxy(ProxyStep::Announce { info, netns }));
        }
        if self.rules != Rules::Applied(spec.clone()) {
            return Next::Step(Step::Redirection(RedirectionStep::Apply {
                netns,
                spec: spec.clone(),
                close_pre_capture: self.capture_is_late,
            }));
        }
        if !self.is_captured(goal) {
            let targets = self.probe_targets(spec);
            return Next::Step(Step::Probes(ProbeStep::Exempt(targets)));
        }
        if self.status != Some(Status::Enabled) {
            return Next::Step(self.write_status(Status::Enabled));
        }
        Next::Settled
    }

    /// Returns the next step of unenrolment; rules are removed before listeners.
    fn next_out(&self, now: Instant) -> Next<N> {
        if let (Some(netns), true) = (&self.netns, self.rules != Rules::None) {
            return Next::Step(Step::Redirection(RedirectionStep::Release {
                netns: netns.clone(),
            }));
        }
        if self.reads() != Status::None {
            return Next::Step(self.write_status(Status::None));
        }
        if self.maybe_served {
            return match self.linger_until {
                Some(until) if until > now => Next::Wait,
                _ => Next::Step(Step::Proxy(ProxyStep::Withdraw)),
            };
        }
        self.next_probes_gone()
    }

    fn next_gone(&self) -> Next<N> {
        // With the object gone only what we wrote elsewhere is left of it.
        let reported = if self.gone {
            self.status.unwrap_or_default()
        } else {
            self.reads()
        };
        if reported != Status::None {
            return Next::Step(self.write_status(Status::None));
        }
        if self.maybe_served {
            return Next::Step(Step::Proxy(ProxyStep::Withdraw));
        }
        self.next_probes_gone()
    }

    fn next_probes_gone(&self) -> Next<N> {
        if self.probes.is_some() {
            Next::Step(Step::Probes(ProbeStep::Remove))
        } else {
            Next::Settled
        }
    }

    fn write_status(&self, status: Status) -> Step<N> {
        Step::Status(WriteStatus {
            pod: self.view.name.clone(),
            status,
        })
    }

    /// Returns when the result of [`Self::next`] may change without an event.
    pub(super) fn deadline(&self) -> Option<Instant> {
        if self.busy.is_some() {
            return None;
        }
        let retry = self.failure.as_ref().map(|failure| failure.retry_at);
        retry.into_iter().chain(self.linger_until).min()
    }

    /// Clears deadlines that have passed, so that they do not trigger further ticks.
    pub(super) fn forget_elapsed(&mut self, now: Instant) {
        if self.busy.is_none() {
            self.failure.take_if(|failure| failure.retry_at <= now);
            self.linger_until.take_if(|until| *until <= now);
        }
    }

    /// Records the success of a step.
    pub(super) fn done(&mut self, step: Step<N>, now: Instant) {
        match (&step, &mut self.failure) {
            (Step::Status(write), Some(failure)) if write.status == Status::Pending => {
                failure.reported = true;
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
                self.announced = Some(info);
                self.linger_until = None;
            }
            Step::Proxy(ProxyStep::Withdraw) => {
                self.announced = None;
                self.maybe_served = false;
                self.linger_until = None;
            }
            Step::Redirection(RedirectionStep::Apply { spec, .. }) => {
                self.rules = Rules::Applied(spec);
                self.expects_redirection = true;
                self.capture_is_late = false;
            }
            Step::Redirection(RedirectionStep::Release { .. }) => {
                self.rules = Rules::None;
                self.expects_redirection = false;
                self.linger_until = self.maybe_served.then(|| now + LINGER);
            }
            Step::Probes(ProbeStep::Exempt(targets)) => self.probes = Some(targets),
            Step::Probes(ProbeStep::Remove) => self.probes = None,
            Step::Status(write) => self.status = Some(write.status),
        }
    }

    /// Records the failure of a step, which is retried with increasing delay.
    pub(super) fn failed(&mut self, step: &Step<N>, text: String, now: Instant) {
        // What failed half way is not known any more.
        match step {
            Step::Redirection(_) => self.rules = Rules::Unknown,
            Step::Probes(ProbeStep::Exempt(targets)) => {
                let mut unknown = targets.clone();
                unknown.addresses.clear();
                self.probes = Some(unknown);
            }
            Step::Status(write) if write.status == Status::Pending => {
                if let Some(failure) = &mut self.failure {
                    failure.reported = true;
                    return;
                }
            }
            Step::Proxy(_) | Step::Probes(ProbeStep::Remove) | Step::Status(_) => {}
        }
        let delay = self
            .failure
            .as_ref()
            .map_or(RETRY.0, |last| (last.delay * 2).min(RETRY.1));
        self.failure = Some(Failure {
            retry_at: now + delay,
            delay,
            reported: false,
            text,
        });
    }
}
