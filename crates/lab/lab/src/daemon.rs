//! Processes of the mesh (control plane, agents, node proxies), which are restarted whenever they end, and can be
//! replaced by a second process.

use std::{
    fs::{self, File},
    io,
    path::PathBuf,
    process::{Command, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_netlab::Netns;
use rustix::process::{Pid, Signal, kill_process};
use tokio::{process::Child, sync::mpsc};

use crate::{
    lab_state::{LabState, ReplaceCommand},
    protocol::{DaemonStatus, Replacement},
    shim::Shim,
};

/// Initial delay before a restart, doubled each time up to [`MAX_RESTART_DELAY`].
const MIN_RESTART_DELAY: Duration = Duration::from_millis(20);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(2);
/// Running time of a process after which its restart delay is reset to [`MIN_RESTART_DELAY`].
const RESTART_DELAY_RESET: Duration = Duration::from_secs(2);

/// Timeout for a replacing process to become ready.
const REPLACEMENT_READY_TIMEOUT: Duration = Duration::from_secs(60);
const READY_CHECK_INTERVAL: Duration = Duration::from_millis(20);

/// Command of one process of the mesh, with its network namespace and log.
#[derive(Clone, Debug)]
pub(crate) struct Daemon {
    pub(crate) name: String,
    pub(crate) node: Option<String>,
    pub(crate) netns: Netns,
    pub(crate) shim: Shim,
    pub(crate) env: Vec<(String, String)>,
    pub(crate) log: PathBuf,
    /// Text in the log that reports readiness; `None` if the process cannot be replaced.
    pub(crate) ready_log_text: Option<&'static str>,
}

impl Daemon {
    /// Starts the task that runs the process and restarts it, until the lab ends.
    pub(crate) fn spawn_and_restart(self, board: Arc<LabState>) {
        drop(ambit_rt::spawn("daemon", self.run(board)));
    }

    async fn run(self, board: Arc<LabState>) {
        let mut restarts = 0;
        let mut wait = MIN_RESTART_DELAY;
        let (requested, mut requests) = mpsc::channel(1);
        if self.ready_log_text.is_some() {
            board.register_replaceable_daemon(&self.name, self.node.as_deref(), requested);
        }
        loop {
            let started = Instant::now();
            let message = match self.start(&board) {
                Ok(mut child) => loop {
                    board.set_daemon_status(self.status(child.id(), restarts, None));
                    tokio::select! {
                        ended = child.wait() => break match ended {
                            Ok(status) => status.to_string(),
                            Err(error) => error.to_string(),
                        },
                        Some(ReplaceCommand { order, result }) = requests.recv() => {
                            let outcome = self.replace(&board, &mut child, order).await;
                            // The requester may be gone.
                            let _unheard = result.send(outcome.map_err(|error| error.to_string()));
                        }
                    }
                },
                Err(error) => error.to_string(),
            };
            tracing::warn!(
                daemon = self.name,
                node = self.node,
                message,
                "ended; starting it again"
            );
            restarts += 1;
            board.set_daemon_status(self.status(None, restarts, Some(message)));
            wait = if started.elapsed() > RESTART_DELAY_RESET {
                MIN_RESTART_DELAY
            } else {
                (wait * 2).min(MAX_RESTART_DELAY)
            };
            tokio::time::sleep(wait).await;
        }
    }

    /// Starts a new process in place of `child`, terminates the old process before the start or after readiness, by
    /// `order`, and waits until the new process is ready.
    async fn replace(
        &self,
        board: &LabState,
        child: &mut Child,
        how: Replacement,
    ) -> io::Result<()> {
        let logged = fs::metadata(&self.log)?.len();
        let tell_old = |old: &Child| {
            let pid = old.id().and_then(|pid| i32::try_from(pid).ok());
            let pid = pid.and_then(Pid::from_raw);
            pid.map_or(Ok(()), |pid| kill_process(pid, Signal::TERM))
        };
        if how == Replacement::OldFirst {
            tell_old(child)?;
        }
        let new = self.start(board)?;
        let mut old = std::mem::replace(child, new);
        let ready = self.wait_until_ready(logged).await;
        if how == Replacement::NewFirst {
            tell_old(&old)?;
        }
        drop(ambit_rt::spawn("replaced daemon", async move {
            let _any_end_will_do = old.wait().await;
        }));
        ready
    }

    /// Waits until the log has the text that reports readiness, after the first `from` bytes.
    async fn wait_until_ready(&self, from: u64) -> io::Result<()> {
        let Some(ready) = self.ready_log_text else {
            return Ok(());
        };
        let deadline = Instant::now() + REPLACEMENT_READY_TIMEOUT;
        loop {
            let text = fs::read(&self.log)?;
            let new = usize::try_from(from).ok().and_then(|from| text.get(from..));
            if String::from_utf8_lossy(new.unwrap_or_default()).contains(ready) {
                return Ok(());
            }
            if Instant::now() > deadline {
                return Err(io::ErrorKind::TimedOut.into());
            }
            tokio::time::sleep(READY_CHECK_INTERVAL).await;
        }
    }

    fn start(&self, board: &LabState) -> io::Result<Child> {
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
