//! Byte counters of a relay.

/// Counter of relayed bytes, which the relay calls as it copies them.
pub trait Meter {
    /// Counts bytes read from the application (or the first of two sockets or tunnels).
    fn count_app_sent(&self, bytes: u64);
    /// Counts bytes written to the application (or the first of two sockets or tunnels).
    fn count_app_received(&self, bytes: u64);
}

impl Meter for () {
    fn count_app_sent(&self, _bytes: u64) {}
    fn count_app_received(&self, _bytes: u64) {}
}

/// Meter with the sides exchanged: bytes read from the first side are counted as received by the application.
#[derive(Clone, Copy, Debug)]
pub struct ReversedMeter<M>(pub M);

impl<M: Meter> Meter for ReversedMeter<M> {
    fn count_app_sent(&self, bytes: u64) {
        self.0.count_app_received(bytes);
    }
    fn count_app_received(&self, bytes: u64) {
        self.0.count_app_sent(bytes);
    }
}

impl<M: Meter + ?Sized> Meter for &M {
    fn count_app_sent(&self, bytes: u64) {
        (**self).count_app_sent(bytes);
    }
    fn count_app_received(&self, bytes: u64) {
        (**self).count_app_received(bytes);
    }
}
