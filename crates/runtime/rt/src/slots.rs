//! Slots for unauthenticated connections, shared fairly among their source addresses.
//!
//! No single peer delays others. A connection from an address that holds its whole share takes the slot of that
//! address's oldest connection. When all slots are taken, the oldest connection of the address with the most slots is
//! displaced. Only when no address holds more than a few slots does the next connection wait.

use std::{
    collections::{HashMap, VecDeque},
    convert::Infallible,
    net::IpAddr,
    sync::Arc,
};

use parking_lot::Mutex;
use tokio::sync::{Notify, oneshot};

/// Maximum numbers of connection slots.
#[derive(Clone, Copy, Debug)]
pub struct SlotLimits {
    /// Maximum slots of all addresses together.
    pub total: usize,
    /// Maximum slots of one address.
    pub per_source: usize,
    /// Number of an address's slots that other addresses never take over, even if all slots are in use.
    pub protected_per_source: usize,
}

/// Connection slots of one listener, shared among source addresses.
#[derive(Clone, Debug)]
pub struct Slots(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    table: Mutex<Table<oneshot::Sender<Infallible>>>,
    freed: Notify,
}

/// Connection slot, held until it is dropped or displaced by another connection.
#[derive(Debug)]
pub struct Slot {
    source: IpAddr,
    number: u64,
    eviction: oneshot::Receiver<Infallible>,
    slots: Slots,
}

impl Slots {
    /// Creates slots, all of which are free.
    pub fn new(limits: SlotLimits) -> Self {
        Self(Arc::new(Shared {
            table: Mutex::new(Table::new(limits)),
            freed: Notify::new(),
        }))
    }

    /// Takes a slot for a connection from `source`; waits if none can be taken over.
    pub async fn acquire(&self, source: IpAddr) -> Slot {
        let source = source.to_canonical();
        loop {
            let (signal, evicted) = oneshot::channel();
            // An entry that has to go drops its signal, which its holder sees.
            if let Ok(number) = self.0.table.lock().acquire(source, signal) {
                return Slot {
                    source,
                    number,
                    eviction: evicted,
                    slots: self.clone(),
                };
            }
            self.0.freed.notified().await;
        }
    }
}

impl Slot {
    /// Returns the source address of the connection.
    pub fn source(&self) -> IpAddr {
        self.source
    }

    /// Completes when another connection has taken over the slot, so that this one must be closed.
    pub async fn wait_until_evicted(&mut self) {
        // No value is ever sent: this ends when the signal is dropped.
        drop((&mut self.eviction).await);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.slots.0.table.lock().release(self.source, self.number);
        self.slots.0.freed.notify_one();
    }
}

/// State machine of the slots: each source address with its connections, oldest first.
#[derive(Debug)]
struct Table<T> {
    limits: SlotLimits,
    next: u64,
    taken_slots: usize,
    holders: HashMap<IpAddr, VecDeque<(u64, T)>>,
}

impl<T> Table<T> {
    fn new(limits: SlotLimits) -> Self {
        Self {
            limits,
            next: 0,
            taken_slots: 0,
            holders: HashMap::new(),
        }
    }

    /// Takes a slot, if necessary from the address with the most; returns the entry if all slots are protected.
    fn acquire(&mut self, source: IpAddr, entry: T) -> Result<u64, T> {
        let own = self.holders.get(&source).map_or(0, VecDeque::len);
        if own >= self.limits.per_source.max(1) {
            self.evict(source);
        } else if self.taken_slots >= self.limits.total.max(1) {
            let most = self
                .holders
                .iter()
                .map(|(source, held)| (held.len(), *source))
                .max();
            match most {
                Some((count, greedy)) if count > self.limits.protected_per_source => {
                    self.evict(greedy)
                }
                _ => return Err(entry),
            }
        }
        let number = self.next;
        self.next += 1;
        self.taken_slots += 1;
        self.holders
            .entry(source)
            .or_default()
            .push_back((number, entry));
        Ok(number)
    }

    fn evict(&mut self, source: IpAddr) {
        let oldest = self.holders.get(&source).and_then(VecDeque::front);
        if let Some(number) = oldest.map(|(number, _)| *number) {
            self.release(source, number);
        }
    }

    fn release(&mut self, source: IpAddr, number: u64) {
        let Some(held) = self.holders.get_mut(&source) else {
            return;
        };
        if let Some(at) = held.iter().position(|(one, _)| *one == number) {
            held.remove(at);
            self.taken_slots -= 1;
        }
        if held.is_empty() {
            self.holders.remove(&source);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(total: usize, per_source: usize, protected_per_source: usize) -> Table<()> {
        Table::new(SlotLimits {
            total,
            per_source,
            protected_per_source,
        })
    }

    fn ip(last: u8) -> IpAddr {
        [10, 0, 0, last].into()
    }

    fn numbers(table: &Table<()>, source: IpAddr) -> Vec<u64> {
        let held = table.holders.get(&source);
        held.into_iter()
            .flatten()
            .map(|(number, ())| *number)
            .collect()
    }

    #[test]
    fn a_greedy_address_displaces_only_itself() {
        let mut table = table(10, 3, 1);
        let other = table.acquire(ip(2), ()).unwrap();
        let greedy: Vec<_> = (0..5).map(|_| table.acquire(ip(1), ()).unwrap()).collect();
        assert_eq!(numbers(&table, ip(1)), greedy[2..]);
        assert_eq!(numbers(&table, ip(2)), [other]);
    }

    #[test]
    fn largest_holder_is_evicted_when_memory_is_full() {
        let mut table = table(4, 3, 1);
        for _ in 0..3 {
            table.acquire(ip(1), ()).unwrap();
        }
        table.acquire(ip(2), ()).unwrap();
        let latest = table.acquire(ip(3), ()).unwrap();
        assert_eq!(numbers(&table, ip(1)), [1, 2]);
        assert_eq!(numbers(&table, ip(2)).len(), 1);
        assert_eq!(numbers(&table, ip(3)), [latest]);
    }

    #[test]
    fn a_crowd_of_modest_peers_waits_rather_than_displacing_each_other() {
        let mut table = table(3, 3, 1);
        for last in 1..=3 {
            table.acquire(ip(last), ()).unwrap();
        }
        assert_eq!(table.acquire(ip(4), ()), Err(()));
        table.release(ip(2), 1);
        assert!(table.acquire(ip(4), ()).is_ok());
    }

    #[test]
    fn leaving_twice_frees_one_slot() {
        let mut table = table(3, 1, 1);
        let first = table.acquire(ip(1), ()).unwrap();
        table.acquire(ip(1), ()).unwrap();
        assert_eq!(table.taken_slots, 1, "the first had to go");
        table.release(ip(1), first);
        assert_eq!(table.taken_slots, 1);
        table.release(ip(1), 1);
        assert_eq!((table.taken_slots, table.holders.len()), (0, 0));
    }

    #[tokio::test]
    async fn evicted_slot_is_notified_and_a_released_one_is_reused() {
        let slots = Slots::new(SlotLimits {
            total: 1,
            per_source: 1,
            protected_per_source: 1,
        });
        let mut first = slots.acquire(ip(1)).await;
        let second = slots.acquire(ip(1)).await;
        first.wait_until_evicted().await;
        drop(first);
        let third = tokio::spawn({
            let slots = slots.clone();
            async move { slots.acquire(ip(2)).await.source() }
        });
        tokio::task::yield_now().await;
        assert!(!third.is_finished(), "all slots are taken");
        drop(second);
        assert_eq!(third.await.unwrap(), ip(2));
    }
}
