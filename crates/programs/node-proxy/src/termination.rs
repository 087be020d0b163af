//! Termination of the process: the pods are served until a successor accepts their connections; open connections then
//! continue until they end, or until the process must end. Policies, revocations and certificates are still updated.
//! The agent is connected to the successor alone: this process reads from the agent's record that a pod has left the
//! mesh, or that the mesh is being uninstalled.

use std::{
    collections::HashSet,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_handover::{Supervisor, rollout::wait_for_successor};
use ambit_rt::AbortOnDrop;
use ambit_wire::enrolled::EnrolledPods;
use tokio::{sync::watch, time::sleep};

use crate::{config::Config, enrolment_record, pod::Pod, pods::ServedPods};

/// Maximum drain time when the mesh is being uninstalled.
const REMOVED_DRAIN_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for which the process waits until the resets of closed connections are sent.
const RESET_GRACE: Duration = Duration::from_secs(1);

type EnrolmentWatch = watch::Receiver<Option<EnrolledPods>>;

/// Parts of the process that its termination needs.
#[derive(Debug)]
pub(crate) struct Termination {
    pub(crate) config: Arc<Config>,
    pub(crate) served: ServedPods,
    pub(crate) supervisor: Supervisor,
    /// Proxy instance of the node proxy's own pod, if it is served.
    pub(crate) own_pod: Option<Arc<Pod>>,
    /// Task of the client of the node agent, which ends when the drain begins.
    pub(crate) enrolment_task: AbortOnDrop<()>,
}

impl Termination {
    /// Waits for a successor if pods need one, and drains the pods; completes when no connections are open, or at the
    /// deadline.
    pub(crate) async fn run(self, cause: &str) {
        let Self {
            config,
            served,
            supervisor,
            own_pod: own,
            enrolment_task: enrolment,
        } = self;
        let limit = config.self_termination_deadline;
        let ends = Instant::now() + limit;
        let record =
            enrolment_record::watch_record(enrolment_record::record_path(&config.inpod_uds));
        tokio::select! {
            () = wait_for_successor(&supervisor, limit, || served.is_needed()) => {}
            () = wait_until_removed(record.clone()) => {}
        }
        drop(enrolment);
        let pods = served.pods();
        // Unused listeners must be closed: with a successor, they are the successor's.
        for pod in &pods {
            supervisor.release_item(&pod.uid);
        }
        let left = ends.saturating_duration_since(Instant::now());
        tracing::info!(cause, ?left, "draining");
        let leaving =
            shorten_drains_of_leaving_pods(record.clone(), pods.clone(), config.unenrolled_drain);
        let _leaving = ambit_rt::spawn_abortable("unenrolment while draining", leaving);
        let own = async {
            if let Some(own) = own {
                own.drain_connections(Some(left)).await;
            }
        };
        let drained =
            async { tokio::join!(drain_pods(pods, left), served.wait_until_drained(left), own) };
        tokio::select! {
            _all = drained => {}
            () = async {
                wait_until_removed(record).await;
                sleep(REMOVED_DRAIN_TIMEOUT + RESET_GRACE).await;
            } => {}
        }
    }
}

/// Waits until the agent's record states that the mesh is being uninstalled.
async fn wait_until_removed(mut record: EnrolmentWatch) {
    let is_removed = |record: &Option<EnrolledPods>| record.as_ref().is_some_and(|now| now.removed);
    if record.wait_for(is_removed).await.is_err() {
        // The record is no longer followed.
        std::future::pending::<()>().await;
    }
}

/// Limits the drain time of pods that the agent's record no longer lists.
async fn shorten_drains_of_leaving_pods(
    mut record: EnrolmentWatch,
    mut pods: Vec<Arc<Pod>>,
    unenrolled: Option<Duration>,
) {
    while record.changed().await.is_ok() {
        let (limit, gone) = {
            let now = record.borrow_and_update();
            let Some(now) = &*now else { continue };
            let limit = if now.removed {
                Some(REMOVED_DRAIN_TIMEOUT)
            } else {
                unenrolled
            };
            let enrolled: HashSet<&str> = now.pods.iter().map(|pod| &*pod.uid).collect();
            let gone: Vec<_> = pods
                .extract_if(.., |pod| !enrolled.contains(&*pod.uid))
                .collect();
            (limit, gone)
        };
        if limit.is_none() {
            // The mesh may still be uninstalled.
            pods.extend(gone);
            continue;
        }
        for pod in gone {
            tracing::info!(pod = %pod.name(), ?limit, "the pod has left the mesh: its drain is shortened");
            ambit_rt::spawn_essential(
                "pod drain",
                async move { pod.drain_connections(limit).await },
            );
        }
    }
}

/// Drains the connections of all pods, at most for `deadline`.
async fn drain_pods(pods: Vec<Arc<Pod>>, deadline: Duration) {
    let draining: Vec<_> = pods
        .into_iter()
        .map(|pod| {
            ambit_rt::spawn("pod drain", async move {
                pod.drain_connections(Some(deadline)).await
            })
        })
        .collect();
    for pod in draining {
        // A drain's panic has been logged.
        let _panicked = pod.await;
    }
}
