//! Configuration files of a node, for containerd, the kubelet, kube-proxy and the primary CNI.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
};

use anyhow::Result;
use serde_json::{Value, json};

use crate::{
    network::Network,
    options::{Layout, Options, PrimaryCni},
    primary_cni::{AgentOptions, CNI_FILE, POD_CGROUP_PLUGIN},
};

/// Image of the pause container, which holds a pod's namespaces.
pub(crate) const PAUSE_IMAGE: &str = "kube.local/pause:1";

/// Writes the node's configuration files that do not change between boots.
pub(crate) fn write(
    directory: &Path,
    bin: &Path,
    pki: &Path,
    network: Network,
    options: &Options,
    number: u8,
) -> Result<()> {
    let etc = directory.join("own/etc");
    let name = format!("n{number}");
    fs::create_dir_all(&etc)?;
    let containerd = containerd_configuration(directory, options.layout);
    fs::write(directory.join("containerd.toml"), containerd)?;
    let save = |name: &str, value: &Value| fs::write(directory.join(name), value.to_string());
    save(
        "kubelet.json",
        &kubelet_configuration(directory, pki, network, number),
    )?;
    let plugin = options.primary_cni;
    save(
        "kube-proxy.json",
        &kube_proxy_configuration(pki, network, plugin, number),
    )?;
    fs::write(etc.join("hostname"), format!("{name}\n"))?;
    fs::write(
        etc.join("machine-id"),
        format!("{:032x}\n", u128::from(number)),
    )?;
    // Pods that use the node's resolver get none, instead of that of the machine under the cluster.
    fs::write(etc.join("resolv.conf"), "nameserver 127.0.0.1\n")?;
    let plugins = node_file(directory, options.layout.plugins());
    fs::create_dir_all(&plugins)?;
    let pod_cgroup = plugins.join(POD_CGROUP_PLUGIN);
    fs::write(&pod_cgroup, include_str!("pod-cgroup.sh"))?;
    fs::set_permissions(&pod_cgroup, fs::Permissions::from_mode(0o755))?;
    if let Some(program) = plugin.plugin_name() {
        fs::copy(bin.join(program), plugins.join(program))?;
    }
    let kubeconfig = pki.join("admin.conf");
    let agent = plugin.agent_script(&AgentOptions {
        node: &name,
        bin,
        kubeconfig: &kubeconfig,
        network,
        layout: options.layout,
    });
    if let Some(agent) = agent {
        fs::write(directory.join("cni-agent.sh"), agent)?;
    }
    fs::create_dir_all(node_file(directory, options.layout.configurations()))?;
    rewrite_cni_configuration(directory, network, options, number, &kubeconfig, false)
}

/// Rewrites the primary CNI's configuration, as some CNIs do at each boot of their node.
pub(crate) fn rewrite_cni_configuration(
    directory: &Path,
    network: Network,
    options: &Options,
    number: u8,
    kubeconfig: &Path,
    alone: bool,
) -> Result<()> {
    let configurations = node_file(directory, options.layout.configurations());
    if alone {
        for entry in configurations.read_dir()? {
            fs::remove_file(entry?.path())?;
        }
    }
    let file = configurations.join(CNI_FILE);
    let plugin = options.primary_cni;
    match plugin.configuration(network, number, kubeconfig) {
        Some(text) => fs::write(file, format!("{text:#}\n"))?,
        None if file.exists() => fs::remove_file(file)?,
        None => {}
    }
    Ok(())
}

/// Returns the path on this machine of the file that the node sees at `path`, usable while the node is down.
fn node_file(directory: &Path, path: &str) -> PathBuf {
    directory.join("own").join(path.trim_start_matches('/'))
}

fn containerd_configuration(directory: &Path, layout: Layout) -> String {
    format!(
        r#"version = 2
disabled_plugins = ["io.containerd.snapshotter.v1.btrfs", "io.containerd.snapshotter.v1.zfs", "io.containerd.snapshotter.v1.aufs", "io.containerd.snapshotter.v1.devmapper", "io.containerd.internal.v1.tracing", "io.containerd.tracing.processor.v1.otlp"]
[plugins."io.containerd.internal.v1.opt"]
  path = "{opt}"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  disable_apparmor = true
  # Root of a container or a small virtual machine may lack what it takes to lower a process's score.
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{plugins}"
    conf_dir = "{configurations}"
    max_conf_num = 1
  [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc.options]
      SystemdCgroup = false
"#,
        opt = directory.join("containerd-opt").display(),
        plugins = layout.plugins(),
        configurations = layout.configurations(),
    )
}

fn kubelet_configuration(directory: &Path, pki: &Path, network: Network, number: u8) -> Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        "address": network.node_address(number).to_string(),
        "healthzBindAddress": "127.0.0.1",
        "authentication": {
            "anonymous": {"enabled": false},
            "webhook": {"enabled": true, "cacheTTL": "30s"},
            "x509": {"clientCAFile": pki.join("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.join(format!("n{number}-serving.crt")),
        "tlsPrivateKeyFile": pki.join(format!("n{number}-serving.key")),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{}", cgroup_path(network, number)),
        "failCgroupV1": false,
        "failSwapOn": false,
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.dns_service_address().to_string()],
        "volumePluginDir": directory.join("volume-plugins"),
        "staticPodPath": "/etc/kubernetes/manifests",
        // Images are loaded once, by this program: neither a full disk nor age may remove them.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {
            "memory.available": "100Mi", "nodefs.available": "0%",
            "nodefs.inodesFree": "0%", "imagefs.available": "0%",
        },
        "serializeImagePulls": false,
        "registryPullQPS": 0,
        "nodeStatusUpdateFrequency": "5s",
        "syncFrequency": "30s",
    })
}

fn kube_proxy_configuration(pki: &Path, network: Network, plugin: PrimaryCni, number: u8) -> Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        // Without this setting, a pod would respond directly to a neighbour on the node that had
        // called the Service.
        "nftables": {"masqueradeAll": plugin == PrimaryCni::Macvlan},
        "clusterCIDR": network.cluster_pod_cidrs().join(","),
        "hostnameOverride": format!("n{number}"),
        "bindAddress": "0.0.0.0",
        "healthzBindAddress": "127.0.0.1:10256",
        "metricsBindAddress": "127.0.0.1:10249",
        "clientConnection": {"kubeconfig": pki.join("proxy.conf")},
        // These would otherwise be settings of the whole machine.
        "conntrack": {
            "maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s",
        },
    })
}

/// Returns the path of a node's cgroup, relative to each hierarchy.
pub(crate) fn cgroup_path(network: Network, number: u8) -> String {
    network.namespace_name(&format!("n{number}"))
}
