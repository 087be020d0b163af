//! Shared data and queues of plugins. Instances with the same `vm_id` see the same data; queues are identified by
//! `vm_id` and name.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    sync::Arc,
};

use bytes::Bytes;
use parking_lot::Mutex;

use crate::abi::Status;

/// Maximum bytes of the shared data of one `vm_id`, and separately of the messages in all its queues.
const MAX_VM_BYTES: usize = 16 << 20;
/// Maximum bytes of the data and queued messages of all `vm_id`s together.
const MAX_TOTAL_BYTES: usize = 64 << 20;
/// Maximum keys of one `vm_id`, and maximum messages of one queue.
const MAX_VM_ENTRIES: usize = 16 << 10;
/// Maximum queues of one `vm_id`.
const MAX_QUEUES: usize = 32;

/// Data and queues that all plugins of a waypoint share. Clones share them.
#[derive(Clone, Debug, Default)]
pub struct SharedState(Arc<Mutex<Inner>>);

#[derive(Debug, Default)]
struct Inner {
    data: HashMap<String, VmData>,
    /// Queues by id; ids are not reused.
    queues: BTreeMap<u32, Queue>,
    last_queue_id: u32,
}

impl Inner {
    /// Whether `more` bytes fit into the limit.
    fn has_room(&self, more: usize) -> bool {
        let data = self.data.values().map(|data| data.bytes);
        let queues = self.queues.values().map(|queue| queue.bytes);
        data.chain(queues).sum::<usize>() + more <= MAX_TOTAL_BYTES
    }

    fn find_queue(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let mut queues = self.queues.iter();
        let found = queues.find(|(_, queue)| queue.vm_id == vm_id && queue.name == name);
        found.map(|(number, _)| *number)
    }
}

#[derive(Debug, Default)]
struct VmData {
    values: HashMap<Vec<u8>, (Bytes, u32)>,
    bytes: usize,
    last_version: u32,
}

#[derive(Debug)]
struct Queue {
    vm_id: String,
    name: Vec<u8>,
    messages: VecDeque<Bytes>,
    bytes: usize,
}

impl SharedState {
    pub(crate) fn get(&self, vm_id: &str, key: &[u8]) -> Option<(Bytes, u32)> {
        self.0.lock().data.get(vm_id)?.values.get(key).cloned()
    }

    /// Sets the value of a key; `cas` is the expected version, or zero for any.
    pub(crate) fn set(&self, vm_id: &str, key: &[u8], value: &[u8], cas: u32) -> Status {
        let mut inner = self.0.lock();
        let has_room = inner.has_room(key.len() + value.len());
        let data = inner.data.entry(vm_id.to_owned()).or_default();
        let present = data.values.get(key);
        if cas != 0 && present.is_none_or(|(_, version)| *version != cas) {
            return Status::CasMismatch;
        }
        let before = present.map_or(0, |(value, _)| key.len() + value.len());
        let after = data.bytes - before + key.len() + value.len();
        if !has_room
            || after > MAX_VM_BYTES
            || present.is_none() && data.values.len() >= MAX_VM_ENTRIES
        {
            return Status::InternalFailure;
        }
        // Zero means any version.
        data.last_version = data.last_version.wrapping_add(1).max(1);
        data.bytes = after;
        let value = (Bytes::copy_from_slice(value), data.last_version);
        data.values.insert(key.to_vec(), value);
        Status::Ok
    }

    pub(crate) fn queue_id(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        self.0.lock().find_queue(vm_id, name)
    }

    pub(crate) fn register_queue(&self, vm_id: &str, name: &[u8]) -> Option<u32> {
        let mut inner = self.0.lock();
        if let Some(known) = inner.find_queue(vm_id, name) {
            return Some(known);
        }
        let own = inner.queues.values().filter(|queue| queue.vm_id == vm_id);
        if own.count() >= MAX_QUEUES {
            return None;
        }
        let number = inner.last_queue_id.checked_add(1)?;
        inner.last_queue_id = number;
        let queue = Queue {
            vm_id: vm_id.to_owned(),
            name: name.to_vec(),
            messages: VecDeque::new(),
            bytes: 0,
        };
        inner.queues.insert(number, queue);
        Some(number)
    }

    /// Removes the data and queues of a `vm_id` that no plugin uses any more.
    pub fn remove_vm(&self, vm_id: &str) {
        let mut inner = self.0.lock();
        inner.data.remove(vm_id);
        inner.queues.retain(|_, queue| queue.vm_id != vm_id);
    }

    pub(crate) fn enqueue(&self, queue: u32, message: &[u8]) -> Status {
        let mut inner = self.0.lock();
        let has_room = inner.has_room(message.len());
        let Some(vm_id) = inner.queues.get(&queue).map(|queue| queue.vm_id.clone()) else {
            return Status::NotFound;
        };
        let own = inner.queues.values().filter(|queue| queue.vm_id == vm_id);
        let waiting: usize = own.map(|queue| queue.bytes).sum();
        let Some(queue) = inner.queues.get_mut(&queue) else {
            return Status::NotFound;
        };
        let is_full = !has_room
            || queue.messages.len() >= MAX_VM_ENTRIES
            || waiting + message.len() > MAX_VM_BYTES;
        if is_full {
            return Status::InternalFailure;
        }
        queue.bytes += message.len();
        queue.messages.push_back(Bytes::copy_from_slice(message));
        Status::Ok
    }

    /// Returns the number of messages in a shared queue.
    pub fn queued_messages(&self, queue: u32) -> usize {
        let inner = self.0.lock();
        inner
            .queues
            .get(&queue)
            .map_or(0, |queue| queue.messages.len())
    }

    pub(crate) fn dequeue(&self, queue: u32) -> Result<Bytes, Status> {
        let mut inner = self.0.lock();
        let queue = inner.queues.get_mut(&queue).ok_or(Status::NotFound)?;
        let message = queue.messages.pop_front().ok_or(Status::Empty)?;
        queue.bytes -= message.len();
        Ok(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_data_requires_the_current_version() {
        let shared = SharedState::default();
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
    fn shared_data_is_bounded() {
        let shared = SharedState::default();
        let large = vec![0; MAX_VM_BYTES / 2];
        assert_eq!(shared.set("vm", b"a", &large, 0), Status::Ok);
        assert_eq!(shared.set("vm", b"b", &large, 0), Status::InternalFailure);
        assert_eq!(shared.set("vm", b"a", &large, 0), Status::Ok);
        let queue = shared.register_queue("vm", b"q").unwrap();
        assert_eq!(shared.enqueue(queue, &large), Status::Ok);
        assert_eq!(shared.enqueue(queue, &large), Status::Ok);
        assert_eq!(shared.enqueue(queue, b"1"), Status::InternalFailure);
        assert_eq!(shared.dequeue(queue).unwrap().len(), large.len());
        assert_eq!(shared.enqueue(queue, b"1"), Status::Ok);
        // Messages of all queues of a `vm_id` count together.
        let second = shared.register_queue("vm", b"r").unwrap();
        assert_eq!(shared.enqueue(second, &large), Status::InternalFailure);
        let many = (0..2 * MAX_QUEUES)
            .filter_map(|n| shared.register_queue("vm", n.to_string().as_bytes()));
        assert_eq!(many.count(), MAX_QUEUES - 2);
        // Each `vm_id` has queues of its own, and the total is bounded.
        assert!(shared.register_queue("other", b"q").is_some());
        let all = (0..16)
            .filter(|number| shared.set(&format!("vm{number}"), b"k", &large, 0) == Status::Ok);
        assert!(all.count() < 8);
        shared.remove_vm("vm");
        assert_eq!(shared.set("last", b"k", &large, 0), Status::Ok);
    }

    #[test]
    fn queue_messages_keep_their_order() {
        let shared = SharedState::default();
        let queue = shared.register_queue("vm", b"q").unwrap();
        assert_eq!(shared.register_queue("vm", b"q"), Some(queue));
        assert_eq!(shared.queue_id("vm", b"q"), Some(queue));
        assert_eq!(shared.queue_id("other", b"q"), None);
        assert_eq!(shared.dequeue(queue), Err(Status::Empty));
        assert_eq!(shared.enqueue(queue, b"1"), Status::Ok);
        assert_eq!(shared.enqueue(queue, b"2"), Status::Ok);
        assert_eq!(shared.dequeue(queue).unwrap(), "1");
        assert_eq!(shared.dequeue(7), Err(Status::NotFound));
        shared.remove_vm("vm");
        assert_eq!(shared.dequeue(queue), Err(Status::NotFound));
        assert_ne!(shared.register_queue("other", b"q"), Some(queue));
    }
}
