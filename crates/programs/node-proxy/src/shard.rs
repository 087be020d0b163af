//! One pod's proxy on one worker thread, with its pool.

use std::sync::Arc;

use ambit_hbone::Pool;

use crate::pod::Pod;

/// A pod on one worker.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) pod: Arc<Pod>,
    pub(crate) pool: Pool,
}
