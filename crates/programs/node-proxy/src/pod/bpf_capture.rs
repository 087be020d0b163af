//! Part of the proxy in the capture of a pod by BPF programs: enters its listeners into the map that the agent has
//! prepared.
//!
//! The agent says nothing of it over ZDS. The map is found by the cookie of the pod's network namespace, so that any proxy
//! finds it, whenever it starts; and an agent whose map no proxy has entered its listeners into captures the pod by rules.

use std::{io, sync::LazyLock};

use ambit_bpf::{Capture, CaptureError, Pins, Role, SLOTS};
use ambit_sys::{netns::Netns, redirection::bpf::cookie_of};
use parking_lot::Mutex;
use tokio::net::TcpStream;

use super::CaptureListeners;

/// Slot of this process in the map of listeners. Another process that listens in the same pods has another one, most
/// likely; otherwise the later one replaces the entry of the earlier.
static SLOT: LazyLock<u32> = LazyLock::new(|| rand::random_range(0..SLOTS));

/// Capture of one pod by BPF programs, if its agent has prepared it.
#[derive(Debug)]
pub(crate) struct BpfCapture {
    /// Programs of the pod; `None` if the kernel cannot name them.
    capture: Option<Capture>,
    /// Copies of the listeners of one worker, for maps that the agent prepares later. The kernel chooses among the
    /// listeners of all workers, whichever is entered.
    listeners: Mutex<Option<CaptureListeners>>,
}

impl BpfCapture {
    /// Creates the capture of the pod with this network namespace.
    pub(super) fn new(pins: &Pins, netns: &Netns, listeners: Option<CaptureListeners>) -> Self {
        let cookie = cookie_of(netns);
        if let Err(error) = &cookie {
            tracing::debug!(%error, "no BPF programs can capture the pod");
        }
        Self {
            capture: cookie.ok().map(|cookie| pins.of(cookie)),
            listeners: Mutex::new(listeners),
        }
    }

    /// Whether programs capture the pod now, or may soon: connections to the application must then be recognizable for
    /// them.
    pub(crate) fn is_prepared(&self) -> bool {
        self.capture.as_ref().is_some_and(Capture::is_prepared)
    }

    /// Enters the listeners, and confirms it to the agent. Does nothing in a pod without a map.
    ///
    /// # Errors
    /// When the map cannot be opened or written.
    pub(crate) fn enter_listeners(&self) -> Result<(), CaptureError> {
        let listeners = self.listeners.lock();
        let (Some(capture), Some(listeners)) = (&self.capture, &*listeners) else {
            return Ok(());
        };
        if !capture.is_prepared() {
            return Ok(());
        }
        let mut map = capture.listeners()?;
        map.put(Role::Outbound, *SLOT, &listeners.outbound)?;
        map.put(Role::Inbound, *SLOT, &listeners.plaintext)?;
        map.confirm()
    }

    /// Closes the copies of the listeners, which must not stay open when the workers close theirs.
    pub(super) fn close_listeners(&self) {
        drop(self.listeners.lock().take());
    }
}

/// Whether rules have translated an accepted connection to the proxy's `port`. Connections that BPF programs gave to
/// the proxy have the port of their original destination.
///
/// # Errors
/// When the socket's address cannot be read.
pub(crate) fn is_translated(stream: &TcpStream, port: u16) -> io::Result<bool> {
    Ok(stream.local_addr()?.port() == port)
}
