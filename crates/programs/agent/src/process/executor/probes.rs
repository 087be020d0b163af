//! Changes the node's probe set, one change at a time in the order of the effects: a replacement of all members must
//! not undo a later addition.

use std::sync::{Arc, Mutex, PoisonError};

use ambit_netplan::HostMember;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_zds::PodUid;
use tokio::sync::{mpsc, oneshot};

use super::report::StepReport;
use crate::{
    actions::{ActionError, Actions},
    enrolment::{ProbeStep, ProbeTargets},
    metrics::Metrics,
};

/// Executor of changes to the node's probe set. Clones share one queue.
#[derive(Clone)]
pub(in crate::process) struct ProbeExecutor(mpsc::UnboundedSender<ProbeJob>);

enum ProbeJob {
    Step(ProbeStep, StepReport),
    SetMembers(Vec<HostMember>),
    RemoveRules(oneshot::Sender<Result<(), ActionError>>),
}

impl ProbeExecutor {
    pub(super) fn start<A: Actions>(actions: Arc<A>, metrics: Metrics) -> Self {
        let (jobs, mut queue) = mpsc::unbounded_channel();
        let exempted = Arc::new(ExemptionCounter::new(metrics));
        spawn("probe set", async move {
            while let Some(job) = queue.recv().await {
                let (actions, exempted) = (Arc::clone(&actions), Arc::clone(&exempted));
                // A job that panics has been reported under its name.
                let work = move || {
                    // Writing the rules may set their counters to zero.
                    exempted.count(&*actions);
                    perform_job(&*actions, job);
                    exempted.count(&*actions);
                };
                spawn_blocking("probe set", work).await.ok();
            }
        });
        Self(jobs)
    }

    pub(super) fn step(&self, step: ProbeStep, report: StepReport) {
        self.0.send(ProbeJob::Step(step, report)).ok();
    }

    /// Replaces all members of the node's probe set.
    pub(in crate::process) fn set_members(&self, pods: Vec<(PodUid, ProbeTargets)>) {
        let mut members = Vec::new();
        for (uid, ProbeTargets { addresses, ports }) in pods {
            for ip in addresses {
                members.extend(ports.iter().map(|port| HostMember {
                    ip,
                    port,
                    uid: uid.to_string(),
                }));
            }
        }
        self.0.send(ProbeJob::SetMembers(members)).ok();
    }

    /// Removes the node's probe rules after all earlier changes.
    pub(in crate::process) async fn remove_rules(&self) {
        let (done, removed) = oneshot::channel();
        self.0.send(ProbeJob::RemoveRules(done)).ok();
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(error = %ErrorChain(&error), "the node's probe rule is left");
        }
    }
}

fn perform_job<A: Actions>(actions: &A, job: ProbeJob) {
    match job {
        ProbeJob::Step(step, report) => {
            let result = match step {
                ProbeStep::Exempt(ProbeTargets { addresses, ports }) => {
                    actions.upsert_probes(&report.uid, &addresses, &ports)
                }
                ProbeStep::Remove => actions.remove_probes(&report.uid),
            };
            report.send(result.map_err(|error| ErrorChain(&error).to_string()));
        }
        ProbeJob::SetMembers(members) => {
            if let Err(error) = actions.set_probe_members(&members) {
                tracing::warn!(error = %ErrorChain(&error), "probes may fail");
            }
        }
        ProbeJob::RemoveRules(done) => drop(done.send(actions.remove_host_rules())),
    }
}

/// Metric of exempted probe connections, derived from the kernel's counters, which restart when rules are written.
struct ExemptionCounter {
    metrics: Metrics,
    /// Kernel counter as read last; `None` before the first reading.
    last_reading: Mutex<Option<u64>>,
}

impl ExemptionCounter {
    fn new(metrics: Metrics) -> Self {
        let last = Mutex::new(None);
        Self {
            metrics,
            last_reading: last,
        }
    }

    /// Adds to the metric the connections that were exempted since the last call.
    fn count<A: Actions>(&self, actions: &A) {
        let Ok(now) = actions.exempted_connections().inspect_err(|error| {
            tracing::debug!(error = %ErrorChain(error), "cannot count exempted connections");
        }) else {
            return;
        };
        let mut last = self
            .last_reading
            .lock()
            .unwrap_or_else(PoisonError::into_inner);
        let last = last.replace(now);
        // What an agent before this one exempted is none of this one's count.
        let more = last.map_or(0, |last| now.checked_sub(last).unwrap_or(now));
        self.metrics.probe_connections.inc_by(more);
    }
}
