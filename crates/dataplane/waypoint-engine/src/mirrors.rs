//! Limits of the mirrored requests of one worker, independent of the number of routes that mirror.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering::Relaxed},
};

/// Maximum concurrent mirrored requests of a worker.
const MAX_MIRRORED_REQUESTS: usize = 256;
/// Number of active mirrored requests of a worker, and the bytes buffered for them.
#[derive(Debug, Default)]
pub(crate) struct MirrorLimits {
    active_requests: Arc<AtomicUsize>,
    pub(crate) buffered: BufferedBytes,
}

/// Permit of one active mirrored request.
#[derive(Debug)]
pub(crate) struct MirrorPermit(Arc<AtomicUsize>);

impl Drop for MirrorPermit {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl MirrorLimits {
    /// Takes a permit to send one more mirrored request.
    pub(crate) fn acquire(&self) -> Option<MirrorPermit> {
        let permit = MirrorPermit(self.active_requests.clone());
        (self.active_requests.fetch_add(1, Relaxed) < MAX_MIRRORED_REQUESTS).then_some(permit)
    }
}

/// Number of bytes that a worker has buffered for all mirrored requests together.
#[derive(Clone, Debug, Default)]
pub(crate) struct BufferedBytes(pub(crate) Arc<AtomicUsize>);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mirrored_requests_of_a_worker_are_limited() {
        let mirrors = MirrorLimits::default();
        let permits: Vec<_> = (0..MAX_MIRRORED_REQUESTS)
            .map_while(|_| mirrors.acquire())
            .collect();
        assert_eq!(permits.len(), MAX_MIRRORED_REQUESTS);
        assert!(mirrors.acquire().is_none() && mirrors.acquire().is_none());
        drop(permits);
        assert_eq!(mirrors.active_requests.load(Relaxed), 0);
    }
}
