//! Serves the pods that the node agent enrols: executes the effects of the enrolment protocol (ZDS).

use std::{
    collections::BTreeMap,
    io,
    os::fd::{AsFd, OwnedFd},
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_handover::{AcceptCommand, Supervisor};
use ambit_mesh_json::Json;
use ambit_model::ArcStr;
use ambit_proxy::{Workers, report::format_error_chain};
use ambit_rt::{Backoff, ReadyTask};
use ambit_sys::{
    netns::Netns,
    seqpacket::{ReceivedRecord, SeqPacket},
};
use ambit_wire::zds_codec::{decode_request, encode_ack, encode_hello};
use ambit_zds::{
    Ack, Generation, MAX_RECORD_BYTES, PodUid, ProxyEffect, ProxyEvent, ProxySide, Request,
    StopReason, WorkloadInfo,
};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::task::TaskTracker;

use crate::{
    pod::{Pod, PodListeners, Proxy},
    pod_handover::{self, RestoredPod},
    pre_capture,
};

/// Interval at which a proxy with a successor checks whether the successor has opened listeners of its own.
const LISTENER_CHECK_INTERVAL: Duration = Duration::from_millis(200);

/// Pods that this proxy serves, for dumps and for the termination.
#[derive(Clone, Debug, Default)]
pub struct ServedPods {
    inner: Arc<Mutex<ServedPodsState>>,
    /// Pods that have left the mesh and still have open connections.
    leaving_pods: TaskTracker,
}

#[derive(Debug, Default)]
struct ServedPodsState {
    running: BTreeMap<PodUid, (Generation, Arc<Pod>)>,
    pending: BTreeMap<PodUid, WorkloadInfo>,
}

impl ServedPods {
    /// Returns the pods whose listeners are open.
    pub fn pods(&self) -> Vec<Arc<Pod>> {
        self.inner
            .lock()
            .running
            .values()
            .map(|(_, pod)| pod.clone())
            .collect()
    }

    /// Returns the pod with this namespace and name, if its listeners are open.
    pub(crate) fn find(&self, namespace: &str, name: &str) -> Option<Arc<Pod>> {
        let pods = self.pods();
        pods.into_iter()
            .find(|pod| pod.name().namespace == namespace && pod.name().name == name)
    }

    /// Returns the pod with this UID, if its listeners are open.
    fn running_pod(&self, uid: &PodUid) -> Option<Arc<Pod>> {
        let inner = self.inner.lock();
        inner.running.get(uid).map(|(_, pod)| pod.clone())
    }

    /// Waits until the connections of pods that have left the mesh have ended, at most for `limit`: the end of the
    /// process terminates them.
    pub async fn wait_until_drained(&self, limit: Duration) {
        self.leaving_pods.close();
        let _late = tokio::time::timeout(limit, self.leaving_pods.wait()).await;
    }

    fn drain_pod(&self, pod: Arc<Pod>, limit: Option<Duration>) {
        let leaving = self.leaving_pods.token();
        ambit_rt::spawn_essential("pod drain", async move {
            pod.drain_connections(limit).await;
            drop(leaving);
        });
    }

    /// Whether a pod would be without a proxy if this process ended. False if a successor that cannot take over sockets
    /// has opened its own for all pods.
    pub(crate) fn is_needed(&self) -> bool {
        let others_listen = |pod: &Arc<Pod>| pod.has_foreign_listeners().is_ok_and(|others| others);
        !self.pods().iter().all(others_listen)
    }

    /// Whether no pods are served.
    pub fn is_empty(&self) -> bool {
        self.inner.lock().running.is_empty()
    }

    /// Returns the served pods by UID, as `workloadState` of a configuration dump.
    pub fn dump(&self) -> Value {
        let inner = self.inner.lock();
        let up = inner.running.iter().map(|(uid, (_, pod))| {
            let mut connections = pod.connections().dump();
            connections.pre_capture = pre_capture::connection_details(pod);
            let state =
                json!({"state": "Up", "info": Json(pod.name()), "connections": connections});
            (uid.to_string(), state)
        });
        let pending = inner.pending.iter().map(|(uid, info)| {
            (
                uid.to_string(),
                json!({"state": "Pending", "info": Json(&info.pod)}),
            )
        });
        Value::Object(pending.chain(up).collect())
    }
}

/// Client of the node agent (ZDS), which serves the pods that the agent enrols.
#[derive(Debug)]
pub struct EnrolmentClient {
    proxy: Proxy,
    workers: Arc<Workers>,
    supervisor: Supervisor,
    protocol: ProxySide<Netns>,
    served: ServedPods,
    ready: ReadyTask,
    agent_socket: PathBuf,
}

/// Error of the connection to the agent.
#[derive(Debug, thiserror::Error)]
enum LinkError {
    #[error("cannot connect to {path}")]
    Connect {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the agent closed the connection")]
    Closed,
    #[error("cannot exchange records with the agent")]
    Exchange(#[source] io::Error),
    #[error("left the agent, which broke the protocol")]
    Protocol,
    #[error("left the agent to the successor")]
    Superseded,
}

impl EnrolmentClient {
    /// Creates a client without pods. `ready` completes once all pods of a complete snapshot are served.
    pub fn new(
        proxy: Proxy,
        workers: Arc<Workers>,
        supervisor: Supervisor,
        ready: ReadyTask,
    ) -> Self {
        let path = proxy.config.inpod_uds.clone();
        Self {
            proxy,
            workers,
            supervisor,
            protocol: ProxySide::new(),
            served: ServedPods::default(),
            ready,
            agent_socket: path,
        }
    }

    /// Returns the handle of the served pods.
    pub fn served(&self) -> ServedPods {
        self.served.clone()
    }

    /// Serves a pod of the previous process, with its sockets. The agent's snapshot decides whether the pod remains.
    pub(crate) fn restore(&mut self, pod: RestoredPod) {
        let RestoredPod {
            uid,
            info,
            netns,
            sockets,
        } = pod;
        let generation = self
            .protocol
            .restore(uid.clone(), info.clone(), netns.clone());
        let event = self.start(uid, generation, &info, netns, sockets);
        let _nobody_asked = self.handle_event(event);
    }

    /// Connects to the agent and follows it until the task is dropped. While the agent is unavailable, the pods are
    /// still served.
    pub async fn run(mut self) {
        // An attempt is cheap, and pods that start wait until it succeeds.
        let mut backoff = Backoff::new(Duration::from_millis(10), Duration::from_millis(200), 0.2);
        let mut reported: Option<String> = None;
        loop {
            self.wait_for_successor().await;
            let error = match SeqPacket::connect(&self.agent_socket).await {
                Ok(link) => {
                    reported = None;
                    let began = Instant::now();
                    let error = self.serve_link(&link).await;
                    if began.elapsed() > Duration::from_secs(5) {
                        backoff.reset();
                    }
                    error
                }
                Err(source) => LinkError::Connect {
                    path: self.agent_socket.clone(),
                    source,
                },
            };
            let error = format_error_chain(&error);
            if reported.as_ref() == Some(&error) {
                tracing::debug!(error, "still not connected to the node agent");
            } else {
                tracing::info!(
                    error,
                    "not connected to the node agent; the pods served go on"
                );
                reported = Some(error);
            }
            let _none = self.handle_event(ProxyEvent::Disconnected);
            let wait = backoff.next_delay(rand::random());
            self.wait_with_ticks(wait).await;
        }
    }

    /// Waits while a successor accepts the connections, during which the agent must be connected to the successor
    /// alone: this process would not act on messages. Pods for which the successor opens listeners of its own are
    /// surrendered, so that no connections wait at this proxy's.
    async fn wait_for_successor(&mut self) {
        let mut accept = self.supervisor.accept_commands();
        while *accept.borrow_and_update() == AcceptCommand::Paused {
            for pod in self.served.pods() {
                if pod.has_foreign_listeners().is_ok_and(|others| others) {
                    for effect in self.protocol.surrender(&pod.uid) {
                        self.apply_stop(effect);
                    }
                }
            }
            tokio::select! {
                changed = accept.changed() => if changed.is_err() { return },
                () = tokio::time::sleep(LISTENER_CHECK_INTERVAL) => {}
            }
        }
    }

    fn apply_stop(&self, effect: ProxyEffect<Netns>) {
        if let ProxyEffect::Stop {
            uid,
            generation,
            reason,
        } = effect
        {
            self.stop(&uid, generation, reason);
        }
    }

    /// Waits for `wait`; meanwhile retries the start of pods that failed to start.
    async fn wait_with_ticks(&mut self, wait: Duration) {
        let until = tokio::time::Instant::now() + wait;
        loop {
            let tick = self.protocol.deadline().map(tokio::time::Instant::from_std);
            match tick.filter(|tick| *tick < until) {
                Some(tick) => {
                    tokio::time::sleep_until(tick).await;
                    let _none = self.handle_event(ProxyEvent::Tick);
                }
                None => return tokio::time::sleep_until(until).await,
            }
        }
    }

    async fn serve_link(&mut self, link: &SeqPacket) -> LinkError {
        if let Err(error) = link.send(&encode_hello(), None).await {
            return LinkError::Exchange(error);
        }
        tracing::info!(path = %self.agent_socket.display(), "connected to the node agent");
        let mut reply = self.handle_event(ProxyEvent::Connected);
        let mut buffer = [0; MAX_RECORD_BYTES];
        let mut accept = self.supervisor.accept_commands();
        loop {
            for ack in reply.acks.drain(..) {
                if let Err(error) = link.send(&encode_ack(&ack), None).await {
                    return LinkError::Exchange(error);
                }
            }
            if reply.disconnect {
                return LinkError::Protocol;
            }
            let tick = self.protocol.deadline().map(tokio::time::Instant::from_std);
            let event = tokio::select! {
                received = link.recv(&mut buffer) => match received {
                    Ok(ReceivedRecord { len: 0, fd: None }) => return LinkError::Closed,
                    Ok(ReceivedRecord { len, fd }) => {
                        to_event(buffer.get(..len).unwrap_or_default(), fd)
                    }
                    Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                        ProxyEvent::Malformed(error.to_string())
                    }
                    Err(error) => return LinkError::Exchange(error),
                },
                () = ambit_rt::sleep_until(tick) => ProxyEvent::Tick,
                Ok(_) = accept.wait_for(|accept| *accept == AcceptCommand::Paused) => {
                    return LinkError::Superseded;
                }
            };
            reply = self.handle_event(event);
        }
    }

    /// Passes an event to the enrolment protocol and executes its effects, which may cause further events.
    fn handle_event(&mut self, event: ProxyEvent<Netns>) -> AgentReply {
        let mut reply = AgentReply::default();
        let announced = match &event {
            ProxyEvent::Request(Request::Add { uid, .. }, _) => Some(uid.clone()),
            _ => None,
        };
        let announced = announced.and_then(|uid| self.served.running_pod(&uid));
        let mut events = std::collections::VecDeque::from([event]);
        while let Some(event) = events.pop_front() {
            for effect in self.protocol.on_event(event, Instant::now()) {
                match effect {
                    ProxyEffect::Start {
                        uid,
                        generation,
                        info,
                        netns,
                    } => {
                        events.push_back(self.start(uid, generation, &info, netns, Vec::new()));
                    }
                    ProxyEffect::Update { uid, info, .. } => {
                        self.supervisor
                            .update_item(&uid, &pod_handover::encode_metadata(&uid, &info));
                        if let Some((_, pod)) = self.served.inner.lock().running.get(&uid) {
                            pod.local_workload.update_addresses(info.addresses);
                        }
                    }
                    ProxyEffect::Stop {
                        uid,
                        generation,
                        reason,
                    } => {
                        self.stop(&uid, generation, reason);
                    }
                    ProxyEffect::Reply(ack) => reply.acks.push(ack),
                    ProxyEffect::Disconnect => reply.disconnect = true,
                }
            }
        }
        // The agent may have prepared the pod's map since, and waits for the listeners.
        if let Some(pod) = announced {
            pod.enter_listeners();
        }
        // A successor that took over needs none of this; and if it ends, this process is ready
        // again as soon as it is needed.
        if *self.supervisor.accept_commands().borrow() != AcceptCommand::Paused {
            self.ready.set(self.protocol.is_ready());
        }
        let pending: BTreeMap<_, _> = self
            .protocol
            .pending_pods()
            .map(|(uid, info, _)| (uid.clone(), info.clone()))
            .collect();
        let metrics = &self.proxy.metrics;
        let mut served = self.served.inner.lock();
        metrics
            .pending_proxies
            .set(i64::try_from(pending.len()).unwrap_or(i64::MAX));
        metrics
            .active_proxies
            .set(i64::try_from(served.running.len()).unwrap_or(i64::MAX));
        served.pending = pending;
        drop(served);
        reply
    }

    fn start(
        &self,
        uid: ArcStr,
        generation: Generation,
        info: &WorkloadInfo,
        netns: Netns,
        inherited: Vec<OwnedFd>,
    ) -> ProxyEvent<Netns> {
        let opened = Pod::open(
            &self.proxy,
            uid.clone(),
            info.pod.clone(),
            info.addresses.clone(),
            netns,
            inherited,
            self.workers.count(),
        );
        let (pod, listeners) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                let error = format_error_chain(&error);
                tracing::warn!(pod = %info.pod, %uid, error, "cannot start the pod's proxy");
                return ProxyEvent::StartFailed {
                    uid,
                    generation,
                    error,
                };
            }
        };
        let sockets = listeners.iter().flat_map(PodListeners::descriptors);
        let descriptors: Vec<_> = std::iter::once(pod.netns.as_fd()).chain(sockets).collect();
        self.supervisor.store_item(
            &uid,
            &pod_handover::encode_metadata(&uid, info),
            &descriptors,
        );
        pod.serve(&self.workers, listeners);
        if self.proxy.config.close_clear_connections {
            ambit_rt::spawn_essential(
                "earlier connections",
                pre_capture::close_connections(pod.clone()),
            );
        } else {
            ambit_rt::spawn_essential(
                "earlier connections",
                pre_capture::enforce_policies(pod.clone()),
            );
        }
        tracing::info!(pod = %pod.name(), %uid, "serving the pod");
        self.proxy.metrics.proxies_started.inc();
        self.served
            .inner
            .lock()
            .running
            .insert(uid.clone(), (generation, pod));
        ProxyEvent::Started { uid, generation }
    }

    fn stop(&self, uid: &PodUid, generation: Generation, reason: StopReason) {
        let pod = {
            let mut served = self.served.inner.lock();
            match served.running.get(uid) {
                Some((current, _)) if *current == generation => {
                    served.running.remove(uid).map(|(_, pod)| pod)
                }
                _ => None,
            }
        };
        let Some(pod) = pod else { return };
        self.supervisor.release_item(uid);
        self.proxy.metrics.proxies_stopped.inc();
        tracing::info!(pod = %pod.name(), %uid, ?reason, "no longer serving the pod");
        match reason {
            StopReason::Surrendered => {
                pod.surrender();
                self.served
                    .drain_pod(pod, self.proxy.config.unenrolled_drain);
            }
            // No process can use a namespace that was replaced.
            StopReason::Replaced => pod.stop_now(),
            // The pod may only have left the mesh: its connections continue until they end. If the
            // pod was deleted, its connections end with it, by reset or by the tunnels' pings.
            StopReason::Deleted | StopReason::NotInSnapshot => {
                self.served
                    .drain_pod(pod, self.proxy.config.unenrolled_drain);
            }
        }
    }
}

#[derive(Debug, Default)]
struct AgentReply {
    acks: Vec<Ack>,
    disconnect: bool,
}

fn to_event(record: &[u8], fd: Option<OwnedFd>) -> ProxyEvent<Netns> {
    let request = match decode_request(record) {
        Ok(request) => request,
        Err(error) => return ProxyEvent::Malformed(format_error_chain(&error)),
    };
    match fd.map(Netns::from_fd).transpose() {
        Ok(netns) => ProxyEvent::Request(request, netns),
        Err(error) => ProxyEvent::Malformed(format!("the descriptor is unusable: {error}")),
    }
}
