//! Reports the outcome of a step to the enrolment state machine.

use ambit_sys::netns::Netns;
use ambit_zds::PodUid;
use tokio::sync::mpsc;

use crate::{
    enrolment::{Event, StepId},
    metrics::Metrics,
};

/// Reports the outcome of a step exactly once, even if the step panics.
pub(super) struct StepReport {
    pub(super) uid: PodUid,
    pub(super) id: StepId,
    pub(super) name: &'static str,
    pub(super) events: mpsc::UnboundedSender<Event<Netns>>,
    pub(super) metrics: Metrics,
}

impl StepReport {
    pub(super) fn send(self, result: Result<(), String>) {
        self.metrics.count_step(&self.uid, self.name, &result);
        let (uid, id) = (self.uid, self.id);
        // The loop ends only with the process.
        self.events.send(Event::StepDone { uid, id, result }).ok();
    }
}
