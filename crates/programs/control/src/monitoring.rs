//! HTTP server of `/metrics`, `/ready` and `/debug/…`.
//!
//! Pages under `/debug/` contain every record and policy of the mesh, so that only requests from this pod itself are
//! answered, such as those through `kubectl port-forward` and from `ambit`. One page at a time is built, on a separate
//! thread, from a snapshot of the store.

mod clients;
mod config;
mod registry;

use std::{collections::BTreeMap, sync::Arc, time::SystemTime};

use ambit_mesh_json::Json;
use ambit_model::WaypointRecordType;
use ambit_rt::{
    Readiness,
    http::{Peer, Request, Response, json_pretty, method_not_allowed, not_found, text},
};
use ambit_wire::{
    decode::{self, AddressRecord},
    records,
};
use ambit_xds_server::{
    SessionTable,
    encoded_record::{Collection, EncodedRecord},
    skew,
};
use serde::Serialize;
use serde_json::{Value, json};
use tokio::sync::{AcquireError, Semaphore, SemaphorePermit};

use crate::{
    environment::Cluster,
    mesh::{Mesh, Problems},
    metrics::Metrics,
};

/// Permit to build a debug page; only one, since a page of a large mesh takes much memory.
static PAGE_SEMAPHORE: Semaphore = Semaphore::const_new(1);

/// State from which monitoring responses are built.
#[derive(Clone, Debug)]
pub struct Monitoring {
    /// Records and problems of the mesh.
    pub mesh: Mesh,
    /// Metrics of the control plane, for `/metrics`.
    pub metrics: Arc<Metrics>,
    /// Open xDS streams.
    pub sessions: SessionTable,
    /// Readiness of the process.
    pub readiness: Readiness,
    /// Name of the cluster.
    pub cluster_id: Arc<str>,
    /// Kubernetes cluster; `None` if objects come from manifests.
    pub cluster: Option<Cluster>,
}

impl Monitoring {
    /// Responds to one monitoring request.
    pub async fn respond(&self, request: &Request) -> Response {
        // istioctl requests `//version`.
        let path = request.uri().path().trim_start_matches('/');
        if request.method() != http::Method::GET {
            return method_not_allowed("GET");
        }
        if path.starts_with("debug") && !Peer::is_local_with_local_host(request) {
            return text(
                403,
                "debug pages are answered inside this pod only: use `ambit`, or kubectl port-forward\n",
            );
        }
        match path {
            "metrics" | "stats/prometheus" => self.metrics.respond(request),
            "ready" | "healthz/ready" => {
                let waiting = self.readiness.pending_names();
                if waiting.is_empty() {
                    text(200, "ready\n")
                } else {
                    text(503, format!("not ready: {}\n", waiting.join(", ")))
                }
            }
            // istioctl would print a trailing newline.
            "version" => text(200, env!("CARGO_PKG_VERSION")),
            "debug/syncz" | "debug/connections" => {
                let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
                let cluster_id = Arc::clone(&self.cluster_id);
                render_page(move || clients::clients_page(&sessions, &cluster_id)).await
            }
            "debug/registryz" => {
                let turn = PAGE_SEMAPHORE.acquire().await;
                match self.mesh.registry().await {
                    Some(services) => {
                        let cluster_id = Arc::clone(&self.cluster_id);
                        render_page_with_permit(turn, move || {
                            registry::registry_page(&services, &cluster_id)
                        })
                        .await
                    }
                    None => text(503, "objects are no longer followed\n"),
                }
            }
            "debug/configz" => match &self.cluster {
                Some(cluster) => {
                    let turn = PAGE_SEMAPHORE.acquire().await;
                    match config::list_objects(&cluster.client).await {
                        Ok(objects) => render_page_with_permit(turn, move || objects).await,
                        Err(error) => text(502, format!("{error}\n")),
                    }
                }
                None => text(404, "there is no cluster: the objects are the manifests\n"),
            },
            "debug/problems" => {
                let problems = self.problems().await;
                render_page(move || problems).await
            }
            "debug/ambientz" | "debug/config_dump" => {
                let records = MeshRecords::snapshot(&self.mesh);
                render_page(move || records.decode()).await
            }
            "debug/waypointz" => {
                let records = WaypointRecords::snapshot(&self.mesh);
                render_page(move || records.decode()).await
            }
            "" | "debug" | "debug/" => text(
                200,
                "/metrics\n/ready\n/version\n/debug/syncz\n/debug/registryz\n/debug/configz\n/debug/problems\n/debug/ambientz\n/debug/waypointz\n",
            ),
            _ => not_found(),
        }
    }
}

impl Monitoring {
    /// Returns all problems, of objects and of connected waypoints.
    async fn problems(&self) -> Problems {
        let mut problems = self.mesh.problems().await;
        let sessions: Vec<_> = self.sessions.lock().values().cloned().collect();
        let of_proxies =
            skew::subscription_problems(&sessions, &self.mesh.store.read(), SystemTime::now());
        problems.objects.extend(of_proxies);
        problems
    }
}

/// Permit to build a debug page, which pages with much data acquire before they collect the data.
type PagePermit = Result<SemaphorePermit<'static>, AcquireError>;

/// Waits for a permit, and builds a debug page by `make` on a separate thread.
async fn render_page<T: Serialize>(make: impl FnOnce() -> T + Send + 'static) -> Response {
    // The semaphore is never closed. The page is built even if the client disconnects.
    render_page_with_permit(PAGE_SEMAPHORE.acquire().await, make).await
}

/// Builds a debug page by `make` on a separate thread, with a permit.
async fn render_page_with_permit<T: Serialize>(
    permit: PagePermit,
    make: impl FnOnce() -> T + Send + 'static,
) -> Response {
    let made = ambit_rt::spawn_blocking("debug page", move || {
        let page = json_pretty(200, &make());
        drop(permit);
        page
    });
    made.await
        .unwrap_or_else(|_| text(500, "the page cannot be made\n"))
}

/// Snapshot of the encoded records for node proxies.
struct MeshRecords {
    revision: u64,
    addresses: Vec<Arc<EncodedRecord>>,
    policies: Vec<Arc<EncodedRecord>>,
}

impl MeshRecords {
    fn snapshot(mesh: &Mesh) -> Self {
        let store = mesh.store.read();
        let entries = |collection| store.records(collection).cloned().collect();
        Self {
            revision: store.revision(),
            addresses: entries(Collection::Addresses),
            policies: entries(Collection::Policies),
        }
    }

    /// Decodes every record as node proxies do, in the JSON format of their `/config_dump`.
    fn decode(&self) -> Value {
        let (mut workloads, mut services, mut policies) = (Vec::new(), Vec::new(), Vec::new());
        for entry in &self.addresses {
            match AddressRecord::decode(&entry.value) {
                Ok(AddressRecord::Workload(workload)) => workloads.push(Json(*workload)),
                Ok(AddressRecord::Service(service)) => services.push(Json(*service)),
                Err(error) => {
                    tracing::error!(name = %entry.name, %error, "a record of ours cannot be read");
                }
            }
        }
        for entry in &self.policies {
            match decode::decode_authorization(&entry.value) {
                Ok(policy) => policies.push(Json(policy)),
                Err(error) => {
                    tracing::error!(name = %entry.name, %error, "a policy of ours cannot be read");
                }
            }
        }
        workloads.sort_by(|Json(a), Json(b)| a.uid.cmp(&b.uid));
        services.sort_by_key(|Json(service)| service.namespaced_hostname());
        policies.sort_by_key(|Json(policy)| policy.key());
        json!({
            "revision": self.revision,
            "workloads": workloads,
            "services": services,
            "policies": policies,
        })
    }
}

/// Snapshot of the encoded records for waypoints.
struct WaypointRecords {
    revision: u64,
    entries: Vec<(WaypointRecordType, Arc<EncodedRecord>)>,
}

impl WaypointRecords {
    fn snapshot(mesh: &Mesh) -> Self {
        let store = mesh.store.read();
        let of = |of: &WaypointRecordType| {
            let entries = store.records(Collection::Waypoint(*of));
            entries
                .map(|entry| (*of, entry.clone()))
                .collect::<Vec<_>>()
        };
        Self {
            revision: store.revision(),
            entries: WaypointRecordType::ALL.iter().flat_map(of).collect(),
        }
    }

    /// Decodes every record as its waypoint does, without secrets; grouped by Gateway and section.
    fn decode(&self) -> Value {
        let mut waypoints = BTreeMap::<_, BTreeMap<_, BTreeMap<_, Value>>>::new();
        for (of, entry) in &self.entries {
            let record = match records::decode(*of, &entry.name, &entry.value) {
                Ok(record) => json!({"version": entry.version, "record": record}),
                Err(error) => {
                    tracing::error!(name = %entry.name, %error, "a record of ours cannot be read");
                    continue;
                }
            };
            let mut parts = entry.name.splitn(3, '/');
            let (namespace, name) = (parts.next(), parts.next());
            let gateway = format!(
                "{}/{}",
                namespace.unwrap_or_default(),
                name.unwrap_or_default()
            );
            let section = waypoints
                .entry(gateway)
                .or_default()
                .entry(of.config_dump_key());
            let name = parts.next().unwrap_or_default().to_owned();
            section.or_default().insert(name, record);
        }
        json!({"revision": self.revision, "waypoints": waypoints})
    }
}
