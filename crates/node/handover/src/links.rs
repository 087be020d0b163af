//! Connection to another supervisor, a worker or a holder. Records are sent from a queue, so that a slow reader does
//! not block the supervisor.

use std::{
    collections::VecDeque,
    io,
    os::fd::{AsFd, OwnedFd},
    sync::Arc,
};

use ambit_sys::seqpacket::plain;
use rustix::event::{PollFd, PollFlags};

use crate::record::{MAX_RECORD_BYTES, Record};

/// Shared descriptor; it is closed with its last clone.
pub(crate) type Descriptor = Arc<OwnedFd>;

/// SEQPACKET connection to another supervisor, a worker or a holder, with a queue of records to send.
#[derive(Debug)]
pub(crate) struct Link {
    socket: OwnedFd,
    send_queue: VecDeque<(Vec<u8>, Option<Descriptor>)>,
    is_broken: bool,
}

/// Result of one nonblocking read from a link.
#[derive(Debug)]
pub(crate) enum ReceiveResult {
    Record(Record, Option<OwnedFd>),
    /// No record is available yet.
    WouldBlock,
    /// The peer closed the link.
    Closed,
}

impl Link {
    pub(crate) fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            send_queue: VecDeque::new(),
            is_broken: false,
        }
    }

    pub(crate) fn send(&mut self, record: &Record, fd: Option<Descriptor>) {
        self.send_queue.push_back((record.encode(), fd));
        self.flush();
    }

    /// Sends queued records until the queue is empty or the socket would block.
    pub(crate) fn flush(&mut self) {
        while let Some((record, fd)) = self.send_queue.front() {
            match plain::send(&self.socket, record, fd.as_ref().map(|fd| fd.as_fd())) {
                Ok(()) => drop(self.send_queue.pop_front()),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(error) => {
                    // The disconnect is read, or reported by the kernel.
                    tracing::debug!(%error, "a line broke");
                    self.is_broken = true;
                    self.send_queue.clear();
                }
            }
        }
    }

    pub(crate) fn receive(&mut self) -> ReceiveResult {
        let mut buffer = [0; MAX_RECORD_BYTES];
        loop {
            let received = match plain::recv(&self.socket, &mut buffer) {
                Ok(received) if received.len == 0 && received.fd.is_none() => {
                    self.is_broken = true;
                    return ReceiveResult::Closed;
                }
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    return ReceiveResult::WouldBlock;
                }
                Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                    tracing::error!(%error, "cannot use a record of the link");
                    continue;
                }
                Err(_) => {
                    self.is_broken = true;
                    return ReceiveResult::Closed;
                }
            };
            let record = buffer.get(..received.len).unwrap_or_default();
            match Record::decode(record) {
                Ok(Some(record)) => return ReceiveResult::Record(record, received.fd),
                Ok(None) => {}
                Err(error) => tracing::error!(%error, "cannot decode a record of the link"),
            }
        }
    }

    /// Receives all available records with their descriptors; the second value is whether the peer has closed the link.
    pub(crate) fn receive_all(&mut self) -> (Vec<(Record, Option<OwnedFd>)>, bool) {
        let mut received = Vec::new();
        loop {
            match self.receive() {
                ReceiveResult::Record(record, fd) => received.push((record, fd)),
                ReceiveResult::WouldBlock => return (received, false),
                ReceiveResult::Closed => return (received, true),
            }
        }
    }

    /// Returns the link's socket with the events to poll for; `None` for a broken link, which `poll` would report as
    /// closed at every call.
    pub(crate) fn poll_fds(&self) -> Option<PollFd<'_>> {
        let flags = if self.send_queue.is_empty() {
            PollFlags::IN
        } else {
            PollFlags::IN | PollFlags::OUT
        };
        (!self.is_broken).then(|| PollFd::new(&self.socket, flags))
    }
}

/// Accepts the next waiting connection of another supervisor.
pub(crate) fn accept_pending(listener: Option<&plain::Listener>) -> Option<OwnedFd> {
    match listener?.accept() {
        Ok(socket) => Some(socket),
        Err(error) => {
            if error.kind() != io::ErrorKind::WouldBlock {
                tracing::warn!(%error, "cannot accept the line of another supervisor");
            }
            None
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::record::AcceptCommand;

    #[test]
    fn slow_reader_blocks_nobody_and_gets_everything_later() {
        let (ours, theirs) = plain::pair().unwrap();
        let (mut ours, mut theirs) = (Link::new(ours), Link::new(theirs));
        let file: Descriptor = Arc::new(std::fs::File::open("/proc/self/status").unwrap().into());
        for _ in 0..5000 {
            ours.send(&Record::Descriptor, Some(file.clone()));
        }
        ours.send(&Record::Accept(AcceptCommand::Now), None);
        assert!(!ours.send_queue.is_empty());
        let mut sockets = 0;
        loop {
            ours.flush();
            match theirs.receive() {
                ReceiveResult::Record(Record::Descriptor, Some(_)) => sockets += 1,
                ReceiveResult::Record(Record::Accept(AcceptCommand::Now), None) => break,
                other => panic!("{other:?}"),
            }
        }
        assert_eq!(sockets, 5000);
        drop(ours);
        assert!(matches!(theirs.receive(), ReceiveResult::Closed));
    }
}
