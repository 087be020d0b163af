//! Writes pods' status through the API server: the annotation by a merge patch, and events on pods that cannot be
//! enrolled. A single task does so; no caller waits for it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use ambit_k8s_api::{Pod, labels::REDIRECTION};
use ambit_model::PodName;
use ambit_rt::{ErrorChain, spawn};
use ambit_zds::PodUid;
use k8s_openapi::api::core::v1::ObjectReference;
use kube::{
    Api, Client,
    api::{Patch as KubePatch, PatchParams},
    runtime::events::{Event, EventType, Recorder, Reporter},
};
use serde_json::json;
use tokio::sync::mpsc;

use super::annotations::{AnnotationPatch, PodAnnotations, WriteOutcome};
use crate::source::RedirectionStatus;

/// Reason of the Kubernetes events on pods that cannot be enrolled.
pub const ENROLMENT_FAILED: &str = "AmbitEnrolmentFailed";
/// Reason of the Kubernetes events on pods that are enrolled after an earlier failure.
pub const ENROLLED: &str = "AmbitEnrolled";
/// Time after which the same failure of a pod is reported again.
const REPEAT_INTERVAL: Duration = Duration::from_secs(300);
/// Maximum length of an event's note in bytes, below the limit of the API server.
const MAX_NOTE_BYTES: usize = 1000;
/// Timeout of one write, which is then retried.
const WRITE_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug)]
enum WriterCommand {
    SetDesired(PodUid, PodName, RedirectionStatus),
    SetObserved(PodUid, PodName, RedirectionStatus),
    RemovePod(PodUid),
    RetryNow,
    ReportFailure(PodUid, PodName, Option<String>),
}

/// Handle of the task that writes annotations and events.
#[derive(Clone, Debug)]
pub struct ApiStatus(mpsc::UnboundedSender<WriterCommand>);

impl ApiStatus {
    /// Starts the task for the pods of `node`.
    pub fn start(client: Client, node: &str) -> Self {
        let (sender, orders) = mpsc::unbounded_channel();
        let reporter = Reporter {
            controller: "ambit-agent".to_owned(),
            instance: Some(node.to_owned()),
        };
        let writer = StatusWriter {
            recorder: Recorder::new(client.clone(), reporter),
            client,
            annotations: PodAnnotations::default(),
            reported_failures: BTreeMap::new(),
        };
        spawn("status", writer.run(orders));
        Self(sender)
    }

    pub(super) fn set_desired(&self, uid: PodUid, pod: PodName, status: RedirectionStatus) {
        self.send_command(WriterCommand::SetDesired(uid, pod, status));
    }

    pub(super) fn set_observed(&self, uid: PodUid, pod: PodName, status: RedirectionStatus) {
        self.send_command(WriterCommand::SetObserved(uid, pod, status));
    }

    pub(super) fn remove_pod(&self, uid: PodUid) {
        self.send_command(WriterCommand::RemovePod(uid));
    }

    pub(super) fn retry_now(&self) {
        self.send_command(WriterCommand::RetryNow);
    }

    pub(super) fn report(&self, uid: PodUid, pod: PodName, failure: Option<String>) {
        self.send_command(WriterCommand::ReportFailure(uid, pod, failure));
    }

    fn send_command(&self, order: WriterCommand) {
        // The task ends only with the process.
        self.0.send(order).ok();
    }
}

struct StatusWriter {
    client: Client,
    recorder: Recorder,
    annotations: PodAnnotations,
    /// Failure of each pod that was last reported by an event, with the time.
    reported_failures: BTreeMap<PodUid, (String, Instant)>,
}

impl StatusWriter {
    async fn run(mut self, mut orders: mpsc::UnboundedReceiver<WriterCommand>) {
        let (done, mut outcomes) = mpsc::unbounded_channel();
        loop {
            for patch in self.annotations.take_due_patches(Instant::now()) {
                let (client, done) = (self.client.clone(), done.clone());
                spawn("write status", async move {
                    let how = write(client, &patch).await;
                    done.send((patch, how)).ok();
                });
            }
            let deadline = self.annotations.deadline();
            tokio::select! {
                order = orders.recv() => match order {
                    Some(order) => self.handle_command(order),
                    None => return,
                },
                Some((patch, how)) = outcomes.recv() => {
                    self.annotations.on_written(&patch, how, Instant::now());
                }
                () = ambit_rt::sleep_until(deadline) => {}
            }
        }
    }

    fn handle_command(&mut self, order: WriterCommand) {
        match order {
            WriterCommand::SetDesired(uid, pod, status) => {
                self.annotations.set_desired(uid, pod, status)
            }
            WriterCommand::SetObserved(uid, pod, status) => {
                self.annotations.set_observed(uid, pod, status)
            }
            WriterCommand::RemovePod(uid) => {
                self.annotations.remove_pod(&uid);
                self.reported_failures.remove(&uid);
            }
            WriterCommand::RetryNow => self.annotations.retry_now(),
            WriterCommand::ReportFailure(uid, pod, failure) => self.report(&uid, &pod, failure),
        }
    }

    fn report(&mut self, uid: &PodUid, pod: &PodName, failure: Option<String>) {
        let now = Instant::now();
        let event = if let Some(text) = failure {
            let before = self.reported_failures.get(uid);
            if before.is_some_and(|(last, at)| *last == text && now < *at + REPEAT_INTERVAL) {
                return;
            }
            let note = format!("{text}. {}", advice(&text));
            self.reported_failures.insert(uid.clone(), (text, now));
            build_event(EventType::Warning, ENROLMENT_FAILED, note)
        } else {
            if self.reported_failures.remove(uid).is_none() {
                return;
            }
            let note = "the pod is in the mesh now".to_owned();
            build_event(EventType::Normal, ENROLLED, note)
        };
        let about = ObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.name.to_string()),
            namespace: Some(pod.namespace.to_string()),
            uid: Some(uid.to_string()),
            ..ObjectReference::default()
        };
        let recorder = self.recorder.clone();
        spawn("event", async move {
            let published = recorder.publish(&event, &about);
            let failed = match tokio::time::timeout(WRITE_TIMEOUT, published).await {
                Ok(Ok(())) => return,
                Ok(Err(error)) => ErrorChain(&error).to_string(),
                Err(_) => format!("no answer within {WRITE_TIMEOUT:?}"),
            };
            tracing::debug!(error = failed, "an event is not written");
        });
    }
}

fn build_event(type_: EventType, reason: &str, mut note: String) -> Event {
    let end = note.floor_char_boundary(MAX_NOTE_BYTES);
    note.truncate(end);
    Event {
        type_,
        reason: reason.to_owned(),
        note: Some(note),
        action: "Enrol".to_owned(),
        secondary: None,
    }
}

/// Returns advice for operators about a failure, for the event's note.
fn advice(text: &str) -> &'static str {
    if text.contains("no node proxy") {
        "See whether the node proxy's pod (app=ztunnel) runs on this node; the pod is tried again \
         by itself"
    } else if text.contains("annotations ask") {
        "Correct the pod's annotations"
    } else {
        "It is tried again by itself; the log of ambit-agent on this node has the details, and \
         `ambit check` looks for what hinders"
    }
}

async fn write(client: Client, patch: &AnnotationPatch) -> WriteOutcome {
    let AnnotationPatch { uid, pod, status } = patch;
    let api: Api<Pod> = Api::namespaced(client, &pod.namespace);
    // The uid, so that a successor of the same name is not meant.
    let body = json!({
        "metadata": { "uid": uid, "annotations": { REDIRECTION: status.annotation_value() } }
    });
    let (parameters, body) = (PatchParams::default(), KubePatch::Merge(&body));
    let patched = api.patch_status(&pod.name, &parameters, &body);
    let error = match tokio::time::timeout(WRITE_TIMEOUT, patched).await {
        Ok(Ok(_)) => return WriteOutcome::Done,
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => return WriteOutcome::NoPod,
        Ok(Err(error)) => ErrorChain(&error).to_string(),
        Err(_) => format!("no answer within {WRITE_TIMEOUT:?}"),
    };
    tracing::warn!(
        pod = %format_args!("{}/{}", pod.namespace, pod.name),
        error,
        "the pod's annotation cannot be written; it is tried again"
    );
    WriteOutcome::Failed
}
