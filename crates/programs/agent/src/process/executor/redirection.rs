//! Carries out the steps in pods' network namespaces, which block; a limited number of them run concurrently.

use std::sync::Arc;

use ambit_netplan::RedirectionSpec;
use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use ambit_sys::netns::Netns;
use tokio::sync::Semaphore;

use super::{pre_capture, report::StepReport};
use crate::{
    actions::{ActionError, Actions, PriorRedirection, RedirectionOutcome},
    enrolment::{Event, RedirectionStep},
};

/// Executor of changes to pods' redirection.
pub(super) struct RedirectionExecutor<A> {
    actions: Arc<A>,
    slots: Arc<Semaphore>,
}

/// Successful outcome of [`RedirectionStep::Apply`].
enum ApplyOutcome {
    /// The redirection is in place, and nothing had to be repaired.
    InPlace,
    /// The redirection had drifted, as the text describes, and was repaired.
    Repaired(String),
    /// No redirection was in place and the pod was captured late: its pre-capture connections are being closed.
    ClosingPreCapture,
}

impl<A: Actions> RedirectionExecutor<A> {
    pub(super) fn new(actions: Arc<A>, slots: Arc<Semaphore>) -> Self {
        Self { actions, slots }
    }

    pub(super) fn step(&self, step: RedirectionStep<Netns>, report: StepReport) {
        let (actions, slots) = (Arc::clone(&self.actions), Arc::clone(&self.slots));
        spawn(report.name, async move {
            // Closed never.
            let _slot = slots.acquire_owned().await;
            match step {
                RedirectionStep::Apply {
                    netns,
                    spec,
                    close_pre_capture,
                } => apply_rules(actions, netns, spec, close_pre_capture, report).await,
                RedirectionStep::Release { netns } => {
                    let work = move || actions.release_rules(&netns);
                    let released = spawn_blocking(report.name, work).await;
                    report.send(flatten_errors(released));
                }
            }
        });
    }
}

async fn apply_rules<A: Actions>(
    actions: Arc<A>,
    netns: Netns,
    spec: RedirectionSpec,
    close_pre_capture: bool,
    report: StepReport,
) {
    let (metrics, uid) = (report.metrics.clone(), report.uid.clone());
    let events = report.events.clone();
    let (of, by, at) = (uid.clone(), Arc::clone(&actions), netns.clone());
    let probe_ports = spec.probe_ports.clone();
    let work = move || {
        let RedirectionOutcome {
            prior: before,
            warnings,
        } = by.apply_rules(&at, &spec)?;
        let uid = of.clone();
        events.send(Event::Warned { uid, warnings }).ok();
        Ok(match before {
            PriorRedirection::Complete => ApplyOutcome::InPlace,
            PriorRedirection::Absent if close_pre_capture => {
                match pre_capture::close_connections(&*by, &metrics, &of, &at, &spec.probe_ports) {
                    true => ApplyOutcome::ClosingPreCapture,
                    false => ApplyOutcome::InPlace,
                }
            }
            PriorRedirection::Absent => ApplyOutcome::Repaired("all of it was missing".to_owned()),
            PriorRedirection::Drifted(what) => ApplyOutcome::Repaired(what),
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
