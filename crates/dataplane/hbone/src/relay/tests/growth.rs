//! Tests that receive windows grow with the rate at which bytes arrive, as far as the permit of the connection allows.
//! Their time is virtual: it passes only while nothing else is left to do.

use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::mpsc,
    time::{Instant, sleep_until, timeout},
};

use super::{
    stalled::{TEST_TIMEOUT, check_transfer, open_tunnels_over, settings_with_small_windows},
    *,
};
use crate::Permit;

/// Time that bytes take from one end of the connection to the other.
const ONE_WAY_DELAY: Duration = Duration::from_millis(20);
/// Maximum window budget of the connection: 32 times the initial one.
const MAX_WINDOW: u32 = 2 << 20;
/// Bytes that the grown window of one of two tunnels holds, and the initial one does not.
const UNREAD_BYTES: usize = 1 << 20;

/// Permit with a limit, which records by how many bytes it was extended.
#[derive(Debug)]
struct CountedPermit {
    extended: Arc<AtomicUsize>,
    limit: usize,
}

impl Permit for CountedPermit {
    fn extend_to_larger_windows(&mut self, bytes: usize) -> bool {
        let sum = self.extended.load(Relaxed).saturating_add(bytes);
        let has_room = sum <= self.limit;
        if has_room {
            self.extended.store(sum, Relaxed);
        }
        has_room
    }
}

/// Copies bytes in one direction, each [`ONE_WAY_DELAY`] later.
async fn copy_delayed(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) {
    let (sender, mut receiver) = mpsc::unbounded_channel();
    let reading = async move {
        let mut buffer = vec![0; 64 << 10];
        while let Ok(n @ 1..) = from.read(&mut buffer).await {
            let due = Instant::now() + ONE_WAY_DELAY;
            let _ended = sender.send((due, buffer[..n].to_vec()));
        }
    };
    let writing = async move {
        while let Some((due, bytes)) = receiver.recv().await {
            sleep_until(due).await;
            let _ended = to.write_all(&bytes).await;
        }
    };
    tokio::join!(reading, writing);
}

/// Returns both ends of a connection on a long path.
fn long_path() -> (DuplexStream, DuplexStream) {
    let ((near, first), (second, far)) = (tokio::io::duplex(1 << 20), tokio::io::duplex(1 << 20));
    let ((first_read, first_write), (second_read, second_write)) =
        (tokio::io::split(first), tokio::io::split(second));
    ambit_rt::spawn("path there", copy_delayed(first_read, second_write));
    ambit_rt::spawn("path back", copy_delayed(second_read, first_write));
    (near, far)
}

/// Transfer to the end of a connection whose windows may grow.
struct Transfer {
    elapsed: Duration,
    /// Bytes by which the permit was extended.
    extended: usize,
    /// Sending end of an unused tunnel on the connection.
    writer: TunnelIo,
    _unread: Tunnel,
}

/// Transfers bytes to the client's or the server's end of a connection, whose permit allows its windows to grow by
/// `limit` bytes.
async fn transfer(is_client: bool, settings: &Settings, limit: usize) -> Transfer {
    let extended = Arc::new(AtomicUsize::new(0));
    let permit = CountedPermit {
        extended: extended.clone(),
        limit,
    };
    let permit: Option<Box<dyn Permit>> = Some(Box::new(permit));
    let permits = if is_client {
        [permit, None]
    } else {
        [None, permit]
    };
    let mut tunnels = open_tunnels_over(long_path(), permits, 2, settings.clone()).await;
    let mut next = || {
        let (near, far) = tunnels.pop().unwrap();
        if is_client { (far, near) } else { (near, far) }
    };
    let begin = Instant::now();
    let (writer, reader) = next();
    check_transfer(writer, reader).await;
    let elapsed = begin.elapsed();
    let (writer, unread) = next();
    Transfer {
        elapsed,
        extended: extended.load(Relaxed),
        writer: writer.into_io(),
        _unread: unread,
    }
}

/// Returns settings of windows that may grow to [`MAX_WINDOW`].
fn growing_settings() -> Settings {
    Settings {
        max_stream_window: MAX_WINDOW,
        max_connection_window: MAX_WINDOW,
        max_send_buffer_bytes: 16 << 10,
        ..settings_with_small_windows()
    }
}

#[tokio::test(start_paused = true)]
async fn windows_grow_on_a_long_path_to_their_limit() {
    let settings = growing_settings();
    let grown = Settings {
        stream_window: MAX_WINDOW,
        connection_window: MAX_WINDOW,
        ..settings.clone()
    };
    let client = grown.client_connection_window_bytes() - settings.client_connection_window_bytes();
    let server = grown.server_connection_window_bytes() - settings.server_connection_window_bytes();
    for (is_client, expected) in [(true, client), (false, server)] {
        let small = transfer(is_client, &settings, 0).await;
        let mut large = transfer(is_client, &settings, usize::MAX).await;
        assert_eq!(large.extended, expected, "client: {is_client}");
        let times = small.elapsed.div_duration_f64(large.elapsed);
        assert!(times > 8.0, "{times} times as fast");
        let unread = vec![0; UNREAD_BYTES];
        let written = timeout(TEST_TIMEOUT, large.writer.write_all(&unread)).await;
        written.expect("the window has not grown").unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn windows_that_the_permit_has_no_room_for_stay() {
    let settings = growing_settings();
    for is_client in [true, false] {
        let mut transfer = transfer(is_client, &settings, 1000).await;
        assert_eq!(transfer.extended, 0);
        let unread = vec![0; UNREAD_BYTES];
        let mut written = 0;
        // Blocked until the reader reads, which it does not.
        while let Ok(n) = timeout(TEST_TIMEOUT, transfer.writer.write(&unread)).await {
            written += n.unwrap();
        }
        assert!((16 << 10..=96 << 10).contains(&written), "{written}");
    }
}
