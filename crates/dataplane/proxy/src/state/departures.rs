//! Detects removed workloads, so that connections to them are closed.
//!
//! A pod's network namespace often ends before its proxy has sent the last packets, so that peers receive no FIN or
//! RST. The control plane's removal of the workload record is the signal instead. PINGs check connections to unready
//! workloads often, since such a workload may be removed soon.

use std::{collections::HashMap, net::IpAddr};

use ambit_hbone::{Liveness, Pool, PoolKey, WeakPool};
use ambit_model::{ArcStr, WorkloadStatus};
use ambit_route::{MeshTable, WorkloadChange};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;

/// HBONE pools of the process, and a signal for tasks that wait for the removal of a workload.
#[derive(Debug, Default)]
pub(super) struct Departures {
    pools: Mutex<Vec<WeakPool>>,
    /// Counter of update batches that removed, moved or changed the health of workloads.
    removal_batches: watch::Sender<u64>,
}

/// Workloads of one batch that were removed, moved or changed their health, by uid; the value is whether another
/// workload has taken over an address.
#[derive(Debug, Default)]
pub(super) struct DepartedWorkloads(HashMap<ArcStr, bool>);

impl DepartedWorkloads {
    /// Records the workloads whose connections one change affects.
    pub(super) fn record_change(&mut self, table: &MeshTable, change: &WorkloadChange) {
        if let Some(before) = &change.before {
            let is_unchanged = change.after.as_ref().is_some_and(|after| {
                after.ips() == before.ips() && after.status() == before.status()
            });
            if !is_unchanged {
                self.0.entry(before.uid().clone()).or_default();
            }
        }
        let Some(after) = change.after.as_ref().filter(|after| after.is_pod()) else {
            return;
        };
        let had = |ip: &IpAddr| {
            let mut before = change.before.iter().flat_map(|before| before.ips());
            before.any(|other| other == ip)
        };
        for ip in after.ips().iter().filter(|ip| !had(ip)) {
            for other in table.endpoints_at(after.network(), *ip) {
                if other.uid() != after.uid() && other.is_pod() {
                    self.0.insert(other.uid().clone(), true);
                }
            }
        }
    }
}

impl Departures {
    /// Registers a pool, whose connections to removed workloads are closed until it is dropped.
    pub(super) fn register_pool(&self, pool: &Pool) {
        let mut pools = self.pools.lock();
        pools.retain(|pool| pool.upgrade().is_some());
        pools.push(pool.downgrade());
    }

    /// Updates the peer liveness in all pools for the workloads in `departed`, after their batch was applied to the
    /// table.
    pub(super) fn notify_pools(&self, table: &RwLock<MeshTable>, departed: &DepartedWorkloads) {
        if departed.0.is_empty() {
            return;
        }
        let review = |key: &PoolKey| {
            let is_replaced = departed.0.get(&key.workload)?;
            let ip = key.destination.ip();
            Some(match is_replaced {
                true => Liveness::Removed,
                false => liveness(&table.read(), &key.workload, ip),
            })
        };
        let pools: Vec<_> = {
            let mut pools = self.pools.lock();
            pools.retain(|pool| pool.upgrade().is_some());
            pools.iter().filter_map(WeakPool::upgrade).collect()
        };
        for pool in pools {
            pool.update_liveness(review);
        }
        self.removal_batches.send_modify(|count| *count += 1);
    }

    /// Completes when the workload with this uid is no longer in the table, or no longer at this address.
    pub(super) async fn wait_until_gone(&self, table: &RwLock<MeshTable>, uid: &str, ip: IpAddr) {
        let mut changes = self.removal_batches.subscribe();
        loop {
            changes.mark_unchanged();
            if liveness(&table.read(), uid, ip) == Liveness::Removed {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

/// Returns the liveness of the workload with this uid: whether the table has it at this address, and its health.
fn liveness(table: &MeshTable, uid: &str, ip: IpAddr) -> Liveness {
    let Some(workload) = table.workload(uid) else {
        return Liveness::Removed;
    };
    // Addresses of names are not in the record.
    if !workload.ips().is_empty() && !workload.ips().contains(&ip) {
        return Liveness::Removed;
    }
    match workload.status() {
        WorkloadStatus::Healthy => Liveness::Healthy,
        WorkloadStatus::Unhealthy => Liveness::Unhealthy,
    }
}
