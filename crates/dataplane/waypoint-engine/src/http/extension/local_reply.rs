//! Response that a plugin gives in place of the application, while the body of the request is being sent.

use ambit_wasm::LocalResponse;
use parking_lot::Mutex;

/// Response of a plugin while the body is being sent.
#[derive(Default)]
pub(super) struct LocalReply {
    pub(super) response: Mutex<Option<LocalResponse>>,
    pub(super) notify: tokio::sync::Notify,
}

impl LocalReply {
    /// Sets the local response, if none is set.
    pub(super) fn set(&self, response: LocalResponse) {
        self.response.lock().get_or_insert(response);
        self.notify.notify_one();
    }
}
