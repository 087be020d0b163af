//! Counting of relayed bytes.

/// Counts the bytes as they pass.
pub trait Meter {
    /// Read from the application (or the first of two sockets or tunnels).
    fn app_sent(&self, bytes: u64);
    /// Written to the application (or the first of two sockets or tunnels).
    fn app_received(&self, bytes: u64);
}

impl Meter for () {
    fn app_sent(&self, _bytes: u64) {}
    fn app_received(&self, _bytes: u64) {}
}

/// Meter for the opposite side: bytes read from the first end are what the application receives.
#[derive(Clone, Copy, Debug)]
pub struct Reversed<M>(pub M);

impl<M: Meter> Meter for Reversed<M> {
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
