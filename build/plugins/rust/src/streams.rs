//! gRPC stream that lasts as long as the plugin instance: each tick sends a message, and responses are counted.

use proxy_wasm::hostcalls;

#[derive(Default)]
pub(crate) struct TickStream {
    upstream: &'static str,
    token: Option<u32>,
    /// Whether a sent message has no response yet; no other is sent before it arrives.
    is_waiting: bool,
}

impl TickStream {
    pub(crate) fn open(&mut self, upstream: &'static str) {
        self.upstream = upstream;
        self.token = hostcalls::open_grpc_stream(upstream, "test.Echo", "0", vec![]).ok();
        self.is_waiting = false;
    }

    pub(crate) fn tick(&mut self) {
        match self.token {
            Some(token) if !self.is_waiting => {
                let sent = hostcalls::send_grpc_stream_message(token, Some(b"tick"), false);
                self.is_waiting = sent.is_ok();
            }
            Some(_) => {}
            None => self.open(self.upstream),
        }
    }

    pub(crate) fn on_message(&mut self, token: u32, message: &[u8]) {
        assert_eq!((self.token, message), (Some(token), &b"tick"[..]));
        self.is_waiting = false;
    }

    pub(crate) fn on_close(&mut self, token: u32) {
        if self.token == Some(token) {
            self.token = None;
        }
    }
}
