//! Handles calls of the CNI plugin, which wait until the source has sent their pod, and then until the pod is captured.

use std::time::{Duration, Instant};

use ambit_zds::PodUid;

use super::{
    Enrolment,
    call::{CniAdd, PluginReply, PodRef, RequestId},
    event::Effect,
    parked::ParkedCall,
    pod::Goal,
};

/// Timeout for the source to send the pod of a call, below the five seconds after which Istio's plugin gives up.
const POD_ARRIVAL_TIMEOUT: Duration = Duration::from_secs(4);

/// Maximum calls that wait for their pod; kubelet starts far fewer pods in parallel.
const MAX_PARKED_CALLS: usize = 1024;

impl<N: Clone + PartialEq> Enrolment<N> {
    pub(super) fn on_cni_add(
        &mut self,
        request: RequestId,
        add: CniAdd<N>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        self.park_call(request, ParkedCall::CniAdd(add), now, effects);
    }

    pub(super) fn park_call(
        &mut self,
        request: RequestId,
        call: ParkedCall<N>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        if self.parked_calls.calls.len() >= MAX_PARKED_CALLS {
            let text = "too many calls wait already".to_owned();
            effects.push(Effect::Reply(request, PluginReply::TryLater(text)));
            return;
        }
        self.parked_calls
            .calls
            .push((request, now + POD_ARRIVAL_TIMEOUT, call));
        self.resume_parked_calls(now, effects);
    }

    /// Resumes plugin calls whose pod the source has sent, and fails calls that timed out.
    pub(super) fn resume_parked_calls(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        if self.is_source_synced {
            for (request, until, call) in std::mem::take(&mut self.parked_calls.calls) {
                match self.find_pod(call.pod_ref()) {
                    Some(uid) => self.attach_call(request, &uid, call, now, effects),
                    None => self.parked_calls.calls.push((request, until, call)),
                }
            }
        }
        self.expire_parked_calls(now, effects);
    }

    pub(super) fn expire_parked_calls(&mut self, now: Instant, effects: &mut Vec<Effect<N>>) {
        for (request, until, call) in std::mem::take(&mut self.parked_calls.calls) {
            if until > now {
                self.parked_calls.calls.push((request, until, call));
                continue;
            }
            let PodRef {
                namespace, name, ..
            } = call.pod_ref();
            let reply = match &call {
                // Its labels may bring it in, but then it is captured when they become known;
                // pods outside the mesh must not wait.
                ParkedCall::IsMember(_) if self.is_outside_mesh(namespace) => {
                    PluginReply::Member(false)
                }
                _ if self.is_source_synced => PluginReply::TryLater(format!(
                    "pod {namespace}/{name} is not known on this node after {POD_ARRIVAL_TIMEOUT:?}"
                )),
                _ => {
                    PluginReply::TryLater("the agent does not know the node's pods yet".to_owned())
                }
            };
            effects.push(Effect::Reply(request, reply));
        }
    }

    fn is_outside_mesh(&self, namespace: &str) -> bool {
        let known = self
            .membership
            .as_ref()
            .and_then(|known| known.get(namespace));
        self.is_source_synced && known == Some(&false)
    }

    fn find_pod(&self, pod_ref: &PodRef) -> Option<PodUid> {
        self.pods
            .iter()
            .filter(|(_, pod)| !pod.is_deleted)
            .find(|(uid, pod)| {
                pod.view.name.name == pod_ref.name
                    && pod.view.name.namespace == pod_ref.namespace
                    // Another uid: the source still has the pod before of the same name.
                    && pod_ref.uid.as_ref().is_none_or(|requested| requested == *uid)
            })
            .map(|(uid, _)| uid.clone())
    }

    fn attach_call(
        &mut self,
        request: RequestId,
        uid: &PodUid,
        call: ParkedCall<N>,
        now: Instant,
        effects: &mut Vec<Effect<N>>,
    ) {
        let Some(pod) = self.pods.get(uid) else {
            return;
        };
        let member = self.belongs_to_mesh(&pod.view);
        let refused = |text: String| Effect::Reply(request, PluginReply::Refused(text));
        match (call, self.goal(pod)) {
            (ParkedCall::IsMember(_), _) => {
                effects.push(Effect::Reply(request, PluginReply::Member(member)));
            }
            (ParkedCall::CniAdd(_), Err(error)) => {
                effects.push(refused(format!("pod {}: {error}", pod.view.name)));
            }
            (ParkedCall::CniAdd(_), Ok(Goal::Unenrolled | Goal::Deleted)) => {
                effects.push(refused(format!(
                    "pod {} is not one to be captured: its labels or its phase say otherwise",
                    pod.view.name
                )));
            }
            (ParkedCall::CniAdd(add), Ok(Goal::Enrolled(_))) => {
                if let Some(pod) = self.pods.get_mut(uid) {
                    pod.set_netns(add.netns, now);
                    // It waits now.
                    pod.capture_is_late = false;
                    if !add.addresses.is_empty() {
                        pod.addresses = add.addresses;
                    }
                    pod.failure = None;
                    pod.waiting_calls.push(request);
                }
                self.start_next_step(uid, now, effects);
            }
        }
    }

    pub(super) fn reply_to_waiting_calls(
        &mut self,
        uid: &PodUid,
        reply: &PluginReply,
        effects: &mut Vec<Effect<N>>,
    ) {
        let Some(pod) = self.pods.get_mut(uid) else {
            return;
        };
        let waiters = std::mem::take(&mut pod.waiting_calls);
        effects.extend(
            waiters
                .into_iter()
                .map(|request| Effect::Reply(request, reply.clone())),
        );
    }
}
