//! Proxy of one pod on one worker thread, with its connection pool.

use std::sync::Arc;

use ambit_hbone::Pool;

use crate::pod::Pod;

/// One pod on one worker.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) pod: Arc<Pod>,
    pub(crate) pool: Pool,
}
