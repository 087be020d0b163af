//! The worker's link to its supervisor: stores items there, and receives the command to accept
//! connections.

use std::{
    ffi::CStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    sync::Arc,
    time::Duration,
};

use ambit_sys::seqpacket::{ReceivedRecord, SeqPacket};
use rustix::process::{Signal, set_parent_process_death_signal};
use tokio::sync::watch;

use crate::record::{AcceptCommand, Handover, MAX_RECORD_BYTES, Record, RecordError};

/// Timeout for the supervisor to send its items.
const ITEMS_TIMEOUT: Duration = Duration::from_secs(10);

/// Error of connecting to the supervisor.
#[derive(Debug, thiserror::Error)]
pub enum SupervisorError {
    /// Standard input is no socket of a supervisor.
    #[error("standard input is no line to a supervisor: `worker` is not for calling by hand")]
    NoConnection(#[source] io::Error),
    /// The supervisor did not send all items in time, or closed the link.
    #[error("the supervisor does not send its items")]
    Timeout(#[source] io::Error),
    /// Invalid record from the supervisor.
    #[error("cannot understand the supervisor")]
    Record(#[from] RecordError),
}

/// Connection of a worker to its supervisor, which stores items for it and commands when it accepts connections. In a
/// process without a supervisor, the handle stores nothing, and connections are always accepted.
#[derive(Clone, Debug)]
pub struct Supervisor {
    link: Option<Arc<SeqPacket>>,
    accept_command: watch::Receiver<AcceptCommand>,
}

/// Makes the kernel kill this process when its supervisor dies, and sets the process name `name`, equal for both
/// processes. Must be called before anything else.
///
/// # Errors
/// When the kernel refuses.
pub fn die_with_supervisor(name: &CStr) -> io::Result<()> {
    rustix::thread::set_name(name)?;
    Ok(set_parent_process_death_signal(Some(Signal::KILL))?)
}

impl Supervisor {
    /// Creates a handle for a process without a supervisor.
    pub fn unsupervised() -> Self {
        Self {
            link: None,
            accept_command: watch::channel(AcceptCommand::Now).1,
        }
    }

    /// Connects to the supervisor over standard input, and receives the items that the supervisor holds.
    ///
    /// # Errors
    /// When the supervisor does not send its items in time.
    pub async fn connect() -> Result<(Self, Handover<OwnedFd>), SupervisorError> {
        let line = rustix::io::fcntl_dupfd_cloexec(std::io::stdin(), 3)
            .map_err(io::Error::from)
            .and_then(SeqPacket::from_fd)
            .map_err(SupervisorError::NoConnection)?;
        let received = tokio::time::timeout(ITEMS_TIMEOUT, Self::receive_items(&line)).await;
        let (held, accept) = received
            .map_err(|_late| SupervisorError::Timeout(io::ErrorKind::TimedOut.into()))??;
        let (sender, receiver) = watch::channel(accept);
        let link = Arc::new(line);
        ambit_rt::spawn_essential("supervisor", follow_commands(link.clone(), sender));
        let supervisor = Self {
            link: Some(link),
            accept_command: receiver,
        };
        Ok((supervisor, held))
    }

    async fn receive_items(
        line: &SeqPacket,
    ) -> Result<(Handover<OwnedFd>, AcceptCommand), SupervisorError> {
        let mut held = Handover::default();
        loop {
            let (record, fd) = receive_record(line)
                .await
                .map_err(SupervisorError::Timeout)?;
            let Some(record) = Record::decode(&record)? else {
                continue;
            };
            if let Record::Accept(accept) = record {
                return Ok((held, accept));
            }
            held.apply(&record, fd)?;
        }
    }

    /// Whether the process has a supervisor, so that a successor may take over.
    pub fn is_supervised(&self) -> bool {
        self.link.is_some()
    }

    /// Returns the supervisor's current command about accepting connections, as a channel that follows its changes.
    pub fn accept_commands(&self) -> watch::Receiver<AcceptCommand> {
        self.accept_command.clone()
    }

    /// Stores an item at the supervisor: its name, metadata and descriptors.
    pub fn store_item(&self, key: &str, about: &[u8], descriptors: &[BorrowedFd<'_>]) {
        let Ok(count) = u16::try_from(descriptors.len()) else {
            tracing::error!(key, "too many descriptors to be held");
            return;
        };
        let item = Record::Item {
            key: key.into(),
            about: about.into(),
            descriptors: count,
        };
        self.send(&item, None);
        for descriptor in descriptors {
            self.send(&Record::Descriptor, Some(*descriptor));
        }
    }

    /// Replaces the metadata of an item at the supervisor.
    pub fn update_item(&self, key: &str, about: &[u8]) {
        let (key, about) = (key.into(), about.into());
        self.send(&Record::UpdateMetadata { key, about }, None);
    }

    /// Removes an item from the supervisor, which closes its descriptors.
    pub fn release_item(&self, key: &str) {
        self.send(&Record::RemoveItem { key: key.into() }, None);
    }

    /// Stores a file under this number at the supervisor, for the next worker.
    pub fn store_file(&self, number: u8, file: impl AsFd) {
        self.send(&Record::StoreFile(number), Some(file.as_fd()));
    }

    /// Reports that the configuration is valid; from now on an exit of this process counts as a crash.
    pub fn report_started(&self) {
        self.send(&Record::WorkerStarted, None);
    }

    /// Reports to the supervisor that the process accepts connections.
    pub fn report_accepting(&self) {
        self.send(&Record::Accepting, None);
    }

    fn send(&self, record: &Record, fd: Option<BorrowedFd<'_>>) {
        let Some(link) = &self.link else { return };
        if let Err(error) = link.send_blocking(&record.encode(), fd) {
            tracing::error!(%error, "cannot reach the supervisor: a crash may refuse connections");
        }
    }
}

async fn receive_record(line: &SeqPacket) -> io::Result<(Vec<u8>, Option<OwnedFd>)> {
    let mut buffer = [0; MAX_RECORD_BYTES];
    match line.recv(&mut buffer).await? {
        ReceivedRecord { len: 0, fd: None } => Err(io::ErrorKind::UnexpectedEof.into()),
        ReceivedRecord { len, fd } => Ok((buffer.get(..len).unwrap_or_default().to_vec(), fd)),
    }
}

async fn follow_commands(line: Arc<SeqPacket>, accept: watch::Sender<AcceptCommand>) {
    while let Ok((record, _fd)) = receive_record(&line).await {
        match Record::decode(&record) {
            Ok(Some(Record::Accept(now))) => {
                accept.send_replace(now);
            }
            Ok(_) => {}
            Err(error) => tracing::error!(%error, "cannot understand the supervisor"),
        }
    }
    // The kernel ends this process with its supervisor, except if the supervisor died before that
    // was set.
    tracing::error!("the supervisor is gone");
    ambit_rt::logging::flush(Duration::from_millis(200));
    std::process::exit(1);
}
