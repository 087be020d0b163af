//! Carrying out what the enrolment machine wants, and reporting back to it.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::PathBuf,
    sync::Arc,
};

use ambit_model::{ArcStr, PodName};
use ambit_netplan::HostMember;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_sys::netns::Netns;
use ambit_zds::PodUid;
use tokio::sync::{Semaphore, mpsc};

use super::earlier;
use crate::{
    actions::{Actions, Stood},
    enrolled::EnrolledFile,
    enrolment::{Event, Step, StepId, Wanted},
    membership,
    metrics::Metrics,
    status::StatusSink,
    zds::Zds,
};

/// Steps carried out at once.
const PARALLEL_STEPS: usize = 8;

/// Carries effects out, and reports.
pub(super) struct Hands<A> {
    actions: Arc<A>,
    pub(super) zds: Zds,
    pub(super) status: StatusSink,
    run_dir: PathBuf,
    pub(super) enrolled: EnrolledFile,
    events: mpsc::UnboundedSender<Event<Netns>>,
    pub(super) metrics: Metrics,
    slots: Arc<Semaphore>,
    pub(super) host_jobs: HostJobs,
}

/// Changes of the node's probe rule, carried out one after the other in the order given: a list of
/// all members must not overtake a member added after it was made.
pub(super) type HostJobs = mpsc::UnboundedSender<Box<dyn FnOnce() + Send>>;

fn start_host_jobs() -> HostJobs {
    let (jobs, mut queue) = mpsc::unbounded_channel::<Box<dyn FnOnce() + Send>>();
    spawn("host jobs", async move {
        while let Some(job) = queue.recv().await {
            // A job that panics has been reported under its name.
            spawn_blocking("host job", job).await.ok();
        }
    });
    jobs
}

impl<A: Actions> Hands<A> {
    /// What happens comes back through `events`.
    pub(super) fn new(
        actions: Arc<A>,
        zds: Zds,
        status: StatusSink,
        run_dir: PathBuf,
        enrolled: EnrolledFile,
        events: mpsc::UnboundedSender<Event<Netns>>,
        metrics: Metrics,
    ) -> Self {
        Self {
            actions,
            zds,
            status,
            run_dir,
            enrolled,
            events,
            metrics,
            slots: Arc::new(Semaphore::new(PARALLEL_STEPS)),
            host_jobs: start_host_jobs(),
        }
    }

    pub(super) fn step(&self, uid: PodUid, id: StepId, step: Step<Netns>) {
        let name = step.name();
        let (events, metrics) = (self.events.clone(), self.metrics.clone());
        let report = move |uid: PodUid, result: Result<(), String>| {
            metrics.count_step(&uid, name, &result);
            // The loop ends only with the process.
            events.send(Event::StepDone { uid, id, result }).ok();
        };
        match step {
            Step::Announce { info, netns } => {
                self.enrolled.add(uid.clone(), info.clone(), netns.id());
                // Ordered now, so that the first snapshot has it; the outcome comes later.
                let outcome = self.zds.add(uid.clone(), info, netns);
                spawn("announce", async move {
                    report(
                        uid,
                        outcome
                            .await
                            .map_err(|error| ErrorChain(&error).to_string()),
                    );
                });
            }
            Step::Withdraw => {
                self.enrolled.remove(&uid);
                let outcome = self.zds.del(uid.clone());
                spawn("withdraw", async move {
                    report(
                        uid,
                        outcome
                            .await
                            .map_err(|error| ErrorChain(&error).to_string()),
                    );
                });
            }
            step @ (Step::UpsertProbes { .. } | Step::RemoveProbes) => {
                let (actions, metrics) = (Arc::clone(&self.actions), self.metrics.clone());
                let job = move || {
                    let nowhere = StatusSink::Nowhere;
                    let result = carry_out(&*actions, &nowhere, &metrics, &uid, &step);
                    report(uid, result.map(drop));
                };
                self.host_jobs.send(Box::new(job)).ok();
            }
            step => {
                let (actions, status) = (Arc::clone(&self.actions), self.status.clone());
                let slots = Arc::clone(&self.slots);
                let drifts = self.events.clone();
                let earlier_metrics = self.metrics.clone();
                spawn(name, async move {
                    // Closed never.
                    let _slot = slots.acquire_owned().await;
                    let (of, of_earlier) = (uid.clone(), earlier_metrics.clone());
                    let by = Arc::clone(&actions);
                    let work = move || carry_out(&*by, &status, &of_earlier, &of, &step);
                    let result = match spawn_blocking(name, work).await {
                        Ok(result) => result,
                        Err(error) => Err(error.to_string()),
                    };
                    match &result {
                        Ok(Done::Repaired(what)) => {
                            let (uid, what) = (uid.clone(), what.clone());
                            drifts.send(Event::Repaired { uid, what }).ok();
                        }
                        Ok(Done::ClosedEarlier(netns)) => {
                            earlier::go_on(actions, earlier_metrics, uid.clone(), netns.clone());
                        }
                        Ok(Done::Simply) | Err(_) => {}
                    }
                    report(uid, result.map(drop));
                });
            }
        }
    }

    pub(super) fn scan(&self, wanted: Vec<Wanted>) {
        let (actions, events) = (Arc::clone(&self.actions), self.events.clone());
        spawn_blocking("scan", move || {
            let found = actions.scan(&wanted).unwrap_or_else(|error| {
                let error = ErrorChain(&error);
                tracing::warn!(%error, "running pods cannot be looked for");
                BTreeMap::new()
            });
            events.send(Event::Scanned(found)).ok();
        });
    }

    pub(super) fn write_membership(&self, namespaces: BTreeMap<ArcStr, bool>) {
        // A few hundred bytes, and in order.
        if let Err(error) = membership::write(&self.run_dir, &namespaces) {
            let path = self.run_dir.join(membership::FILE);
            tracing::warn!(path = %path.display(), %error, "cannot tell the plugin who belongs");
        }
    }

    pub(super) fn set_probe_members(&self, members: Vec<(PodUid, IpAddr)>) {
        let actions = Arc::clone(&self.actions);
        let job = move || {
            let members: Vec<_> = members
                .into_iter()
                .map(|(uid, ip)| HostMember {
                    ip,
                    uid: uid.to_string(),
                })
                .collect();
            if let Err(error) = actions.set_probe_members(&members) {
                tracing::warn!(error = %ErrorChain(&error), "probes may fail");
            }
        };
        self.host_jobs.send(Box::new(job)).ok();
    }

    pub(super) fn prune_status(&self, keep: BTreeSet<PodName>) {
        if let Err(error) = self.status.prune(&keep) {
            tracing::warn!(error = %ErrorChain(&error), "stale status is left");
        }
    }
}

/// How a step ended well.
enum Done {
    Simply,
    /// This did not stand before.
    Repaired(String),
    /// Nothing stood, and the pod should have waited: connections from before are being closed.
    ClosedEarlier(Netns),
}

fn carry_out<A: Actions>(
    actions: &A,
    status: &StatusSink,
    metrics: &Metrics,
    uid: &PodUid,
    step: &Step<Netns>,
) -> Result<Done, String> {
    let done = match step {
        Step::ApplyRules {
            netns,
            spec,
            close_earlier,
        } => {
            let redirected = match actions.apply_rules(netns, spec) {
                Ok(redirected) => redirected,
                Err(error) => return Err(ErrorChain(&error).to_string()),
            };
            let interfaces = redirected.probed_in_plaintext.join(", ");
            if redirected.before != Stood::All && !interfaces.is_empty() {
                tracing::warn!(
                    %uid, interfaces,
                    "kubelet's probes of this pod count as plaintext on these interfaces: the node does \
                     not see their frames, so a neighbour could pretend to be kubelet"
                );
            }
            return Ok(match redirected.before {
                Stood::All => Done::Simply,
                Stood::Nothing if *close_earlier => {
                    if earlier::close(actions, metrics, uid, netns) {
                        Done::ClosedEarlier(netns.clone())
                    } else {
                        Done::Simply
                    }
                }
                Stood::Nothing => Done::Repaired("all of it was missing".to_owned()),
                Stood::InPart(what) => Done::Repaired(what),
            });
        }
        Step::ReleaseRules { netns } => actions.release_rules(netns),
        Step::UpsertProbes { addresses } => actions.upsert_probes(uid, addresses),
        Step::RemoveProbes => actions.remove_probes(uid),
        Step::WriteStatus { pod, status: value } => {
            return status
                .write(uid, pod, *value)
                .map(|()| Done::Simply)
                .map_err(|error| ErrorChain(&error).to_string());
        }
        // The proxies' business, not the kernel's.
        Step::Announce { .. } | Step::Withdraw => Ok(()),
    };
    done.map(|()| Done::Simply)
        .map_err(|error| ErrorChain(&error).to_string())
}

impl<N> Step<N> {
    /// Its name in metrics and logs.
    fn name(&self) -> &'static str {
        match self {
            Self::Announce { .. } => "announce",
            Self::ApplyRules { .. } => "apply-rules",
            Self::UpsertProbes { .. } => "upsert-probes",
            Self::WriteStatus { .. } => "write-status",
            Self::ReleaseRules { .. } => "release-rules",
            Self::Withdraw => "withdraw",
            Self::RemoveProbes => "remove-probes",
        }
    }
}
