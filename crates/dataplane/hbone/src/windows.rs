//! Receive windows of one HTTP/2 connection, sized so that stalled streams can never fill the connection's window.
//!
//! A stream whose reader has stopped holds its received bytes, and with them a part of the connection window. While few
//! streams are open, each gets a large window, which suits paths with a high bandwidth-delay product; the more streams
//! are open, the smaller the window of each. The connection window exceeds the bytes that all streams can hold, in
//! whatever order they open, stall and end: all streams that hold more than `w` bytes were open together when the last
//! of them received its bytes, so there are at most as many of them as may be open with a window above `w`.

use crate::settings::Settings;

/// Maximum HTTP/2 flow-control window, in bytes.
const MAX_WINDOW: u32 = (1 << 31) - 1;

/// Computes the receive windows of the streams and of the connection, as the number of open streams changes.
#[derive(Clone, Debug)]
pub(crate) struct FlowControlWindows {
    /// Window of each stream while few streams are open, in bytes.
    max_stream_window: u32,
    /// Minimum window of a stream in bytes, however many are open.
    min_stream_window: u32,
    /// Window budget in bytes, which is divided among the open streams down to the minimum window.
    shared_window_budget: u32,
    /// Limits to which `max_stream_window` and `shared_window_budget` double.
    stream_window_limit: u32,
    shared_budget_limit: u32,
    /// Maximum concurrent streams.
    max_streams: usize,
    /// Stream window that was last announced to the peer.
    announced_stream_window: u32,
    /// Whether the windows have doubled since the last announcement.
    has_doubled: bool,
    /// Maximum number of concurrently open streams so far.
    peak_streams: usize,
}

impl FlowControlWindows {
    /// Computes the windows of a connection on which the peer may open `max_streams` streams.
    pub(crate) fn new(settings: &Settings, max_streams: usize) -> Self {
        let shared = settings.connection_window.max(settings.stream_window);
        Self {
            max_stream_window: settings.stream_window,
            min_stream_window: settings.min_stream_window.min(settings.stream_window),
            shared_window_budget: shared,
            stream_window_limit: settings.max_stream_window,
            shared_budget_limit: settings.max_connection_window,
            max_streams,
            announced_stream_window: settings.stream_window,
            has_doubled: false,
            peak_streams: 0,
        }
    }

    /// Returns windows with twice the budget, or as much as the limit allows; `None` at the limit.
    pub(crate) fn doubled(&self) -> Option<Self> {
        let double = |window: u32, limit: u32| window.saturating_mul(2).min(limit).max(window);
        let shared = double(self.shared_window_budget, self.shared_budget_limit);
        (shared > self.shared_window_budget).then(|| Self {
            max_stream_window: double(self.max_stream_window, self.stream_window_limit),
            shared_window_budget: shared,
            has_doubled: true,
            ..self.clone()
        })
    }

    /// Returns the window budget in bytes, which the open streams share.
    pub(crate) fn shared_window_budget(&self) -> u32 {
        self.shared_window_budget
    }

    /// Returns the connection window in bytes for the maximum number of open streams so far.
    pub(crate) fn peak_connection_window(&self) -> u32 {
        self.connection_window(self.peak_streams)
    }

    /// Returns the initial window of each stream, before any is open.
    pub(crate) fn initial_stream_window(&self) -> u32 {
        self.max_stream_window
    }

    /// Returns the connection window in bytes for up to this many open streams: the bytes that they can hold, plus a
    /// reserve for data that the peer sends before it learns of a smaller stream window.
    pub(crate) fn connection_window(&self, streams: usize) -> u32 {
        let beyond_smallest: u64 = (1..=self.max_streams)
            .map(|streams| u64::from(self.stream_window(streams) - self.min_stream_window))
            .sum();
        let streams = u64::try_from(streams).unwrap_or(u64::MAX);
        let of_streams = streams.saturating_mul(self.min_stream_window.into());
        let window = beyond_smallest
            .saturating_add(of_streams)
            .saturating_add(self.shared_window_budget.into());
        u32::try_from(window).unwrap_or(MAX_WINDOW).min(MAX_WINDOW)
    }

    /// Returns the window of each stream for this number of open streams.
    fn stream_window(&self, streams: usize) -> u32 {
        let streams = u32::try_from(streams.max(1)).unwrap_or(u32::MAX);
        let sharing = streams.checked_next_power_of_two().unwrap_or(u32::MAX);
        (self.shared_window_budget / sharing).clamp(self.min_stream_window, self.max_stream_window)
    }

    /// Returns the stream window to announce for this many open streams, if it changed. It grows again only after
    /// half of the streams have ended, to limit the number of SETTINGS frames.
    pub(crate) fn next_stream_window(&self, streams: usize) -> Option<u32> {
        let now = self.stream_window(streams);
        if now < self.announced_stream_window
            || (self.has_doubled && now > self.announced_stream_window)
        {
            return Some(now);
        }
        let with_twice_as_many = self.stream_window(streams.saturating_mul(2));
        (with_twice_as_many > self.announced_stream_window).then_some(with_twice_as_many)
    }

    /// Returns the connection window for this many open streams if their number is a new peak. The window never
    /// shrinks.
    pub(crate) fn grown_connection_window(&mut self, streams: usize) -> Option<u32> {
        let is_peak = streams > self.peak_streams;
        is_peak.then(|| {
            self.peak_streams = streams;
            self.connection_window(streams)
        })
    }

    /// Records the stream window in bytes that was announced to the peer.
    pub(crate) fn set_announced_stream_window(&mut self, window: u32) {
        self.announced_stream_window = window;
        self.has_doubled = false;
    }
}

impl Settings {
    /// Returns the connection window of a server connection without streams, in bytes: the data that a client can make
    /// the server buffer. Each open stream adds [`Self::min_stream_window_bytes`].
    pub fn server_connection_window_bytes(&self) -> usize {
        let streams = usize::try_from(self.max_peer_streams).unwrap_or(usize::MAX);
        self.connection_window_bytes(streams)
    }

    /// Returns the connection window of a client connection without streams, in bytes: the data that a server can make
    /// the client buffer.
    pub fn client_connection_window_bytes(&self) -> usize {
        self.connection_window_bytes(self.max_streams)
    }

    fn connection_window_bytes(&self, streams: usize) -> usize {
        let bytes = FlowControlWindows::new(self, streams).connection_window(0);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }

    /// Returns the bytes by which each open stream enlarges the connection window.
    pub fn min_stream_window_bytes(&self) -> usize {
        let bytes = self.min_stream_window.min(self.stream_window);
        usize::try_from(bytes).unwrap_or(usize::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn windows(streams: usize) -> FlowControlWindows {
        FlowControlWindows::new(&Settings::default(), streams)
    }

    #[test]
    fn windows_shrink_with_the_number_of_streams() {
        let windows = windows(200);
        for (streams, expected) in [
            (0, 4 << 20),
            (1, 4 << 20),
            (4, 4 << 20),
            (5, 2 << 20),
            (100, 128 << 10),
            (200, 128 << 10),
        ] {
            assert_eq!(
                windows.stream_window(streams),
                expected,
                "{streams} streams"
            );
        }
        let all = windows.connection_window(200);
        assert!(all < 96 << 20, "{all}");
    }

    #[test]
    fn configured_windows_are_never_exceeded() {
        let settings = Settings {
            stream_window: 65_535,
            connection_window: 16_384,
            ..Settings::default()
        };
        let windows = FlowControlWindows::new(&settings, 100);
        assert_eq!(windows.initial_stream_window(), 65_535);
        assert_eq!(windows.stream_window(100), 65_535);
        assert_eq!(windows.connection_window(100), 101 * 65_535);
        let settings = Settings {
            stream_window: MAX_WINDOW,
            connection_window: MAX_WINDOW,
            ..Settings::default()
        };
        assert_eq!(
            FlowControlWindows::new(&settings, 1000).connection_window(1),
            MAX_WINDOW
        );
    }

    #[test]
    fn window_of_a_connection_grows_with_its_peak_of_streams() {
        let mut windows = windows(200);
        let one = windows.grown_connection_window(1).unwrap();
        assert_eq!(
            windows.grown_connection_window(3),
            Some(one + 2 * (128 << 10))
        );
        assert_eq!(windows.grown_connection_window(2), None);
        assert_eq!(windows.grown_connection_window(3), None);
        let settings = Settings {
            stream_window: 64 << 10,
            connection_window: 64 << 10,
            min_stream_window: 16 << 10,
            ..Settings::default()
        };
        assert_eq!(settings.server_connection_window_bytes(), 128 << 10);
        assert_eq!(settings.min_stream_window_bytes(), 16 << 10);
    }

    #[test]
    fn doubled_windows_are_announced_once() {
        let settings = Settings {
            stream_window: 64 << 10,
            connection_window: 64 << 10,
            min_stream_window: 16 << 10,
            max_stream_window: 96 << 10,
            max_connection_window: 192 << 10,
            ..Settings::default()
        };
        let mut windows = FlowControlWindows::new(&settings, 100);
        for (budget, window) in [(128 << 10, 96 << 10), (192 << 10, 96 << 10)] {
            windows = windows.doubled().unwrap();
            assert_eq!(windows.shared_window_budget(), budget);
            assert_eq!(windows.stream_window(1), window);
        }
        assert!(windows.doubled().is_none());
        assert_eq!(windows.next_stream_window(2), Some(96 << 10));
        windows.set_announced_stream_window(96 << 10);
        assert_eq!(windows.next_stream_window(2), None);
        // The hysteresis is that of windows that have not grown.
        assert_eq!(windows.next_stream_window(4), Some(48 << 10));
        windows.set_announced_stream_window(48 << 10);
        assert_eq!(windows.next_stream_window(3), None);
    }

    #[test]
    fn windows_do_not_change_with_every_stream() {
        let mut windows = windows(200);
        let mut sent = 0;
        let show = |windows: &mut FlowControlWindows, streams| {
            let window = windows.next_stream_window(streams);
            window
                .into_iter()
                .for_each(|window| windows.set_announced_stream_window(window));
            usize::from(window.is_some())
        };
        for streams in 0..=8 {
            sent += show(&mut windows, streams);
        }
        for streams in [4, 5, 4, 5, 8, 3, 5] {
            sent += show(&mut windows, streams);
        }
        assert_eq!(sent, 1);
        sent += show(&mut windows, 2);
        assert_eq!((sent, windows.announced_stream_window), (2, 4 << 20));
    }

    /// Checks streams that open, fill their window, stall and end in any order, while the windows double now and then.
    #[test]
    fn stalled_streams_never_fill_the_connection() {
        let growing = Settings {
            stream_window: 64 << 10,
            connection_window: 64 << 10,
            min_stream_window: 16 << 10,
            ..Settings::default()
        };
        for seed in 0..200_u64 {
            let settings = match seed % 4 {
                0 | 1 => Settings::default(),
                _ => growing.clone(),
            };
            let mut windows = FlowControlWindows::new(&settings, 100);
            let most = |windows: &FlowControlWindows, streams| {
                u64::from(windows.connection_window(streams))
                    - u64::from(windows.shared_window_budget)
            };
            let mut held: Vec<u64> = Vec::new();
            let mut random = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
            for _ in 0..2000 {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                let at = usize::try_from(random >> 8).unwrap();
                // Opens a stream in a third of the steps, two thirds if the seed is odd; otherwise
                // ends one.
                if random % 3 < seed % 2 + 1 && held.len() < 100 {
                    held.push(0);
                } else if !held.is_empty() {
                    held.swap_remove(at % held.len());
                }
                if random % 500 == 0 {
                    windows = windows.doubled().unwrap_or(windows);
                }
                if let Some(window) = windows.next_stream_window(held.len()) {
                    windows.set_announced_stream_window(window);
                }
                for one in &mut held {
                    *one = (*one).max(windows.announced_stream_window.into());
                }
                let sum: u64 = held.iter().sum();
                let limit = most(&windows, held.len());
                assert!(sum <= limit, "{sum} of {limit} with {}", held.len());
            }
        }
    }
}
