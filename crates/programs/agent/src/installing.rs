//! Start of the installation, and its removal or continuation at the agent's end.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use ambit_rt::{Readiness, ReadyTask, Shutdown, spawn};
use k8s_openapi::api::core::v1::Node;
use prometheus_client::registry::Registry;

use crate::{
    config::Args,
    install::{
        Installation, daemonset,
        metrics::InstallMetrics,
        uninstall::{Decision, Lookup, decide, file_may_go},
    },
};

/// Installation that starts when the agent can serve the plugin.
#[derive(Clone, Debug)]
pub(crate) struct Installing {
    args: Arc<Args>,
    stage: Arc<Mutex<Stage>>,
}

#[derive(Debug)]
enum Stage {
    /// Installation is disabled.
    Off,
    Prepared(InstallMetrics, ReadyTask),
    Running(Box<Installation>),
    Ended,
}

impl Installing {
    /// Prepares the configured installation. The agent is not ready until the plugin is installed.
    pub(crate) fn new(args: &Args, registry: &mut Registry, readiness: &Readiness) -> Self {
        let stage = if args.install.install_cni {
            let ready = readiness.pending("CNI plugin");
            Stage::Prepared(InstallMetrics::new(registry), ready)
        } else {
            Stage::Off
        };
        Self {
            args: Arc::new(args.clone()),
            stage: Arc::new(Mutex::new(stage)),
        }
    }

    /// Starts the installation on the first call.
    pub(crate) fn begin(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let Stage::Prepared(..) = &*stage
            && let Stage::Prepared(metrics, ready) = std::mem::replace(&mut *stage, Stage::Ended)
        {
            *stage = Stage::Running(Box::new(Installation::start(
                &self.args.install,
                self.args.run_dir.clone(),
                &self.args.exclude_namespaces,
                metrics,
                ready,
            )));
        }
    }

    /// Uninstalls the plugin before the process ends, if the agent is being removed; the agent still serves the plugin
    /// meanwhile. Returns whether the agent was uninstalled.
    pub(crate) fn until(self, mut ordered: Shutdown) -> (Self, Shutdown, Arc<AtomicBool>) {
        let ended = Shutdown::manual();
        let (trigger, removed) = (ended.trigger(), Arc::new(AtomicBool::new(false)));
        let (installing, is_removed) = (self.clone(), Arc::clone(&removed));
        spawn("end of the installation", async move {
            // At the end the API server may refuse to tell: our rights go with us.
            let node = tokio::select! {
                node = installing.node() => node,
                _ = ordered.wait() => None,
            };
            let cause = ordered.wait().await;
            is_removed.store(installing.end(node).await, Ordering::Relaxed);
            trigger.shut_down(cause);
        });
        (self, ended, removed)
    }

    /// Returns this node, if something is to be installed on it.
    async fn node(&self) -> Option<Node> {
        let is_off = {
            let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(*stage, Stage::Off)
        };
        if is_off { None } else { self.look_up().await.1 }
    }

    async fn look_up(&self) -> (Lookup, Option<Node>) {
        let install = &self.args.install;
        let (namespace, name) = (&install.pod_namespace, &install.daemonset_name);
        let kubeconfig = self.args.kubeconfig.as_deref();
        daemonset::look_up(kubeconfig, namespace, name, &self.args.node).await
    }

    /// Whether the agent is being removed, so that the plugin is uninstalled. `before` is the node as read at the
    /// start.
    async fn end(&self, before: Option<Node>) -> bool {
        let stage = {
            let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *stage, Stage::Ended)
        };
        if matches!(stage, Stage::Off) {
            return false;
        }
        let (lookup, node) = self.look_up().await;
        let decision = if self.args.clean_up_on_exit {
            Decision::Remove("the settings say so".to_owned())
        } else {
            decide(&lookup, node.as_ref())
        };
        match decision {
            Decision::Keep(why) => {
                tracing::info!(why, "the CNI plugin stays for the next agent");
                false
            }
            Decision::Remove(why) => {
                tracing::info!(why, "the CNI plugin is removed");
                if let Stage::Running(installation) = stage {
                    installation
                        .remove(file_may_go(node.or(before).as_ref()))
                        .await;
                }
                true
            }
        }
    }
}
