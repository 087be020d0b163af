//! What instances share: data and queues. Those with the same `vm_id` see the same data; queues are found by `vm_id` and
//! name.

use std::{
    collections::{HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::abi::Status;

/// Bytes of all data, and of all that waits in queues, of one `vm_id`.
const MAX_BYTES: usize = 16 << 20;
/// Keys, and messages in one queue.
const MAX_ENTRIES: usize = 16 << 10;
/// Queues.
const MAX_QUEUES: usize = 256;

/// What all plugins of a waypoint share. Clones share it.
#[derive(Clone, Debug, Default)]
pub struct Shared(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    data: HashMap<String, Data>,
    queues: Vec<Queue>,
}

#[derive(Debug, Default)]
struct Data {
    values: HashMap<Vec<u8>, (Bytes, u32)>,
    bytes: usize,
    last: u32,
}

#[derive(Debug)]
struct Queue {
    vm_id: String,
    name: Vec<u8>,
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl Shared {
    pub(crate) fn get(&self, vm_id: &str, key: &[u8]) -> Option<(Bytes, u32)> {
        self.0.lock().data.get(vm_id)?.values.get(key).cloned()
    }

    /// `cas` is the version that is expected; zero is any.
    pub(crate) fn set(&self, vm_id: &str, key: &[u8], value: &[u8], cas: u32) -> Status {
        let mut inner = self.0.lock();
        let data = inner.data.entry(vm_id.to_owned()).or_default();
        let present = data.values.get(key);
        if cas != 0 && present.is_none_or(|(_, version)| *version != cas) {
            return Status::CasMismatch;
        }
        let before = present.map_or(0, |(value, _)| key.len() + value.len());
        let after = data.bytes - before + key.len() + value.len();
        if after > MAX_BYTES || present.is_none() && data.values.len() >= MAX_ENTRIES {
            return Status::InternalFailure;
        }
        // Zero means any version.
        data.last = data.last.wrapping_add(1).max(1);
        data.bytes = after;
        let value = (Bytes::copy_from_slice(value), data.last);
        data.values.insert(key.to_vec(), value);
        Status::Ok
    }

    pub(crate) fn queue(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let inner = self.0.lock();
        let place = inner
            .queues
            .iter()
            .position(|queue| queue.vm_id == vm_id && queue.name == name);
        u32::try_from(place?).ok()
    }

    pub(crate) fn register(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        if let Some(known) = self.queue(vm_id, name) {
            return Some(known);
        }
        let mut inner = self.0.lock();
        if inner.queues.len() >= MAX_QUEUES {
            return None;
        }
        inner.queues.push(Queue {
            vm_id: vm_id.to_owned(),
            name: name.to_vec(),
            messages: VecDeque::new(),
            bytes: 0,
        });
        u32::try_from(inner.queues.len() - 1).ok()
    }

    pub(crate) fn enqueue(&self, queue: u32, message: &[u8]) -> Status {
        let mut inner = self.0.lock();
        let Some(queue) = inner.queues.get_mut(queue as usize) else {
            return Status::NotFound;
        };
        let is_full =
            queue.messages.len() >= MAX_ENTRIES || queue.bytes + message.len() > MAX_BYTES;
        if is_full {
            return Status::InternalFailure;
        }
        queue.bytes += message.len();
        queue.messages.push_back(Bytes::copy_from_slice(message));
        Status::Ok
    }

    /// How many messages wait in a queue.
    pub fn waiting(&self, queue: u32) -> usize {
        let inner = self.0.lock();
        inner
            .queues
            .get(queue as usize)
            .map_or(0, |queue| queue.messages.len())
    }

    pub(crate) fn dequeue(&self, queue: u32) -> Result<Bytes, Status> {
        let mut inner = self.0.lock();
        let queue = inner
            .queues
            .get_mut(queue as usize)
            .ok_or(Status::NotFound)?;
        let message = queue.messages.pop_front().ok_or(Status::Empty)?;
        queue.bytes -= message.len();
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_set_by_whoever_knows_its_version() {
        let shared = Shared::default();
        assert_eq!(shared.set("vm", b"k", b"1", 0), Status::Ok);
        let (value, version) = shared.get("vm", b"k").unwrap();
        assert_eq!((&value[..], version != 0), (&b"1"[..], true));
        assert_eq!(shared.set("vm", b"k", b"2", version), Status::Ok);
        assert_eq!(shared.set("vm", b"k", b"3", version), Status::CasMismatch);
        assert_eq!(shared.set("vm", b"new", b"3", version), Status::CasMismatch);
        assert_eq!(shared.get("vm", b"k").unwrap().0, "2");
        assert_eq!(shared.get("other", b"k"), None);
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let shared = Shared::default();
        let large = vec![0; MAX_BYTES / 2];
        assert_eq!(shared.set("vm", b"a", &large, 0), Status::Ok);
        assert_eq!(shared.set("vm", b"b", &large, 0), Status::InternalFailure);
        assert_eq!(shared.set("vm", b"a", &large, 0), Status::Ok);
        let queue = shared.register("vm", b"q").unwrap();
        assert_eq!(shared.enqueue(queue, &large), Status::Ok);
        assert_eq!(shared.enqueue(queue, &large), Status::Ok);
        assert_eq!(shared.enqueue(queue, b"1"), Status::InternalFailure);
        assert_eq!(shared.dequeue(queue).unwrap().len(), large.len());
        assert_eq!(shared.enqueue(queue, b"1"), Status::Ok);
        let many =
            (0..2 * MAX_QUEUES).filter_map(|n| shared.register("vm", n.to_string().as_bytes()));
        assert_eq!(many.count(), MAX_QUEUES - 1);
    }

    #[test]
    fn messages_come_in_their_order() {
        let shared = Shared::default();
        let queue = shared.register("vm", b"q").unwrap();
        assert_eq!(shared.register("vm", b"q"), Some(queue));
        assert_eq!(shared.queue("vm", b"q"), Some(queue));
        assert_eq!(shared.queue("other", b"q"), None);
        assert_eq!(shared.dequeue(queue), Err(Status::Empty));
        assert_eq!(shared.enqueue(queue, b"1"), Status::Ok);
        assert_eq!(shared.enqueue(queue, b"2"), Status::Ok);
        assert_eq!(shared.dequeue(queue).unwrap(), "1");
        assert_eq!(shared.dequeue(7), Err(Status::NotFound));
    }
}
