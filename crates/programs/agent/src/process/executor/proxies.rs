//! Carries out orders to node proxies one after the other, so that a proxy's first snapshot contains all earlier
//! orders.

use std::future::Future;

use ambit_rt::{ErrorChain, spawn};
use ambit_sys::netns::Netns;
use ambit_zds::{OrderError, PodUid};

use super::report::StepReport;
use crate::{enrolled::EnrolledFile, enrolment::ProxyStep, zds::Zds};

/// Executor of orders to node proxies, which also records enrolled pods in the file for proxies that start without the
/// agent.
pub(in crate::process) struct ProxyExecutor {
    zds: Zds,
    enrolled_file: EnrolledFile,
}

impl ProxyExecutor {
    pub(super) fn new(zds: Zds, enrolled: EnrolledFile) -> Self {
        Self {
            zds,
            enrolled_file: enrolled,
        }
    }

    pub(super) fn step(&self, step: ProxyStep<Netns>, report: StepReport) {
        match step {
            ProxyStep::Announce { info, netns } => {
                let uid = report.uid.clone();
                self.enrolled_file
                    .add(uid.clone(), info.clone(), netns.id());
                report_outcome("announce", self.zds.add(uid, info, netns), report);
            }
            ProxyStep::Withdraw => {
                self.enrolled_file.remove(&report.uid);
                report_outcome("withdraw", self.zds.del(report.uid.clone()), report);
            }
        }
    }

    /// Lets a node proxy that already serves the pod continue, although the pod's network namespace is not known yet.
    pub(in crate::process) fn hold(&self, uid: PodUid) {
        self.enrolled_file.keep_earlier(&uid);
        self.zds.hold(uid);
    }

    /// Lets node proxies connect, since the orders for all initial pods have been given.
    pub(in crate::process) fn open(&self) {
        self.enrolled_file.mark_complete();
        self.zds.open();
    }
}

fn report_outcome(
    name: &'static str,
    outcome: impl Future<Output = Result<(), OrderError>> + Send + 'static,
    report: StepReport,
) {
    spawn(name, async move {
        report.send(
            outcome
                .await
                .map_err(|error| ErrorChain(&error).to_string()),
        );
    });
}
