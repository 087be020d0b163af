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
//! A standby (see [`crate::standby`]) is sent all items and files, and every change of them; a
//! holder (see [`crate::holder`]) is sent the items by the supervisor that accepts connections.

use std::time::{Duration, Instant};

use crate::record::{Accept, Handover, Record};

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
enum Worker {
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
    worker: Worker,
    /// Whether a worker has ever started, so that its death is a crash rather than a configuration
    /// error.
    ever_started: bool,
    /// Restart delay that applies when the worker dies next.
    wait: Duration,
    /// Whether a predecessor exists and still accepts the connections.
    predecessor_accepts: bool,
    predecessor: bool,
    /// Whether a successor accepts the connections in place of this supervisor's worker.
    superseded: bool,
    successor: bool,
    standby: bool,
    holder: HolderState,
    /// Whether a worker has reported that it accepts connections.
    accepting: bool,
    ending: bool,
}

impl<F: Clone> State<F> {
    /// Creates the state machine with the items that the process took over as a standby; `None` if it was no standby.
    pub(crate) fn new(taken_over: Option<Handover<F>>, now: Instant) -> Self {
        Self {
            // A configuration that started there can start here: ports may be in use for another
            // moment only.
            ever_started: taken_over.is_some(),
            handover: taken_over.unwrap_or_default(),
            worker: Worker::WaitingForItems(now),
            wait: Duration::ZERO,
            predecessor_accepts: false,
            predecessor: false,
            superseded: false,
            successor: false,
            standby: false,
            holder: HolderState::Disconnected,
            accepting: false,
            ending: false,
        }
    }

    /// Returns when the next [`Event::Tick`] is due.
    pub(crate) fn deadline(&self) -> Option<Instant> {
        match self.worker {
            Worker::WaitingForItems(at) | Worker::WaitingForRestart(at) => Some(at),
            Worker::Running { .. } => None,
        }
    }

    /// Number of stored items.
    pub(crate) fn items(&self) -> usize {
        self.handover.len()
    }

    pub(crate) fn on_event(&mut self, event: Event<F>, now: Instant) -> Vec<Effect<F>> {
        let mut effects = Vec::new();
        match event {
            Event::Started {
                predecessor,
                holder,
            } => {
                self.predecessor = predecessor;
                self.predecessor_accepts = predecessor;
                if holder {
                    self.holder = HolderState::StoresOthersItems;
                }
                if predecessor {
                    // The predecessor's items are more current than a standby's.
                    self.handover.clear();
                }
                if predecessor || holder && self.handover.is_empty() {
                    self.worker = Worker::WaitingForItems(now + ITEMS_TIMEOUT);
                } else {
                    self.start(now, &mut effects);
                }
            }
            Event::FromWorker(record, fd) => self.on_worker_record(record, fd, &mut effects),
            Event::FromPredecessor(record, fd) => {
                if self.take_over(&record, fd, &mut effects) {
                    self.start(now, &mut effects);
                }
            }
            Event::PredecessorDisconnected => self.predecessor_gone(now, &mut effects),
            Event::SuccessorConnected => {
                self.successor = true;
                let records = self.handover.records().into_iter();
                effects.extend(records.map(|(record, fd)| Effect::ToSuccessor(record, fd)));
                effects.push(Effect::ToSuccessor(Record::Accept(Accept::WhenReady), None));
                self.cancel_succession(&mut effects);
            }
            Event::FromSuccessor(Record::Accepting) if self.successor => {
                if !std::mem::replace(&mut self.superseded, true) {
                    self.holder_is_anothers();
                    self.send(Record::Accept(Accept::Paused), &mut effects);
                    // The predecessor of this program may still accept connections, too.
                    self.take_from_predecessor(&mut effects);
                }
            }
            Event::FromSuccessor(_) => {}
            Event::SuccessorDisconnected => {
                self.successor = false;
                self.cancel_succession(&mut effects);
            }
            Event::StandbyConnected => {
                self.standby = true;
                let records = self.handover.all_records();
                effects.extend(records.map(|(record, fd)| Effect::ToStandby(record, fd)));
                if self.ever_started {
                    effects.push(Self::standby_complete());
                }
            }
            Event::StandbyDisconnected => self.standby = false,
            Event::HolderConnected => {
                self.holder = HolderState::StoresOthersItems;
                self.send_to_holder(&mut effects);
            }
            Event::FromHolder(record, fd) => {
                if !self.predecessor && self.take_over(&record, fd, &mut effects) {
                    self.start(now, &mut effects);
                }
            }
            Event::HolderDisconnected => {
                self.holder = HolderState::Disconnected;
                if !self.predecessor && matches!(self.worker, Worker::WaitingForItems(_)) {
                    self.handover.discard_incomplete();
                    self.start(now, &mut effects);
                }
            }
            Event::WorkerExited(ended) => self.worker_ended(ended, now, &mut effects),
            Event::Terminate => {
                self.ending = true;
                match self.worker {
                    Worker::Running { .. } => effects.push(Effect::TerminateWorker),
                    Worker::WaitingForItems(_) | Worker::WaitingForRestart(_) => {
                        effects.push(Effect::Exit(0))
                    }
                }
            }
            Event::Tick => match self.worker {
                Worker::WaitingForItems(at) | Worker::WaitingForRestart(at) if at <= now => {
                    self.start(now, &mut effects);
                }
                _ => {}
            },
        }
        effects
    }

    fn start(&mut self, now: Instant, effects: &mut Vec<Effect<F>>) {
        self.worker = Worker::Running { since: now };
        effects.push(Effect::StartWorker);
        let records = self.handover.all_records();
        effects.extend(records.map(|(record, fd)| Effect::ToWorker(record, fd)));
        let accept = if self.superseded {
            Accept::Paused
        } else if self.predecessor_accepts {
            Accept::WhenReady
        } else {
            Accept::Now
        };
        self.send(Record::Accept(accept), effects);
    }

    fn send(&self, record: Record, effects: &mut Vec<Effect<F>>) {
        if matches!(self.worker, Worker::Running { .. }) {
            effects.push(Effect::ToWorker(record, None));
        }
    }

    fn on_worker_record(&mut self, record: Record, fd: Option<F>, effects: &mut Vec<Effect<F>>) {
        self.on_holder_record(&record, fd, effects);
        match record {
            Record::Started => {
                if !std::mem::replace(&mut self.ever_started, true) && self.standby {
                    effects.push(Self::standby_complete());
                }
                if self.ending {
                    effects.push(Effect::TerminateWorker);
                }
            }
            Record::Accepting => {
                self.accepting = true;
                self.take_from_predecessor(effects);
                self.send_to_holder(effects);
            }
            _ => {}
        }
    }

    fn take_from_predecessor(&mut self, effects: &mut Vec<Effect<F>>) {
        self.predecessor_accepts = false;
        if self.predecessor {
            effects.push(Effect::ToPredecessor(Record::Accepting));
        }
    }

    /// Stores an item from the predecessor or the holder, unless the worker has started. Returns whether the record
    /// marks the end of the items.
    fn take_over(&mut self, record: &Record, fd: Option<F>, effects: &mut Vec<Effect<F>>) -> bool {
        // Too late otherwise: the worker has received other items.
        let waiting = matches!(self.worker, Worker::WaitingForItems(_));
        if waiting {
            self.on_holder_record(record, fd, effects);
        }
        waiting && matches!(record, Record::Accept(_))
    }

    /// Sends all items to the holder if this supervisor accepts the connections and the holder does not store its items
    /// yet.
    fn send_to_holder(&mut self, effects: &mut Vec<Effect<F>>) {
        if self.holder == HolderState::StoresOthersItems && self.accepting && !self.superseded {
            self.holder = HolderState::StoresOwnItems;
            let records = self.handover.records().into_iter();
            effects.extend(records.map(|(record, fd)| Effect::ToHolder(record, fd)));
            effects.push(Effect::ToHolder(Record::Accept(Accept::Paused), None));
        }
    }

    fn holder_is_anothers(&mut self) {
        if self.holder == HolderState::StoresOwnItems {
            self.holder = HolderState::StoresOthersItems;
        }
    }

    /// Returns the record that makes the standby's copy of the items valid. Sent only after a worker has started, so
    /// that the standby does not retry items that crash workers.
    fn standby_complete() -> Effect<F> {
        Effect::ToStandby(Record::Accept(Accept::Paused), None)
    }

    /// Applies a record to the stored items and files, and forwards the change to the holder and the standby.
    fn on_holder_record(&mut self, record: &Record, fd: Option<F>, effects: &mut Vec<Effect<F>>) {
        let whole = match self.handover.apply(record, fd.clone()) {
            Ok(whole) => whole,
            Err(error) => return effects.push(Effect::LogUnexpectedRecord(error.to_string())),
        };
        let is_file = matches!(record, Record::File(_));
        let records = match record {
            Record::About { .. } | Record::Release { .. } | Record::File(_) => {
                vec![(record.clone(), fd)]
            }
            _ => whole.map_or_else(Vec::new, |key| self.handover.records_of(&key)),
        };
        for (record, fd) in records {
            if self.holder == HolderState::StoresOwnItems && !is_file {
                effects.push(Effect::ToHolder(record.clone(), fd.clone()));
            }
            if self.standby {
                effects.push(Effect::ToStandby(record, fd));
            }
        }
    }

    fn predecessor_gone(&mut self, now: Instant, effects: &mut Vec<Effect<F>>) {
        self.predecessor = false;
        self.handover.discard_incomplete();
        let accepted = std::mem::replace(&mut self.predecessor_accepts, false);
        match self.worker {
            Worker::WaitingForItems(_) => self.start(now, effects),
            Worker::Running { .. } if accepted => self.send(Record::Accept(Accept::Now), effects),
            Worker::Running { .. } | Worker::WaitingForRestart(_) => {}
        }
    }

    /// Tells the worker to accept connections again after the successor is gone. A terminating worker has closed its
    /// sockets already, so its supervisor stays superseded.
    fn cancel_succession(&mut self, effects: &mut Vec<Effect<F>>) {
        if self.superseded && !self.ending {
            self.superseded = false;
            self.send(Record::Accept(Accept::Now), effects);
            self.send_to_holder(effects);
        }
    }

    fn worker_ended(&mut self, ended: WorkerExit, now: Instant, effects: &mut Vec<Effect<F>>) {
        let Worker::Running { since } = self.worker else {
            return;
        };
        self.handover.discard_incomplete();
        let by_itself = matches!(ended, WorkerExit::Code(_));
        let wrong_configuration = !self.ever_started && by_itself;
        // Killed without a successor, the worker would leave its pods without a proxy.
        let done = self.ending && (by_itself || self.superseded);
        if done || wrong_configuration || ended == WorkerExit::Code(0) {
            effects.push(Effect::Exit(ended.code()));
            return;
        }
        if now.saturating_duration_since(since) >= MIN_STABLE_RUN {
            self.wait = Duration::ZERO;
        }
        let wait = self.wait;
        self.wait = (wait * 2).clamp(INITIAL_RESTART_DELAY, MAX_RESTART_DELAY);
        if wait >= SUSPECT_FILES_DELAY {
            self.handover.forget_files();
        }
        effects.push(Effect::LogWorkerExit { ended, wait });
        if wait.is_zero() {
            self.start(now, effects);
        } else {
            self.worker = Worker::WaitingForRestart(now + wait);
        }
    }
}

#[cfg(test)]
mod tests;
