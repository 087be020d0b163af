//! Checks of this machine as a node: kernel modules, kernel settings and CNI configuration.

use std::{fs, path::Path};

use ambit_cni_conf::{ConfFile, PLUGIN_NAME, directory};

use super::{
    finding::{Finding, FindingLevel},
    rules::parse_version,
};

/// Kernel modules (loadable or built in) that redirection by nftables needs: name and purpose.
const KERNEL_MODULES: &[(&str, &str)] = &[
    ("nf_tables", "the packet filter itself"),
    ("nft_redir", "redirection"),
    ("nft_ct", "connection tracking"),
    ("nft_chain_nat", "address translation"),
    ("nf_conntrack", "connection tracking"),
];

/// Default directory of CNI network configurations.
const CNI_DIRECTORY: &str = "/etc/cni/net.d";

/// Oldest kernel whose BPF programs can refuse a connection with a reason.
const MIN_BPF_KERNEL: (u64, u64) = (5, 18);
/// Directories of a cgroup hierarchy of version 2, alone or beside version 1.
const CGROUP_ROOTS: [&str; 2] = ["/sys/fs/cgroup", "/sys/fs/cgroup/unified"];
/// Directory of the file system that keeps BPF programs.
const BPF_DIRECTORY: &str = "/sys/fs/bpf";

/// Facts about this machine that the checks evaluate.
#[derive(Clone, Debug, Default)]
struct NodeState {
    kernel: String,
    /// Names of kernel modules that are loaded, built in or loadable; `None` if `/lib/modules` does not have the lists.
    modules: Option<Vec<String>>,
    /// CNI configuration files in the runtime's order; `None` if the directory cannot be read.
    cni: Option<Vec<ConfFile>>,
    plugin: bool,
    inotify_instances: Option<u64>,
    /// Whether there is a cgroup hierarchy of version 2.
    has_cgroup_v2: bool,
    /// Whether the directory in which the agent keeps programs exists.
    has_bpf_directory: bool,
    /// Whether a BPF file system is mounted there.
    has_bpffs: bool,
}

pub(super) fn findings() -> Vec<Finding> {
    check_node_state(&read_node_state())
}

fn read_node_state() -> NodeState {
    let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
    let kernel = read("/proc/sys/kernel/osrelease").trim().to_owned();
    let tree = format!("/lib/modules/{kernel}");
    let listed = ["modules.builtin", "modules.dep"].map(|file| read(&format!("{tree}/{file}")));
    let loaded = read("/proc/modules");
    let modules = listed.iter().any(|text| !text.is_empty()).then(|| {
        let mut names: Vec<_> = listed
            .iter()
            .flat_map(|text| text.lines())
            .map(module_name)
            .collect();
        names.extend(
            loaded
                .lines()
                .filter_map(|line| Some(line.split(' ').next()?.to_owned())),
        );
        names
    });
    NodeState {
        kernel,
        modules,
        cni: directory::read(Path::new(CNI_DIRECTORY)).ok(),
        plugin: Path::new("/opt/cni/bin").join(PLUGIN_NAME).exists(),
        inotify_instances: read("/proc/sys/fs/inotify/max_user_instances")
            .trim()
            .parse()
            .ok(),
        has_cgroup_v2: CGROUP_ROOTS
            .iter()
            .any(|root| Path::new(root).join("cgroup.controllers").exists()),
        has_bpf_directory: Path::new(BPF_DIRECTORY).is_dir(),
        has_bpffs: read("/proc/mounts").lines().any(|line| {
            let mut fields = line.split(' ').skip(1);
            fields.next() == Some(BPF_DIRECTORY) && fields.next() == Some("bpf")
        }),
    }
}

/// Returns the module's name in a line of `modules.dep` or `modules.builtin`, such as `nf_tables` for
/// `kernel/net/netfilter/nf_tables.ko.xz: …`.
fn module_name(line: &str) -> String {
    let path = line.split(':').next().unwrap_or_default();
    let file = path.rsplit('/').next().unwrap_or_default();
    file.split('.').next().unwrap_or_default().replace('-', "_")
}

fn check_node_state(node: &NodeState) -> Vec<Finding> {
    let mut findings = Vec::new();
    if parse_version(&node.kernel).is_some_and(|found| found < (5, 2)) {
        findings.push(Finding::new(
            FindingLevel::Warning,
            "kernel",
            format!(
                "it is {}: pods are captured by iptables rather than nftables",
                node.kernel
            ),
            "5.2 or newer is better",
        ));
    }
    for (module, what) in KERNEL_MODULES {
        if node
            .modules
            .as_ref()
            .is_some_and(|known| !known.iter().any(|name| name == module))
        {
            findings.push(Finding::new(
                FindingLevel::Error,
                "kernel",
                format!("it has no {module}, which is {what}"),
                "install the kernel's package of additional modules, or use iptables: cni.redirectionBackend",
            ));
        }
    }
    if node.modules.is_none() {
        findings.push(Finding::new(
            FindingLevel::Info,
            "kernel",
            "its kernel modules are not known: there is no list under /lib/modules",
            "",
        ));
    }
    findings.push(check_backends(node));
    if !node.has_bpf_directory {
        findings.push(Finding::new(
            FindingLevel::Error,
            BPF_DIRECTORY,
            "there is no such directory: the kubelet cannot start the node proxy",
            "set cni.redirectionBackend to iptables-legacy",
        ));
    }
    match &node.cni {
        None => findings.push(Finding::new(
            FindingLevel::Warning,
            CNI_DIRECTORY,
            "there is no such directory: the container runtime reads another, or no network plugin is installed",
            "cni.cniConfDir names the runtime's directory",
        )),
        Some(files) => check_cni(files, node.plugin, &mut findings),
    }
    if node
        .inotify_instances
        .is_some_and(|instances| instances < 128)
    {
        findings.push(Finding::new(
            FindingLevel::Warning,
            "sysctl fs.inotify.max_user_instances",
            "it is below 128: following files may fail",
            "sysctl -w fs.inotify.max_user_instances=512",
        ));
    }
    findings
}

/// Names what captures pods here: BPF programs where they can, and the backend of rules.
fn check_backends(node: &NodeState) -> Finding {
    let kernel = parse_version(&node.kernel);
    let is_older = |oldest: (u64, u64)| kernel.is_some_and(|found| found < oldest);
    let has = |module: &str| {
        node.modules
            .as_ref()
            .is_none_or(|known| known.iter().any(|name| name == module))
    };
    let nftables = !is_older((5, 2)) && KERNEL_MODULES.iter().all(|(module, _)| has(module));
    let rules = if nftables { "nftables" } else { "iptables" };
    let mut obstacles = Vec::new();
    if is_older(MIN_BPF_KERNEL) {
        let (major, minor) = MIN_BPF_KERNEL;
        obstacles.push(format!(
            "the kernel is {}, older than {major}.{minor}",
            node.kernel
        ));
    }
    if !node.has_cgroup_v2 {
        obstacles.push(format!(
            "no cgroups of version 2 at {}",
            CGROUP_ROOTS.join(" or ")
        ));
    }
    if !node.has_bpffs {
        obstacles.push(format!("no BPF file system at {BPF_DIRECTORY}"));
    }
    let finding = if obstacles.is_empty() {
        format!("BPF programs can capture pods, and {rules} those that they cannot")
    } else {
        let obstacles = obstacles.join("; ");
        format!("{rules} can capture pods; BPF programs cannot: {obstacles}")
    };
    Finding::new(FindingLevel::Info, "redirection", finding, "")
}

fn check_cni(files: &[ConfFile], plugin: bool, findings: &mut Vec<Finding>) {
    let mut first = None;
    for file in files {
        match file.network() {
            Ok(network) => first = first.or(Some((&file.name, network))),
            Err(error) => findings.push(Finding::new(
                FindingLevel::Error,
                format!("{CNI_DIRECTORY}/{}", file.name),
                format!("it is no network configuration: {error}"),
                "runtimes stop at it or pass over it: repair it or take it away",
            )),
        }
    }
    let Some((name, network)) = first else {
        findings.push(Finding::new(
            FindingLevel::Warning,
            CNI_DIRECTORY,
            "there is no network configuration",
            "install a network plugin; the node agent waits for it",
        ));
        return;
    };
    match (plugin, network.plugins.iter().any(ambit_cni_conf::Plugin::is_ours)) {
        (true, false) => findings.push(Finding::new(
            FindingLevel::Error,
            format!("{CNI_DIRECTORY}/{name}"),
            "it comes first, and our plugin is not in it: pods that start now are not captured at once",
            "see the log of this node's agent: it puts the plugin back",
        )),
        (false, true) => findings.push(Finding::new(
            FindingLevel::Error,
            format!("{CNI_DIRECTORY}/{name}"),
            "it calls our plugin, which is not in /opt/cni/bin: no pod can start",
            "install the mesh again, or take the entry out of the file",
        )),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(name: &str, text: &str) -> ConfFile {
        ConfFile {
            name: name.to_owned(),
            text: Ok(text.to_owned()),
            age: std::time::Duration::from_secs(60),
        }
    }

    fn healthy_node() -> NodeState {
        let modules = KERNEL_MODULES.iter().map(|(name, _)| (*name).to_owned());
        NodeState {
            kernel: "6.1.0".into(),
            modules: Some(modules.collect()),
            cni: Some(vec![file(
                "10-a.conflist",
                r#"{"name":"n","plugins":[{"type":"bridge"}]}"#,
            )]),
            plugin: false,
            inotify_instances: Some(128),
            has_cgroup_v2: true,
            has_bpf_directory: true,
            has_bpffs: true,
        }
    }

    fn findings_after(change: impl FnOnce(&mut NodeState)) -> Vec<(FindingLevel, String)> {
        let mut node = healthy_node();
        change(&mut node);
        check_node_state(&node)
            .into_iter()
            .filter(|finding| finding.about != "redirection")
            .map(|finding| (finding.level, finding.about))
            .collect()
    }

    #[test]
    fn backends_are_named_with_obstacles_to_bpf() {
        let found = |change: fn(&mut NodeState)| {
            let mut node = healthy_node();
            change(&mut node);
            check_backends(&node).finding
        };
        assert_eq!(
            found(|_| {}),
            "BPF programs can capture pods, and nftables those that they cannot"
        );
        assert_eq!(
            found(|node| node.modules = None),
            "BPF programs can capture pods, and nftables those that they cannot"
        );
        assert_eq!(
            found(|node| node.kernel = "5.1.0".into()),
            "iptables can capture pods; BPF programs cannot: the kernel is 5.1.0, older than 5.18"
        );
        assert_eq!(
            found(|node| node.modules.as_mut().unwrap().truncate(1)),
            "BPF programs can capture pods, and iptables those that they cannot"
        );
        assert_eq!(
            found(|node| (node.has_cgroup_v2, node.has_bpffs) = (false, false)),
            "nftables can capture pods; BPF programs cannot: no cgroups of version 2 at /sys/fs/cgroup or \
             /sys/fs/cgroup/unified; no BPF file system at /sys/fs/bpf"
        );
    }

    #[test]
    fn problems_of_a_node() {
        assert_eq!(findings_after(|_| {}), []);
        assert_eq!(
            findings_after(|n| n.kernel = "4.19.0".into()),
            [(FindingLevel::Warning, "kernel".into())]
        );
        assert_eq!(
            findings_after(|n| n.modules = Some(n.modules.take().unwrap()[1..].to_vec())),
            [(FindingLevel::Error, "kernel".into())]
        );
        assert_eq!(
            findings_after(|n| n.modules = None),
            [(FindingLevel::Info, "kernel".into())]
        );
        assert_eq!(
            findings_after(|n| n.has_bpf_directory = false),
            [(FindingLevel::Error, BPF_DIRECTORY.into())]
        );
        assert_eq!(findings_after(|n| n.cni = None).len(), 1);
        assert_eq!(findings_after(|n| n.cni = Some(vec![])).len(), 1);
        assert_eq!(
            findings_after(|n| n.cni.as_mut().unwrap().insert(0, file("05.conf", "{"))),
            [(FindingLevel::Error, "/etc/cni/net.d/05.conf".into())]
        );
        assert_eq!(
            findings_after(|n| n.plugin = true),
            [(FindingLevel::Error, "/etc/cni/net.d/10-a.conflist".into())]
        );
        let ours = r#"{"name":"n","plugins":[{"type":"bridge"},{"type":"ambit-cni"}]}"#;
        let lost = findings_after(|n| n.cni = Some(vec![file("10-a.conflist", ours)]));
        assert_eq!(
            lost,
            [(FindingLevel::Error, "/etc/cni/net.d/10-a.conflist".into())]
        );
    }

    #[test]
    fn names_of_modules() {
        assert_eq!(
            module_name("kernel/net/netfilter/nf_tables.ko.xz: a b"),
            "nf_tables"
        );
        assert_eq!(
            module_name("kernel/net/netfilter/nft_redir.ko"),
            "nft_redir"
        );
        assert_eq!(module_name("kernel/x/ip-tables.ko"), "ip_tables");
    }
}
