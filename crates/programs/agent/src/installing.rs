//! Starts the installation of the CNI plugin, and ends or keeps it when the agent terminates.

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
        uninstall::{DaemonSetLookup, UninstallDecision, decide, may_remove_file},
    },
};

/// Installation of the CNI plugin over the agent's life; begins when the agent can serve the plugin.
#[derive(Clone, Debug)]
pub(crate) struct InstallLifecycle {
    args: Arc<Args>,
    stage: Arc<Mutex<InstallerStage>>,
}

#[derive(Debug)]
enum InstallerStage {
    /// The settings disable the installation.
    Disabled,
    Prepared(InstallMetrics, ReadyTask),
    Running(Box<Installation>),
    Ended,
}

impl InstallLifecycle {
    /// Prepares the installation, if enabled. The agent is not ready until the plugin is installed.
    pub(crate) fn new(args: &Args, registry: &mut Registry, readiness: &Readiness) -> Self {
        let stage = if args.install.install_cni {
            let ready = readiness.add_pending_task("CNI plugin");
            InstallerStage::Prepared(InstallMetrics::new(registry), ready)
        } else {
            InstallerStage::Disabled
        };
        Self {
            args: Arc::new(args.clone()),
            stage: Arc::new(Mutex::new(stage)),
        }
    }

    /// Starts the installation on the first call; further calls do nothing.
    pub(crate) fn begin(&self) {
        let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
        if let InstallerStage::Prepared(..) = &*stage
            && let InstallerStage::Prepared(metrics, ready) =
                std::mem::replace(&mut *stage, InstallerStage::Ended)
        {
            *stage = InstallerStage::Running(Box::new(Installation::start(
                &self.args.install,
                self.args.run_dir.clone(),
                &self.args.exclude_namespaces,
                metrics,
                ready,
            )));
        }
    }

    /// Delays the shutdown until the plugin is uninstalled, or it is decided that the plugin stays: meanwhile the agent
    /// still serves the plugin. The flag is then true if the agent is being removed.
    pub(crate) fn delay_shutdown(self, mut ordered: Shutdown) -> (Self, Shutdown, Arc<AtomicBool>) {
        let ended = Shutdown::manual();
        let (trigger, removed) = (ended.trigger(), Arc::new(AtomicBool::new(false)));
        let (installing, is_removed) = (self.clone(), Arc::clone(&removed));
        spawn("end of the installation", async move {
            // At the end the API server may refuse to tell: our rights go with us.
            let node = tokio::select! {
                node = installing.read_node() => node,
                _ = ordered.wait() => None,
            };
            let cause = ordered.wait().await;
            is_removed.store(
                installing.uninstall_if_removed(node).await,
                Ordering::Relaxed,
            );
            trigger.shut_down(cause);
        });
        (self, ended, removed)
    }

    /// Reads this node's object; `None` if the installation is disabled or the object cannot be read.
    async fn read_node(&self) -> Option<Node> {
        let is_off = {
            let stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
            matches!(*stage, InstallerStage::Disabled)
        };
        if is_off { None } else { self.look_up().await.1 }
    }

    async fn look_up(&self) -> (DaemonSetLookup, Option<Node>) {
        let install = &self.args.install;
        let (namespace, name) = (&install.pod_namespace, &install.daemonset_name);
        let kubeconfig = self.args.kubeconfig.as_deref();
        daemonset::look_up(kubeconfig, namespace, name, &self.args.node).await
    }

    /// Decides at shutdown whether the agent is being removed, and uninstalls the plugin in that case. `before` is the
    /// node's object as read at the start.
    async fn uninstall_if_removed(&self, before: Option<Node>) -> bool {
        let stage = {
            let mut stage = self.stage.lock().unwrap_or_else(PoisonError::into_inner);
            std::mem::replace(&mut *stage, InstallerStage::Ended)
        };
        if matches!(stage, InstallerStage::Disabled) {
            return false;
        }
        let (lookup, node) = self.look_up().await;
        let decision = if self.args.clean_up_on_exit {
            UninstallDecision::Remove("the settings say so".to_owned())
        } else {
            decide(&lookup, node.as_ref())
        };
        match decision {
            UninstallDecision::Keep(why) => {
                tracing::info!(why, "the CNI plugin stays for the next agent");
                false
            }
            UninstallDecision::Remove(why) => {
                tracing::info!(why, "the CNI plugin is removed");
                if let InstallerStage::Running(installation) = stage {
                    installation
                        .remove(may_remove_file(node.or(before).as_ref()))
                        .await;
                }
                true
            }
        }
    }
}
