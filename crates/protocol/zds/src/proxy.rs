//! Node proxy's side of ZDS: the pods that it serves, and its acknowledgements.
//!
//! Behaves like Istio's ztunnel towards the agent, but is more robust: a protocol error ends the connection instead of
//! the process, pods that could not be started remain pending after a reconnect, and an acknowledgement is sent only on
//! the connection of its request.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::{Duration, Instant},
};

use crate::message::{Ack, MAX_ACK_TEXT_BYTES, PodUid, Request, WorkloadInfo, truncate_to_bytes};

/// Delay before the start of a pod's proxy instance is retried after a failure.
pub const PENDING_RETRY_INTERVAL: Duration = Duration::from_secs(5);

/// Number of one proxy instance of a pod. Each [`ProxyEffect::Start`] has a new number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Generation(u64);

/// Event that the caller passes to [`ProxySide`].
#[derive(Debug)]
pub enum ProxyEvent<N> {
    /// The proxy has connected to the agent and sent its hello.
    Connected,
    /// The connection to the agent was closed. The proxy continues to serve its pods.
    Disconnected,
    /// The agent sent a request, with the attached network namespace if it has one.
    Request(Request, Option<N>),
    /// The agent sent an invalid record: undecodable, truncated, empty, or with several file descriptors.
    Malformed(String),
    /// A proxy instance has started: its listeners are open.
    Started {
        /// UID of the pod.
        uid: PodUid,
        /// Generation of the started instance.
        generation: Generation,
    },
    /// A proxy instance has failed to start, and its resources are released.
    StartFailed {
        /// UID of the pod.
        uid: PodUid,
        /// Generation of the failed instance.
        generation: Generation,
        /// Reason of the failure, for operators.
        error: String,
    },
    /// Time has passed: the time of [`ProxySide::deadline`] is reached.
    Tick,
}

/// Effect of an event on the proxy's side, which the caller must carry out in order.
#[derive(Debug, PartialEq, Eq)]
pub enum ProxyEffect<N> {
    /// Starts a proxy instance for the pod. The caller then reports [`ProxyEvent::Started`] or
    /// [`ProxyEvent::StartFailed`] with the same generation.
    Start {
        /// UID of the pod.
        uid: PodUid,
        /// Generation to report with the outcome.
        generation: Generation,
        /// Description of the pod.
        info: WorkloadInfo,
        /// Network namespace of the pod, in which the listeners are opened.
        netns: N,
    },
    /// Updates the description of a pod whose instance is running.
    Update {
        /// UID of the pod.
        uid: PodUid,
        /// Generation of the instance that serves the pod.
        generation: Generation,
        /// New description of the pod.
        info: WorkloadInfo,
    },
    /// Stops a proxy instance, even if its start has not been reported yet.
    Stop {
        /// UID of the pod.
        uid: PodUid,
        /// Generation of the instance.
        generation: Generation,
        /// Reason of the stop.
        reason: StopReason,
    },
    /// Sends the acknowledgement of the last request.
    Reply(Ack),
    /// Closes the connection to the agent; the caller then connects again.
    Disconnect,
}

/// Reason why a proxy instance is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StopReason {
    /// The agent deleted the pod, which has terminated or left the mesh. The instance accepts no new connections;
    /// existing ones may end by themselves.
    Deleted,
    /// The agent's snapshot did not contain the pod.
    NotInSnapshot,
    /// The pod has a new network namespace. Nothing runs in the old one any more.
    Replaced,
    /// Another node proxy process serves the pod with its own listeners.
    Surrendered,
}

#[derive(Debug)]
enum StartState {
    /// The instance is starting. `failed` is the error of the previous start, if that failed.
    Starting {
        failed: Option<String>,
    },
    Running,
    /// The instance failed to start with `error`, and is started again at `retry_at`.
    Pending {
        retry_at: Instant,
        error: String,
    },
}

#[derive(Debug)]
struct ServedPod<N> {
    info: WorkloadInfo,
    netns: N,
    generation: Generation,
    start_state: StartState,
}

#[derive(Debug)]
enum AgentLink {
    Disconnected,
    /// The agent is sending the snapshot, which contains these pods so far.
    Snapshot(BTreeSet<PodUid>),
    Synced,
}

/// State of a node proxy in ZDS: the pods that it serves, and its connection to the agent.
#[derive(Debug)]
pub struct ProxySide<N> {
    pods: BTreeMap<PodUid, ServedPod<N>>,
    agent_link: AgentLink,
    /// Generation of the pod's proxy instance that is starting: the agent gets its acknowledgement when the start succeeds
    /// or fails.
    awaited_start: Option<Generation>,
    next_generation: u64,
}

impl<N> Default for ProxySide<N> {
    fn default() -> Self {
        Self {
            pods: BTreeMap::new(),
            agent_link: AgentLink::Disconnected,
            awaited_start: None,
            next_generation: 0,
        }
    }
}

impl<N: Clone + PartialEq> ProxySide<N> {
    /// Creates a state without pods and without a connection to the agent.
    pub fn new() -> Self {
        Self::default()
    }

    /// Restores a pod that an earlier process served, and whose listeners are open already. The pod is stopped if the
    /// agent's snapshot does not contain it.
    pub fn restore(&mut self, uid: PodUid, info: WorkloadInfo, netns: N) -> Generation {
        let generation = self.new_generation();
        let life = StartState::Running;
        self.pods.insert(
            uid,
            ServedPod {
                info,
                netns,
                generation,
                start_state: life,
            },
        );
        generation
    }

    /// Stops serving a pod that another node proxy process serves instead.
    pub fn surrender(&mut self, uid: &PodUid) -> Vec<ProxyEffect<N>> {
        let mut effects = Vec::new();
        self.stop(uid, StopReason::Surrendered, &mut effects);
        effects
    }

    /// Whether the agent's snapshot is complete on the current connection, and no pod is pending.
    pub fn is_ready(&self) -> bool {
        matches!(self.agent_link, AgentLink::Synced) && self.pending_pods().next().is_none()
    }

    /// Returns the pods whose instances failed to start, with the error.
    pub fn pending_pods(&self) -> impl Iterator<Item = (&PodUid, &WorkloadInfo, &str)> {
        self.pods
            .iter()
            .filter_map(|(uid, pod)| match &pod.start_state {
                StartState::Pending { error, .. }
                | StartState::Starting {
                    failed: Some(error),
                } => Some((uid, &pod.info, error.as_str())),
                StartState::Starting { failed: None } | StartState::Running => None,
            })
    }

    /// Returns the pods whose proxy instances are running.
    pub fn running_pods(&self) -> impl Iterator<Item = (&PodUid, &WorkloadInfo, Generation)> {
        self.pods
            .iter()
            .filter(|(_, pod)| matches!(pod.start_state, StartState::Running))
            .map(|(uid, pod)| (uid, &pod.info, pod.generation))
    }

    /// Returns the time at which the next [`ProxyEvent::Tick`] is due.
    pub fn deadline(&self) -> Option<Instant> {
        self.pods
            .values()
            .filter_map(|pod| match pod.start_state {
                StartState::Pending { retry_at, .. } => Some(retry_at),
                StartState::Starting { .. } | StartState::Running => None,
            })
            .min()
    }

    /// Handles an event. The caller must carry out the returned effects in order.
    pub fn on_event(&mut self, event: ProxyEvent<N>, now: Instant) -> Vec<ProxyEffect<N>> {
        match event {
            ProxyEvent::Connected => {
                self.awaited_start = None;
                self.agent_link = AgentLink::Snapshot(BTreeSet::new());
                Vec::new()
            }
            ProxyEvent::Disconnected => {
                self.awaited_start = None;
                self.agent_link = AgentLink::Disconnected;
                Vec::new()
            }
            ProxyEvent::Request(..) | ProxyEvent::Malformed(_)
                if matches!(self.agent_link, AgentLink::Disconnected) =>
            {
                Vec::new()
            }
            ProxyEvent::Request(..) if self.awaited_start.is_some() => {
                self.reject_request("a request before the one before it was answered")
            }
            ProxyEvent::Request(request, netns) => self.on_request(request, netns),
            ProxyEvent::Malformed(what) => self.reject_request(&what),
            ProxyEvent::Started { uid, generation } => self.on_started(&uid, generation),
            ProxyEvent::StartFailed {
                uid,
                generation,
                error,
            } => self.on_start_failed(&uid, generation, error, now),
            ProxyEvent::Tick => self.retry_pending(now),
        }
    }

    fn on_request(&mut self, request: Request, netns: Option<N>) -> Vec<ProxyEffect<N>> {
        match (request, netns) {
            (
                Request::Add {
                    uid,
                    info: Some(info),
                },
                Some(netns),
            ) => self.add(uid, info, netns),
            (Request::Add { uid, info: None }, _) => {
                self.reject_request(&format!("the add of {uid} has no workload"))
            }
            (Request::Add { uid, .. }, None) => self.reject_request(&format!(
                "the add of {uid} came without a network namespace"
            )),
            (_, Some(_)) => {
                self.reject_request("a descriptor came with a request that is not an add")
            }
            (Request::Keep { uid }, None) => match &mut self.agent_link {
                AgentLink::Snapshot(named) => {
                    named.insert(uid);
                    vec![ProxyEffect::Reply(Ok(()))]
                }
                AgentLink::Synced | AgentLink::Disconnected => {
                    self.reject_request(&format!("the keep of {uid} came after the snapshot"))
                }
            },
            (Request::Del { uid }, None) => self.del(&uid),
            (Request::SnapshotSent, None) => self.end_of_snapshot(),
        }
    }

    fn add(&mut self, uid: PodUid, info: WorkloadInfo, netns: N) -> Vec<ProxyEffect<N>> {
        if let AgentLink::Snapshot(named) = &mut self.agent_link {
            named.insert(uid.clone());
        }
        let mut effects = Vec::new();
        if let Some(pod) = self.pods.get_mut(&uid) {
            if pod.netns == netns {
                let changed = pod.info != info;
                match pod.start_state {
                    StartState::Pending { .. } => {}
                    StartState::Running | StartState::Starting { .. } => {
                        let generation = pod.generation;
                        if changed {
                            pod.info = info.clone();
                            effects.push(ProxyEffect::Update {
                                uid,
                                generation,
                                info,
                            });
                        }
                        if matches!(pod.start_state, StartState::Running) {
                            effects.push(ProxyEffect::Reply(Ok(())));
                        } else {
                            self.awaited_start = Some(generation);
                        }
                        return effects;
                    }
                }
            } else if !matches!(pod.start_state, StartState::Pending { .. }) {
                effects.push(ProxyEffect::Stop {
                    uid: uid.clone(),
                    generation: pod.generation,
                    reason: StopReason::Replaced,
                });
            }
        }
        let generation = self.new_generation();
        self.awaited_start = Some(generation);
        let life = StartState::Starting { failed: None };
        self.pods.insert(
            uid.clone(),
            ServedPod {
                info: info.clone(),
                netns: netns.clone(),
                generation,
                start_state: life,
            },
        );
        effects.push(ProxyEffect::Start {
            uid,
            generation,
            info,
            netns,
        });
        effects
    }

    fn del(&mut self, uid: &PodUid) -> Vec<ProxyEffect<N>> {
        let mut effects = Vec::new();
        if let AgentLink::Snapshot(named) = &mut self.agent_link {
            // Running instances are stopped at the snapshot's end: until then nothing is removed.
            named.remove(uid);
            if self
                .pods
                .get(uid)
                .is_some_and(|pod| matches!(pod.start_state, StartState::Pending { .. }))
            {
                self.pods.remove(uid);
            }
        } else {
            self.stop(uid, StopReason::Deleted, &mut effects);
        }
        effects.push(ProxyEffect::Reply(Ok(())));
        effects
    }

    fn end_of_snapshot(&mut self) -> Vec<ProxyEffect<N>> {
        let named = match std::mem::replace(&mut self.agent_link, AgentLink::Synced) {
            AgentLink::Snapshot(named) => named,
            AgentLink::Synced | AgentLink::Disconnected => {
                return self.reject_request("a second end of the snapshot");
            }
        };
        let unnamed: Vec<PodUid> = self
            .pods
            .keys()
            .filter(|uid| !named.contains(*uid))
            .cloned()
            .collect();
        let mut effects = Vec::new();
        for uid in unnamed {
            self.stop(&uid, StopReason::NotInSnapshot, &mut effects);
        }
        effects.push(ProxyEffect::Reply(Ok(())));
        effects
    }

    fn stop(&mut self, uid: &PodUid, reason: StopReason, effects: &mut Vec<ProxyEffect<N>>) {
        let Some(pod) = self.pods.remove(uid) else {
            return;
        };
        if !matches!(pod.start_state, StartState::Pending { .. }) {
            effects.push(ProxyEffect::Stop {
                uid: uid.clone(),
                generation: pod.generation,
                reason,
            });
        }
    }

    fn on_started(&mut self, uid: &PodUid, generation: Generation) -> Vec<ProxyEffect<N>> {
        // An instance replaced or deleted during its start has been ordered to stop already.
        if let Some(pod) = self.current_pod(uid, generation) {
            pod.start_state = StartState::Running;
        }
        self.acknowledge(generation, Ok(()))
    }

    fn on_start_failed(
        &mut self,
        uid: &PodUid,
        generation: Generation,
        error: String,
        now: Instant,
    ) -> Vec<ProxyEffect<N>> {
        let text = format!("failure to start proxy : {error}");
        if let Some(pod) = self.current_pod(uid, generation) {
            pod.start_state = StartState::Pending {
                retry_at: now + PENDING_RETRY_INTERVAL,
                error,
            };
        }
        self.acknowledge(generation, Err(text))
    }

    fn current_pod(&mut self, uid: &PodUid, generation: Generation) -> Option<&mut ServedPod<N>> {
        self.pods
            .get_mut(uid)
            .filter(|pod| pod.generation == generation)
    }

    fn acknowledge(&mut self, generation: Generation, ack: Ack) -> Vec<ProxyEffect<N>> {
        if self
            .awaited_start
            .take_if(|awaited| *awaited == generation)
            .is_none()
        {
            return Vec::new();
        }
        vec![ProxyEffect::Reply(ack.map_err(|text| {
            truncate_to_bytes(&text, MAX_ACK_TEXT_BYTES).to_owned()
        }))]
    }

    fn retry_pending(&mut self, now: Instant) -> Vec<ProxyEffect<N>> {
        let mut effects = Vec::new();
        for (uid, pod) in &mut self.pods {
            let error = match &mut pod.start_state {
                StartState::Pending { retry_at, error } if *retry_at <= now => {
                    std::mem::take(error)
                }
                _ => continue,
            };
            let generation = Generation(self.next_generation);
            self.next_generation += 1;
            pod.generation = generation;
            pod.start_state = StartState::Starting {
                failed: Some(error),
            };
            effects.push(ProxyEffect::Start {
                uid: uid.clone(),
                generation,
                info: pod.info.clone(),
                netns: pod.netns.clone(),
            });
        }
        effects
    }

    fn new_generation(&mut self) -> Generation {
        let generation = Generation(self.next_generation);
        self.next_generation += 1;
        generation
    }

    /// Handles a protocol violation: acknowledges it with an error and disconnects. The proxy continues to serve its
    /// pods.
    fn reject_request(&mut self, what: &str) -> Vec<ProxyEffect<N>> {
        self.awaited_start = None;
        self.agent_link = AgentLink::Disconnected;
        let text = format!("failure to process message : {what}");
        vec![
            ProxyEffect::Reply(Err(truncate_to_bytes(&text, MAX_ACK_TEXT_BYTES).to_owned())),
            ProxyEffect::Disconnect,
        ]
    }
}

#[cfg(test)]
mod tests;
