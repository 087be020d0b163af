//! State machine of the supervisor: replaces a dead worker, sends everything to a successor,
//! forwards signals. Knows nothing of processes, sockets or clocks.
//!
//! At a rollout the new program gets the sockets from the old one, prepares, and reports when it
//! accepts connections; only then does the old one stop accepting. Both hold the very same sockets,
//! so no connection is lost between them, not even one that waits in the queue. An old program
//! terminated without a successor continues until one has connected, or its grace period ends.
//! Programs form a chain: a successor of a program that was itself still preparing also takes over
//! from that one's predecessor.
//!
//! A standby (see [`crate::has_standby`]) is sent all items and files, and every change of them; a
//! holder (see [`crate::holder`]) is sent the items by the supervisor that accepts connections.

use std::time::{Duration, Instant};

use crate::record::{AcceptCommand, Handover, Record};

/// Timeout for a predecessor or a holder to send its items.
const ITEMS_TIMEOUT: Duration = Duration::from_secs(2);
/// Minimum run time of a worker for an immediate restart after its crash.
const MIN_STABLE_RUN: Duration = Duration::from_millis(400);
/// Restart delay after the second of several quick crashes of the worker; it doubles with each further crash.
const INITIAL_RESTART_DELAY: Duration = Duration::from_millis(10);
/// Restart delay from which on the worker's stored files are suspected to cause its crashes, and are dropped.
const SUSPECT_FILES_DELAY: Duration = Duration::from_millis(40);
/// Maximum restart delay, however often a worker crashes.
const MAX_RESTART_DELAY: Duration = Duration::from_millis(500);

/// How the worker process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WorkerExit {
    /// The worker exited with this code.
    Code(u8),
    /// A signal of this number killed the worker.
    Signal(u8),
}

impl WorkerExit {
    /// Returns the supervisor's exit code for this end of its worker: the worker's code, or 128 plus the signal's
    /// number as in shells.
    fn code(self) -> u8 {
        match self {
            Self::Code(code) => code,
            Self::Signal(signal) => signal.saturating_add(128),
        }
    }
}

/// Event that the state machine of the supervisor handles.
#[derive(Debug)]
pub(crate) enum Event<F> {
    /// The supervisor started; `predecessor` and `holder` are whether the supervisor connected to such a process.
    Started {
        predecessor: bool,
        holder: bool,
    },
    FromWorker(Record, Option<F>),
    FromPredecessor(Record, Option<F>),
    PredecessorDisconnected,
    /// A successor connected to this supervisor; it replaces any earlier successor.
    SuccessorConnected,
    FromSuccessor(Record),
    SuccessorDisconnected,
    /// A standby connected to this supervisor; it replaces any earlier standby.
    StandbyConnected,
    StandbyDisconnected,
    /// The supervisor connected to a holder that had not responded before.
    HolderConnected,
    FromHolder(Record, Option<F>),
    HolderDisconnected,
    WorkerExited(WorkerExit),
    /// The process received a termination signal.
    Terminate,
    Tick,
}

/// Action that the state machine requests; the caller executes actions in order.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Effect<F> {
    /// Starts a worker; its stored items follow as [`Effect::ToWorker`].
    StartWorker,
    ToWorker(Record, Option<F>),
    ToPredecessor(Record),
    ToSuccessor(Record, Option<F>),
    ToStandby(Record, Option<F>),
    ToHolder(Record, Option<F>),
    /// Sends the worker a termination signal.
    TerminateWorker,
    /// Logs the death of a worker, and the delay before the next one starts.
    LogWorkerExit {
        ended: WorkerExit,
        wait: Duration,
    },
    /// Logs an error about a record that the peer must not send in this state.
    LogUnexpectedRecord(String),
    Exit(u8),
}

/// State of the link to the holder, the process that stores a copy of the items.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum HolderState {
    Disconnected,
    /// The holder is connected, but stores another supervisor's items, and is sent no changes.
    StoresOthersItems,
    /// The holder stores this supervisor's items, and is sent every change.
    StoresOwnItems,
}

#[derive(Debug)]
enum WorkerState {
    /// The supervisor waits for the items of its predecessor or of the holder, until this time at the latest.
    WaitingForItems(Instant),
    /// The worker has died, and is restarted at this time.
    WaitingForRestart(Instant),
    Running {
        since: Instant,
    },
}

/// State machine of a supervisor: replaces a dead worker, sends everything to a successor, and forwards signals.
#[derive(Debug)]
pub(crate) struct State<F> {
    handover: Handover<F>,
    worker: WorkerState,
    /// Whether a worker has ever started, so that its death is a crash rather than a configuration
    /// error.
    has_worker_started: bool,
    /// Restart delay that applies when the worker dies next.
    restart_delay: Duration,
    /// Whether a predecessor exists and still accepts the connections.
    predecessor_accepts: bool,
    has_predecessor: bool,
    /// Whether a successor accepts the connections in place of this supervisor's worker.
    is_superseded: bool,
    has_successor: bool,
    has_standby: bool,
    holder: HolderState,
    /// Whether a worker has reported that it accepts connections.
    worker_accepts: bool,
    is_terminating: bool,
}

impl<F: Clone> State<F> {
    /// Creates the state machine with the items that the process took over as a standby; `None` if it was no standby.
    pub(crate) fn new(taken_over: Option<Handover<F>>, now: Instant) -> Self {
        Self {
            // A configuration that started there can start here: ports may be in use for another
            // moment only.
            has_worker_started: taken_over.is_some(),
            handover: taken_over.unwrap_or_default(),
            worker: WorkerState::WaitingForItems(now),
            restart_delay: Duration::ZERO,
            predecessor_accepts: false,
            has_predecessor: false,
            is_superseded: false,
            has_successor: false,
            has_standby: false,
            holder: HolderState::Disconnected,
            worker_accepts: false,
            is_terminating: false,
        }
    }

    /// Returns when the next [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.worker {
            WorkerState::WaitingForItems(at) | WorkerState::WaitingForRestart(at) => Some(at),
            WorkerState::Running { .. } => None,
        }
    }

    /// Number of stored items.
    pub(crate) fn item_count(&self) -> usize {
        self.handover.len()
    }

    pub(crate) fn on_event(&mut self, event: Event<F>, now: Instant) -> Vec<Effect<F>> {
        let mut effects = Vec::new();
        match event {
            Event::Started {
                predecessor,
                holder,
            } => {
                self.has_predecessor = predecessor;
                self.predecessor_accepts = predecessor;
                if holder {
                    self.holder = HolderState::StoresOthersItems;
                }
                if predecessor {
                    // The predecessor's items are more current than a standby's.
                    self.handover.clear();
                }
                if predecessor || holder && self.handover.is_empty() {
                    self.worker = WorkerState::WaitingForItems(now + ITEMS_TIMEOUT);
                } else {
                    self.start_worker(now, &mut effects);
                }
            }
            Event::FromWorker(record, fd) => self.on_worker_record(record, fd, &mut effects),
            Event::FromPredecessor(record, fd) => {
                if self.take_over_item(&record, fd, &mut effects) {
                    self.start_worker(now, &mut effects);
                }
            }
            Event::PredecessorDisconnected => self.on_predecessor_disconnected(now, &mut effects),
            Event::SuccessorConnected => {
                self.has_successor = true;
                let records = self.handover.records().into_iter();
                effects.extend(records.map(|(record, fd)| Effect::ToSuccessor(record, fd)));
                effects.push(Effect::ToSuccessor(
                    Record::Accept(AcceptCommand::OnceReady),
                    None,
                ));
                self.cancel_succession(&mut effects);
            }
            Event::FromSuccessor(Record::Accepting) if self.has_successor => {
                if !std::mem::replace(&mut self.is_superseded, true) {
                    self.on_holder_superseded();
                    self.send_to_worker(Record::Accept(AcceptCommand::Paused), &mut effects);
                    // The predecessor of this program may still accept connections, too.
                    self.take_over_connections(&mut effects);
                }
            }
            Event::FromSuccessor(_) => {}
            Event::SuccessorDisconnected => {
                self.has_successor = false;
                self.cancel_succession(&mut effects);
            }
            Event::StandbyConnected => {
                self.has_standby = true;
                let records = self.handover.all_records();
                effects.extend(records.map(|(record, fd)| Effect::ToStandby(record, fd)));
                if self.has_worker_started {
                    effects.push(Self::standby_complete_record());
                }
            }
            Event::StandbyDisconnected => self.has_standby = false,
            Event::HolderConnected => {
                self.holder = HolderState::StoresOthersItems;
                self.send_to_holder(&mut effects);
            }
            Event::FromHolder(record, fd) => {
                if !self.has_predecessor && self.take_over_item(&record, fd, &mut effects) {
                    self.start_worker(now, &mut effects);
                }
            }
            Event::HolderDisconnected => {
                self.holder = HolderState::Disconnected;
                if !self.has_predecessor && matches!(self.worker, WorkerState::WaitingForItems(_)) {
                    self.handover.discard_incomplete();
                    self.start_worker(now, &mut effects);
                }
            }
            Event::WorkerExited(ended) => self.on_worker_exit(ended, now, &mut effects),
            Event::Terminate => {
                self.is_terminating = true;
                match self.worker {
                    WorkerState::Running { .. } => effects.push(Effect::TerminateWorker),
                    WorkerState::WaitingForItems(_) | WorkerState::WaitingForRestart(_) => {
                        effects.push(Effect::Exit(0))
                    }
                }
            }
            Event::Tick => match self.worker {
                WorkerState::WaitingForItems(at) | WorkerState::WaitingForRestart(at)
                    if at <= now =>
                {
                    self.start_worker(now, &mut effects);
                }
                _ => {}
            },
        }
        effects
    }

    fn start_worker(&mut self, now: Instant, effects: &mut Vec<Effect<F>>) {
        self.worker = WorkerState::Running { since: now };
        effects.push(Effect::StartWorker);
        let records = self.handover.all_records();
        effects.extend(records.map(|(record, fd)| Effect::ToWorker(record, fd)));
        let accept = if self.is_superseded {
            AcceptCommand::Paused
        } else if self.predecessor_accepts {
            AcceptCommand::OnceReady
        } else {
            AcceptCommand::Now
        };
        self.send_to_worker(Record::Accept(accept), effects);
    }

    fn send_to_worker(&self, record: Record, effects: &mut Vec<Effect<F>>) {
        if matches!(self.worker, WorkerState::Running { .. }) {
            effects.push(Effect::ToWorker(record, None));
        }
    }

    fn on_worker_record(&mut self, record: Record, fd: Option<F>, effects: &mut Vec<Effect<F>>) {
        self.apply_and_forward(&record, fd, effects);
        match record {
            Record::WorkerStarted => {
                if !std::mem::replace(&mut self.has_worker_started, true) && self.has_standby {
                    effects.push(Self::standby_complete_record());
                }
                if self.is_terminating {
                    effects.push(Effect::TerminateWorker);
                }
            }
            Record::Accepting => {
                self.worker_accepts = true;
                self.take_over_connections(effects);
                self.send_to_holder(effects);
            }
            _ => {}
        }
    }

    fn take_over_connections(&mut self, effects: &mut Vec<Effect<F>>) {
        self.predecessor_accepts = false;
        if self.has_predecessor {
            effects.push(Effect::ToPredecessor(Record::Accepting));
        }
    }

    /// Stores an item from the predecessor or the holder, unless the worker has started. Returns whether the record
    /// marks the end of the items.
    fn take_over_item(
        &mut self,
        record: &Record,
        fd: Option<F>,
        effects: &mut Vec<Effect<F>>,
    ) -> bool {
        // Too late otherwise: the worker has received other items.
        let waiting = matches!(self.worker, WorkerState::WaitingForItems(_));
        if waiting {
            self.apply_and_forward(record, fd, effects);
        }
        waiting && matches!(record, Record::Accept(_))
    }

    /// Sends all items to the holder if this supervisor accepts the connections and the holder does not store its items
    /// yet.
    fn send_to_holder(&mut self, effects: &mut Vec<Effect<F>>) {
        if self.holder == HolderState::StoresOthersItems
            && self.worker_accepts
            && !self.is_superseded
        {
            self.holder = HolderState::StoresOwnItems;
            let records = self.handover.records().into_iter();
            effects.extend(records.map(|(record, fd)| Effect::ToHolder(record, fd)));
            effects.push(Effect::ToHolder(
                Record::Accept(AcceptCommand::Paused),
                None,
            ));
        }
    }

    fn on_holder_superseded(&mut self) {
        if self.holder == HolderState::StoresOwnItems {
            self.holder = HolderState::StoresOthersItems;
        }
    }

    /// Returns the record that makes the standby's copy of the items valid. Sent only after a worker has started, so
    /// that the standby does not retry items that crash workers.
    fn standby_complete_record() -> Effect<F> {
        Effect::ToStandby(Record::Accept(AcceptCommand::Paused), None)
    }

    /// Applies a record to the stored items and files, and forwards the change to the holder and the standby.
    fn apply_and_forward(&mut self, record: &Record, fd: Option<F>, effects: &mut Vec<Effect<F>>) {
        let whole = match self.handover.apply(record, fd.clone()) {
            Ok(whole) => whole,
            Err(error) => return effects.push(Effect::LogUnexpectedRecord(error.to_string())),
        };
        let is_file = matches!(record, Record::StoreFile(_));
        let records = match record {
            Record::UpdateMetadata { .. } | Record::RemoveItem { .. } | Record::StoreFile(_) => {
                vec![(record.clone(), fd)]
            }
            _ => whole.map_or_else(Vec::new, |key| self.handover.records_of(&key)),
        };
        for (record, fd) in records {
            if self.holder == HolderState::StoresOwnItems && !is_file {
                effects.push(Effect::ToHolder(record.clone(), fd.clone()));
            }
            if self.has_standby {
                effects.push(Effect::ToStandby(record, fd));
            }
        }
    }

    fn on_predecessor_disconnected(&mut self, now: Instant, effects: &mut Vec<Effect<F>>) {
        self.has_predecessor = false;
        self.handover.discard_incomplete();
        let accepted = std::mem::replace(&mut self.predecessor_accepts, false);
        match self.worker {
            WorkerState::WaitingForItems(_) => self.start_worker(now, effects),
            WorkerState::Running { .. } if accepted => {
                self.send_to_worker(Record::Accept(AcceptCommand::Now), effects)
            }
            WorkerState::Running { .. } | WorkerState::WaitingForRestart(_) => {}
        }
    }

    /// Tells the worker to accept connections again after the successor is gone. A terminating worker has closed its
    /// sockets already, so its supervisor stays superseded.
    fn cancel_succession(&mut self, effects: &mut Vec<Effect<F>>) {
        if self.is_superseded && !self.is_terminating {
            self.is_superseded = false;
            self.send_to_worker(Record::Accept(AcceptCommand::Now), effects);
            self.send_to_holder(effects);
        }
    }

    fn on_worker_exit(&mut self, ended: WorkerExit, now: Instant, effects: &mut Vec<Effect<F>>) {
        let WorkerState::Running { since } = self.worker else {
            return;
        };
        self.handover.discard_incomplete();
        let by_itself = matches!(ended, WorkerExit::Code(_));
        let wrong_configuration = !self.has_worker_started && by_itself;
        // Killed without a successor, the worker would leave its pods without a proxy.
        let done = self.is_terminating && (by_itself || self.is_superseded);
        if done || wrong_configuration || ended == WorkerExit::Code(0) {
            effects.push(Effect::Exit(ended.code()));
            return;
        }
        if now.saturating_duration_since(since) >= MIN_STABLE_RUN {
            self.restart_delay = Duration::ZERO;
        }
        let wait = self.restart_delay;
        self.restart_delay = (wait * 2).clamp(INITIAL_RESTART_DELAY, MAX_RESTART_DELAY);
        if wait >= SUSPECT_FILES_DELAY {
            self.handover.forget_files();
        }
        effects.push(Effect::LogWorkerExit { ended, wait });
        if wait.is_zero() {
            self.start_worker(now, effects);
        } else {
            self.worker = WorkerState::WaitingForRestart(now + wait);
        }
    }
}

#[cfg(test)]
mod tests;
