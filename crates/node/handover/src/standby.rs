//! Two supervisors of one Kubernetes pod, a container each: one serves; the standby has a copy of
//! everything the first holds, and serves as soon as the first is dead. Kubelet would restart a
//! crashed container after one second, then after ten, then twenty; and the sockets would be closed
//! meanwhile.
//!
//! A file lock decides which of the two serves: the kernel releases it the moment its owner is
//! dead. Neither ever hands it back, for that would end connections once more.

use std::{fs::File, io, os::unix::net::UnixStream, path::Path, sync::Arc};

use ambit_sys::seqpacket::plain;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{FlockOperation, flock},
    io::Errno,
};

use crate::{
    error::RunError,
    links::{Descriptor, Link, ReceiveResult},
    record::{Handover, Record},
    waiting::{drain_pipe, poll_with_timeout},
};

/// Interval at which a standby retries to connect to a lock owner that does not listen yet.
const LISTEN_CHECK_INTERVAL: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// Sockets, lock and inherited items of a process that becomes the active one.
#[derive(Debug)]
pub(crate) struct ActiveRole {
    /// Listener at which the next standby connects.
    pub(crate) listener: plain::Listener,
    /// Items that the previous active process had stored when it died; `None` if there was no such process.
    pub(crate) inherited_items: Option<Handover<Descriptor>>,
    /// File lock of the active process, held for the rest of its life.
    pub(crate) lock: File,
}

/// Reason why the link to the active supervisor ended.
enum LinkEnd {
    PeerGone,
    Terminated,
}

/// Waits as a standby until this process gets the lock and so becomes active; `None` if it is terminated before. `path`
/// is the socket of the pair, in a private directory.
///
/// # Errors
/// When the directory cannot be used at all.
pub(crate) fn wait_until_active(
    path: &Path,
    terminate: &UnixStream,
) -> Result<Option<ActiveRole>, RunError> {
    let unusable = |source: io::Error| RunError::StandbyPair {
        path: path.to_owned(),
        source,
    };
    let lock = File::create(path.with_extension("lock")).map_err(unusable)?;
    let mut held = None;
    loop {
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                let listener = plain::Listener::bind(path).map_err(unusable)?;
                return Ok(Some(ActiveRole {
                    listener,
                    inherited_items: held,
                    lock,
                }));
            }
            Err(Errno::WOULDBLOCK | Errno::INTR) => {}
            Err(error) => return Err(unusable(error.into())),
        }
        let followed = match plain::connect_to(path) {
            Ok(socket) => receive_items(Link::new(socket), &mut held, terminate),
            Err(error) => {
                tracing::debug!(%error, "who has the lock does not answer");
                pause_unless_terminated(terminate)
            }
        };
        if matches!(followed.map_err(RunError::Poll)?, LinkEnd::Terminated) {
            return Ok(None);
        }
    }
}

fn pause_unless_terminated(terminate: &UnixStream) -> io::Result<LinkEnd> {
    poll_with_timeout(
        &mut [PollFd::new(terminate, PollFlags::IN)],
        Some(&LISTEN_CHECK_INTERVAL),
    )?;
    Ok(if drain_pipe(terminate) > 0 {
        LinkEnd::Terminated
    } else {
        LinkEnd::PeerGone
    })
}

/// Receives the active supervisor's items into `held`, until the link ends. Items of an earlier supervisor stay until
/// all new ones have arrived.
fn receive_items(
    mut other: Link,
    held: &mut Option<Handover<Descriptor>>,
    terminate: &UnixStream,
) -> io::Result<LinkEnd> {
    let mut received = Handover::default();
    let mut all = false;
    loop {
        match other.receive() {
            ReceiveResult::Record(record, fd) => {
                let holding = match held {
                    Some(held) if all => held,
                    _ => &mut received,
                };
                if let Err(error) = holding.apply(&record, fd.map(Arc::new)) {
                    tracing::error!(%error, "received a record that does not fit");
                }
                if matches!(record, Record::Accept(_)) && !all {
                    all = true;
                    tracing::info!(
                        held = received.len(),
                        "standing by for the other container of this pod"
                    );
                    *held = Some(std::mem::take(&mut received));
                }
                continue;
            }
            ReceiveResult::Closed => {
                if let Some(held) = held {
                    held.discard_incomplete();
                    tracing::warn!(
                        held = held.len(),
                        "the other container of this pod is dead: taking its place"
                    );
                }
                return Ok(LinkEnd::PeerGone);
            }
            ReceiveResult::WouldBlock => {}
        }
        if drain_pipe(terminate) > 0 {
            return Ok(LinkEnd::Terminated);
        }
        let mut fds = vec![PollFd::new(terminate, PollFlags::IN)];
        fds.extend(other.poll_fds());
        poll_with_timeout(&mut fds, None)?;
    }
}
