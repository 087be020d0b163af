//! Runs containers as processes, with restarts and probes, as kubelet does.

use std::{
    collections::BTreeMap,
    fs::File,
    io,
    net::IpAddr,
    path::PathBuf,
    process::{Command, ExitStatus, Stdio},
    sync::Arc,
    time::{Duration, Instant},
};

use ambit_netlab::Netns;
use k8s_openapi::api::core::v1::{Container, EnvVar, Probe};
use rustix::process::{Pid, Signal, kill_process_group};
use tokio::{
    process::Child,
    sync::{mpsc, watch},
    time::sleep,
};

use crate::{
    cluster::{ContainerObservation, ContainerState, PodPlan},
    fabric::Node,
    lab_state::{LabState, PodTarget},
    mesh,
    probes::{self, ProbeTiming},
};

/// Initial delay before a restart, doubled each time up to [`MAX_RESTART_DELAY`]; shorter than kubelet's, since a lab
/// is used interactively.
const MIN_RESTART_DELAY: Duration = Duration::from_millis(200);
const MAX_RESTART_DELAY: Duration = Duration::from_secs(10);
/// Running time of a container after which its restart delay is reset to [`MIN_RESTART_DELAY`].
const RESTART_DELAY_RESET: Duration = Duration::from_secs(10);

/// Sandbox of a running pod: its node, network namespace and addresses.
#[derive(Clone, Debug)]
pub(crate) struct PodContext {
    pub(crate) board: Arc<LabState>,
    pub(crate) node: Arc<Node>,
    pub(crate) plan: PodPlan,
    pub(crate) netns: Netns,
    pub(crate) ips: Vec<IpAddr>,
}

/// Environment variable with the pod's UID in every process of a pod, by which the agent finds pods' network
/// namespaces.
pub(crate) const POD_UID_VARIABLE: &str = "AMBIT_POD_UID";

impl PodContext {
    /// Finds a pod by any name that [`LabState::find_pod_target`] accepts, and returns it with the name of the selected
    /// container.
    pub(crate) fn find(
        board: &Arc<LabState>,
        name: &str,
        container: Option<&str>,
    ) -> Result<(Self, String), String> {
        let PodTarget {
            node,
            plan,
            netns,
            ips,
            container,
        } = board.find_pod_target(name, container)?;
        let context = Self {
            board: board.clone(),
            node,
            plan,
            netns,
            ips,
        };
        Ok((context, container))
    }

    /// Returns the environment for processes of a container.
    pub(crate) fn environment(&self, container: Option<&Container>) -> BTreeMap<String, String> {
        let mut env = BTreeMap::new();
        env.insert("PATH".to_owned(), mesh::path_variable(&self.board));
        env.insert("HOSTNAME".to_owned(), self.plan.hostname());
        env.insert("HOME".to_owned(), "/tmp".to_owned());
        env.insert("TERM".to_owned(), "xterm".to_owned());
        let variables = container.and_then(|container| container.env.as_deref());
        for variable in variables.unwrap_or_default() {
            if let Some(value) = self.variable_value(variable) {
                env.insert(variable.name.clone(), expand_variables(&value, &env));
            }
        }
        env.insert(POD_UID_VARIABLE.to_owned(), self.plan.uid.clone());
        env
    }

    fn variable_value(&self, variable: &EnvVar) -> Option<String> {
        if let Some(value) = &variable.value {
            return Some(value.clone());
        }
        let plan = &self.plan;
        let ips = || self.ips.iter().map(ToString::to_string).collect::<Vec<_>>();
        match variable
            .value_from
            .as_ref()?
            .field_ref
            .as_ref()?
            .field_path
            .as_str()
        {
            "metadata.name" => Some(plan.name().to_owned()),
            "metadata.namespace" => Some(plan.namespace().to_owned()),
            "metadata.uid" => Some(plan.uid.clone()),
            "spec.nodeName" => Some(plan.node.clone()),
            "spec.serviceAccountName" => Some(plan.service_account().to_owned()),
            "status.podIP" => ips().into_iter().next(),
            "status.podIPs" => Some(ips().join(",")),
            "status.hostIP" => self.node.ips.first().map(ToString::to_string),
            _ => None,
        }
    }

    /// Builds the command that starts a process in this pod; the caller sets the standard streams.
    pub(crate) fn pod_command(
        &self,
        argv: Vec<String>,
        working_dir: Option<&str>,
        env: &BTreeMap<String, String>,
    ) -> io::Result<Command> {
        let mut shim = self.board.pod_shim(&self.plan);
        shim.command = argv;
        shim.working_dir = working_dir.filter(|dir| !dir.is_empty()).map(PathBuf::from);
        let mut command = shim.command(&self.board.options.ambit)?;
        command.env_clear().envs(env);
        Ok(command)
    }

    /// Starts a process that keeps the pod's network namespace alive and findable by [`POD_UID_VARIABLE`] while no container
    /// runs (the pause container of a runtime).
    pub(crate) fn spawn_namespace_holder(&self) -> io::Result<Child> {
        let mut command = self.pod_command(Vec::new(), None, &self.environment(None))?;
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null());
        self.spawn(command)
    }

    pub(crate) fn spawn(&self, command: Command) -> io::Result<Child> {
        let mut command = tokio::process::Command::from(command);
        command.kill_on_drop(true);
        self.netns.run(|| command.spawn())?
    }
}

/// Expands references `$(NAME)` to environment variables, as Kubernetes does in arguments: `$$` becomes a dollar, and
/// unknown names stay.
fn expand_variables(text: &str, env: &BTreeMap<String, String>) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        out.push_str(before);
        if let Some(after) = after.strip_prefix('$') {
            out.push('$');
            rest = after;
        } else if let Some((name, tail)) = after
            .strip_prefix('(')
            .and_then(|inside| inside.split_once(')'))
            && let Some(value) = env.get(name)
        {
            out.push_str(value);
            rest = tail;
        } else {
            out.push('$');
            rest = after;
        }
    }
    out.push_str(rest);
    out
}

/// Restart policy of a container, as in Kubernetes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RestartPolicy {
    Always,
    OnFailure,
    Never,
}

impl RestartPolicy {
    pub(crate) fn from_plan(plan: &PodPlan) -> Self {
        match plan.spec().and_then(|spec| spec.restart_policy.as_deref()) {
            Some("Never") => Self::Never,
            Some("OnFailure") => Self::OnFailure,
            _ => Self::Always,
        }
    }

    fn restarts_after(self, code: i32) -> bool {
        match self {
            Self::Always => true,
            Self::OnFailure => code != 0,
            Self::Never => false,
        }
    }
}

/// Runs a container with restarts until the restart policy requires no further restart, or until `stop` is set and the
/// grace period is over.
pub(crate) async fn run(
    context: PodContext,
    container: Container,
    restart: RestartPolicy,
    mut stop: watch::Receiver<bool>,
    reports: mpsc::Sender<ContainerObservation>,
) {
    let mut seen = ContainerObservation::new(&container.name);
    let mut wait = MIN_RESTART_DELAY;
    let report = |seen: &ContainerObservation| {
        let (reports, seen) = (reports.clone(), seen.clone());
        async move { reports.send(seen).await.is_ok() }
    };
    loop {
        let started = Instant::now();
        let ended = match start_container(&context, &container) {
            Ok(child) => {
                seen.state = ContainerState::Running;
                seen.ready =
                    container.readiness_probe.is_none() && container.startup_probe.is_none();
                report(&seen).await;
                supervise_container(&context, &container, child, &mut seen, &mut stop, &reports)
                    .await
            }
            Err(error) => {
                seen.state = ContainerState::Waiting(error.to_string());
                report(&seen).await;
                Err(error)
            }
        };
        seen.ready = false;
        let code = ended.as_ref().map_or(128, exit_code);
        if ended.is_ok() {
            seen.state = ContainerState::Exited(code);
        }
        if *stop.borrow() || !restart.restarts_after(code) {
            report(&seen).await;
            return;
        }
        report(&seen).await;
        wait = if started.elapsed() > RESTART_DELAY_RESET {
            MIN_RESTART_DELAY
        } else {
            (wait * 2).min(MAX_RESTART_DELAY)
        };
        tokio::select! {
            () = sleep(wait) => {}
            () = wait_for_stop(&mut stop) => return,
        }
        seen.restarts += 1;
    }
}

fn start_container(context: &PodContext, container: &Container) -> io::Result<Child> {
    let mut argv = container.command.clone().unwrap_or_default();
    argv.extend(container.args.clone().unwrap_or_default());
    if container.command.as_ref().is_none_or(Vec::is_empty) {
        return Err(io::Error::other(format!(
            "NoCommand: the lab runs commands, not images: give container {} a `command`",
            container.name
        )));
    }
    let log = context
        .board
        .layout
        .container_log(&context.plan.uid, &container.name);
    let log = File::options().create(true).append(true).open(log)?;
    let env = context.environment(Some(container));
    let argv = argv.iter().map(|arg| expand_variables(arg, &env)).collect();
    let mut command = context.pod_command(argv, container.working_dir.as_deref(), &env)?;
    command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log);
    context.spawn(command)
}

/// Supervises a container's process until it ends: probes it, reports readiness, and terminates it on request or when
/// the liveness probe fails.
async fn supervise_container(
    context: &PodContext,
    container: &Container,
    mut child: Child,
    seen: &mut ContainerObservation,
    stop: &mut watch::Receiver<bool>,
    reports: &mpsc::Sender<ContainerObservation>,
) -> io::Result<ExitStatus> {
    let (sender, mut results) = mpsc::channel(4);
    let probing = probe_all(context, container, &sender);
    tokio::pin!(probing);
    let mut probes_done = false;
    loop {
        tokio::select! {
            status = child.wait() => return status,
            () = &mut probing, if !probes_done => probes_done = true,
            Some(result) = results.recv() => match result {
                ProbeResult::Ready(ready) => {
                    if seen.ready != ready {
                        seen.ready = ready;
                        let _pod_is_gone = reports.send(seen.clone()).await;
                    }
                }
                ProbeResult::NotLive(why) => {
                    tracing::warn!(pod = context.plan.full_name(), container = container.name, why,
                        "liveness probe failed, restarting the container");
                    signal_process_group(&child, Signal::TERM);
                    let grace = tokio::time::timeout(grace_period(&context.plan), child.wait()).await;
                    if let Ok(status) = grace { return status; }
                    signal_process_group(&child, Signal::KILL);
                }
            },
            () = wait_for_stop(stop) => {
                signal_process_group(&child, Signal::TERM);
                if let Ok(status) = tokio::time::timeout(grace_period(&context.plan), child.wait()).await {
                    return status;
                }
                signal_process_group(&child, Signal::KILL);
                return child.wait().await;
            }
        }
    }
}

/// Waits until the pod is requested to stop.
pub(crate) async fn wait_for_stop(stop: &mut watch::Receiver<bool>) {
    // A dropped sender means that the pod was forgotten: it stops as well.
    let _told = stop.wait_for(|stop| *stop).await.is_ok();
}

enum ProbeResult {
    Ready(bool),
    NotLive(String),
}

async fn probe_all(
    context: &PodContext,
    container: &Container,
    results: &mpsc::Sender<ProbeResult>,
) {
    if let Some(startup) = &container.startup_probe {
        let started = probe_until_started(context, container, startup).await;
        if let Err(why) = started {
            let _container_is_gone = results.send(ProbeResult::NotLive(why.to_string())).await;
            return;
        }
    }
    if container.readiness_probe.is_none() {
        let _container_is_gone = results.send(ProbeResult::Ready(true)).await;
    }
    let readiness = async {
        let Some(probe) = &container.readiness_probe else {
            return;
        };
        probe_periodically(context, container, probe, |ok, _| {
            results.try_send(ProbeResult::Ready(ok)).is_ok()
        })
        .await;
    };
    let liveness = async {
        let Some(probe) = &container.liveness_probe else {
            return;
        };
        probe_periodically(context, container, probe, |ok, why| {
            ok || results.try_send(ProbeResult::NotLive(why)).is_ok()
        })
        .await;
    };
    tokio::join!(readiness, liveness);
}

async fn probe_until_started(
    context: &PodContext,
    container: &Container,
    probe: &Probe,
) -> io::Result<()> {
    let timing = ProbeTiming::from_probe(probe);
    sleep(timing.initial_delay).await;
    let mut failures = 0;
    loop {
        match probe_once(context, container, probe).await {
            Ok(()) => return Ok(()),
            Err(error) => {
                failures += 1;
                if failures >= timing.failure_threshold {
                    return Err(error);
                }
            }
        }
        sleep(timing.period).await;
    }
}

/// Probes a container until cancelled, and calls `on_result` whenever the threshold of successes or failures is
/// reached.
async fn probe_periodically(
    context: &PodContext,
    container: &Container,
    probe: &Probe,
    mut on_result: impl FnMut(bool, String) -> bool,
) {
    let timing = ProbeTiming::from_probe(probe);
    sleep(timing.initial_delay).await;
    let (mut successes, mut failures, mut ever) = (0, 0, false);
    loop {
        match probe_once(context, container, probe).await {
            Ok(()) => {
                (successes, failures) = (successes + 1, 0);
                if successes >= timing.success_threshold {
                    ever = true;
                    on_result(true, String::new());
                }
            }
            Err(error) => {
                (successes, failures) = (0, failures + 1);
                if failures >= timing.failure_threshold {
                    on_result(false, error.to_string());
                }
            }
        }
        // A starting pod is probed more often than in the manifest.
        sleep(if ever {
            timing.period
        } else {
            timing.period.min(Duration::from_millis(250))
        })
        .await;
    }
}

async fn probe_once(context: &PodContext, container: &Container, probe: &Probe) -> io::Result<()> {
    let ip = context
        .ips
        .first()
        .copied()
        .ok_or_else(|| io::Error::other("the pod has no address"))?;
    if let Some(done) = probes::probe_over_network(probe, &context.node, &context.plan, ip).await {
        return done;
    }
    let argv = probe
        .exec
        .as_ref()
        .and_then(|exec| exec.command.clone())
        .unwrap_or_default();
    let env = context.environment(Some(container));
    let mut command = context.pod_command(argv, container.working_dir.as_deref(), &env)?;
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = context.spawn(command)?;
    let status = tokio::time::timeout(ProbeTiming::from_probe(probe).timeout, child.wait()).await;
    match status {
        Ok(Ok(status)) if status.success() => Ok(()),
        Ok(Ok(status)) => Err(io::Error::other(status.to_string())),
        Ok(Err(error)) => Err(error),
        Err(_) => Err(io::ErrorKind::TimedOut.into()),
    }
}

/// Returns a process' exit code; 128 plus the signal's number if a signal ended it, as in shells.
pub(crate) fn exit_code(status: &ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status
        .code()
        .unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Sends a signal to a process' whole group, including children of a shell.
fn signal_process_group(child: &Child, signal: Signal) {
    let pid = child
        .id()
        .and_then(|pid| i32::try_from(pid).ok())
        .and_then(Pid::from_raw);
    if let Some(pid) = pid {
        let _it_is_gone = kill_process_group(pid, signal);
    }
}

fn grace_period(plan: &PodPlan) -> Duration {
    let seconds = plan
        .spec()
        .and_then(|spec| spec.termination_grace_period_seconds);
    Duration::from_secs(
        seconds
            .and_then(|seconds| u64::try_from(seconds).ok())
            .unwrap_or(30),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn variables_are_expanded_as_kubernetes_does() {
        let env = BTreeMap::from([("A".to_owned(), "1".to_owned())]);
        for (text, expected) in [
            ("$(A)-$(B)", "1-$(B)"),
            ("$$(A)", "$(A)"),
            ("a$", "a$"),
            ("$(A", "$(A"),
            ("", ""),
        ] {
            assert_eq!(expand_variables(text, &env), expected, "{text}");
        }
    }
}
