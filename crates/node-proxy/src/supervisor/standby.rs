//! Two supervisors of one Kubernetes pod, a container each: one serves, the other stands by with a copy
//! of everything the first holds, and serves as soon as that is dead. Kubelet would start a container
//! that died again after a second, then after ten, then twenty; and the sockets would be closed meanwhile.
//!
//! Which of the two serves, the kernel decides: it is the one that has the lock of a file that both see,
//! which is free again the moment its owner is dead. Neither ever gives the turn back, for that would end
//! connections once more.

use std::{
    fs::File,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    path::PathBuf,
    sync::Arc,
};

use ambit_rt::Env;
use ambit_sys::seqpacket::plain;
use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    fs::{FlockOperation, flock},
    io::Errno,
};

use super::{
    drain,
    links::{Heard, Link},
    wait_for,
};
use crate::held::{Held, Record};

/// How long to wait for one that has the lock, but does not listen yet, or no more.
const BETWEEN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// The pair a supervisor belongs to.
#[derive(Debug)]
pub(super) struct Pair {
    path: PathBuf,
}

/// It is this one's turn to serve.
#[derive(Debug)]
pub(super) struct Turn {
    /// Where the standby is to come, as long as this one serves.
    pub(super) listener: plain::Listener,
    /// What the other one held when it died; `None` if there was none.
    pub(super) held: Option<Held<Arc<OwnedFd>>>,
    /// For as long as this one lives.
    pub(super) lock: File,
}

/// Why a line to the other one is no longer followed.
enum Followed {
    Gone,
    Terminated,
}

impl Pair {
    /// `AMBIT_PAIR_UDS`: where the two meet, in a directory that nobody else sees.
    pub(super) fn of(env: &Env) -> Option<Self> {
        let path = env.get("AMBIT_PAIR_UDS").filter(|path| !path.is_empty())?;
        Some(Self { path: path.into() })
    }

    /// Waits for the turn. `None` when told to end before it came.
    ///
    /// # Errors
    /// When the place cannot be used at all.
    pub(super) fn stand_by(&self, terminate: &UnixStream) -> anyhow::Result<Option<Turn>> {
        let unusable = || {
            let path = self.path.display();
            format!("cannot meet the other one of the pair: is {path} (AMBIT_PAIR_UDS) writable?")
        };
        let lock_path = self.path.with_extension("lock");
        let lock = File::create(lock_path).with_context(unusable)?;
        let mut held = None;
        loop {
            match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    let listener = plain::Listener::bind(&self.path).with_context(unusable)?;
                    return Ok(Some(Turn {
                        listener,
                        held,
                        lock,
                    }));
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) => {}
                Err(error) => return Err(error).with_context(unusable),
            }
            let followed = match plain::connect_to(&self.path) {
                Ok(socket) => follow(Link::new(socket), &mut held, terminate)?,
                Err(error) => {
                    tracing::debug!(%error, "who has the lock does not answer");
                    pause(terminate)?
                }
            };
            if matches!(followed, Followed::Terminated) {
                return Ok(None);
            }
        }
    }
}

fn pause(terminate: &UnixStream) -> io::Result<Followed> {
    wait_for(&mut [PollFd::new(terminate, PollFlags::IN)], Some(&BETWEEN))?;
    Ok(if drain(terminate) > 0 {
        Followed::Terminated
    } else {
        Followed::Gone
    })
}

/// Holds what the other one tells. What was held of one before it stays until this one has told all.
fn follow(
    mut other: Link,
    held: &mut Option<Held<Arc<OwnedFd>>>,
    terminate: &UnixStream,
) -> io::Result<Followed> {
    let mut told = Held::default();
    let mut all = false;
    loop {
        match other.hear() {
            Heard::Record(record, fd) => {
                let holding = match held {
                    Some(held) if all => held,
                    _ => &mut told,
                };
                if let Err(error) = holding.apply(&record, fd.map(Arc::new)) {
                    tracing::error!(%error, "heard something that does not fit");
                }
                if matches!(record, Record::Accept(_)) && !all {
                    all = true;
                    tracing::info!(pods = told.len(), "standing by for the proxy of this pod");
                    *held = Some(std::mem::take(&mut told));
                }
                continue;
            }
            Heard::End => {
                if let Some(held) = held {
                    held.interrupted();
                    tracing::warn!(
                        pods = held.len(),
                        "the proxy of this pod is dead: taking its place"
                    );
                }
                return Ok(Followed::Gone);
            }
            Heard::Nothing => {}
        }
        if drain(terminate) > 0 {
            return Ok(Followed::Terminated);
        }
        let mut fds = vec![PollFd::new(terminate, PollFlags::IN)];
        fds.extend(other.interest());
        wait_for(&mut fds, None)?;
    }
}
