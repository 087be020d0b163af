//! Holds the descriptors of supervisors of another container, so that they survive the death of all supervisors.
//!
//! A supervisor that connects receives the stored items (sets of descriptors with metadata). The supervisor that
//! accepts connections then sends its own items, and owns the stored ones until another supervisor does the same. Files
//! of workers, which may contain private keys, are never stored here. Items of a supervisor that is gone stay until the
//! next one sends its own. Meanwhile connections wait in the accept queues of the stored sockets, for
//! [`MAX_QUEUE_TIME`]; then waiting and new connections are reset until a supervisor exists again: connections that
//! cannot be served are refused rather than left without a response.

use std::{
    os::fd::OwnedFd,
    path::Path,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_sys::seqpacket::plain;
use rustix::event::{PollFd, PollFlags};

use crate::{
    links::{Descriptor, Link, accept_pending},
    queue_reset::reset_pending_connections,
    record::{AcceptCommand, Handover, Record},
};

/// Maximum concurrent connections from supervisors: one of them serves, the others drain.
const MAX_SUPERVISORS: usize = 64;

/// Time for which connections may wait in accept queues without a supervisor before they are reset.
const MAX_QUEUE_TIME: Duration = Duration::from_secs(5);
/// Interval at which the connections in the accept queues are reset after [`MAX_QUEUE_TIME`].
const QUEUE_RESET_INTERVAL: Duration = Duration::from_millis(100);

/// Store of the sockets and other descriptors of supervisors in another container, which outlives all of them.
#[derive(Debug)]
pub struct Holder {
    listener: plain::Listener,
    connections: Vec<SupervisorConnection>,
    handover: Handover<Descriptor>,
    /// Time of the next reset of queued connections; `None` while a supervisor runs or no item is stored.
    next_queue_reset: Option<Instant>,
    /// Whether queued connections are being reset, since no supervisor has connected in time.
    is_resetting_queues: bool,
}

#[derive(Debug)]
struct SupervisorConnection {
    link: Link,
    /// Items that the supervisor has sent so far; they replace the stored ones once all have arrived.
    incoming: Handover<Descriptor>,
    owns_items: bool,
    /// Whether the supervisor was superseded and accepts no more connections.
    is_draining: bool,
    is_closed: bool,
}

impl Holder {
    /// Listens at `path` for supervisors. A failure is only logged: without the holder, the supervisors' sockets close
    /// when the last of them dies.
    pub(crate) fn open(path: &Path) -> Option<Self> {
        let listener = plain::Listener::bind(path).inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "cannot hold sockets for the node proxy");
        });
        Some(Self {
            listener: listener.ok()?,
            connections: Vec::new(),
            handover: Handover::default(),
            next_queue_reset: None,
            is_resetting_queues: false,
        })
    }

    pub(crate) fn poll_fds(&self) -> impl Iterator<Item = PollFd<'_>> {
        let lines = self
            .connections
            .iter()
            .filter_map(|line| line.link.poll_fds());
        std::iter::once(PollFd::new(&self.listener, PollFlags::IN)).chain(lines)
    }

    /// Returns the time of the next reset of queued connections, at which [`Self::process_events`] must be called.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        self.next_queue_reset
    }

    /// Accepts connections of supervisors, reads their records, and resets queued connections if that is due.
    pub(crate) fn process_events(&mut self, now: Instant) {
        while let Some(socket) = accept_pending(Some(&self.listener)) {
            self.add_connection(socket);
        }
        for index in 0..self.connections.len() {
            self.receive_records(index);
        }
        self.connections.retain(|line| !line.is_closed);
        self.reset_queued_connections(now);
    }

    /// Resets queued connections if no supervisor has been connected for [`MAX_QUEUE_TIME`]. A connected supervisor
    /// accepts queued connections itself, unless it drains.
    fn reset_queued_connections(&mut self, now: Instant) {
        let is_served = self.connections.iter().any(|line| !line.is_draining);
        if is_served || self.handover.is_empty() {
            (self.next_queue_reset, self.is_resetting_queues) = (None, false);
            return;
        }
        let due = *self.next_queue_reset.get_or_insert(now + MAX_QUEUE_TIME);
        if now < due {
            return;
        }
        if !self.is_resetting_queues {
            self.is_resetting_queues = true;
            tracing::warn!(
                held = self.handover.len(),
                "no node proxy has come: connections of captured pods are refused until one does"
            );
        }
        let refused: usize = self
            .handover
            .descriptors()
            .map(reset_pending_connections)
            .sum();
        if refused > 0 {
            tracing::debug!(refused, "connections that no node proxy takes");
        }
        self.next_queue_reset = Some(now + QUEUE_RESET_INTERVAL);
    }

    fn add_connection(&mut self, socket: OwnedFd) {
        if self.connections.len() >= MAX_SUPERVISORS {
            // The oldest supervisor has drained the longest.
            self.connections.remove(0);
        }
        let mut link = Link::new(socket);
        for (record, fd) in self.handover.records() {
            link.send(&record, fd);
        }
        link.send(&Record::Accept(AcceptCommand::Paused), None);
        self.connections.push(SupervisorConnection {
            link,
            incoming: Handover::default(),
            owns_items: false,
            is_draining: false,
            is_closed: false,
        });
    }

    fn receive_records(&mut self, index: usize) {
        let Some(line) = self.connections.get_mut(index) else {
            return;
        };
        line.link.flush();
        let (received, gone) = line.link.receive_all();
        let mut owns_now = false;
        for (record, fd) in received {
            let holding = if line.owns_items {
                &mut self.handover
            } else {
                &mut line.incoming
            };
            match (&record, &fd) {
                (Record::StoreFile(_), _) => {
                    tracing::error!("a file is not held for another container")
                }
                (Record::Accept(_), None) if !line.owns_items => {
                    self.handover = std::mem::take(&mut line.incoming);
                    (line.owns_items, owns_now) = (true, true);
                    tracing::info!(held = self.handover.len(), "holding for the node proxy");
                }
                _ => {
                    if let Err(error) = holding.apply(&record, fd.map(Arc::new)) {
                        tracing::error!(%error, "received a record that does not fit");
                    }
                }
            }
        }
        line.is_closed = gone;
        if gone && line.owns_items {
            self.handover.discard_incomplete();
        }
        if owns_now {
            let others = self.connections.iter_mut().enumerate();
            for (_, other) in others.filter(|(other, _)| *other != index) {
                other.is_draining |= std::mem::take(&mut other.owns_items);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Supervisor(Link);

    impl Supervisor {
        /// Connects to a holder as a supervisor does, and returns the names of the items that it sends.
        fn connect(holder: &mut Holder, path: &Path) -> (Self, Vec<String>) {
            let mut link = Link::new(plain::connect_to(path).unwrap());
            holder.process_events(Instant::now());
            let (received, gone) = link.receive_all();
            assert!(!gone);
            let mut held = Handover::default();
            let mut last = None;
            for (record, fd) in received {
                held.apply(&record, fd).unwrap();
                last = Some(record);
            }
            assert_eq!(last, Some(Record::Accept(AcceptCommand::Paused)));
            let names = held.into_items().map(|(key, _)| key.to_string());
            (Self(link), names.collect())
        }

        fn send(&mut self, holder: &mut Holder, key: &str) {
            let file = std::fs::File::open("/proc/self/status").unwrap();
            self.send_socket(holder, key, file.into());
        }

        fn send_socket(&mut self, holder: &mut Holder, key: &str, fd: OwnedFd) {
            let item = Record::Item {
                key: key.into(),
                about: Arc::from(&b"about"[..]),
                descriptors: 1,
            };
            self.0.send(&item, None);
            self.0.send(&Record::Descriptor, Some(Arc::new(fd)));
            holder.process_events(Instant::now());
        }

        fn send_all(&mut self, holder: &mut Holder) {
            self.0.send(&Record::Accept(AcceptCommand::Paused), None);
            holder.process_events(Instant::now());
        }
    }

    #[test]
    fn items_of_the_serving_supervisor_outlive_the_supervisor() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("holder.sock");
        let mut holder = Holder::open(&path).unwrap();
        let (mut old, received) = Supervisor::connect(&mut holder, &path);
        assert_eq!(received, [""; 0]);
        old.send(&mut holder, "a");
        let (mut new, received) = Supervisor::connect(&mut holder, &path);
        assert_eq!(received, [""; 0], "not before it has sent everything");
        old.send_all(&mut holder);
        old.send(&mut holder, "b");
        new.send(&mut holder, "c");
        new.send_all(&mut holder);
        // The old supervisor drains, and releases its items.
        let key = "c".into();
        old.0.send(&Record::RemoveItem { key }, None);
        holder.process_events(Instant::now());
        drop((old, new));
        holder.process_events(Instant::now());
        assert!(holder.connections.is_empty());
        let (_next, received) = Supervisor::connect(&mut holder, &path);
        assert_eq!(received, ["c"]);
    }

    #[test]
    fn connections_wait_five_seconds_for_a_supervisor_then_are_refused() {
        use std::{
            io::Read as _,
            net::{TcpListener, TcpStream},
        };

        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("holder.sock");
        let mut holder = Holder::open(&path).unwrap();
        let (mut owner, _) = Supervisor::connect(&mut holder, &path);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        owner.send_socket(&mut holder, "a", listener.into());
        owner.send_all(&mut holder);
        assert_eq!(holder.deadline(), None, "a supervisor is there");
        drop(owner);
        let gone = Instant::now();
        holder.process_events(gone);
        assert_eq!(holder.deadline(), Some(gone + MAX_QUEUE_TIME));
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        let mut read = || client.read(&mut [0]).unwrap_err().kind();
        holder.process_events(gone + MAX_QUEUE_TIME / 2);
        assert_eq!(read(), std::io::ErrorKind::WouldBlock, "it waits");
        holder.process_events(gone + MAX_QUEUE_TIME);
        assert_eq!(read(), std::io::ErrorKind::ConnectionReset);
        // The next supervisor gets the socket, and accepts new connections.
        let (next, received) = Supervisor::connect(&mut holder, &path);
        assert_eq!((received, holder.deadline()), (vec!["a".to_owned()], None));
        let waits = TcpStream::connect(address).unwrap();
        waits.set_nonblocking(true).unwrap();
        holder.process_events(gone + MAX_QUEUE_TIME * 10);
        assert_eq!(
            (&waits).read(&mut [0]).unwrap_err().kind(),
            std::io::ErrorKind::WouldBlock
        );
        drop(next);
    }

    #[test]
    fn holder_never_stores_files() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("holder.sock");
        let mut holder = Holder::open(&path).unwrap();
        let (mut owner, _) = Supervisor::connect(&mut holder, &path);
        owner.send_all(&mut holder);
        let file = std::fs::File::open("/proc/self/status").unwrap();
        owner
            .0
            .send(&Record::StoreFile(1), Some(Arc::new(OwnedFd::from(file))));
        holder.process_events(Instant::now());
        assert_eq!(holder.handover.all_records().count(), 0);
    }
}
