//! Changes of the node's probe set, carried out one after the other in the order given: a list of all members
//! must not overtake a member added after it was made.

use std::{net::IpAddr, sync::Arc};

use ambit_netplan::HostMember;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_zds::PodUid;
use tokio::sync::{mpsc, oneshot};

use super::Report;
use crate::{
    actions::{ActionError, Actions},
    enrolment::ProbeStep,
};

/// See the module. Cheap to clone.
#[derive(Clone)]
pub(in crate::process) struct ProbeExecutor(mpsc::UnboundedSender<Job>);

enum Job {
    Step(ProbeStep, Report),
    SetMembers(Vec<HostMember>),
    RemoveRules(oneshot::Sender<Result<(), ActionError>>),
}

impl ProbeExecutor {
    pub(super) fn start<A: Actions>(actions: Arc<A>) -> Self {
        let (jobs, mut queue) = mpsc::unbounded_channel();
        spawn("probe set", async move {
            while let Some(job) = queue.recv().await {
                let actions = Arc::clone(&actions);
                // A job that panics has been reported under its name.
                let work = move || carry_out(&*actions, job);
                spawn_blocking("probe set", work).await.ok();
            }
        });
        Self(jobs)
    }

    pub(super) fn step(&self, step: ProbeStep, report: Report) {
        self.0.send(Job::Step(step, report)).ok();
    }

    /// Makes exactly these the members.
    pub(in crate::process) fn set_members(&self, members: Vec<(PodUid, IpAddr)>) {
        let member = |(uid, ip): (PodUid, IpAddr)| HostMember {
            ip,
            uid: uid.to_string(),
        };
        let members = members.into_iter().map(member).collect();
        self.0.send(Job::SetMembers(members)).ok();
    }

    /// Takes the node's probe rules away, after all that was ordered before.
    pub(in crate::process) async fn remove_rules(&self) {
        let (done, removed) = oneshot::channel();
        self.0.send(Job::RemoveRules(done)).ok();
        if let Ok(Err(error)) = removed.await {
            tracing::warn!(error = %ErrorChain(&error), "the node's probe rule is left");
        }
    }
}

fn carry_out<A: Actions>(actions: &A, job: Job) {
    match job {
        Job::Step(step, report) => {
            let result = match step {
                ProbeStep::Exempt { addresses } => actions.upsert_probes(&report.uid, &addresses),
                ProbeStep::Remove => actions.remove_probes(&report.uid),
            };
            report.done(result.map_err(|error| ErrorChain(&error).to_string()));
        }
        Job::SetMembers(members) => {
            if let Err(error) = actions.set_probe_members(&members) {
                tracing::warn!(error = %ErrorChain(&error), "probes may fail");
            }
        }
        Job::RemoveRules(done) => drop(done.send(actions.remove_host())),
    }
}
