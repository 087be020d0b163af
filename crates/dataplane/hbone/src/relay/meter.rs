//! Byte counters of a relay.

/// Counter of relayed bytes, which the relay calls as it copies them.
pub trait Meter {
    /// Counts bytes read from the application (or the first of two sockets or tunnels).
    fn app_sent(&self, bytes: u64);
    /// Counts bytes written to the application (or the first of two sockets or tunnels).
    fn app_received(&self, bytes: u64);
}

impl Meter for () {
    fn app_sent(&self, _bytes: u64) {}
    fn app_received(&self, _bytes: u64) {}
}

/// Meter with the sides exchanged: bytes read from the first side are counted as received by the application.
#[derive(Clone, Copy, Debug)]
pub struct ReversedMeter<M>(pub M);

impl<M: Meter> Meter for ReversedMeter<M> {
    fn app_sent(&self, bytes: u64) {
        self.0.app_received(bytes);
    }
    fn app_received(&self, bytes: u64) {
        self.0.app_sent(bytes);
    }
}

impl<M: Meter + ?Sized> Meter for &M {
    fn app_sent(&self, bytes: u64) {
        (**self).app_sent(bytes);
    }
    fn app_received(&self, bytes: u64) {
        (**self).app_received(bytes);
    }
}
