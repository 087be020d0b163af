//! Tests that many pods that end at once do not affect the node's other pods: redirection rules are not removed in
//! namespaces that are being deleted, the kernel's tables are not dumped for each pod, no descriptors remain, and the
//! agent logs no error.

use ambit_system_tests::{CLIENT_AND_SERVER, LogSource, Mesh, wait_until};

const PODS: u32 = 40;

/// CPU time limit of the proxies for all pods, in hundredths of a second. An unoptimised build takes six hundredths, and
/// up to 25 on a busy machine. With a dump of all tracked connections for each pod, the proxies would take at least one
/// more for each pod.
const MAX_CPU_TICKS: u64 = PODS as u64;

fn pod_manifests() -> String {
    let pod = |number| {
        format!(
            "---
apiVersion: v1
kind: Pod
metadata: {{name: crowd-{number}, namespace: shop}}
spec:
  nodeName: node-1
  terminationGracePeriodSeconds: 1
  containers:
  - {{name: main, image: none, command: [$LAB_TOOL, sleep]}}
"
        )
    };
    (0..PODS).map(pod).collect()
}

const HOST_NETWORK_POD: &str = "---
apiVersion: v1
kind: Pod
metadata: {name: on-the-node, namespace: legacy}
spec: {nodeName: node-1, hostNetwork: true, containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]}
";

/// Runs a shell script in the node's PID namespace, where all processes of the lab are visible; returns its output.
fn run_on_node(mesh: &Mesh, script: &str) -> String {
    mesh.run("legacy/on-the-node", &["sh", "-c", script])
}

/// Returns the CPU time of the node proxies' processes, in hundredths of a second.
fn proxy_cpu_ticks(mesh: &Mesh) -> u64 {
    let stats = run_on_node(mesh, "cat /proc/[0-9]*/stat 2>/dev/null; true");
    let of_proxies = stats.lines().filter_map(|line| {
        let (head, rest) = line.rsplit_once(") ")?;
        // The kernel keeps fifteen characters of a name.
        head.contains("(ambit-node-prox").then_some(rest)
    });
    let ticks = of_proxies.map(|rest| -> u64 {
        let fields: Vec<&str> = rest.split(' ').collect();
        // User and system time: fields 14 and 15, of which two were removed before.
        fields[11..13]
            .iter()
            .map(|ticks| ticks.parse::<u64>().unwrap())
            .sum()
    });
    ticks.sum()
}

/// Returns the number of file descriptors of network namespaces that the agents and node proxies hold.
fn open_netns_count(mesh: &Mesh) -> usize {
    let script = "for p in /proc/[0-9]*; do case $(cat $p/comm 2>/dev/null) in ambit-agent|ambit-node-prox) \
        ls -l $p/fd 2>/dev/null;; esac; done; true";
    run_on_node(mesh, script).matches("net:[").count()
}

#[test]
fn mass_deletion_affects_no_other_pod_and_leaves_nothing() {
    let mesh = Mesh::up(&format!("{CLIENT_AND_SERVER}{HOST_NETWORK_POD}"));
    let before = open_netns_count(&mesh);
    mesh.apply("crowd", &pod_manifests());
    let of_crowd = |status: &ambit_system_tests::Status| -> Vec<bool> {
        let pods = status
            .pods
            .iter()
            .filter(|pod| pod.name.starts_with("crowd-"));
        pods.map(|pod| pod.ready && pod.captured).collect()
    };
    mesh.wait_for_status("the crowd is captured", |status| {
        of_crowd(status) == vec![true; PODS as usize]
    });
    assert!(open_netns_count(&mesh) >= before + PODS as usize);

    let spent = proxy_cpu_ticks(&mesh);
    mesh.remove("crowd");
    mesh.wait_for_status("the crowd is gone", |status| of_crowd(status).is_empty());
    wait_until("no namespace of the crowd is held", || {
        open_netns_count(&mesh) <= before
    });
    let spent = proxy_cpu_ticks(&mesh) - spent;
    println!("CPU time of the proxies for {PODS} pods that went: {spent} ticks");
    assert!(spent < MAX_CPU_TICKS, "{spent} ticks");

    mesh.get("shop/client", "http://server.shop/").ok();
    let log = LogSource::Daemon {
        name: "agent".into(),
        node: Some("node-1".into()),
    };
    let log = mesh.client().log_text(log).unwrap();
    let complaints: Vec<_> = log
        .lines()
        .filter(|line| line.contains("crowd-") && line.contains("cannot"))
        .collect();
    assert!(complaints.is_empty(), "{complaints:#?}");
}
