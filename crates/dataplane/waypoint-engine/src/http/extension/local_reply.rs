//! Response that a plugin gives in place of the application while the request body is being sent.

use ambit_wasm::LocalResponse;
use parking_lot::Mutex;

/// Slot for the response of a plugin while the request body is being sent.
#[derive(Default)]
pub(super) struct LocalReply {
    pub(super) response: Mutex<Option<LocalResponse>>,
    pub(super) notify: tokio::sync::Notify,
}

impl LocalReply {
    /// Stores a plugin's response, unless one is stored already.
    pub(super) fn set(&self, response: LocalResponse) {
        self.response.lock().get_or_insert(response);
        self.notify.notify_one();
    }
}
