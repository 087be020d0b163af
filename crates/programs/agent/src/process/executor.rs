//! Carries out the effects of the enrolment state machine and reports their outcomes to it. Each kind of work has its
//! own executor, with the order and the concurrency that it needs.

mod pre_capture;
mod probes;
mod proxies;
mod redirection;
mod report;
mod statuses;

use std::{
    collections::{BTreeMap, BTreeSet},
    path::PathBuf,
    sync::Arc,
};

use ambit_model::{ArcStr, PodName};
use ambit_rt::{ErrorChain, spawn_blocking};
use ambit_sys::netns::Netns;
use ambit_zds::PodUid;
use tokio::sync::{Semaphore, mpsc};

use self::{redirection::RedirectionExecutor, report::StepReport, statuses::StatusExecutor};
use crate::{
    actions::Actions,
    enrolled::EnrolledFile,
    enrolment::{Event, ScanTarget, Step, StepId},
    membership,
    metrics::Metrics,
    status::StatusSink,
    zds::Zds,
};

pub(super) use self::{probes::ProbeExecutor, proxies::ProxyExecutor};

/// Maximum number of steps that are carried out concurrently, each on a blocking thread.
const PARALLEL_STEPS: usize = 8;

/// Carries out the effects of the enrolment state machine.
pub(super) struct Executor<A> {
    pub(super) proxies: ProxyExecutor,
    pub(super) probes: ProbeExecutor,
    pub(super) status: StatusSink,
    pub(super) metrics: Metrics,
    redirection: RedirectionExecutor<A>,
    statuses: StatusExecutor,
    actions: Arc<A>,
    run_dir: PathBuf,
    events: mpsc::UnboundedSender<Event<Netns>>,
}

impl<A: Actions> Executor<A> {
    /// Creates an executor that reports outcomes through `events`.
    pub(super) fn new(
        actions: Arc<A>,
        zds: Zds,
        status: StatusSink,
        run_dir: PathBuf,
        enrolled: EnrolledFile,
        events: mpsc::UnboundedSender<Event<Netns>>,
        metrics: Metrics,
    ) -> Self {
        let slots = Arc::new(Semaphore::new(PARALLEL_STEPS));
        Self {
            probes: ProbeExecutor::start(Arc::clone(&actions), metrics.clone()),
            redirection: RedirectionExecutor::new(
                Arc::clone(&actions),
                zds.clone(),
                Arc::clone(&slots),
            ),
            proxies: ProxyExecutor::new(zds, enrolled),
            statuses: StatusExecutor::new(status.clone(), slots),
            status,
            metrics,
            actions,
            run_dir,
            events,
        }
    }

    pub(super) fn step(&self, uid: PodUid, id: StepId, step: Step<Netns>) {
        let report = StepReport {
            uid,
            id,
            name: step.name(),
            events: self.events.clone(),
            metrics: self.metrics.clone(),
        };
        match step {
            Step::Proxy(step) => self.proxies.step(step, report),
            Step::Redirection(step) => self.redirection.step(step, report),
            Step::Probes(step) => self.probes.step(step, report),
            Step::Status(write) => self.statuses.step(write, report),
        }
    }

    pub(super) fn scan(&self, targets: Vec<ScanTarget>) {
        let (actions, events) = (Arc::clone(&self.actions), self.events.clone());
        spawn_blocking("scan", move || {
            let event = match actions.scan(&targets) {
                Ok(found) => Event::Scanned(found),
                Err(error) => {
                    let error = ErrorChain(&error);
                    tracing::warn!(%error, "running pods cannot be looked for");
                    Event::ScanFailed
                }
            };
            events.send(event).ok();
        });
    }

    pub(super) fn sweep_bpf(&self, pods: BTreeSet<PodUid>) {
        let actions = Arc::clone(&self.actions);
        spawn_blocking("sweep", move || actions.sweep_bpf(&pods));
    }

    pub(super) fn write_membership(&self, namespaces: BTreeMap<ArcStr, bool>) {
        // A few hundred bytes, and in order.
        if let Err(error) = membership::write(&self.run_dir, &namespaces) {
            let path = self.run_dir.join(membership::FILE_NAME);
            tracing::warn!(path = %path.display(), %error, "cannot write for the plugin who belongs");
        }
    }

    pub(super) fn prune_status(&self, keep: BTreeSet<PodName>) {
        if let Err(error) = self.status.prune_annotations(&keep) {
            tracing::warn!(error = %ErrorChain(&error), "stale status is left");
        }
    }
}
