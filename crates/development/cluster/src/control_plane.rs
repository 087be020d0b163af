//! Command lines of the control plane's components: etcd, API server, controller manager and scheduler.

use std::path::Path;

use crate::{command::ToolCommand, network::Network};

/// Names of the control plane's components, in the order of their start.
pub(crate) const COMPONENTS: [&str; 4] = [ETCD, API_SERVER, CONTROLLER_MANAGER, SCHEDULER];
pub(crate) const ETCD: &str = "etcd";
pub(crate) const API_SERVER: &str = "apiserver";
pub(crate) const CONTROLLER_MANAGER: &str = "controllers";
pub(crate) const SCHEDULER: &str = "scheduler";

/// Paths of the control plane's programs, keys and data.
pub(crate) struct ControlPlane<'a> {
    pub(crate) bin: &'a Path,
    pub(crate) pki: &'a Path,
    pub(crate) data: &'a Path,
    pub(crate) network: Network,
}

impl ControlPlane<'_> {
    /// Returns the command line of a component.
    pub(crate) fn component_command(&self, part: &str) -> ToolCommand {
        match part {
            ETCD => self.etcd(),
            API_SERVER => self.api_server(),
            CONTROLLER_MANAGER => self.controllers(),
            _ => self.scheduler(),
        }
    }

    fn etcd(&self) -> ToolCommand {
        let peer = "http://127.0.0.1:2380";
        let client = "http://127.0.0.1:2379";
        self.network
            .in_control_plane(self.bin.join("etcd"))
            .arg("--name=cp")
            .arg(self.path_flag("--data-dir", &self.data.join("etcd")))
            .args([
                format!("--listen-client-urls={client}"),
                format!("--advertise-client-urls={client}"),
                format!("--listen-peer-urls={peer}"),
                format!("--initial-advertise-peer-urls={peer}"),
                format!("--initial-cluster=cp={peer}"),
                // No data needs to survive a crash of the machine.
                "--unsafe-no-fsync".to_owned(),
            ])
    }

    fn api_server(&self) -> ToolCommand {
        self.kubernetes_component("kube-apiserver")
            .args([
                "--bind-address=0.0.0.0",
                "--secure-port=6443",
                "--etcd-servers=http://127.0.0.1:2379",
                "--service-node-port-range=30000-32767",
                "--service-account-issuer=https://kubernetes.default.svc.cluster.local",
                "--authorization-mode=Node,RBAC",
                "--enable-admission-plugins=NodeRestriction",
                "--allow-privileged=true",
                "--kubelet-preferred-address-types=InternalIP",
                "--requestheader-allowed-names=front-proxy-client",
                "--requestheader-extra-headers-prefix=X-Remote-Extra-",
                "--requestheader-group-headers=X-Remote-Group",
                "--requestheader-username-headers=X-Remote-User",
                // Webhooks are called at their pods' addresses: the control plane's namespace has
                // no kube-proxy.
                "--enable-aggregator-routing=true",
                "--profiling=false",
            ])
            .arg(format!(
                "--advertise-address={}",
                self.network.api_server_address()
            ))
            .arg(format!(
                "--service-cluster-ip-range={}",
                self.network.service_cidr_list()
            ))
            .args([
                self.key_flag("--client-ca-file", "ca.crt"),
                self.key_flag("--tls-cert-file", "apiserver.crt"),
                self.key_flag("--tls-private-key-file", "apiserver.key"),
                self.key_flag("--service-account-key-file", "sa.pub"),
                self.key_flag("--service-account-signing-key-file", "sa.key"),
                self.key_flag("--kubelet-certificate-authority", "ca.crt"),
                self.key_flag(
                    "--kubelet-client-certificate",
                    "apiserver-kubelet-client.crt",
                ),
                self.key_flag("--kubelet-client-key", "apiserver-kubelet-client.key"),
                self.key_flag("--requestheader-client-ca-file", "front-ca.crt"),
                self.key_flag("--proxy-client-cert-file", "front-proxy.crt"),
                self.key_flag("--proxy-client-key-file", "front-proxy.key"),
            ])
    }

    fn controllers(&self) -> ToolCommand {
        self.kubernetes_component("kube-controller-manager")
            .args([
                "--bind-address=127.0.0.1",
                "--use-service-account-credentials=true",
                // The options set the pod ranges of nodes, since the routes between nodes exist
                // already.
                "--allocate-node-cidrs=false",
                "--leader-elect=false",
                // Autoscalers check every second, so that tests need not wait for the default 15
                // seconds.
                "--horizontal-pod-autoscaler-sync-period=2s",
                "--controllers=*,bootstrapsigner,tokencleaner",
                "--profiling=false",
            ])
            .arg(format!(
                "--cluster-cidr={}",
                self.network.cluster_pod_cidrs().join(",")
            ))
            .arg(format!(
                "--service-cluster-ip-range={}",
                self.network.service_cidr_list()
            ))
            .arg(self.path_flag("--flex-volume-plugin-dir", &self.data.join("flexvolume")))
            .args(self.kubeconfig_flags("kcm.conf"))
            .args([
                self.key_flag("--root-ca-file", "ca.crt"),
                self.key_flag("--service-account-private-key-file", "sa.key"),
                self.key_flag("--cluster-signing-cert-file", "ca.crt"),
                self.key_flag("--cluster-signing-key-file", "ca.key"),
            ])
    }

    fn scheduler(&self) -> ToolCommand {
        self.kubernetes_component("kube-scheduler")
            .args([
                "--bind-address=127.0.0.1",
                "--leader-elect=false",
                "--profiling=false",
            ])
            .args(self.kubeconfig_flags("scheduler.conf"))
    }

    fn kubernetes_component(&self, part: &str) -> ToolCommand {
        self.network
            .in_control_plane(self.bin.join("kube"))
            .arg(part)
    }

    fn kubeconfig_flags(&self, file: &str) -> [String; 3] {
        [
            self.key_flag("--kubeconfig", file),
            self.key_flag("--authentication-kubeconfig", file),
            self.key_flag("--authorization-kubeconfig", file),
        ]
    }

    fn key_flag(&self, flag: &str, file: &str) -> String {
        self.path_flag(flag, &self.pki.join(file))
    }

    #[expect(clippy::unused_self, reason = "reads as the other flags do")]
    fn path_flag(&self, flag: &str, path: &Path) -> String {
        format!("{flag}={}", path.display())
    }
}
