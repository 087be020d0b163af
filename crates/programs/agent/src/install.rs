//! Installs the CNI plugin on the node and keeps it installed: the executable, the network configuration that makes the
//! runtime call it, and the data that the plugin needs while the agent is unavailable.
//!
//! [`plan`] computes the desired content of the directory of configurations, [`uninstall`] decides whether a
//! terminating agent is being replaced or removed; both are pure. This module runs the loop around them: at each change
//! and in regular intervals it compares the whole directory with its desired content.
//!
//! The plugin is activated only once the agent can respond to it. When the agent is removed, the configuration is
//! removed while the agent still responds; the plugin's file is removed only if no runtime calls it again
//! ([`uninstall::may_remove_file`]). Without a configuration, a remaining file is called for no new pod.

pub mod action;
pub mod daemonset;
pub mod entry;
pub mod files;
pub mod membership_copy;
pub mod metrics;
pub mod mode;
pub mod options;
pub mod plan;
pub mod plugin_log;
pub mod throttle;
pub mod uninstall;
mod watch;

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_cni_conf::{PLUGIN_NAME, PrimaryConf, directory};
use ambit_rt::{ErrorChain, ReadyTask, spawn, spawn_blocking};
use tokio::{
    sync::{Notify, oneshot},
    task::JoinHandle,
};

use self::{
    files::FileError,
    metrics::InstallMetrics,
    options::InstallArgs,
    plan::{DesiredConfig, InstallPlan, InstallState, plan},
    throttle::Throttle,
    watch::DirectoryWatch,
};
use crate::membership;

/// Interval of checks of the installation, if no directory changes.
const CHECK_INTERVAL: Duration = Duration::from_secs(30);
/// Delay of a check after a directory has changed, so that several changes are handled at once.
const DEBOUNCE: Duration = Duration::from_millis(5);
/// Delay of the next check after a failed one.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// Time within which a runtime notices that the plugin's configuration is gone and stops calling the plugin.
const RUNTIME_RELOAD_DELAY: Duration = Duration::from_secs(1);

/// Directories of the installation, as seen by the agent.
#[derive(Clone, Debug)]
pub struct InstallPaths {
    /// Directory of CNI network configurations.
    pub net_dir: PathBuf,
    /// Directory of CNI plugin executables.
    pub bin_dir: PathBuf,
    /// Directory from which the plugin's executable is copied.
    pub source_dir: PathBuf,
    /// The agent's run directory.
    pub run_dir: PathBuf,
}

/// Handle of the task that keeps the CNI plugin installed. Dropping the handle stops the task and changes nothing on
/// the node.
#[derive(Debug)]
pub struct Installation {
    paths: InstallPaths,
    desired: DesiredConfig,
    task: JoinHandle<()>,
    stop: oneshot::Sender<()>,
}

impl Installation {
    /// Starts the task that installs the plugin and keeps it installed.
    pub fn start(
        args: &InstallArgs,
        run_dir: PathBuf,
        exclude_namespaces: &[String],
        metrics: InstallMetrics,
        ready: ReadyTask,
    ) -> Self {
        let desired = args.desired_config(&run_dir, exclude_namespaces);
        let places = InstallPaths {
            net_dir: args.cni_net_dir.clone(),
            bin_dir: args.cni_bin_dir.clone(),
            source_dir: args.cni_source_dir.clone(),
            run_dir,
        };
        let keeper = InstallReconciler {
            places: places.clone(),
            desired: desired.clone(),
            throttle: Throttle::default(),
            absent_since: None,
            reported_state: None,
            metrics,
            ready,
        };
        let (stop, stopped) = oneshot::channel();
        Self {
            paths: places,
            desired,
            task: spawn("plugin installation", keeper.run(stopped)),
            stop,
        }
    }

    /// Stops the task and removes the plugin's configuration, and its executable if `may_remove_file`.
    pub async fn remove(self, may_remove_file: bool) {
        // A pass that is at work ends first: it must not put back what is taken away.
        drop(self.stop);
        self.task.await.ok();
        let (places, mode) = (self.paths, self.desired.file_mode);
        let plugin = places.bin_dir.join(PLUGIN_NAME);
        let removed = spawn_blocking("uninstall", move || remove_installed(&places, mode)).await;
        match removed {
            Ok(Ok(())) => {
                tracing::info!("the CNI plugin is out of force");
                if may_remove_file {
                    tokio::time::sleep(RUNTIME_RELOAD_DELAY).await;
                    if let Err(error) = files::remove_if_exists(&plugin) {
                        tracing::warn!(error = %ErrorChain(&error), "the CNI plugin is left");
                    }
                }
            }
            Ok(Err(error)) => {
                tracing::error!(
                    error = %ErrorChain(&error),
                    "the CNI plugin is left in force"
                );
            }
            Err(error) => tracing::error!(%error, "the CNI plugin is left in force"),
        }
    }
}

/// Result of one check of the installation, and whether files were changed.
struct ReconcileOutcome {
    plan: InstallPlan,
    changed: bool,
    is_primary_cilium: bool,
}

/// Error of a check of the installation.
#[derive(Debug, thiserror::Error)]
enum ReconcileError {
    #[error(transparent)]
    Plugin(FileError),
    #[error(transparent)]
    Configuration(FileError),
    #[error("cannot read the directory of network configurations {path}")]
    Directory {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
}

/// Task that keeps the plugin installed.
struct InstallReconciler {
    places: InstallPaths,
    desired: DesiredConfig,
    throttle: Throttle,
    absent_since: Option<Instant>,
    reported_state: Option<InstallState>,
    metrics: InstallMetrics,
    ready: ReadyTask,
}

impl InstallReconciler {
    async fn run(mut self, mut stopped: oneshot::Receiver<()>) {
        let changed = Arc::new(Notify::new());
        for directory in [&self.places.net_dir, &self.places.bin_dir] {
            files::remove_stale_temporaries(directory);
        }
        loop {
            // Watched anew each time: a directory that was replaced makes no events.
            let InstallPaths {
                net_dir,
                bin_dir,
                run_dir,
                ..
            } = &self.places;
            let watch = DirectoryWatch::new(&[net_dir, bin_dir, run_dir], Arc::clone(&changed));
            let until = tokio::time::Instant::now() + CHECK_INTERVAL;
            loop {
                let again = self.reconcile().await;
                let again = again.map_or(until, |again| until.min(again.into()));
                tokio::select! {
                    _ = &mut stopped => return,
                    () = changed.notified() => tokio::time::sleep(DEBOUNCE).await,
                    () = tokio::time::sleep_until(again) => {}
                }
                if tokio::time::Instant::now() >= until {
                    break;
                }
            }
            drop(watch);
        }
    }

    /// Checks and repairs the installation once. Returns the time of the next check if it is due before the regular
    /// one.
    async fn reconcile(&mut self) -> Option<Instant> {
        let now = Instant::now();
        let held_back = self.throttle.next_allowed().filter(|until| *until > now);
        let (places, desired) = (self.places.clone(), self.desired.clone());
        let absent = self.absent_since;
        let work = move || reconcile_directory(&places, &desired, absent, held_back.is_none());
        let outcome = spawn_blocking("install", work).await;
        let pass = match outcome {
            Ok(Ok((pass, absent))) => {
                self.absent_since = absent;
                pass
            }
            Ok(Err(error)) => {
                self.metrics.count(match error {
                    ReconcileError::Plugin(_) => "COPY_BINARIES_FAILURE",
                    _ => "CREATE_CNI_CONFIG_FAILURE",
                });
                self.report_state(InstallState::Waiting(ErrorChain(&error).to_string()));
                return Some(now + RETRY_DELAY);
            }
            // A pass that panicked has been reported under its name.
            Err(_) => return Some(now + RETRY_DELAY),
        };
        if pass.changed {
            self.metrics.count("SUCCESS");
            if self.throttle.record_change(now) {
                tracing::warn!(
                    hint = revert_hint(pass.is_primary_cilium),
                    "another process keeps undoing the installation of the CNI plugin: changing it less and \
                     less often"
                );
            }
        }
        let held_back = held_back.filter(|_| !pass.plan.actions.is_empty() && !pass.changed);
        self.report_state(if held_back.is_some() {
            InstallState::Waiting("another process keeps undoing the installation".to_owned())
        } else {
            pass.plan.state
        });
        let again = pass.plan.next_check.map(|wait| now + wait);
        [again, held_back].into_iter().flatten().min()
    }

    /// Logs a new state of the installation, and updates readiness and metrics.
    fn report_state(&mut self, state: InstallState) {
        if state == InstallState::Settling || self.reported_state.as_ref() == Some(&state) {
            return;
        }
        match &state {
            InstallState::Installed { mode, file } => {
                tracing::info!(?mode, file, "the CNI plugin is in force");
            }
            InstallState::Waiting(why) => {
                tracing::warn!(why, "the CNI plugin is not in force");
            }
            InstallState::Settling => {}
        }
        let is_ready = matches!(state, InstallState::Installed { .. });
        self.metrics.ready.set(i64::from(is_ready));
        self.ready.set(is_ready);
        self.reported_state = Some(state);
    }
}

fn revert_hint(is_cilium: bool) -> &'static str {
    if is_cilium {
        "set cni.exclusive=false in Cilium's values"
    } else {
        "who else writes to the directory of network configurations?"
    }
}

/// Checks the installation once, and repairs it if `may_change`: first the executable, then the configuration that
/// references it.
fn reconcile_directory(
    places: &InstallPaths,
    desired: &DesiredConfig,
    absent: Option<Instant>,
    may_change: bool,
) -> Result<(ReconcileOutcome, Option<Instant>), ReconcileError> {
    let InstallPaths {
        net_dir,
        bin_dir,
        source_dir,
        run_dir,
    } = places;
    let mut changed = files::install_plugin(source_dir, bin_dir).map_err(ReconcileError::Plugin)?;
    membership_copy::refresh(run_dir, net_dir).map_err(ReconcileError::Configuration)?;
    let files = directory::read(net_dir).map_err(|source| ReconcileError::Directory {
        path: net_dir.clone(),
        source,
    })?;
    let is_absent =
        directory::find_primary_conf(&files, desired.primary.as_deref()) == PrimaryConf::None;
    let absent = is_absent.then(|| absent.unwrap_or_else(Instant::now));
    let absent_for = absent.map_or(Duration::ZERO, |since| since.elapsed());
    let mut plan = plan(&files, desired, absent_for);
    if may_change {
        for action in &plan.actions {
            let done = files::perform_action(net_dir, action, desired.file_mode)
                .map_err(ReconcileError::Configuration)?;
            if done {
                tracing::debug!(?action, "changed the network configuration");
                changed = true;
            } else {
                plan.next_check = Some(DEBOUNCE);
            }
        }
    }
    let is_cilium = files.iter().any(|file| file.name.contains("cilium"));
    let pass = ReconcileOutcome {
        plan,
        changed,
        is_primary_cilium: is_cilium,
    };
    Ok((pass, absent))
}

/// Removes the plugin's configuration from the node; blocks.
fn remove_installed(places: &InstallPaths, mode: u32) -> Result<(), ReconcileError> {
    let net_dir = &places.net_dir;
    // Twice where another process writes at the same time.
    for _ in 0..5 {
        let files = directory::read(net_dir).map_err(|source| ReconcileError::Directory {
            path: net_dir.clone(),
            source,
        })?;
        let mut all_done = true;
        for action in plan::removal_actions(&files) {
            all_done &= files::perform_action(net_dir, &action, mode)
                .map_err(ReconcileError::Configuration)?;
        }
        if all_done {
            break;
        }
    }
    for file in [
        net_dir.join(membership_copy::FILE_NAME),
        places.run_dir.join(membership::FILE_NAME),
    ] {
        files::remove_if_exists(&file).map_err(ReconcileError::Configuration)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
