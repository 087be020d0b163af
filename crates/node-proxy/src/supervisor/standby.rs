//! Two supervisors of one Kubernetes pod, a container each: one serves, the other stands by with a copy
//! of everything the first holds, and serves as soon as that is dead. Kubelet would start a container
//! that died again after a second, then after ten, then twenty; and the sockets would be closed meanwhile.
//!
//! Which of the two serves, the kernel decides: it is the one that has the pair's name among the Unix
//! sockets of the pod's network namespace. The name is free again the moment its owner is dead. Neither
//! ever gives the turn back, for that would end connections once more.

use std::{
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::Arc,
};

use ambit_rt::Env;
use ambit_sys::seqpacket::plain;
use anyhow::Context as _;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{
    drain,
    links::{Heard, Link},
};
use crate::held::{Held, Record};

/// How long to wait for one that has the name, but does not listen yet, or no more.
const BETWEEN: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 5_000_000,
};

/// The pair a supervisor belongs to.
#[derive(Debug)]
pub(super) struct Pair {
    name: String,
}

/// It is this one's turn to serve.
#[derive(Debug)]
pub(super) struct Turn {
    /// Where the standby is to come, as long as this one serves.
    pub(super) listener: plain::Listener,
    /// What the other one held when it died; `None` if there was none.
    pub(super) held: Option<Held<Arc<OwnedFd>>>,
}

/// Why a line to the other one is no longer followed.
enum Followed {
    Gone,
    Terminated,
}

impl Pair {
    /// `AMBIT_PAIR`: what the two have in common and nobody else in their network namespace has.
    pub(super) fn of(env: &Env) -> Option<Self> {
        let pair = env.get("AMBIT_PAIR").filter(|pair| !pair.is_empty())?;
        Some(Self {
            name: format!("ambit-node-proxy/{pair}"),
        })
    }

    /// Waits for the turn. `None` when told to end before it came.
    ///
    /// # Errors
    /// When the name cannot be used at all.
    pub(super) fn stand_by(&self, terminate: &UnixStream) -> anyhow::Result<Option<Turn>> {
        let mut held = None;
        loop {
            match plain::Listener::named(&self.name) {
                Ok(listener) => return Ok(Some(Turn { listener, held })),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => {
                    return Err(error).with_context(|| {
                        format!("cannot have the name {:?}: what is AMBIT_PAIR?", self.name)
                    });
                }
            }
            let other = match plain::connect_to_name(&self.name) {
                Ok(socket) => Link::new(socket),
                Err(error) => {
                    tracing::debug!(%error, "who has the name does not answer");
                    poll(&mut [PollFd::new(terminate, PollFlags::IN)], Some(&BETWEEN))?;
                    if drain(terminate) > 0 {
                        return Ok(None);
                    }
                    continue;
                }
            };
            match follow(other, &mut held, terminate)? {
                Followed::Gone => {}
                Followed::Terminated => return Ok(None),
            }
        }
    }
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
                let holding = if all { held.as_mut() } else { None }.unwrap_or(&mut told);
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
        match poll(&mut fds, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}
