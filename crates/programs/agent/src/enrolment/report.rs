//! Reports of pods' enrolment state, for operators.

use ambit_k8s_api::enablement::MembershipDecision;

use super::{
    Enrolment,
    pod::{Goal, Pod, RuleState},
};
use crate::{
    capture::CaptureMethod,
    report::{PodReport, PodState},
    source::Labels,
};

impl<N: Clone + PartialEq> Enrolment<N> {
    /// Reports the state of every pod; `inode` returns the inode of a namespace.
    pub fn reports(&self, inode: impl Fn(&N) -> u64) -> Vec<PodReport> {
        let pods = self.pods.values().filter(|pod| !pod.is_deleted);
        pods.map(|pod| self.report(pod, &inode)).collect()
    }

    fn report(&self, pod: &Pod<N>, inode: impl Fn(&N) -> u64) -> PodReport {
        let goal = self.goal(pod);
        let captured = goal.as_ref().is_ok_and(|goal| pod.is_captured(goal));
        let belongs = matches!(goal, Ok(Goal::Enrolled(_)) | Err(_));
        let failure = pod.failure.as_ref().map(|failure| failure.error.clone());
        let (state, why) = match &goal {
            Err(error) => (PodState::Failing, error.to_string()),
            Ok(Goal::Deleted) => (PodState::Ended, "it has ended".to_owned()),
            Ok(Goal::Unenrolled) => {
                let state = if pod.netns.is_some() || pod.may_be_served {
                    PodState::Leaving
                } else {
                    PodState::Outside
                };
                (state, self.membership_decision(pod).to_string())
            }
            Ok(Goal::Enrolled(_)) if captured => (
                PodState::Captured,
                self.membership_decision(pod).to_string(),
            ),
            Ok(Goal::Enrolled(_)) if failure.is_some() => (
                PodState::Failing,
                "the last step failed; it is tried again by itself".to_owned(),
            ),
            Ok(Goal::Enrolled(_)) if pod.netns.is_none() => (
                PodState::NoNamespace,
                if pod.addresses.is_empty() {
                    "it has not started: the container runtime brings it".to_owned()
                } else {
                    "no process of it has been found in a network namespace with its address"
                        .to_owned()
                },
            ),
            Ok(Goal::Enrolled(_)) => (PodState::Enrolling, "steps are in flight".to_owned()),
        };
        PodReport {
            namespace: pod.view.name.namespace.clone(),
            name: pod.view.name.name.clone(),
            uid: pod.view.uid.clone(),
            service_account: pod.view.name.service_account.clone(),
            addresses: pod.addresses.clone(),
            belongs,
            state,
            why,
            error: match goal {
                Err(error) => Some(error.to_string()),
                Ok(_) => failure,
            },
            netns_inode: pod.netns.as_ref().map(inode),
            listeners: pod.announced_info.is_some(),
            redirected: matches!(pod.rule_state, RuleState::Applied(_)),
            drifts: pod.repair_count,
            captured_by: pod.method.as_ref().map(|method| match method {
                CaptureMethod::Bpf => "bpf",
                CaptureMethod::Rules | CaptureMethod::RulesInsteadOfBpf(_) => "rules",
            }),
            not_by_bpf: match &pod.method {
                Some(CaptureMethod::RulesInsteadOfBpf(reason)) => Some(reason.clone()),
                _ => None,
            },
            warnings: pod.warnings.clone(),
            annotation: pod.reported_status(),
            annotation_seen: pod.view.reported,
        }
    }

    fn membership_decision(&self, pod: &Pod<N>) -> MembershipDecision {
        let none = Labels::new();
        let namespace = &pod.view.name.namespace;
        let labels = self.namespaces.get(namespace).unwrap_or(&none);
        self.settings
            .enablement
            .decide_membership(&pod.view, labels)
    }
}
