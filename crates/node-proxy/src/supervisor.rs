//! The process that outlives the proxy: it holds the pods' network namespaces and listening sockets,
//! runs the proxy proper as its worker, and starts a new one as soon as the worker dies. Connections
//! opened meanwhile wait in the kernel's queues.
//!
//! It also holds what a worker keeps for the next one, unread: see [`crate::journal`]. It reads nothing
//! from the network, needs no privilege of its own, and has neither runtime nor threads but the log's.
//! At a rollout it hands the pods to the supervisor of the new proxy, which connects to a socket beside
//! the node agent's; see [`crate::held`] for what is said, `state` for what is done. Should it die itself,
//! its whole container with it, a [`standby`] goes on.

mod links;
mod standby;
mod state;

use std::{
    fs::File,
    io::{self, Read as _},
    os::{
        fd::OwnedFd,
        unix::{net::UnixStream, process::CommandExt},
    },
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::Instant,
};

use ambit_rt::Env;
use ambit_sys::seqpacket::plain;
use anyhow::Context as _;
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait},
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use links::{Heard, Link};
use standby::{Pair, Turn};
use state::{Effect, Ended, Event, Supervisor};

/// The argument that makes a process the worker.
pub const WORKER_ARGUMENT: &str = "worker";

/// A descriptor held; the clones are one.
type Held = Arc<OwnedFd>;

/// Runs until the worker has ended for good; returns its exit code.
///
/// # Errors
/// When the process cannot start.
pub fn run(env: &Env) -> anyhow::Result<u8> {
    let _logs = ambit_rt::logging::init(env).context("cannot set up logging")?;
    ambit_rt::limits::raise_open_files();
    if let Err(error) = ambit_sys::privileges::lay_down() {
        tracing::debug!(%error, "cannot lay the capabilities down");
    }
    let signals = Signals::follow().context("cannot follow signals")?;
    let pair = match Pair::of(env) {
        Some(pair) => match pair.stand_by(&signals.terminate)? {
            Some(turn) => Some(turn),
            None => return Ok(0),
        },
        None => None,
    };
    let code = Process::new(signals, handover_path(env), pair).run();
    ambit_rt::logging::flush(std::time::Duration::from_secs(1));
    code
}

/// Where a successor finds its predecessor: a directory that both see.
fn handover_path(env: &Env) -> PathBuf {
    env.get("AMBIT_HANDOVER_UDS")
        .filter(|path| !path.is_empty())
        .map_or_else(
            || crate::config::inpod_uds(env).with_file_name("ambit-handover.sock"),
            PathBuf::from,
        )
}

/// Signals as bytes in a pipe.
#[derive(Debug)]
struct Signals {
    children: UnixStream,
    terminate: UnixStream,
}

impl Signals {
    fn follow() -> io::Result<Self> {
        let pipe = |signals: &[i32]| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
            }
            Ok(read)
        };
        Ok(Self {
            children: pipe(&[SIGCHLD])?,
            terminate: pipe(&[SIGTERM, SIGINT])?,
        })
    }
}

/// Waits until one of them may have something to say, a signal came, or the time is over.
fn wait_for(fds: &mut [PollFd<'_>], timeout: Option<&Timespec>) -> io::Result<()> {
    match poll(fds, timeout) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// How many bytes wait in a pipe.
fn drain(mut pipe: &UnixStream) -> usize {
    let mut buffer = [0; 64];
    pipe.read(&mut buffer).unwrap_or(0)
}

#[derive(Debug)]
struct Process {
    state: Supervisor<Held>,
    signals: Signals,
    path: PathBuf,
    /// Where successors come.
    listener: Option<plain::Listener>,
    /// Where the standby comes, and what keeps it one.
    pair: Option<(plain::Listener, File)>,
    worker: Option<(Pid, Link)>,
    predecessor: Option<Link>,
    successor: Option<Link>,
    standby: Option<Link>,
    exit: Option<u8>,
}

impl Process {
    fn new(signals: Signals, path: PathBuf, turn: Option<Turn>) -> Self {
        let (pair, taken_over) = match turn {
            Some(Turn {
                listener,
                held,
                lock,
            }) => (Some((listener, lock)), held),
            None => (None, None),
        };
        Self {
            state: Supervisor::new(taken_over, Instant::now()),
            signals,
            path,
            listener: None,
            pair,
            worker: None,
            predecessor: None,
            successor: None,
            standby: None,
            exit: None,
        }
    }

    fn run(mut self) -> anyhow::Result<u8> {
        // Whoever listened there before us is our predecessor; from now on we are the one to find.
        self.predecessor = plain::connect_to(&self.path).ok().map(Link::new);
        match plain::Listener::bind(&self.path) {
            Ok(listener) => self.listener = Some(listener),
            Err(error) => tracing::warn!(
                path = %self.path.display(), %error,
                "a successor will not be able to take over: new connections may fail at a rollout"
            ),
        }
        let predecessor = self.predecessor.is_some();
        if predecessor {
            tracing::info!("taking over from the node proxy that runs");
        }
        self.event(Event::Begin { predecessor });
        loop {
            if let Some(code) = self.exit {
                return Ok(code);
            }
            self.wait().context("cannot wait for events")?;
            self.look();
        }
    }

    /// Waits until something may have happened.
    fn wait(&self) -> io::Result<()> {
        let links = [
            self.worker.as_ref().map(|(_, link)| link),
            self.predecessor.as_ref(),
            self.successor.as_ref(),
            self.standby.as_ref(),
        ];
        let mut fds: Vec<PollFd<'_>> = vec![
            PollFd::new(&self.signals.children, PollFlags::IN),
            PollFd::new(&self.signals.terminate, PollFlags::IN),
        ];
        let listeners = self.listener.iter().chain(self.pair());
        fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(links.into_iter().flatten().filter_map(Link::interest));
        let timeout = self.state.deadline().map(|deadline| {
            let wait = deadline.saturating_duration_since(Instant::now());
            Timespec::try_from(wait).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            })
        });
        wait_for(&mut fds, timeout.as_ref())
    }

    /// Takes whatever has happened. What the worker said before it died is heard before its death.
    fn look(&mut self) {
        self.hear_worker();
        while let Some(heard) = self.predecessor.as_mut().map(Link::hear) {
            match heard {
                Heard::Record(record, fd) => {
                    self.event(Event::FromPredecessor(record, fd.map(Arc::new)));
                }
                Heard::Nothing => break,
                Heard::End => {
                    self.predecessor = None;
                    self.event(Event::PredecessorGone);
                }
            }
        }
        while let Some(heard) = self.successor.as_mut().map(Link::hear) {
            match heard {
                Heard::Record(record, _) => self.event(Event::FromSuccessor(record)),
                Heard::Nothing => break,
                Heard::End => {
                    self.successor = None;
                    self.event(Event::SuccessorGone);
                }
            }
        }
        // It has nothing to say.
        while let Some(heard) = self.standby.as_mut().map(Link::hear) {
            match heard {
                Heard::Record(..) => {}
                Heard::Nothing => break,
                Heard::End => {
                    self.standby = None;
                    self.event(Event::StandbyGone);
                }
            }
        }
        self.accept();
        for _ in 0..drain(&self.signals.terminate) {
            self.event(Event::Terminate);
        }
        if drain(&self.signals.children) > 0 {
            self.reap();
        }
        if self
            .state
            .deadline()
            .is_some_and(|due| due <= Instant::now())
        {
            self.event(Event::Tick);
        }
        let worker = self.worker.as_mut().map(|(_, link)| link);
        let links = [
            worker,
            self.predecessor.as_mut(),
            self.successor.as_mut(),
            self.standby.as_mut(),
        ];
        for link in links.into_iter().flatten() {
            link.flush();
        }
    }

    fn hear_worker(&mut self) {
        while let Some(heard) = self.worker.as_mut().map(|(_, link)| link.hear()) {
            match heard {
                Heard::Record(record, fd) => {
                    self.event(Event::FromWorker(record, fd.map(Arc::new)));
                }
                // Its end is told by the kernel.
                Heard::Nothing | Heard::End => break,
            }
        }
    }

    fn pair(&self) -> Option<&plain::Listener> {
        self.pair.as_ref().map(|(listener, _lock)| listener)
    }

    fn accept(&mut self) {
        while let Some(socket) = accepted(self.listener.as_ref()) {
            tracing::info!(
                pods = self.state.pods(),
                "another node proxy takes over: handing it the pods' sockets"
            );
            self.successor = Some(Link::new(socket));
            self.event(Event::Successor);
        }
        while let Some(socket) = accepted(self.pair()) {
            tracing::info!(pods = self.state.pods(), "a standby is there");
            self.standby = Some(Link::new(socket));
            self.event(Event::Standby);
        }
    }

    /// Collects every process that ended: as the first of a container, also those nobody else waits
    /// for.
    fn reap(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if self.worker.as_ref().is_some_and(|(of, _)| *of == pid) {
                self.hear_worker();
                self.worker = None;
                self.event(Event::Ended(ended(status)));
            }
        }
    }

    fn event(&mut self, event: Event<Held>) {
        let effects = self.state.on_event(event, Instant::now());
        for effect in effects {
            match effect {
                Effect::Start => match start() {
                    Ok(worker) => self.worker = Some(worker),
                    Err(error) => {
                        tracing::error!(%error, "cannot start the worker");
                        self.event(Event::Ended(Ended::Code(126)));
                        return;
                    }
                },
                Effect::ToWorker(record, fd) => {
                    if let Some((_, link)) = &mut self.worker {
                        link.say(&record, fd);
                    }
                }
                Effect::ToPredecessor(record) => {
                    if let Some(link) = &mut self.predecessor {
                        link.say(&record, None);
                    }
                }
                Effect::ToSuccessor(record, fd) => {
                    if let Some(link) = &mut self.successor {
                        link.say(&record, fd);
                    }
                }
                Effect::ToStandby(record, fd) => {
                    if let Some(link) = &mut self.standby {
                        link.say(&record, fd);
                    }
                }
                Effect::Terminate => {
                    if let Some((pid, _)) = &self.worker
                        && let Err(error) = kill_process(*pid, Signal::TERM)
                    {
                        tracing::error!(%error, "cannot tell the worker to end");
                    }
                }
                Effect::Report { ended, wait } => tracing::error!(
                    ?ended,
                    ?wait,
                    pods = self.state.pods(),
                    "the proxy died; its open connections are lost, new ones wait for the next"
                ),
                Effect::Odd(what) => tracing::error!(what, "heard something that does not fit"),
                Effect::Exit(code) => self.exit = Some(code),
            }
        }
    }
}

/// The next line of another supervisor that waits to be accepted.
fn accepted(listener: Option<&plain::Listener>) -> Option<OwnedFd> {
    match listener?.accept() {
        Ok(socket) => Some(socket),
        Err(error) => {
            if error.kind() != io::ErrorKind::WouldBlock {
                tracing::warn!(%error, "cannot accept the line of another node proxy");
            }
            None
        }
    }
}

fn ended(status: WaitStatus) -> Ended {
    let small = |number: i32| u8::try_from(number).unwrap_or(1);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => Ended::Code(small(code)),
        (None, Some(signal)) => Ended::Signal(small(signal)),
        (None, None) => Ended::Code(1),
    }
}

/// Starts this very program as the worker. The line to it is its standard input; a group of its own
/// keeps a terminal's signals from coming twice.
fn start() -> io::Result<(Pid, Link)> {
    let (ours, theirs) = plain::pair()?;
    let name = std::env::args_os().next();
    let name = name.unwrap_or_else(|| "ambit-node-proxy".into());
    let child = Command::new("/proc/self/exe")
        .arg0(name)
        .arg(WORKER_ARGUMENT)
        .stdin(Stdio::from(theirs))
        .process_group(0)
        .spawn()?;
    // Collected by `reap`, as every other process.
    Ok((Pid::from_child(&child), Link::new(ours)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_handover_socket_lies_beside_the_agents() {
        let env = Env::from_pairs([("INPOD_UDS", "/run/x/ztunnel.sock")]);
        assert_eq!(
            handover_path(&env),
            PathBuf::from("/run/x/ambit-handover.sock")
        );
        let env = Env::from_pairs([("AMBIT_HANDOVER_UDS", "/elsewhere")]);
        assert_eq!(handover_path(&env), PathBuf::from("/elsewhere"));
    }
}
