//! What asking providers costs a worker: bounded, however slowly they answer.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Most requests and connections of a worker that wait for a provider at once.
const MOST: usize = 1024;

/// What a worker is asking.
#[derive(Debug, Default)]
pub(crate) struct Asks(Arc<AtomicUsize>);

/// One question under way.
#[derive(Debug)]
pub(crate) struct Ask(Arc<AtomicUsize>);

impl Drop for Ask {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Asks {
    /// Leave to ask once more.
    pub(crate) fn begin(&self) -> Option<Ask> {
        let ask = Ask(self.0.clone());
        (self.0.fetch_add(1, Relaxed) < MOST).then_some(ask)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_so_many_are_under_way() {
        let asks = Asks::default();
        let begun: Vec<_> = (0..MOST).map_while(|_| asks.begin()).collect();
        assert_eq!(begun.len(), MOST);
        assert!(asks.begin().is_none());
        drop(begun);
        assert!(asks.begin().is_some());
    }
}
