//! The agent's process: sockets, the loop around the enrolment state machine, and the shutdown.

use std::{
    collections::HashMap,
    sync::{Arc, atomic::Ordering},
    time::{Duration, Instant},
};

use ambit_handover::{Supervisor, supervisor};
use ambit_otlp_export::Exporter;
use ambit_rt::{Env, ErrorChain, Readiness, Shutdown, drain, spawn, spawn_blocking};
use ambit_sys::{
    netns::Netns,
    privileges::{self, Capability},
};
use prometheus_client::registry::Registry;
use tokio::sync::{mpsc, oneshot};

use crate::{
    actions::Actions,
    config::Args,
    enrolled::{self, EnrolledFile},
    enrolment::{Effect, Enrolment, Event, RequestId},
    install,
    installing::InstallLifecycle,
    metrics::Metrics,
    plugin::{self, PluginCall, PluginResponse},
    report::AgentReport,
    source::{
        PodSource, SourceEvent,
        kubernetes::{self, KubernetesSource},
        manifests::ManifestSource,
    },
    status::{StatusSink, api::ApiStatus, dir::StatusDir},
    zds,
};

mod admin;
mod error;
mod executor;

pub use error::RunError;
use executor::Executor;

/// Maximum attempts to install the node's probe rules at the start, and the delay between them.
const PROBE_RULE_ATTEMPTS: (u32, Duration) = (10, Duration::from_secs(2));

/// Time for which a terminating agent continues to unenrol pods that have just left the mesh, since no other agent may
/// follow to do it.
const UNENROLMENT_TIMEOUT: Duration = Duration::from_secs(5);

/// Timeout of the last export of metrics and logs before the process ends.
const EXPORT_TIMEOUT: Duration = Duration::from_secs(2);

/// Runs the agent until a signal ends it.
///
/// # Errors
/// When it cannot start, or its source of pods ends.
pub fn run(args: Args) -> Result<(), RunError> {
    if args.worker {
        supervisor::die_with_supervisor(c"ambit-agent").map_err(RunError::Runtime)?;
    }
    // Before there are other threads. Programs that the agent starts get root's again.
    let kept = privileges::keep_only(&[
        Capability::SysAdmin,
        Capability::NetAdmin,
        Capability::SysPtrace,
        Capability::DacOverride,
    ]);
    let env = Env::from_process();
    let exporter = Exporter::from_env(&env, "ambit-agent")?;
    ambit_rt::logging::init_with_sink(&env, exporter.record_sink())?;
    ambit_rt::panics::install_hook(ambit_rt::panics::PanicScope::Process);
    if let Err(error) = kept {
        tracing::warn!(%error, "capabilities that are not needed cannot be given up");
    }
    // A descriptor a captured pod.
    ambit_rt::limits::raise_open_files();
    let runtime = ambit_rt::current_thread_runtime().map_err(RunError::Runtime)?;
    runtime.block_on(async move {
        let shutdown = Shutdown::on_signals().map_err(RunError::Runtime)?;
        let supervisor = if args.worker {
            Supervisor::connect().await?.0
        } else {
            Supervisor::unsupervised()
        };
        let started = move || supervisor.report_started();
        let actions = args.kernel_actions()?;
        if args.manifests.is_empty() {
            let client =
                ambit_kube_kit::create_client(args.kubeconfig.as_deref(), "ambit-agent").await?;
            let keys = args.settings()?.enablement.namespace_label_keys();
            let source = KubernetesSource::new(client.clone(), &args.node, keys, &args.run_dir);
            let status = StatusSink::Api(ApiStatus::start(client, &args.node));
            return run_with(args, source, actions, status, exporter, shutdown, started).await;
        }
        let source = ManifestSource::open(args.manifests.clone(), &args.node)?;
        let dir = args.status_dir.as_ref();
        let dir = dir
            .map(|dir| StatusDir::open(dir, &args.node))
            .transpose()?;
        let status = dir.map_or(StatusSink::Disabled, |dir| StatusSink::Dir(Arc::new(dir)));
        run_with(args, source, actions, status, exporter, shutdown, started).await
    })
}

/// Runs the agent with this source, these operations on the node, and this status sink. `started` is called once the
/// agent has started.
///
/// # Errors
/// As [`run`].
pub async fn run_with<S: PodSource, A: Actions>(
    args: Args,
    source: S,
    actions: A,
    status: StatusSink,
    exporter: Exporter,
    mut shutdown: Shutdown,
    started: impl FnOnce(),
) -> Result<(), RunError> {
    let settings = args.settings()?;
    let actions = Arc::new(actions);
    let mut registry = Registry::default();
    ambit_rt::metrics::register_process(&mut registry);
    ambit_rt::metrics::register_build(&mut registry, "cni", env!("CARGO_PKG_VERSION"));
    let metrics = Metrics::new(&mut registry);
    let readiness = Readiness::default();
    let ready = readiness.add_pending_task("enrolment");
    let (drain, watcher) = drain::channel();
    let installing = InstallLifecycle::new(&args, &mut registry, &readiness);
    let (calls, called) = mpsc::channel(64);
    let (registry, exporting) = exporter.start_with(registry);
    admin::serve(&args, registry, readiness, calls.clone(), &watcher).await?;

    let (zds, server) = zds::bind(&args.zds_socket).map_err(|source| RunError::Socket {
        path: args.zds_socket.clone(),
        source,
    })?;
    let socket = plugin::bind(&args.run_dir).map_err(|source| RunError::Socket {
        path: args.run_dir.join(plugin::SOCKET_NAME),
        source,
    })?;
    tokio::select! {
        prepared = prepare_host(&actions) => prepared?,
        cause = shutdown.wait() => {
            tracing::info!(cause, "ending before the node was prepared");
            return Ok(());
        }
    }

    started();
    let (events, received) = mpsc::unbounded_channel();
    let synced = report_synced_proxy(Arc::clone(&actions), events.clone());
    let server = server.run(metrics.proxies.clone(), synced);
    let server = ambit_rt::spawn_abortable("zds", server);
    let plugin = plugin::run(
        socket,
        calls,
        Arc::clone(&actions),
        metrics.clone(),
        watcher.clone(),
    );
    let plugin = spawn("plugin socket", plugin);
    install::plugin_log::start(&args.run_dir, watcher);
    let (installing, shutdown, removed) = installing.delay_shutdown(shutdown);
    let mut agent = AgentLoop {
        enrolment: Enrolment::new(settings),
        pending_replies: HashMap::new(),
        next_request: 0,
        has_source_trouble: false,
        identity: AgentIdentity {
            node: args.node.clone(),
            redirection_backend: args.backend.to_string(),
        },
        executor: Executor::new(
            Arc::clone(&actions),
            zds,
            status,
            args.run_dir.clone(),
            EnrolledFile::start(&args.zds_socket, args.netns_dir()),
            events,
            metrics,
        ),
    };
    tracing::info!(node = args.node, "agent started");
    let probes = agent.executor.probes.clone();
    let ended = agent
        .run(
            source,
            received,
            called,
            args.reconcile_interval(),
            shutdown,
            || {
                ready.ready();
                // Not before: the plugin must find an agent that can answer.
                installing.begin();
            },
        )
        .await;
    drain.start(drain::DrainMode::Immediate);
    if removed.load(Ordering::Relaxed)
        && let Err(error) = enrolled::mark_removed(&args.zds_socket)
    {
        tracing::warn!(%error, "node proxies that drain will not end sooner");
    }
    // The plugin's socket goes first: what comes now waits for the agent after us.
    plugin.await.ok();
    drop(server);
    if removed.load(Ordering::Relaxed) {
        // No capture of pods that start from now on is late, also if there is a mesh again some day.
        kubernetes::remove_last_known(&args.run_dir);
        remove_bpf(actions, agent.enrolment.captured_netns()).await;
    }
    if args.clean_up_on_exit || removed.load(Ordering::Relaxed) {
        // After all that was ordered, some of which would make the rule anew.
        probes.remove_rules().await;
    }
    exporting.finish(EXPORT_TIMEOUT).await;
    ended
}

/// Returns the callback for a node proxy that has received every pod.
fn report_synced_proxy<A: Actions>(
    actions: Arc<A>,
    events: mpsc::UnboundedSender<Event<Netns>>,
) -> impl Fn() + Send {
    move || {
        actions.forget_missing_listeners();
        // The receiver ends only with the process.
        events.send(Event::ProxySynced).ok();
    }
}

async fn remove_bpf<A: Actions>(actions: Arc<A>, captured: Vec<Netns>) {
    let removed = spawn_blocking("remove BPF programs", move || actions.remove_bpf(&captured));
    // A panic was reported under its name.
    removed.await.ok();
}

async fn prepare_host<A: Actions>(actions: &Arc<A>) -> Result<(), RunError> {
    let mut left = PROBE_RULE_ATTEMPTS.0;
    loop {
        let actions = Arc::clone(actions);
        let prepared =
            spawn_blocking("prepare the node", move || actions.ensure_host_rules()).await;
        match prepared {
            Ok(Ok(())) => return Ok(()),
            Ok(Err(error)) if left == 0 => return Err(RunError::Host(error)),
            Ok(Err(error)) => {
                tracing::warn!(
                    error = %ErrorChain(&error),
                    "trying to prepare the node again"
                );
            }
            Err(error) => return Err(RunError::Runtime(error.into())),
        }
        left -= 1;
        tokio::time::sleep(PROBE_RULE_ATTEMPTS.1).await;
    }
}

/// Identity of the agent for reports, constant while it runs.
struct AgentIdentity {
    node: String,
    redirection_backend: String,
}

/// Loop that passes events to the enrolment state machine and carries out its effects.
struct AgentLoop<A> {
    enrolment: Enrolment<Netns>,
    pending_replies: HashMap<RequestId, oneshot::Sender<PluginResponse>>,
    next_request: u64,
    /// Whether the source last reported that its pods may be outdated.
    has_source_trouble: bool,
    identity: AgentIdentity,
    executor: Executor<A>,
}

impl<A: Actions> AgentLoop<A> {
    async fn run<S: PodSource>(
        &mut self,
        mut source: S,
        mut events: mpsc::UnboundedReceiver<Event<Netns>>,
        mut calls: mpsc::Receiver<(PluginCall, oneshot::Sender<PluginResponse>)>,
        reconcile_every: Duration,
        mut shutdown: Shutdown,
        ready: impl Fn(),
    ) -> Result<(), RunError> {
        let mut reconcile = tokio::time::interval(reconcile_every);
        reconcile.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        let mut ending = None;
        loop {
            if let Some(until) = ending
                && (Instant::now() >= until || !self.enrolment.is_unenrolling())
            {
                return Ok(());
            }
            let deadline = self.enrolment.deadline().into_iter().chain(ending).min();
            tokio::select! {
                sent = source.next() => {
                    for event in sent.ok_or(RunError::SourceEnded)? {
                        self.observe(event);
                    }
                    let trouble = source.outdated_reason().is_some();
                    if std::mem::replace(&mut self.has_source_trouble, trouble) && !trouble {
                        self.executor.status.retry_now();
                    }
                }
                Some(event) = events.recv() => self.handle_event(event),
                Some((call, reply)) = calls.recv() => self.handle_call(call, reply, source.outdated_reason()),
                _ = reconcile.tick() => {
                    self.handle_event(Event::Reconcile);
                    self.executor.sweep_bpf(self.enrolment.uids());
                }
                () = ambit_rt::sleep_until(deadline) => self.handle_event(Event::Tick),
                cause = shutdown.wait(), if ending.is_none() => {
                    tracing::info!(cause, "ending; captured pods stay captured");
                    ending = Some(Instant::now() + UNENROLMENT_TIMEOUT);
                }
            }
            if self.enrolment.is_ready() {
                ready();
            }
        }
    }

    fn observe(&mut self, event: SourceEvent) {
        self.executor.metrics.count_event(&event);
        match &event {
            SourceEvent::Pod(view) => self.executor.status.on_observed(view),
            SourceEvent::PodGone(uid) => self.executor.status.on_deleted(uid),
            _ => {}
        }
        self.handle_event(Event::Source(event));
    }

    fn handle_call(
        &mut self,
        call: PluginCall,
        reply: oneshot::Sender<PluginResponse>,
        trouble: Option<&str>,
    ) {
        if let PluginCall::Report = call {
            // The caller may have hung up.
            reply
                .send(PluginResponse::Report(Box::new(self.report(trouble))))
                .ok();
            return;
        }
        let request = RequestId(self.next_request);
        self.next_request += 1;
        self.pending_replies.insert(request, reply);
        self.handle_event(match call {
            PluginCall::CniAdd(add) => Event::CniAdd(request, add),
            PluginCall::IsMember(which) => Event::IsMember(request, which),
            PluginCall::Report => return,
        });
    }

    fn report(&self, trouble: Option<&str>) -> AgentReport {
        let counts = self.enrolment.counts();
        AgentReport {
            version: env!("CARGO_PKG_VERSION"),
            node: self.identity.node.clone(),
            ready: self.enrolment.is_ready(),
            source_trouble: trouble.map(str::to_owned),
            proxies: self.executor.metrics.proxies.get(),
            redirection_backend: self.identity.redirection_backend.clone(),
            desired: counts.desired,
            captured: counts.captured,
            failing: counts.failing,
            pods: self.enrolment.reports(|netns| netns.id().ino),
        }
    }

    fn handle_event(&mut self, event: Event<Netns>) {
        for effect in self.enrolment.on_event(event, Instant::now()) {
            match effect {
                Effect::Reply(request, reply) => {
                    if let Some(waiting) = self.pending_replies.remove(&request) {
                        // The caller may have hung up.
                        waiting.send(PluginResponse::Reply(reply)).ok();
                    }
                }
                Effect::Step { uid, id, step } => self.executor.step(uid, id, step),
                Effect::Scan(targets) => self.executor.scan(targets),
                Effect::HoldPod(uid) => self.executor.proxies.hold(uid),
                Effect::OpenZds => self.executor.proxies.open(),
                Effect::WriteMembership(namespaces) => self.executor.write_membership(namespaces),
                Effect::SetProbeMembers(members) => self.executor.probes.set_members(members),
                Effect::PruneStatus(keep) => self.executor.prune_status(keep),
                Effect::ReportFailure { uid, pod, failure } => {
                    self.executor
                        .status
                        .report_failure(&uid, &pod, failure.as_deref());
                }
            }
        }
        self.executor.metrics.set_counts(self.enrolment.counts());
    }
}
