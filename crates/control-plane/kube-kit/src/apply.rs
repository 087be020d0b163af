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
pub struct StatusOwner {
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
    ApplyStatus(StatusOwner, Value),
    /// Cancellation of pending writes, since the object was deleted or has another writer.
    Drop(StatusOwner),
}

#[derive(Debug, Default)]
struct Entry {
    desired: Option<Value>,
    writing: bool,
    failures: u32,
    not_before: Option<Instant>,
}

/// Desired writes that are pending or in flight.
#[derive(Debug, Default)]
struct WriteQueue {
    entries: BTreeMap<StatusOwner, Entry>,
    /// Objects with a pending write, in the order in which their writes were requested.
    order: VecDeque<StatusOwner>,
}

impl WriteQueue {
    fn enqueue(&mut self, wish: DesiredWrite) {
        match wish {
            DesiredWrite::Drop(part) => drop(self.entries.remove(&part)),
            DesiredWrite::ApplyStatus(part, value) => {
                let entry = self.entries.entry(part.clone()).or_default();
                if entry.desired.is_none() {
                    self.order.push_back(part);
                }
                entry.desired = Some(value);
                (entry.failures, entry.not_before) = (0, None);
            }
        }
    }

    /// Returns the next write that is due, and marks it as in flight.
    fn start_next(&mut self, now: Instant) -> Option<(StatusOwner, Value)> {
        for _ in 0..self.order.len() {
            let part = self.order.pop_front()?;
            let Some(entry) = self.entries.get_mut(&part) else {
                continue;
            };
            if entry.writing || entry.not_before.is_some_and(|at| now < at) {
                self.order.push_back(part);
                continue;
            }
            let Some(value) = entry.desired.take() else {
                continue;
            };
            entry.writing = true;
            return Some((part, value));
        }
        None
    }

    /// Records the end of a write. Returns false if it failed and no attempt is left.
    fn finish(&mut self, part: &StatusOwner, value: Value, succeeded: bool, now: Instant) -> bool {
        let Some(entry) = self.entries.get_mut(part) else {
            return true;
        };
        entry.writing = false;
        if entry.desired.is_some() {
            // A newer write of the part is queued already, with its own attempts.
            return true;
        }
        if succeeded {
            self.entries.remove(part);
            return true;
        }
        entry.failures += 1;
        if entry.failures >= MAX_ATTEMPTS {
            self.entries.remove(part);
            return false;
        }
        entry.not_before = Some(now + RETRY_BACKOFF * 2_u32.pow(entry.failures - 1));
        entry.desired = Some(value);
        self.order.push_back(part.clone());
        true
    }

    /// Returns the time at which to call [`WriteQueue::start_next`] again if no other event occurs before.
    fn next_due(&self) -> Option<Instant> {
        let waiting = self.order.iter().filter_map(|part| self.entries.get(part));
        waiting.filter_map(|entry| entry.not_before).min()
    }
}

/// Performs the writes that arrive on the channel, until all senders are dropped.
pub async fn run_status_writer(client: Client, mut wishes: mpsc::UnboundedReceiver<DesiredWrite>) {
    let mut queue = WriteQueue::default();
    let mut writes = FuturesUnordered::new();
    loop {
        while writes.len() < MAX_CONCURRENT_WRITES
            && let Some((part, value)) = queue.start_next(Instant::now())
        {
            let client = client.clone();
            writes.push(async move { (write(client, &part, &value).await, part, value) });
        }
        let look = queue.next_due();
        tokio::select! {
            wish = wishes.recv() => match wish {
                Some(wish) => queue.enqueue(wish),
                None => return,
            },
            Some((result, part, value)) = writes.next(), if !writes.is_empty() => {
                let StatusOwner { kind, namespace, name, .. } = &part;
                let succeeded = match &result {
                    Ok(()) => true,
                    // The object was deleted, which its watch will report.
                    Err(kube::Error::Api(status)) if status.code == 404 => true,
                    Err(error) => {
                        tracing::debug!(kind, namespace, name, %error, "a status is not written");
                        false
                    }
                };
                if !queue.finish(&part, value, succeeded, Instant::now()) {
                    tracing::warn!(kind, namespace, name, ?result, "a status cannot be written; it stays as it is");
                }
            }
            () = tokio::time::sleep_until(look.unwrap_or_else(Instant::now)), if look.is_some() => {}
        }
    }
}

async fn write(client: Client, part: &StatusOwner, status: &Value) -> Result<(), kube::Error> {
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

    fn part(name: &str) -> StatusOwner {
        StatusOwner {
            api_version: "v1".into(),
            kind: "Service",
            plural: "services",
            namespace: "shop".into(),
            name: name.into(),
            manager: "test",
        }
    }

    fn status(name: &str, number: u32) -> DesiredWrite {
        DesiredWrite::ApplyStatus(part(name), json!(number))
    }

    fn begin(queue: &mut WriteQueue, now: Instant) -> Option<(String, Value)> {
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
        assert_eq!(begin(&mut queue, now), Some(("a".into(), json!(3))));
        queue.enqueue(status("a", 4));
        assert_eq!(begin(&mut queue, now), Some(("b".into(), json!(1))));
        assert_eq!(
            begin(&mut queue, now),
            None,
            "one write of a part at a time"
        );
        assert!(queue.finish(&part("a"), json!(3), true, now));
        assert_eq!(begin(&mut queue, now), Some(("a".into(), json!(4))));
        assert!(queue.finish(&part("a"), json!(4), true, now));
        queue.enqueue(status("a", 5));
        queue.enqueue(DesiredWrite::Drop(part("a")));
        assert_eq!(begin(&mut queue, now), None, "forgotten");
        assert!(queue.finish(&part("b"), json!(1), true, now));
        assert!(queue.entries.is_empty());
    }

    #[test]
    fn failing_write_is_retried_with_growing_backoff() {
        let mut now = Instant::now();
        let mut queue = WriteQueue::default();
        queue.enqueue(status("a", 1));
        let mut attempts = 0;
        loop {
            let Some((_, value)) = begin(&mut queue, now) else {
                let next = queue.next_due().unwrap();
                assert!(next > now);
                now = next;
                continue;
            };
            attempts += 1;
            if !queue.finish(&part("a"), value, false, now) {
                break;
            }
        }
        assert_eq!(attempts, MAX_ATTEMPTS);
        assert_eq!((begin(&mut queue, now), queue.next_due()), (None, None));
        queue.enqueue(status("a", 1));
        assert!(
            begin(&mut queue, now).is_some(),
            "a new wish is a new chance"
        );
    }
}
