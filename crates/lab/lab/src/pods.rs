//! Runs one pod from the creation of its sandbox to its end, as kubelet does.

use std::{
    convert::Infallible,
    fs, io,
    os::fd::{AsFd, AsRawFd},
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use ambit_netlab::Netns;
use rustix::process::{Pid, Signal};
use tokio::{
    sync::{mpsc, watch},
    time::sleep,
};

use crate::{
    cluster::{ClusterEvent, ContainerObservation, ContainerState, Phase, PodObservation, PodPlan},
    cni::{CniError, PluginList, Sandbox},
    containers::{self, POD_UID_VARIABLE, PodContext, RestartPolicy},
    dns::{own_resolv_conf, resolv_conf},
    fabric::Node,
    lab_state::LabState,
    tokens::{self, TokenIssuer, TokenSubject},
};

/// Initial delay before another attempt to create a sandbox, doubled each time up to [`MAX_RETRY_DELAY`]; shorter than
/// kubelet's.
const MIN_RETRY_DELAY: Duration = Duration::from_millis(200);
const MAX_RETRY_DELAY: Duration = Duration::from_secs(5);

/// Task that runs one pod, with the resources that it needs.
#[derive(Clone, Debug)]
pub(crate) struct PodRunner {
    pub(crate) board: Arc<LabState>,
    pub(crate) node: Arc<Node>,
    pub(crate) plugins: Arc<PluginList>,
    pub(crate) tokens: Arc<TokenIssuer>,
    pub(crate) plan: PodPlan,
    pub(crate) events: mpsc::Sender<ClusterEvent>,
}

/// Reason why a pod's sandbox could not be created.
#[derive(Debug, thiserror::Error)]
enum SandboxError {
    #[error("cannot make the pod's network namespace")]
    Netns(#[from] ambit_netlab::HostError),
    #[error("{0}")]
    Cni(#[from] CniError),
    #[error("cannot prepare the pod's files")]
    Files(#[source] io::Error),
}

impl PodRunner {
    /// Runs the pod until it has ended and `stop` was set; a pod that ended without `stop` remains in the status.
    pub(crate) async fn run(self, mut stop: watch::Receiver<bool>) {
        let mut observed = PodObservation::default();
        let made = tokio::select! {
            made = self.make_sandbox(&mut observed) => Some(made),
            () = containers::wait_for_stop(&mut stop) => None,
        };
        if let Some((context, sandbox, _holder)) = made {
            let run = async {
                self.run_containers(&context, &mut observed, &stop).await;
                containers::wait_for_stop(&mut stop.clone()).await;
            };
            tokio::select! {
                () = run => {}
                never = self.renew_token() => match never {},
            }
            self.tear_down(sandbox.as_ref()).await;
        }
        kill_by_uid(&self.plan.uid);
        self.board.remove_pod(&self.plan.uid);
        let annotations = format!("{}.{}.yaml", self.plan.namespace(), self.plan.name());
        // The agent's annotation of this pod does not apply to the next pod of that name.
        let _there_is_none = fs::remove_file(self.board.layout.status().join(annotations));
        let _there_is_none = fs::remove_dir_all(self.board.layout.pod(&self.plan.uid));
        let _supervisor_is_gone = self
            .events
            .send(ClusterEvent::PodGone {
                uid: self.plan.uid.clone(),
            })
            .await;
    }

    async fn report_observation(&self, observed: &PodObservation) {
        let event = ClusterEvent::PodObserved {
            uid: self.plan.uid.clone(),
            observed: observed.clone(),
        };
        let _supervisor_is_gone = self.events.send(event).await;
    }

    /// Creates the pod's sandbox; retries with a new network namespace until it succeeds.
    async fn make_sandbox(
        &self,
        observed: &mut PodObservation,
    ) -> (PodContext, Option<Sandbox>, tokio::process::Child) {
        let mut wait = MIN_RETRY_DELAY;
        loop {
            match self.try_sandbox().await {
                Ok(made) => {
                    observed.message = None;
                    observed.ips.clone_from(&made.0.ips);
                    return made;
                }
                Err(error) => {
                    let message = error_text(&error);
                    tracing::warn!(
                        pod = self.plan.full_name(),
                        message,
                        "no sandbox; trying again"
                    );
                    if observed.message.as_ref() != Some(&message) {
                        observed.message = Some(message);
                        self.report_observation(observed).await;
                    }
                }
            }
            sleep(wait).await;
            wait = (wait * 2).min(MAX_RETRY_DELAY);
        }
    }

    async fn try_sandbox(
        &self,
    ) -> Result<(PodContext, Option<Sandbox>, tokio::process::Child), SandboxError> {
        let (netns, ips, sandbox) = if self.plan.is_host_network() {
            (self.node.host.netns().clone(), self.node.ips.clone(), None)
        } else {
            // Before the plugins, as kubelet does.
            let _cgroup = self.board.cgroup_of(&self.plan);
            let (netns, ips, sandbox) = self.connect_network().await?;
            (netns, ips, Some(sandbox))
        };
        self.write_etc(&ips).map_err(SandboxError::Files)?;
        self.write_token().map_err(SandboxError::Files)?;
        let context = PodContext {
            board: self.board.clone(),
            node: self.node.clone(),
            plan: self.plan.clone(),
            netns,
            ips,
        };
        let holder = context
            .spawn_namespace_holder()
            .map_err(SandboxError::Files)?;
        self.board
            .set_pod_netns(&self.plan.uid, Some(context.netns.clone()));
        Ok((context, sandbox, holder))
    }

    async fn connect_network(
        &self,
    ) -> Result<(Netns, Vec<std::net::IpAddr>, Sandbox), SandboxError> {
        // With its loopback up, as container runtimes make it: primary plugins rely on that.
        let host = ambit_netlab::Host::new(self.plan.name()).await?;
        let netns = host.netns().clone();
        let sandbox = Sandbox {
            id: sandbox_id(),
            // A descriptor of this process: the namespace is mounted nowhere, so it goes with us.
            netns: format!("/proc/{}/fd/{}", pid_in_proc(), netns.as_fd().as_raw_fd()),
        };
        // If the caller is cancelled, the sandbox must go too.
        let mut undo = SandboxGuard {
            runner: self.clone(),
            sandbox: Some((sandbox.clone(), netns.clone())),
        };
        match self.plugins.add(&self.node, &self.plan, &sandbox).await {
            Ok(ips) => {
                undo.sandbox = None;
                Ok((netns, ips, sandbox))
            }
            Err(error) => {
                undo.sandbox = None;
                self.plugins.delete(&self.node, &self.plan, &sandbox).await;
                Err(error.into())
            }
        }
    }

    fn write_etc(&self, ips: &[std::net::IpAddr]) -> io::Result<()> {
        let dir = self.board.layout.pod(&self.plan.uid);
        fs::create_dir_all(&dir)?;
        let servers = self.plan.spec().and_then(own_resolv_conf);
        fs::write(
            dir.join("resolv.conf"),
            match servers {
                Some(servers) => servers,
                None => resolv_conf(&self.node.ips, self.plan.namespace()),
            },
        )?;
        let mut hosts = "127.0.0.1 localhost\n::1 localhost\n".to_owned();
        for ip in ips {
            hosts.push_str(&format!("{ip} {}\n", self.plan.hostname()));
        }
        let aliases = self
            .plan
            .spec()
            .and_then(|spec| spec.host_aliases.as_deref());
        for alias in aliases.unwrap_or_default() {
            let names = alias.hostnames.as_deref().unwrap_or_default().join(" ");
            hosts.push_str(&format!("{} {names}\n", alias.ip));
        }
        fs::write(dir.join("hosts"), hosts)
    }

    /// Writes a service account token into the pod's directory, if the pod has a volume with one.
    fn write_token(&self) -> io::Result<()> {
        let plan = &self.plan;
        if !plan.has_token_volume(tokens::TOKEN_AUDIENCE) {
            return Ok(());
        }
        let bound = TokenSubject {
            namespace: plan.namespace(),
            service_account: plan.service_account(),
            pod: plan.name(),
            pod_uid: &plan.uid,
            node: &plan.node,
        };
        let path = self
            .board
            .layout
            .pod(&plan.uid)
            .join(tokens::TOKEN_FILE_NAME);
        self.tokens.write(&bound, &path)
    }

    async fn renew_token(&self) -> Infallible {
        loop {
            sleep(tokens::TOKEN_RENEW_INTERVAL).await;
            if let Err(error) = self.write_token() {
                tracing::error!(pod = self.plan.full_name(), %error, "cannot renew the pod's token");
            }
        }
    }

    /// Runs the init containers one after the other, and then the other containers together, until all have ended or
    /// were stopped.
    async fn run_containers(
        &self,
        context: &PodContext,
        observed: &mut PodObservation,
        stop: &watch::Receiver<bool>,
    ) {
        let spec = self.plan.spec();
        let restart = RestartPolicy::from_plan(&self.plan);
        let all: Vec<_> = self
            .plan
            .containers()
            .iter()
            .map(|c| ContainerObservation::new(&c.name))
            .collect();
        observed.containers = all;
        self.report_observation(observed).await;
        let (reports, mut reported) = mpsc::channel(16);
        let init = spec
            .and_then(|spec| spec.init_containers.clone())
            .unwrap_or_default();
        for container in init {
            let again = if restart == RestartPolicy::Never {
                restart
            } else {
                RestartPolicy::OnFailure
            };
            let name = container.name.clone();
            let run = containers::run(
                context.clone(),
                container,
                again,
                stop.clone(),
                reports.clone(),
            );
            let mut last = None;
            tokio::pin!(run);
            loop {
                tokio::select! {
                    () = &mut run => break,
                    Some(seen) = reported.recv() => last = Some(seen.state),
                }
            }
            while let Ok(seen) = reported.try_recv() {
                last = Some(seen.state);
            }
            if *stop.borrow() {
                return;
            }
            if last != Some(ContainerState::Exited(0)) {
                observed.phase = Phase::Failed;
                observed.message = Some(format!("init container {name} failed"));
                self.report_observation(observed).await;
                return;
            }
        }
        observed.phase = Phase::Running;
        for container in self.plan.containers().iter().cloned() {
            let run = containers::run(
                context.clone(),
                container,
                restart,
                stop.clone(),
                reports.clone(),
            );
            drop(ambit_rt::spawn("container", run));
        }
        drop(reports);
        while let Some(seen) = reported.recv().await {
            if let Some(known) = observed.containers.iter_mut().find(|c| c.name == seen.name) {
                *known = seen;
            }
            self.report_observation(observed).await;
        }
        if !*stop.borrow() {
            let failed = |c: &ContainerObservation| c.state != ContainerState::Exited(0);
            let any = observed.containers.iter().any(failed);
            observed.phase = if any { Phase::Failed } else { Phase::Succeeded };
            self.report_observation(observed).await;
        }
    }

    async fn tear_down(&self, sandbox: Option<&Sandbox>) {
        kill_by_uid(&self.plan.uid);
        self.board.set_pod_netns(&self.plan.uid, None);
        if let Some(sandbox) = sandbox {
            self.plugins.delete(&self.node, &self.plan, sandbox).await;
        }
    }
}

/// Guard that removes an incomplete sandbox when it is dropped, so that cancelled attempts leave nothing behind.
struct SandboxGuard {
    runner: PodRunner,
    sandbox: Option<(Sandbox, Netns)>,
}

impl Drop for SandboxGuard {
    fn drop(&mut self) {
        if let Some((sandbox, netns)) = self.sandbox.take() {
            let runner = self.runner.clone();
            drop(ambit_rt::spawn("undo sandbox", async move {
                runner
                    .plugins
                    .delete(&runner.node, &runner.plan, &sandbox)
                    .await;
                drop(netns);
            }));
        }
    }
}

fn error_text(error: &SandboxError) -> String {
    let source = std::error::Error::source(error);
    match source {
        Some(source) if !matches!(error, SandboxError::Cni(_)) => format!("{error}: {source}"),
        _ => error.to_string(),
    }
}

fn sandbox_id() -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    // The first letters name the interface, so that is where it must differ.
    format!("{:08x}lab", COUNT.fetch_add(1, Ordering::Relaxed) + 1)
}

/// Returns the process ID under which this process appears in `/proc`, which may belong to an outer PID namespace.
fn pid_in_proc() -> String {
    let link = fs::read_link("/proc/self").ok();
    let name = link
        .as_deref()
        .and_then(Path::to_str)
        .map(ToOwned::to_owned);
    name.unwrap_or_else(|| std::process::id().to_string())
}

/// Kills all remaining processes of a pod (found by [`POD_UID_VARIABLE`]), including children that left their process group.
fn kill_by_uid(uid: &str) {
    let expected = format!("{POD_UID_VARIABLE}={uid}");
    let Ok(entries) = fs::read_dir("/proc") else {
        return;
    };
    for entry in entries.filter_map(Result::ok) {
        let pid = entry
            .file_name()
            .to_str()
            .and_then(|name| name.parse().ok());
        let Some(pid) = pid.and_then(Pid::from_raw) else {
            continue;
        };
        let Ok(environ) = fs::read(entry.path().join("environ")) else {
            continue;
        };
        if environ
            .split(|byte| *byte == 0)
            .any(|variable| variable == expected.as_bytes())
        {
            let _it_is_gone = rustix::process::kill_process(pid, Signal::KILL);
        }
    }
}
