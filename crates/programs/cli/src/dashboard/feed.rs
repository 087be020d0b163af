//! Live data of the dashboard's page: traffic from flow events, and the mesh's state from dumps. Each is one current
//! value with a version. Pages long-poll for a newer version than they have, so a slow page delays only itself.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ambit_flow::{Filter, StreamItem};
use parking_lot::Mutex;
use serde::Serialize;
use tokio::{
    sync::{mpsc, watch},
    time::{Instant, timeout_at},
};

use super::{
    mesh::{self, Mesh},
    traffic::{Traffic, TrafficView},
};
use crate::{
    flows::{self, FlowTarget, FlowUpdate},
    source::Source,
};

/// Interval at which the mesh's state is read from the node proxies.
const MESH_READ_INTERVAL: Duration = Duration::from_secs(3);
/// Timeout of one read of the mesh's state.
const MESH_READ_TIMEOUT: Duration = Duration::from_secs(6);
/// Time after a page's last poll during which the mesh's state is still read.
const MAX_IDLE_TIME: Duration = Duration::from_secs(20);
/// Timeout of a page's long poll, after which it gets a response without changes.
const POLL_TIMEOUT: Duration = Duration::from_secs(10);
/// Pause before the dashboard subscribes to flow events again.
const RECONNECT_PAUSE: Duration = Duration::from_secs(1);
/// Maximum number of proxies in the list of those whose flow events cannot be read.
const MAX_SILENT_PROXIES: usize = 64;
const SILENT_PROXY_EXPIRY: Duration = Duration::from_secs(15);
/// Timeout of a long poll while an edge of the traffic graph has recent traffic: its rates change without new events.
const RATES_POLL_TIMEOUT: Duration = Duration::from_secs(1);

/// Live data of the dashboard, and the time of the pages' last poll.
pub(super) struct Feed {
    started: Instant,
    traffic: watch::Sender<Traffic>,
    mesh: watch::Sender<MeshState>,
    /// Time of a page's last poll, in milliseconds after the start.
    polled_at: AtomicU64,
    /// Proxies whose flow events cannot be read, with the reason and the time of the failure.
    silent_proxies: Mutex<BTreeMap<String, (String, Instant)>>,
}

/// Latest state of the mesh that could be read, and the error if a later read failed.
#[derive(Clone, Debug, Default)]
struct MeshState {
    version: u64,
    mesh: Option<Arc<Mesh>>,
    /// Error of the latest read; `None` if it succeeded.
    error: Option<String>,
    read_at: Option<Instant>,
}

/// Response to a page's poll for traffic.
#[derive(Debug, Serialize)]
pub(super) struct TrafficResponse {
    #[serde(flatten)]
    view: TrafficView,
    /// Proxies whose flow events are missing, with the reason.
    silent: Vec<String>,
}

/// Response to a page's poll for the mesh's state.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MeshResponse {
    version: u64,
    error: Option<String>,
    /// Seconds since the mesh's state was last read.
    age_seconds: Option<u64>,
    /// State of the mesh; `None` if the page already has this version.
    mesh: Option<Arc<Mesh>>,
}

impl Feed {
    pub(super) fn new() -> Self {
        Self {
            started: Instant::now(),
            traffic: watch::Sender::new(Traffic::default()),
            mesh: watch::Sender::new(MeshState::default()),
            polled_at: AtomicU64::new(0),
            silent_proxies: Mutex::default(),
        }
    }

    /// Adds a flow event to the traffic, or records that a proxy's event stream began or ended.
    pub(super) fn receive(&self, received: FlowUpdate) {
        let now = self.started.elapsed();
        let item = match received {
            FlowUpdate::Item(item) => *item,
            FlowUpdate::Connected(proxy) => return self.mark_reachable(&proxy),
            FlowUpdate::Disconnected(proxy, why) => return self.mark_silent(proxy, why),
        };
        self.traffic.send_modify(|traffic| match item {
            StreamItem::Flow(flow) => traffic.add(*flow, now),
            StreamItem::Lost { sampled, refusals } => traffic.add_lost(sampled, refusals),
        });
    }

    fn mark_reachable(&self, proxy: &str) {
        self.silent_proxies.lock().remove(proxy);
    }

    fn mark_silent(&self, proxy: String, why: String) {
        let mut silent = self.silent_proxies.lock();
        if silent.len() < MAX_SILENT_PROXIES || silent.contains_key(&proxy) {
            silent.insert(proxy, (why, Instant::now()));
        }
    }

    /// Returns the proxies whose flow events could not be read lately, with the reason.
    fn silent_proxies(&self) -> Vec<String> {
        let mut silent = self.silent_proxies.lock();
        silent.retain(|_, (_, since)| since.elapsed() < SILENT_PROXY_EXPIRY);
        let line = |(proxy, (why, _)): (&String, &(String, Instant))| format!("{proxy} ({why})");
        silent.iter().map(line).collect()
    }

    /// Reads the flow events of all proxies while a page polls the dashboard.
    pub(super) async fn read_flow_events(&self, target: &FlowTarget) {
        loop {
            if self.has_recent_poll() {
                match flows::subscribe(target, Filter::default()).await {
                    Ok(received) => self.receive_while_watched(received).await,
                    Err(error) => {
                        self.mark_silent("the mesh".to_owned(), mesh::one_line_error(&error))
                    }
                }
            }
            tokio::time::sleep(RECONNECT_PAUSE).await;
        }
    }

    async fn receive_while_watched(&self, mut received: mpsc::Receiver<FlowUpdate>) {
        self.mark_reachable("the mesh");
        while self.has_recent_poll() {
            match timeout_at(Instant::now() + RECONNECT_PAUSE, received.recv()).await {
                Ok(Some(received)) => self.receive(received),
                Ok(None) => return,
                // Check whether a page still polls.
                Err(_) => {}
            }
        }
    }

    /// Waits until the number of the latest event differs from `after` or rates have changed, and returns the traffic.
    pub(super) async fn traffic(&self, after: u64) -> TrafficResponse {
        self.record_poll();
        let begin = Instant::now();
        let mut changes = self.traffic.subscribe();
        let mut end = begin + POLL_TIMEOUT;
        loop {
            {
                let traffic = changes.borrow_and_update();
                // A number of the future is that of another server.
                if traffic.latest() != after {
                    break;
                }
                if traffic.is_active(self.started.elapsed()) {
                    end = begin + RATES_POLL_TIMEOUT;
                }
            }
            if timeout_at(end, changes.changed()).await.is_err() {
                break;
            }
        }
        let now = self.started.elapsed();
        let traffic = changes.borrow();
        let after = if traffic.latest() < after { 0 } else { after };
        TrafficResponse {
            view: traffic.view(now, after),
            silent: self.silent_proxies(),
        }
    }

    /// Waits until the version of the mesh's state differs from `version`, and returns the state.
    pub(super) async fn mesh(&self, version: u64) -> MeshResponse {
        self.record_poll();
        let mut changes = self.mesh.subscribe();
        let changed = changes.wait_for(|state| state.version != version);
        // Nothing has changed, or the server ends.
        let _unchanged = timeout_at(Instant::now() + POLL_TIMEOUT, changed)
            .await
            .is_err();
        let state = changes.borrow().clone();
        MeshResponse {
            version: state.version,
            error: state.error,
            age_seconds: state.read_at.map(|read| read.elapsed().as_secs()),
            mesh: state.mesh.filter(|_| state.version != version),
        }
    }

    /// Reads the mesh's state repeatedly while a page polls.
    pub(super) async fn read_mesh(&self, source: &Source) {
        loop {
            if self.has_recent_poll() {
                let found =
                    timeout_at(Instant::now() + MESH_READ_TIMEOUT, mesh::gather(source)).await;
                self.set_mesh(match found {
                    Ok(found) => found.map_err(|error| mesh::one_line_error(&error)),
                    Err(_) => Err(format!(
                        "no answer within {} s",
                        MESH_READ_TIMEOUT.as_secs()
                    )),
                });
            }
            tokio::time::sleep(MESH_READ_INTERVAL).await;
        }
    }

    fn set_mesh(&self, found: Result<Mesh, String>) {
        self.mesh.send_if_modified(|state| {
            let (mesh, error) = match found {
                Ok(mesh) => {
                    state.read_at = Some(Instant::now());
                    (Some(Arc::new(mesh)), None)
                }
                Err(error) => (state.mesh.clone(), Some(error)),
            };
            if state.mesh == mesh && state.error == error {
                return false;
            }
            state.version += 1;
            (state.mesh, state.error) = (mesh, error);
            true
        });
    }

    fn record_poll(&self) {
        let now = u64::try_from(self.started.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.polled_at.store(now, Ordering::Relaxed);
    }

    fn has_recent_poll(&self) -> bool {
        let polled_at = Duration::from_millis(self.polled_at.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(polled_at) < MAX_IDLE_TIME
    }
}
