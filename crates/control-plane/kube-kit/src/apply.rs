//! Server-side apply of the status of many objects.
//!
//! [`WriteQueue`] does no IO: it keeps the newest desired status of each object and field manager, allows one write of
//! it at a time, and retries a few times. The sender decides whether a write is needed, since it knows the objects.

use std::{
    collections::{BTreeMap, VecDeque},
    time::Duration,
};

use futures_util::{StreamExt, stream::FuturesUnordered};
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
    core::DynamicObject,
    discovery::ApiResource,
};
use serde_json::Value;
use tokio::{sync::mpsc, time::Instant};

/// Maximum attempts of one write.
const MAX_ATTEMPTS: u32 = 5;
/// Backoff after the first failure; doubled after each further one.
const RETRY_BACKOFF: Duration = Duration::from_millis(500);
/// Maximum number of concurrent writes.
const MAX_CONCURRENT_WRITES: usize = 4;

/// Status of an object, or the part of it that one field manager writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct StatusTarget {
    /// `group/version` of the object's API, or `v1`.
    pub api_version: String,
    /// Kind of the object.
    pub kind: &'static str,
    /// Plural name of the kind, as in API paths.
    pub plural: &'static str,
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
    /// Field manager that writes this part of the status.
    pub manager: &'static str,
}

/// Desired write of an object's status, or its cancellation.
#[derive(Clone, Debug, PartialEq)]
pub enum DesiredWrite {
    /// Status to apply; fields that the field manager owns and this status lacks are removed.
    ApplyStatus(StatusTarget, Value),
    /// Cancellation of pending writes, since the object was deleted or has another writer.
    Cancel(StatusTarget),
}

#[derive(Debug, Default)]
struct QueuedWrite {
    desired: Option<Value>,
    is_in_flight: bool,
    failures: u32,
    retry_at: Option<Instant>,
}

/// Desired writes that are pending or in flight.
#[derive(Debug, Default)]
struct WriteQueue {
    writes: BTreeMap<StatusTarget, QueuedWrite>,
    /// Objects with a pending write, in the order in which their writes were requested.
    pending: VecDeque<StatusTarget>,
}

impl WriteQueue {
    fn enqueue(&mut self, desired_write: DesiredWrite) {
        match desired_write {
            DesiredWrite::Cancel(part) => drop(self.writes.remove(&part)),
            DesiredWrite::ApplyStatus(part, value) => {
                let entry = self.writes.entry(part.clone()).or_default();
                if entry.desired.is_none() {
                    self.pending.push_back(part);
                }
                entry.desired = Some(value);
                (entry.failures, entry.retry_at) = (0, None);
            }
        }
    }

    /// Returns the next write that is due, and marks it as in flight.
    fn start_next(&mut self, now: Instant) -> Option<(StatusTarget, Value)> {
        for _ in 0..self.pending.len() {
            let part = self.pending.pop_front()?;
            let Some(entry) = self.writes.get_mut(&part) else {
                continue;
            };
            if entry.is_in_flight || entry.retry_at.is_some_and(|at| now < at) {
                self.pending.push_back(part);
                continue;
            }
            let Some(value) = entry.desired.take() else {
                continue;
            };
            entry.is_in_flight = true;
            return Some((part, value));
        }
        None
    }

    /// Records the end of a write. Returns false if it failed and no attempt is left.
    fn finish_write(
        &mut self,
        part: &StatusTarget,
        value: Value,
        succeeded: bool,
        now: Instant,
    ) -> bool {
        let Some(entry) = self.writes.get_mut(part) else {
            return true;
        };
        entry.is_in_flight = false;
        if entry.desired.is_some() {
            // A newer write of the part is queued already, with its own attempts.
            return true;
        }
        if succeeded {
            self.writes.remove(part);
            return true;
        }
        entry.failures += 1;
        if entry.failures >= MAX_ATTEMPTS {
            self.writes.remove(part);
            return false;
        }
        entry.retry_at = Some(now + RETRY_BACKOFF * 2_u32.pow(entry.failures - 1));
        entry.desired = Some(value);
        self.pending.push_back(part.clone());
        true
    }

    /// Returns the time at which to call [`WriteQueue::start_next`] again if no other event occurs before.
    fn next_due(&self) -> Option<Instant> {
        let waiting = self.pending.iter().filter_map(|part| self.writes.get(part));
        waiting.filter_map(|entry| entry.retry_at).min()
    }
}

/// Performs the writes that arrive on the channel, until all senders are dropped.
pub async fn run_status_writer(
    client: Client,
    mut desired_writes: mpsc::UnboundedReceiver<DesiredWrite>,
) {
    let mut queue = WriteQueue::default();
    let mut writes = FuturesUnordered::new();
    loop {
        while writes.len() < MAX_CONCURRENT_WRITES
            && let Some((part, value)) = queue.start_next(Instant::now())
        {
            let client = client.clone();
            writes.push(async move { (apply_status(client, &part, &value).await, part, value) });
        }
        let look = queue.next_due();
        tokio::select! {
            wish = desired_writes.recv() => match wish {
                Some(wish) => queue.enqueue(wish),
                None => return,
            },
            Some((result, part, value)) = writes.next(), if !writes.is_empty() => {
                let StatusTarget { kind, namespace, name, .. } = &part;
                let succeeded = match &result {
                    Ok(()) => true,
                    // The object was deleted, which its watch will report.
                    Err(kube::Error::Api(status)) if status.code == 404 => true,
                    Err(error) => {
                        tracing::debug!(kind, namespace, name, %error, "a status is not written");
                        false
                    }
                };
                if !queue.finish_write(&part, value, succeeded, Instant::now()) {
                    tracing::warn!(kind, namespace, name, ?result, "a status cannot be written; it stays as it is");
                }
            }
            () = tokio::time::sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => {}
        }
    }
}

async fn apply_status(
    client: Client,
    part: &StatusTarget,
    status: &Value,
) -> Result<(), kube::Error> {
    let (group, version) = part
        .api_version
        .split_once('/')
        .unwrap_or(("", &part.api_version));
    let resource = ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: part.api_version.clone(),
        kind: part.kind.to_owned(),
        plural: part.plural.to_owned(),
    };
    let api = Api::<DynamicObject>::namespaced_with(client, &part.namespace, &resource);
    let body = serde_json::json!({
        "apiVersion": part.api_version,
        "kind": part.kind,
        "metadata": {"name": part.name, "namespace": part.namespace},
        "status": status,
    });
    let params = PatchParams::apply(part.manager).force();
    api.patch_status(&part.name, &params, &Patch::Apply(&body))
        .await
        .map(drop)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn target(name: &str) -> StatusTarget {
        StatusTarget {
            api_version: "v1".into(),
            kind: "Service",
            plural: "services",
            namespace: "shop".into(),
            name: name.into(),
            manager: "test",
        }
    }

    fn status(name: &str, number: u32) -> DesiredWrite {
        DesiredWrite::ApplyStatus(target(name), json!(number))
    }

    fn start_next_write(queue: &mut WriteQueue, now: Instant) -> Option<(String, Value)> {
        queue
            .start_next(now)
            .map(|(part, value)| (part.name, value))
    }

    #[test]
    fn only_the_newest_value_is_written_once() {
        let now = Instant::now();
        let mut queue = WriteQueue::default();
        for number in 1..4 {
            queue.enqueue(status("a", number));
        }
        queue.enqueue(status("b", 1));
        assert_eq!(
            start_next_write(&mut queue, now),
            Some(("a".into(), json!(3)))
        );
        queue.enqueue(status("a", 4));
        assert_eq!(
            start_next_write(&mut queue, now),
            Some(("b".into(), json!(1)))
        );
        assert_eq!(
            start_next_write(&mut queue, now),
            None,
            "one write of a part at a time"
        );
        assert!(queue.finish_write(&target("a"), json!(3), true, now));
        assert_eq!(
            start_next_write(&mut queue, now),
            Some(("a".into(), json!(4)))
        );
        assert!(queue.finish_write(&target("a"), json!(4), true, now));
        queue.enqueue(status("a", 5));
        queue.enqueue(DesiredWrite::Cancel(target("a")));
        assert_eq!(start_next_write(&mut queue, now), None, "forgotten");
        assert!(queue.finish_write(&target("b"), json!(1), true, now));
        assert!(queue.writes.is_empty());
    }

    #[test]
    fn failing_write_is_retried_with_growing_backoff() {
        let mut now = Instant::now();
        let mut queue = WriteQueue::default();
        queue.enqueue(status("a", 1));
        let mut attempts = 0;
        loop {
            let Some((_, value)) = start_next_write(&mut queue, now) else {
                let next = queue.next_due().unwrap();
                assert!(next > now);
                now = next;
                continue;
            };
            attempts += 1;
            if !queue.finish_write(&target("a"), value, false, now) {
                break;
            }
        }
        assert_eq!(attempts, MAX_ATTEMPTS);
        assert_eq!(
            (start_next_write(&mut queue, now), queue.next_due()),
            (None, None)
        );
        queue.enqueue(status("a", 1));
        assert!(
            start_next_write(&mut queue, now).is_some(),
            "a new wish is a new chance"
        );
    }
}
