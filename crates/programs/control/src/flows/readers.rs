//! Limit of concurrent readers of flow events, each of which costs a stream of every proxy.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;

/// Maximum concurrent readers of one replica, as many as a proxy serves for the control plane.
const MAX_READERS: usize = 8;
/// Maximum concurrent readers of one user.
const MAX_READERS_PER_USER: usize = 2;

/// Number of current readers of flow events by user.
#[derive(Debug, Default)]
pub(super) struct ReaderCounts(Mutex<HashMap<String, usize>>);

/// Permit of one reader, which is released on drop.
#[derive(Debug)]
pub(super) struct ReaderPermit {
    readers: Arc<ReaderCounts>,
    user: String,
}

impl ReaderCounts {
    /// Takes a reader's permit for a user; `None` if the replica or the user has too many readers.
    pub(super) fn acquire_permit(self: Arc<Self>, user: &str) -> Option<ReaderPermit> {
        {
            let mut all = self.0.lock();
            let (count, own) = (all.values().sum::<usize>(), all.get(user).copied());
            if count >= MAX_READERS || own.is_some_and(|own| own >= MAX_READERS_PER_USER) {
                return None;
            }
            *all.entry(user.to_owned()).or_default() += 1;
        }
        Some(ReaderPermit {
            readers: self,
            user: user.to_owned(),
        })
    }
}

impl Drop for ReaderPermit {
    fn drop(&mut self) {
        let mut all = self.readers.0.lock();
        if let Some(count) = all.get_mut(&self.user) {
            *count -= 1;
            if *count == 0 {
                all.remove(&self.user);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readers_are_bounded_by_user_and_in_total() {
        let readers = Arc::<ReaderCounts>::default();
        let enter = |user: &str| readers.clone().acquire_permit(user);
        let own: Vec<_> = (0..MAX_READERS_PER_USER)
            .map(|_| enter("a").unwrap())
            .collect();
        assert!(enter("a").is_none());
        let others: Vec<_> = (MAX_READERS_PER_USER..MAX_READERS)
            .map(|user| enter(&format!("u{user}")).unwrap())
            .collect();
        assert!(enter("z").is_none());
        drop(own);
        assert!(enter("z").is_some());
        drop(others);
        assert!(readers.0.lock().is_empty());
    }
}
