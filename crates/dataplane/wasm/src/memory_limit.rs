//! Limits of linear memory: of each instance, and of all instances of a process together.

use std::sync::{
    Arc,
    atomic::{AtomicUsize, Ordering},
};

use wasmtime::ResourceLimiter;

use crate::limits::{MAX_PROCESS_MEMORY_BYTES, MAX_TABLE_ELEMENTS};

/// Linear memory of all instances of the process, in bytes.
#[derive(Debug, Default)]
pub(crate) struct ProcessMemory(AtomicUsize);

impl ProcessMemory {
    fn try_reserve(&self, bytes: usize) -> bool {
        let add = |all: usize| {
            all.checked_add(bytes)
                .filter(|all| *all <= MAX_PROCESS_MEMORY_BYTES)
        };
        let taken = self
            .0
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
        taken.is_ok()
    }

    fn release(&self, bytes: usize) {
        self.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// Limits the linear memory and tables that one instance allocates.
#[derive(Debug)]
pub(crate) struct InstanceMemoryLimiter {
    max_bytes: usize,
    reserved_bytes: usize,
    process: Arc<ProcessMemory>,
}

impl InstanceMemoryLimiter {
    pub(crate) fn new(most: usize, process: Arc<ProcessMemory>) -> Self {
        Self {
            max_bytes: most,
            reserved_bytes: 0,
            process,
        }
    }
}

impl Drop for InstanceMemoryLimiter {
    fn drop(&mut self) {
        self.process.release(self.reserved_bytes);
    }
}

impl ResourceLimiter for InstanceMemoryLimiter {
    fn memory_growing(
        &mut self,
        current: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        let more = desired.saturating_sub(current);
        if desired > self.max_bytes || !self.process.try_reserve(more) {
            return Ok(false);
        }
        self.reserved_bytes += more;
        Ok(true)
    }

    fn table_growing(
        &mut self,
        _: usize,
        desired: usize,
        _: Option<usize>,
    ) -> wasmtime::Result<bool> {
        Ok(desired <= MAX_TABLE_ELEMENTS)
    }

    fn instances(&self) -> usize {
        1
    }

    fn tables(&self) -> usize {
        16
    }

    fn memories(&self) -> usize {
        1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn instances_share_the_process_limit() {
        let process = Arc::<ProcessMemory>::default();
        let grow = |limiter: &mut InstanceMemoryLimiter, from, to| {
            limiter.memory_growing(from, to, None).unwrap()
        };
        let half = MAX_PROCESS_MEMORY_BYTES / 2;
        let mut one = InstanceMemoryLimiter::new(half, process.clone());
        let mut other = InstanceMemoryLimiter::new(half, process.clone());
        let mut last = InstanceMemoryLimiter::new(half, process.clone());
        assert!(!grow(&mut one, 0, half + 1));
        assert!(grow(&mut one, 0, half / 2) && grow(&mut one, half / 2, half));
        assert!(grow(&mut other, 0, half));
        assert!(!grow(&mut last, 0, 1));
        drop(one);
        assert!(grow(&mut last, 0, half));
        drop((other, last));
        assert_eq!(process.0.load(Ordering::Relaxed), 0);
    }
}
