//! A process of the mesh that is started again whenever it ends.

use std::{
    fs::File,
    io,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_netlab::Netns;

use crate::{board::Board, protocol::DaemonStatus, shim::Shim};

/// The first wait before a restart; doubled each time up to [`SLOWEST`].
const FASTEST: Duration = Duration::from_millis(20);
const SLOWEST: Duration = Duration::from_secs(2);
/// A process that lived this long is started again at once.
const STABLE: Duration = Duration::from_secs(2);

/// What to run, and where.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) netns: Netns,
    pub(crate) shim: Shim,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) log: PathBuf,
}

impl Daemon {
    /// Keeps it running for as long as the lab lives.
    pub(crate) fn keep(self, board: Arc<Board>) {
        drop(ambit_rt::spawn("daemon", self.run(board)));
    }

    async fn run(self, board: Arc<Board>) {
        let mut restarts = 0;
        let mut wait = FASTEST;
        loop {
            let started = Instant::now();
            let message = match self.start(&board) {
                Ok(mut child) => {
                    board.daemon(self.status(child.id(), restarts, None));
                    match child.wait().await {
                        Ok(status) => status.to_string(),
                        Err(error) => error.to_string(),
                    }
                }
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                daemon = self.name,
                node = self.node,
                message,
                "ended; starting it again"
            );
            restarts += 1;
            board.daemon(self.status(None, restarts, Some(message)));
            wait = if started.elapsed() > STABLE {
                FASTEST
            } else {
                (wait * 2).min(SLOWEST)
            };
            tokio::time::sleep(wait).await;
        }
    }

    fn start(&self, board: &Board) -> io::Result<tokio::process::Child> {
        let log = File::options().create(true).append(true).open(&self.log)?;
        let mut command: Command = self.shim.command(&board.options.ambit)?;
        command
            .env_clear()
            .envs(self.env.iter().map(|(key, value)| (key, value)))
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log);
        let mut command = tokio::process::Command::from(command);
        self.netns.run(|| command.spawn())?
    }

    fn status(&self, pid: Option<u32>, restarts: u32, message: Option<String>) -> DaemonStatus {
        DaemonStatus {
            name: self.name.clone(),
            node: self.node.clone(),
            pid,
            restarts,
            message,
        }
    }
}
