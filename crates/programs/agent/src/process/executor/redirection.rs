//! Carries out the steps in pods' network namespaces, which block; a limited number of them run concurrently.

use std::sync::Arc;

use ambit_netplan::RedirectionSpec;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_sys::netns::Netns;
use ambit_zds::WorkloadInfo;
use tokio::sync::Semaphore;

use super::{pre_capture, report::StepReport};
use crate::{
    actions::{ActionError, Actions, PriorRedirection, RedirectionOutcome},
    capture::{BpfReadiness, CaptureTarget},
    enrolment::{Event, RedirectionStep},
    zds::Zds,
};

/// Executor of changes to pods' redirection.
pub(super) struct RedirectionExecutor<A> {
    actions: Arc<A>,
    zds: Zds,
    slots: Arc<Semaphore>,
}

/// Successful outcome of [`RedirectionStep::Apply`].
enum ApplyOutcome {
    /// The redirection is in place, and nothing had to be repaired.
    InPlace,
    /// The redirection had drifted, as the text describes, and was repaired.
    Repaired(String),
    /// No redirection captured the pod, which is captured late: its pre-capture connections are being closed.
    ClosingPreCapture,
}

impl<A: Actions> RedirectionExecutor<A> {
    pub(super) fn new(actions: Arc<A>, zds: Zds, slots: Arc<Semaphore>) -> Self {
        Self {
            actions,
            zds,
            slots,
        }
    }

    pub(super) fn step(&self, step: RedirectionStep<Netns>, report: StepReport) {
        let (actions, slots) = (Arc::clone(&self.actions), Arc::clone(&self.slots));
        let zds = self.zds.clone();
        spawn(report.name, async move {
            // Closed never.
            let _slot = slots.acquire_owned().await;
            match step {
                RedirectionStep::Apply {
                    info,
                    cgroup_alias,
                    netns,
                    spec,
                    close_pre_capture,
                } => {
                    let target = CaptureTarget {
                        uid: report.uid.clone(),
                        cgroup_alias,
                        netns,
                    };
                    let bpf = prepare_bpf(&actions, &zds, &target, &spec, info).await;
                    apply_rules(actions, target, spec, bpf, close_pre_capture, report).await;
                }
                RedirectionStep::Release { netns } => {
                    let work = move || actions.release_rules(&netns);
                    let released = spawn_blocking(report.name, work).await;
                    report.send(flatten_errors(released));
                }
            }
        });
    }
}

/// Prepares the pod for BPF programs, unless the agent is set to rules, and orders its proxy to serve it once more: one that
/// can enters its listeners before it acknowledges.
async fn prepare_bpf<A: Actions>(
    actions: &Arc<A>,
    zds: &Zds,
    target: &CaptureTarget,
    spec: &RedirectionSpec,
    info: WorkloadInfo,
) -> BpfReadiness {
    if !spec.backend.is_automatic() {
        return BpfReadiness::NotRequested;
    }
    let (by, pod, desired) = (Arc::clone(actions), target.clone(), spec.clone());
    let prepared = spawn_blocking("prepare-bpf", move || by.prepare_bpf(&pod, &desired)).await;
    if let Err(reason) = flatten_errors(prepared) {
        return BpfReadiness::Impossible(reason);
    }
    let ordered = zds.add(target.uid.clone(), info, target.netns.clone());
    BpfReadiness::Prepared {
        acknowledged: ordered.await.is_ok(),
    }
}

async fn apply_rules<A: Actions>(
    actions: Arc<A>,
    target: CaptureTarget,
    spec: RedirectionSpec,
    bpf: BpfReadiness,
    close_pre_capture: bool,
    report: StepReport,
) {
    let (metrics, uid) = (report.metrics.clone(), report.uid.clone());
    let events = report.events.clone();
    let netns = target.netns.clone();
    let (of, by, at) = (uid.clone(), Arc::clone(&actions), netns.clone());
    let probe_ports = spec.probe_ports.clone();
    let work = move || {
        let RedirectionOutcome {
            prior: before,
            method,
            warnings,
        } = by.apply_rules(&target, &spec, &bpf)?;
        let uid = of.clone();
        let applied = Event::Applied {
            uid,
            method,
            warnings,
        };
        events.send(applied).ok();
        Ok(match before {
            PriorRedirection::Complete => ApplyOutcome::InPlace,
            PriorRedirection::Absent | PriorRedirection::Incomplete(_) if close_pre_capture => {
                match pre_capture::close_connections(&*by, &metrics, &of, &at, &spec.probe_ports) {
                    true => ApplyOutcome::ClosingPreCapture,
                    false => ApplyOutcome::InPlace,
                }
            }
            PriorRedirection::Absent => ApplyOutcome::Repaired("all of it was missing".to_owned()),
            PriorRedirection::Incomplete(what) | PriorRedirection::Drifted(what) => {
                ApplyOutcome::Repaired(what)
            }
        })
    };
    let applied = spawn_blocking(report.name, work).await;
    match &applied {
        Ok(Ok(ApplyOutcome::Repaired(what))) => {
            let what = what.clone();
            report.events.send(Event::Repaired { uid, what }).ok();
        }
        Ok(Ok(ApplyOutcome::ClosingPreCapture)) => {
            pre_capture::recheck_connections(
                actions,
                report.metrics.clone(),
                uid,
                netns,
                probe_ports,
            );
        }
        Ok(Ok(ApplyOutcome::InPlace) | Err(_)) | Err(_) => {}
    }
    report.send(flatten_errors(applied));
}

/// Merges the error of a blocking task and the error of the task's work into one text.
fn flatten_errors<T, E: std::error::Error>(
    outcome: Result<Result<T, ActionError>, E>,
) -> Result<(), String> {
    match outcome {
        Ok(result) => result
            .map(drop)
            .map_err(|error| ErrorChain(&error).to_string()),
        Err(error) => Err(error.to_string()),
    }
}
