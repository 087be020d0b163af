//! Process 1 of a container: holds descriptors, and runs a worker.
//!
//! It reads nothing but the small records of [`crate::record`], from its own worker and from other
//! supervisors, over sockets that only root can open; it has neither runtime nor threads except for
//! logging, and needs no privilege of its own. `state` decides what it does.

use std::{
    ffi::OsString,
    fs::File,
    io,
    os::unix::{net::UnixStream, process::CommandExt},
    path::Path,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_sys::seqpacket::plain;
use rustix::{
    event::{PollFd, PollFlags, Timespec},
    process::{Pid, Signal, WaitOptions, WaitStatus, kill_process, wait},
};
use signal_hook::consts::{SIGCHLD, SIGINT, SIGTERM};

use crate::{
    SupervisorSockets,
    error::RunError,
    holder::Holder,
    links::{Descriptor, Link, accept_pending},
    record::Record,
    standby::{self, ActiveRole},
    state::{Effect, Event, State, WorkerExit},
    waiting::{drain_pipe, poll_with_timeout},
};

/// Interval of attempts to connect to the holder, the process that stores copies of the items, while it does not
/// respond.
const HOLDER_RETRY_INTERVAL: Duration = Duration::from_millis(500);

/// Program that is run as the worker: this executable, with other arguments.
#[derive(Clone, Debug)]
pub struct WorkerProgram {
    /// Process name in process lists.
    pub name: &'static str,
    /// The worker's arguments.
    pub arguments: Vec<OsString>,
    /// Sockets on which the supervisor reaches its successor, its standby and its holder.
    pub sockets: SupervisorSockets,
}

/// Runs the supervisor until its worker has exited for good; returns the exit code.
///
/// # Errors
/// When the process cannot start.
pub fn run(program: WorkerProgram) -> Result<u8, RunError> {
    ambit_rt::limits::raise_open_files();
    if let Err(error) = ambit_sys::privileges::drop_all_capabilities() {
        tracing::debug!(%error, "cannot lay the capabilities down");
    }
    let signals = SignalPipes::install().map_err(RunError::SignalHandlers)?;
    let turn = match &program.sockets.standby_pair {
        Some(path) => match standby::wait_until_active(path, &signals.terminations)? {
            Some(turn) => Some(turn),
            None => return Ok(0),
        },
        None => None,
    };
    let code = SupervisorProcess::new(signals, program, turn).run();
    ambit_rt::logging::flush(Duration::from_secs(1));
    code
}

/// Read ends of the pipes into which the signal handlers write a byte for each signal.
#[derive(Debug)]
struct SignalPipes {
    child_exits: UnixStream,
    terminations: UnixStream,
}

impl SignalPipes {
    fn install() -> io::Result<Self> {
        let pipe = |signals: &[i32]| -> io::Result<UnixStream> {
            let (read, write) = UnixStream::pair()?;
            read.set_nonblocking(true)?;
            for signal in signals {
                signal_hook::low_level::pipe::register(*signal, write.try_clone()?)?;
            }
            Ok(read)
        };
        Ok(Self {
            child_exits: pipe(&[SIGCHLD])?,
            terminations: pipe(&[SIGTERM, SIGINT])?,
        })
    }
}

#[derive(Debug)]
struct SupervisorProcess {
    state: State<Descriptor>,
    signals: SignalPipes,
    program: WorkerProgram,
    /// Listener at which successors connect, [`SupervisorSockets::handover`].
    successor_listener: Option<plain::Listener>,
    /// Socket at which the standby connects, and the file lock that makes this process the active supervisor of the
    /// pair.
    standby_listener: Option<(plain::Listener, File)>,
    worker: Option<(Pid, Link)>,
    predecessor: Option<Link>,
    successor: Option<Link>,
    standby: Option<Link>,
    holder: Option<Link>,
    /// Time of the next attempt to connect to the holder; `None` while connected, or without a holder.
    next_holder_attempt: Option<Instant>,
    /// Store of the items of supervisors in other containers, if this process is a holder for them.
    hosted_holder: Option<Holder>,
    exit_code: Option<u8>,
}

impl SupervisorProcess {
    fn new(signals: SignalPipes, program: WorkerProgram, turn: Option<ActiveRole>) -> Self {
        let (pair, taken_over) = match turn {
            Some(ActiveRole {
                listener,
                inherited_items: held,
                lock,
            }) => (Some((listener, lock)), held),
            None => (None, None),
        };
        Self {
            state: State::new(taken_over, Instant::now()),
            signals,
            successor_listener: None,
            standby_listener: pair,
            worker: None,
            predecessor: None,
            successor: None,
            standby: None,
            holder: None,
            next_holder_attempt: None,
            hosted_holder: program
                .sockets
                .hosted_holder
                .as_deref()
                .and_then(Holder::open),
            program,
            exit_code: None,
        }
    }

    fn run(mut self) -> Result<u8, RunError> {
        if let Some(path) = self.program.sockets.handover.clone() {
            // The process that listened there before is the predecessor; from now on this process
            // is found there.
            self.predecessor = plain::connect_to(&path).ok().map(Link::new);
            self.listen(&path);
        }
        let predecessor = self.predecessor.is_some();
        if predecessor {
            tracing::info!("taking over from the one that runs");
        }
        let holder = self.find_holder();
        self.handle_event(Event::Started {
            predecessor,
            holder,
        });
        loop {
            if let Some(code) = self.exit_code {
                return Ok(code);
            }
            self.wait().map_err(RunError::Poll)?;
            self.process_events();
        }
    }

    fn listen(&mut self, path: &Path) {
        match plain::Listener::bind(path) {
            Ok(listener) => self.successor_listener = Some(listener),
            Err(error) => tracing::warn!(
                path = %path.display(), %error,
                "a successor will not be able to take over: new connections may fail at a rollout"
            ),
        }
    }

    /// Connects to the holder, and returns whether the holder accepted the connection.
    fn find_holder(&mut self) -> bool {
        let Some(path) = &self.program.sockets.holder else {
            return false;
        };
        self.holder = plain::connect_to(path).ok().map(Link::new);
        self.next_holder_attempt = match self.holder {
            Some(_) => None,
            None => Some(Instant::now() + HOLDER_RETRY_INTERVAL),
        };
        self.holder.is_some()
    }

    fn deadline(&self) -> Option<Instant> {
        self.state
            .deadline()
            .into_iter()
            .chain(self.next_holder_attempt)
            .chain(self.hosted_holder.as_ref().and_then(Holder::deadline))
            .min()
    }

    /// Blocks until a descriptor is readable, a signal arrives or a deadline passes.
    fn wait(&self) -> io::Result<()> {
        let links = [
            self.worker.as_ref().map(|(_, link)| link),
            self.predecessor.as_ref(),
            self.successor.as_ref(),
            self.standby.as_ref(),
            self.holder.as_ref(),
        ];
        let mut fds: Vec<PollFd<'_>> = vec![
            PollFd::new(&self.signals.child_exits, PollFlags::IN),
            PollFd::new(&self.signals.terminations, PollFlags::IN),
        ];
        let listeners = self
            .successor_listener
            .iter()
            .chain(self.standby_listener());
        fds.extend(listeners.map(|listener| PollFd::new(listener, PollFlags::IN)));
        fds.extend(links.into_iter().flatten().filter_map(Link::poll_fds));
        fds.extend(self.hosted_holder.iter().flat_map(Holder::poll_fds));
        let timeout = self.deadline().map(|deadline| {
            let wait = deadline.saturating_duration_since(Instant::now());
            Timespec::try_from(wait).unwrap_or(Timespec {
                tv_sec: 1,
                tv_nsec: 0,
            })
        });
        poll_with_timeout(&mut fds, timeout.as_ref())
    }

    /// Handles signals, connections and records that have arrived. The worker's last records are read before its death
    /// is handled.
    fn process_events(&mut self) {
        self.receive_from_worker();
        self.receive_from_link(
            |all| &mut all.predecessor,
            Event::FromPredecessor,
            || Event::PredecessorDisconnected,
        );
        let from_successor = |record, _fd| Event::FromSuccessor(record);
        if self.receive_from_link(
            |all| &mut all.successor,
            from_successor,
            || Event::SuccessorDisconnected,
        ) {
            self.listen_again();
        }
        // The standby sends no records.
        let from_standby = |_record, _fd| Event::Tick;
        self.receive_from_link(
            |all| &mut all.standby,
            from_standby,
            || Event::StandbyDisconnected,
        );
        if self.receive_from_link(
            |all| &mut all.holder,
            Event::FromHolder,
            || Event::HolderDisconnected,
        ) {
            self.next_holder_attempt = Some(Instant::now() + HOLDER_RETRY_INTERVAL);
        }
        let now = Instant::now();
        if self.next_holder_attempt.is_some_and(|due| due <= now) && self.find_holder() {
            self.handle_event(Event::HolderConnected);
        }
        if let Some(holder) = &mut self.hosted_holder {
            holder.process_events(now);
        }
        self.accept_connections();
        for _ in 0..drain_pipe(&self.signals.terminations) {
            self.handle_event(Event::Terminate);
        }
        if drain_pipe(&self.signals.child_exits) > 0 {
            self.reap_children();
        }
        if self.state.deadline().is_some_and(|due| due <= now) {
            self.handle_event(Event::Tick);
        }
        let worker = self.worker.as_mut().map(|(_, link)| link);
        let links = [
            worker,
            self.predecessor.as_mut(),
            self.successor.as_mut(),
            self.standby.as_mut(),
            self.holder.as_mut(),
        ];
        for link in links.into_iter().flatten() {
            link.flush();
        }
    }

    /// Receives records from a link, and returns whether the peer closed it.
    fn receive_from_link(
        &mut self,
        line: impl Fn(&mut Self) -> &mut Option<Link>,
        event_of: impl Fn(Record, Option<Descriptor>) -> Event<Descriptor>,
        gone: impl Fn() -> Event<Descriptor>,
    ) -> bool {
        let Some(link) = line(self) else {
            return false;
        };
        let (received, end) = link.receive_all();
        for (record, fd) in received {
            self.handle_event(event_of(record, fd.map(Arc::new)));
        }
        if end {
            *line(self) = None;
            self.handle_event(gone());
        }
        end
    }

    /// Listens for successors again if no process listens at the socket's path: a successor that has ended may have
    /// replaced and removed the socket's file.
    fn listen_again(&mut self) {
        if let Some(path) = self.program.sockets.handover.clone()
            && plain::connect_to(&path).is_err()
        {
            self.listen(&path);
        }
    }

    /// Receives records from the worker. The end of the link is ignored, since the death of the worker is reported by
    /// `SIGCHLD`.
    fn receive_from_worker(&mut self) {
        let received = self.worker.as_mut().map(|(_, link)| link.receive_all().0);
        for (record, fd) in received.into_iter().flatten() {
            self.handle_event(Event::FromWorker(record, fd.map(Arc::new)));
        }
    }

    fn standby_listener(&self) -> Option<&plain::Listener> {
        self.standby_listener
            .as_ref()
            .map(|(listener, _lock)| listener)
    }

    fn accept_connections(&mut self) {
        while let Some(socket) = accept_pending(self.successor_listener.as_ref()) {
            tracing::info!(
                held = self.state.item_count(),
                "another supervisor takes over: handing it the held descriptors"
            );
            self.successor = Some(Link::new(socket));
            self.handle_event(Event::SuccessorConnected);
        }
        while let Some(socket) = accept_pending(self.standby_listener()) {
            tracing::info!(held = self.state.item_count(), "a standby is connected");
            self.standby = Some(Link::new(socket));
            self.handle_event(Event::StandbyConnected);
        }
    }

    /// Reaps every exited child process, including adopted orphans, as process 1 of a container must.
    fn reap_children(&mut self) {
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            if self.worker.as_ref().is_some_and(|(of, _)| *of == pid) {
                self.receive_from_worker();
                self.worker = None;
                self.handle_event(Event::WorkerExited(worker_exit(status)));
            }
        }
    }

    fn handle_event(&mut self, event: Event<Descriptor>) {
        let effects = self.state.on_event(event, Instant::now());
        for effect in effects {
            match effect {
                Effect::StartWorker => match spawn_worker(&self.program) {
                    Ok(worker) => self.worker = Some(worker),
                    Err(error) => {
                        tracing::error!(%error, "cannot start the worker");
                        self.handle_event(Event::WorkerExited(WorkerExit::Code(126)));
                        return;
                    }
                },
                Effect::ToWorker(record, fd) => {
                    if let Some((_, link)) = &mut self.worker {
                        link.send(&record, fd);
                    }
                }
                Effect::ToPredecessor(record) => {
                    if let Some(link) = &mut self.predecessor {
                        link.send(&record, None);
                    }
                }
                Effect::ToSuccessor(record, fd) => {
                    if let Some(link) = &mut self.successor {
                        link.send(&record, fd);
                    }
                }
                Effect::ToStandby(record, fd) => {
                    if let Some(link) = &mut self.standby {
                        link.send(&record, fd);
                    }
                }
                Effect::ToHolder(record, fd) => {
                    if let Some(link) = &mut self.holder {
                        link.send(&record, fd);
                    }
                }
                Effect::TerminateWorker => {
                    if let Some((pid, _)) = &self.worker
                        && let Err(error) = kill_process(*pid, Signal::TERM)
                    {
                        tracing::error!(%error, "cannot send the worker a termination request");
                    }
                }
                Effect::LogWorkerExit { ended, wait } => tracing::error!(
                    ?ended,
                    ?wait,
                    held = self.state.item_count(),
                    "the worker died: its open connections are lost, new ones wait for the next"
                ),
                Effect::LogUnexpectedRecord(what) => {
                    tracing::error!(what, "received a record that does not fit")
                }
                Effect::Exit(code) => self.exit_code = Some(code),
            }
        }
    }
}

fn worker_exit(status: WaitStatus) -> WorkerExit {
    let small = |number: i32| u8::try_from(number).unwrap_or(1);
    match (status.exit_status(), status.terminating_signal()) {
        (Some(code), _) => WorkerExit::Code(small(code)),
        (None, Some(signal)) => WorkerExit::Signal(small(signal)),
        (None, None) => WorkerExit::Code(1),
    }
}

/// Starts this executable as the worker, with a socket to the supervisor as its standard input. The worker gets its own
/// process group, so that a terminal's signals reach it only through the supervisor.
fn spawn_worker(program: &WorkerProgram) -> io::Result<(Pid, Link)> {
    let (ours, theirs) = plain::pair()?;
    let name = std::env::args_os().next();
    let name = name.unwrap_or_else(|| program.name.into());
    let child = Command::new("/proc/self/exe")
        .arg0(name)
        .args(&program.arguments)
        .stdin(Stdio::from(theirs))
        .process_group(0)
        .spawn()?;
    // Reaped by `reap_children`, like every other process.
    Ok((Pid::from_child(&child), Link::new(ours)))
}
