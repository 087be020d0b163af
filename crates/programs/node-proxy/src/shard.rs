//! State of one pod's proxy on one worker thread.

use std::sync::Arc;

use ambit_hbone::Pool;

use crate::pod::Pod;

/// Proxy of one pod on one worker, with the worker's pool of HBONE connections.
#[derive(Debug)]
pub(crate) struct Shard {
    pub(crate) pod: Arc<Pod>,
    pub(crate) pool: Pool,
}
