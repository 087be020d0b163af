//! Carries out writes of pods' status annotations, which may block; a limited number of them run concurrently.

use std::sync::Arc;

use ambit_rt::{ErrorChain, spawn, spawn_blocking};
use tokio::sync::Semaphore;

use super::report::StepReport;
use crate::{enrolment::WriteStatus, status::StatusSink};

/// Executor of writes to pods' status annotations.
pub(super) struct StatusExecutor {
    sink: StatusSink,
    slots: Arc<Semaphore>,
}

impl StatusExecutor {
    pub(super) fn new(sink: StatusSink, slots: Arc<Semaphore>) -> Self {
        Self { sink, slots }
    }

    pub(super) fn step(&self, WriteStatus { pod, status }: WriteStatus, report: StepReport) {
        let (sink, slots) = (self.sink.clone(), Arc::clone(&self.slots));
        spawn(report.name, async move {
            // Closed never.
            let _slot = slots.acquire_owned().await;
            let uid = report.uid.clone();
            let work = move || sink.write_annotation(&uid, &pod, status);
            let written = spawn_blocking(report.name, work).await;
            report.send(match written {
                Ok(result) => result.map_err(|error| ErrorChain(&error).to_string()),
                Err(error) => Err(error.to_string()),
            });
        });
    }
}
