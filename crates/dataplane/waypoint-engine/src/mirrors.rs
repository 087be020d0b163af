//! Limits of mirrored requests of one worker, whatever the number of routes that mirror.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Maximum concurrent mirrored requests of a worker.
const MOST: usize = 256;
/// Mirrored requests of a worker.
#[derive(Debug, Default)]
pub(crate) struct Mirrors {
    under_way: Arc<AtomicUsize>,
    pub(crate) behind: Behind,
}

/// Permit of one active mirrored request.
#[derive(Debug)]
pub(crate) struct Slot(Arc<AtomicUsize>);

impl Drop for Slot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Mirrors {
    /// Takes a permit to send one more mirrored request.
    pub(crate) fn begin(&self) -> Option<Slot> {
        let slot = Slot(self.under_way.clone());
        (self.under_way.fetch_add(1, Relaxed) < MOST).then_some(slot)
    }
}

/// Bytes that all mirrored requests of a worker have buffered.
#[derive(Clone, Debug, Default)]
pub(crate) struct Behind(pub(crate) Arc<AtomicUsize>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_under_way() {
        let mirrors = Mirrors::default();
        let slots: Vec<_> = (0..MOST).map_while(|_| mirrors.begin()).collect();
        assert_eq!(slots.len(), MOST);
        assert!(mirrors.begin().is_none() && mirrors.begin().is_none());
        drop(slots);
        assert_eq!(mirrors.under_way.load(Relaxed), 0);
    }
}
