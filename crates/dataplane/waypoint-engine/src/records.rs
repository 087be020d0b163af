//! Applies xDS updates of the control plane to the state of the mesh and to the waypoint's configuration.

use std::{collections::BTreeSet, net::IpAddr, sync::Arc, time::Duration};

use ambit_model::{NamespacedHostname, WaypointRecordType};
use ambit_proxy::{SharedState, control_plane::xds_termination, warm_start::MeshCache};
use ambit_rt::ReadyTask;
use ambit_telemetry::{Metrics, http::HttpMetrics};
use ambit_xds::{CachedResource, MeshUpdate, StreamEnding, UpdateHandler};
use tokio::time::Instant;

use crate::{
    attachment_lookup, destination,
    published::{PublishedConfig, RemovedRecord},
};

/// Timeout of requesting one needed record, after which the next one is requested.
const NEEDED_RECORD_TIMEOUT: Duration = Duration::from_secs(5);

/// Requests the records of served services, and of routes' backends, before requests need them.
pub async fn subscribe_needed_services(state: SharedState, published: PublishedConfig) {
    let mut changes = published.watch();
    let mut requested: BTreeSet<NamespacedHostname> = BTreeSet::new();
    loop {
        changes.mark_unchanged();
        let needed: BTreeSet<_> = published.needed_services().into_iter().collect();
        requested.retain(|name| needed.contains(name));
        for name in needed {
            if requested.contains(&name) {
                continue;
            }
            match state
                .subscribe_to_record(name.to_string(), Instant::now() + NEEDED_RECORD_TIMEOUT)
                .await
            {
                Ok(()) => drop(requested.insert(name)),
                Err(error) => tracing::warn!(service = %name, %error, "no answer about a service"),
            }
        }
        if changes.changed().await.is_err() {
            return;
        }
    }
}

/// Whether an xDS update may change which services select a known workload.
fn changes_workload_services(state: &SharedState, update: &MeshUpdate) -> bool {
    let table = state.table();
    let is_shared = |network: &str, ips: &[IpAddr], uid: &str| {
        let others = |ip: &IpAddr| {
            let mut all = table.endpoints_at(network, *ip);
            all.any(|other| other.uid() != uid)
        };
        ips.iter().any(others)
    };
    match update {
        MeshUpdate::Workload(workload) => match table.workload(&workload.uid) {
            Some(known) => !known.has_services_of(workload),
            None => {
                is_shared(&workload.network, &workload.workload_ips, &workload.uid)
                    // Headless services also have the attachments of other services of their endpoints.
                    || workload.services.keys().any(|name| {
                        let service = table.service(name);
                        service.is_some_and(|one| attachment_lookup::is_headless(one))
                    })
            }
        },
        MeshUpdate::AddressRemoved(name) => table
            .workload(name)
            .is_some_and(|known| is_shared(known.network(), known.ips(), known.uid())),
        _ => false,
    }
}

/// Handler of the updates that the xDS client receives.
#[derive(Debug)]
pub struct RecordHandler {
    /// Workloads and services of the mesh.
    pub state: SharedState,
    /// Configuration of the waypoint.
    pub published: PublishedConfig,
    /// Metrics of connections and of received xDS messages.
    pub metrics: Arc<Metrics>,
    /// Metrics of requests.
    pub http_metrics: Arc<HttpMetrics>,
    /// Readiness gate that opens when the initial configuration has been received.
    pub readiness: ReadyTask,
    /// Cache of the received state, from which the next worker process starts.
    pub cache: Option<Arc<MeshCache>>,
}

impl UpdateHandler for RecordHandler {
    fn apply(&self, batch: &mut Vec<MeshUpdate>) {
        let mut own = Vec::new();
        batch.retain_mut(|update| match update {
            MeshUpdate::Waypoint(update) => {
                own.push(update.clone());
                false
            }
            _ => true,
        });
        if !own.is_empty() {
            for gone in self.published.apply(own) {
                match gone {
                    RemovedRecord::Policy(policy) => self.http_metrics.remove_policy(&policy),
                    RemovedRecord::Destination(service) => {
                        destination::remove_metrics(&self.http_metrics, &service);
                    }
                }
            }
        }
        let is_changed = batch
            .iter()
            .any(|update| changes_workload_services(&self.state, update));
        self.state.apply(batch);
        if is_changed {
            self.published.notify_pod_services_changed();
        }
    }

    fn on_addresses_synced(&self) {
        self.state.mark_addresses_known();
    }

    fn on_waypoint_records_synced(&self, record_type: WaypointRecordType) {
        self.published.mark_complete(record_type);
        if self.published.is_complete() {
            self.readiness.ready();
        }
    }

    fn on_resource_accepted(&self, type_url: &str, name: &str, cached: &CachedResource) {
        if let Some(cache) = &self.cache {
            cache.record_resource(type_url, name, cached);
        }
    }

    fn on_push_cached(&self, type_url: &str, complete: bool) {
        if let Some(cache) = &self.cache {
            cache.record_push_end(type_url, complete);
        }
    }

    fn on_message_received(&self, type_url: &str, bytes: usize) {
        self.metrics
            .count_xds_message(type_url, u64::try_from(bytes).unwrap_or(u64::MAX));
    }

    fn on_unknown_fields(&self, type_url: &str, count: u64) {
        self.metrics.count_unknown_fields(type_url, count);
    }

    fn on_stream_ended(&self, ending: StreamEnding) {
        self.metrics.count_xds_termination(xds_termination(ending));
    }
}
