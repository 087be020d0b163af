//! Primary CNIs: the configuration of their plugins, and the agents that some of them run on every
//! node.

use std::path::Path;

use serde_json::{Map, Value, json};

use crate::{
    module_files::{CALICO, CILIUM, CILIUM_BPF, CrdSource, FileSource},
    network::Network,
    options::{Layout, PrimaryCni},
};

/// Name of the primary CNI's file in the directory of CNI configurations.
pub const CNI_FILE: &str = "10-kube.conflist";

/// Name of the plugin that makes pods' cgroups of version 2 and then runs `portmap`.
pub(crate) const POD_CGROUP_PLUGIN: &str = "pod-cgroup";

/// Program of a primary CNI, built from a Go package.
#[derive(Debug)]
pub(crate) struct Program {
    pub(crate) name: &'static str,
    /// Directory in `build` of the Go module that contains or requires the package.
    pub(crate) source: &'static str,
    pub(crate) package: &'static str,
}

impl Program {
    pub(crate) const fn new(
        name: &'static str,
        source: &'static str,
        package: &'static str,
    ) -> Self {
        Self {
            name,
            source,
            package,
        }
    }
}

const FLANNEL_PROGRAMS: &[Program] = &[
    Program::new("flanneld", "flanneld", "."),
    Program::new(
        "flannel",
        "flannel",
        "github.com/containernetworking/plugins/plugins/meta/flannel",
    ),
];
const CALICO_PROGRAMS: &[Program] = &[Program::new("calico", "calico", ".")];
const KUBE_ROUTER_PROGRAMS: &[Program] = &[Program::new(
    "kube-router",
    "kube-router",
    "github.com/cloudnativelabs/kube-router/v2/cmd/kube-router",
)];
const CILIUM_PROGRAMS: &[Program] = &[
    Program::new("cilium-agent", "cilium", "github.com/cilium/cilium/daemon"),
    Program::new(
        "cilium-cni",
        "cilium",
        "github.com/cilium/cilium/plugins/cilium-cni",
    ),
];

/// Directory with the `clang` that Cilium's agent calls.
const CLANG_DIRECTORY: &str = "/usr/lib/llvm-19/bin";

/// Node on which a primary CNI's agent runs, and its access to the API server.
#[derive(Debug)]
pub(crate) struct AgentOptions<'a> {
    pub(crate) node: &'a str,
    pub(crate) bin: &'a Path,
    pub(crate) kubeconfig: &'a Path,
    pub(crate) network: Network,
    pub(crate) layout: Layout,
}

impl PrimaryCni {
    /// Returns the Go programs that the CNI needs.
    pub(crate) fn go_programs(self) -> &'static [Program] {
        match self {
            Self::Bridge | Self::Ptp | Self::Macvlan => &[],
            Self::Flannel => FLANNEL_PROGRAMS,
            Self::Calico => CALICO_PROGRAMS,
            Self::KubeRouter => KUBE_ROUTER_PROGRAMS,
            Self::Cilium => CILIUM_PROGRAMS,
        }
    }

    /// Returns the name of the CNI's plugin program; `None` if the plugin is in Debian's package of CNI plugins.
    pub(crate) fn plugin_name(self) -> Option<&'static str> {
        match self {
            Self::Bridge | Self::Ptp | Self::Macvlan | Self::KubeRouter => None,
            Self::Flannel => Some("flannel"),
            Self::Calico => Some("calico"),
            Self::Cilium => Some("cilium-cni"),
        }
    }

    /// Returns the CNI's CRDs, if it has any.
    pub(crate) fn crds(self) -> Option<&'static CrdSource> {
        match self {
            Self::Calico => Some(&CALICO),
            Self::Cilium => Some(&CILIUM),
            _ => None,
        }
    }

    /// Returns the archive of additional files that the CNI's agent needs, if any.
    pub(crate) fn agent_files(self) -> Option<&'static FileSource> {
        (self == Self::Cilium).then_some(&CILIUM_BPF)
    }

    /// Returns the CNI configuration for a node; `None` if the agent writes all of it.
    pub(crate) fn configuration(
        self,
        network: Network,
        number: u8,
        kubeconfig: &Path,
    ) -> Option<Value> {
        let ipam = host_local_ipam(network, number);
        let wiring = match self {
            Self::Bridge => json!({
                "type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false,
                "hairpinMode": true, "ipam": ipam,
            }),
            Self::Ptp => json!({"type": "ptp", "ipMasq": false, "ipam": ipam}),
            Self::Macvlan => json!({
                "type": "macvlan", "master": "eth0", "mode": "bridge", "ipam": ipam,
            }),
            Self::Flannel => json!({
                "type": "flannel",
                "delegate": {"hairpinMode": true, "isDefaultGateway": true, "ipMasq": false},
            }),
            Self::Calico => json!({
                "type": "calico", "datastore_type": "kubernetes", "nodename": format!("n{number}"),
                "policy": {"type": "k8s"}, "kubernetes": {"kubeconfig": kubeconfig}, "ipam": ipam,
            }),
            // The agent adds the node's ranges.
            Self::KubeRouter => json!({
                "type": "bridge", "bridge": "kube-bridge", "isDefaultGateway": true,
                "hairpinMode": true, "ipam": {"type": "host-local"},
            }),
            Self::Cilium => return None,
        };
        Some(json!({
            "cniVersion": "0.4.0", "name": "kube",
            "plugins": [wiring, {"type": POD_CGROUP_PLUGIN, "capabilities": {"portMappings": true}}],
        }))
    }

    /// Returns the shell script that runs the CNI's agent on a node, if it has one. The script
    /// fails until the node is registered.
    pub(crate) fn agent_script(self, options: &AgentOptions<'_>) -> Option<String> {
        let AgentOptions { node, network, .. } = options;
        let (bin, kubeconfig) = (options.bin.display(), options.kubeconfig.display());
        Some(match self {
            Self::Bridge | Self::Ptp | Self::Macvlan => return None,
            Self::Flannel => format!(
                "mkdir -p /run/flannel
echo '{}' >/run/flannel/net-conf.json
NODE_NAME={node} exec {bin}/flanneld {kubeconfig} /run/flannel/net-conf.json /run/flannel/subnet.env
",
                flannel_network_config(*network)
            ),
            Self::Calico => format!(
                "mkdir -p /var/lib/calico
echo -n {node} >/var/lib/calico/nodename
export KUBECONFIG={kubeconfig} DATASTORE_TYPE=kubernetes FELIX_DATASTORETYPE=kubernetes
export FELIX_FELIXHOSTNAME={node} FELIX_IPV6SUPPORT={dual} FELIX_ROUTESOURCE=WorkloadIPs
export FELIX_DEFAULTENDPOINTTOHOSTACTION=ACCEPT FELIX_IPTABLESBACKEND=nft
export FELIX_LOGFILEPATH=none FELIX_LOGSEVERITYSCREEN=warning FELIX_USAGEREPORTINGENABLED=false
exec -a calico-felix {bin}/calico
",
                dual = network.is_dual(),
            ),
            Self::KubeRouter => format!(
                "export KUBE_ROUTER_CNI_CONF_FILE={configurations}/{CNI_FILE}
exec {bin}/kube-router --kubeconfig={kubeconfig} --hostname-override={node} --run-service-proxy=false \
                 --run-router=true --run-firewall=true --enable-overlay=false --enable-pod-egress=false \
                 --enable-ipv6={dual} --hairpin-mode=true --service-cluster-ip-range={services}
",
                configurations = options.layout.configurations(),
                dual = network.is_dual(),
                services = network.service_cidr_list(),
            ),
            Self::Cilium => cilium_agent_script(options),
        })
    }
}

fn host_local_ipam(network: Network, number: u8) -> Value {
    let ranges = network.node_pod_cidrs(number);
    let routes: Vec<Value> = ranges
        .iter()
        .map(|range| json!({"dst": if range.contains(':') { "::/0" } else { "0.0.0.0/0" }}))
        .collect();
    let ranges: Vec<Value> = ranges
        .iter()
        .map(|range| json!([{"subnet": range}]))
        .collect();
    json!({"type": "host-local", "ranges": ranges, "routes": routes})
}

/// Returns the script of Cilium's agent without its operator: pods get addresses of the node's
/// range, and agents allocate identities. kube-proxy serves Services, and iptables does the
/// masquerading.
fn cilium_agent_script(options: &AgentOptions<'_>) -> String {
    let AgentOptions { node, network, .. } = options;
    let (bin, kubeconfig) = (options.bin.display(), options.kubeconfig.display());
    let mut ranges = String::new();
    for range in network.cluster_pod_cidrs() {
        let family = if range.contains(':') { 6 } else { 4 };
        ranges += &format!(
            " --ipv{family}-native-routing-cidr={range} --k8s-require-ipv{family}-pod-cidr=true"
        );
    }
    format!(
        "export PATH={CLANG_DIRECTORY}:$PATH K8S_NODE_NAME={node}
mkdir -p /var/lib/cilium
tar -C /var/lib/cilium -xf {bin}/{archive}
mountpoint -q /sys/fs/bpf || mount -t bpf bpf /sys/fs/bpf
exec {bin}/cilium-agent --k8s-kubeconfig-path={kubeconfig} --config-dir= \
    --write-cni-conf-when-ready={configurations}/{CNI_FILE} --cni-exclusive=false \
    --ipam=kubernetes --identity-allocation-mode=crd --enable-ipv4=true --enable-ipv6={dual} \
    --routing-mode=native --auto-direct-node-routes=true{ranges} --devices=eth0 \
    --kube-proxy-replacement=false --enable-bpf-masquerade=false --enable-l7-proxy=false \
    --enable-envoy-config=false --enable-hubble=false --enable-health-checking=false \
    --enable-endpoint-health-checking=false --enable-health-check-nodeport=false --enable-dynamic-config=false --enable-drift-checker=false \
    --preallocate-bpf-maps=false
",
        archive = CILIUM_BPF.archive,
        configurations = options.layout.configurations(),
        dual = network.is_dual(),
    )
}

fn flannel_network_config(network: Network) -> Value {
    let mut config = Map::new();
    config.insert("Backend".to_owned(), json!({"Type": "vxlan"}));
    for range in network.cluster_pod_cidrs() {
        let name = if range.contains(':') {
            config.insert("EnableIPv6".to_owned(), true.into());
            "IPv6Network"
        } else {
            "Network"
        };
        config.insert(name.to_owned(), range.into());
    }
    config.into()
}
