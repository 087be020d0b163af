//! Growth of a connection's receive windows with the rate at which bytes arrive, as its permit allows.
//!
//! A window limits a stream to its bytes in each round trip. Small windows suit connections that transfer little, since
//! memory is reserved for them; a connection that transfers much gets larger ones.

use std::time::Duration;

use tokio::time::Instant;

use crate::{Permit, windows::FlowControlWindows};

/// Round-trip time up to which windows do not limit a connection that its permit allows to grow.
const COVERED_ROUND_TRIP: Duration = Duration::from_millis(100);

/// Measures the rate at which bytes arrive, and doubles the windows if those of a whole window budget arrive within
/// [`COVERED_ROUND_TRIP`].
#[derive(Debug)]
pub(crate) struct WindowGrowth {
    /// Bytes in a portion.
    portion: usize,
    /// Bytes that arrived since `measured_since`.
    arrived: usize,
    measured_since: Instant,
}

impl WindowGrowth {
    /// Begins to measure a connection that is read in portions of this number of bytes.
    pub(crate) fn new(portion: usize) -> Self {
        Self {
            portion,
            arrived: 0,
            measured_since: Instant::now(),
        }
    }

    /// Counts a portion that arrived. Doubles the windows, and returns the new one of the connection in bytes, if they are
    /// too small for the rate and the connection's permit can be extended to them.
    pub(crate) fn count_portion(
        &mut self,
        windows: &mut FlowControlWindows,
        permit: &mut Option<Box<dyn Permit>>,
    ) -> Option<u32> {
        self.arrived = self.arrived.saturating_add(self.portion);
        let budget = usize::try_from(windows.shared_window_budget()).unwrap_or(usize::MAX);
        if self.arrived < budget {
            return None;
        }
        let now = Instant::now();
        let elapsed = now - self.measured_since;
        (self.arrived, self.measured_since) = (0, now);
        if elapsed > COVERED_ROUND_TRIP {
            return None;
        }
        let larger = windows.doubled()?;
        let more = larger.connection_window(0) - windows.connection_window(0);
        let more = usize::try_from(more).unwrap_or(usize::MAX);
        if !permit.as_mut()?.extend_to_larger_windows(more) {
            return None;
        }
        *windows = larger;
        Some(windows.peak_connection_window())
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use parking_lot::Mutex;

    use super::*;
    use crate::Settings;

    const BUDGET: usize = 64 << 10;

    /// Permit that records each extension, and refuses them if it is `full`.
    #[derive(Clone, Debug, Default)]
    struct RecordedPermit {
        extensions: Arc<Mutex<Vec<usize>>>,
        full: bool,
    }

    impl Permit for RecordedPermit {
        fn extend_to_larger_windows(&mut self, bytes: usize) -> bool {
            self.extensions.lock().push(bytes);
            !self.full
        }
    }

    fn permit(full: bool) -> (RecordedPermit, Option<Box<dyn Permit>>) {
        let permit = RecordedPermit {
            full,
            ..RecordedPermit::default()
        };
        (permit.clone(), Some(Box::new(permit)))
    }

    fn windows() -> FlowControlWindows {
        let settings = Settings {
            stream_window: 64 << 10,
            connection_window: 64 << 10,
            min_stream_window: 16 << 10,
            max_stream_window: 128 << 10,
            max_connection_window: 256 << 10,
            ..Settings::default()
        };
        FlowControlWindows::new(&settings, 100)
    }

    #[tokio::test(start_paused = true)]
    async fn windows_double_while_a_budget_arrives_in_each_round_trip() {
        let (mut growth, mut windows) = (WindowGrowth::new(BUDGET / 4), windows());
        let (recorded, mut permit) = permit(false);
        for portions in [4, 8] {
            for _ in 1..portions {
                let grown = growth.count_portion(&mut windows, &mut permit);
                assert_eq!(grown, None, "before a whole budget");
            }
            tokio::time::advance(COVERED_ROUND_TRIP).await;
            let grown = growth.count_portion(&mut windows, &mut permit);
            assert_eq!(grown, Some(windows.connection_window(0)));
        }
        // Windows of 64, 32, 16 and 16 KiB for one to four streams double, as the budget does.
        let extensions = recorded.extensions.lock();
        assert_eq!(extensions[0], (64 + 64 + 32 + 16 + 16) << 10);
        assert_eq!(extensions.len(), 2);
        drop(extensions);
        assert_eq!(windows.shared_window_budget(), 256 << 10);
        for _ in 0..100 {
            let grown = growth.count_portion(&mut windows, &mut permit);
            assert_eq!(grown, None, "at the limit");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn windows_stay_if_bytes_arrive_slowly_or_memory_is_short() {
        let (mut growth, mut windows) = (WindowGrowth::new(BUDGET), windows());
        let (_, mut free) = permit(false);
        for _ in 0..10 {
            tokio::time::advance(COVERED_ROUND_TRIP + Duration::from_millis(1)).await;
            let grown = growth.count_portion(&mut windows, &mut free);
            assert_eq!(grown, None, "slow");
        }
        for mut permit in [permit(true).1, None] {
            assert_eq!(growth.count_portion(&mut windows, &mut permit), None);
            assert_eq!(windows.shared_window_budget(), 64 << 10);
        }
        assert!(growth.count_portion(&mut windows, &mut free).is_some());
    }
}
