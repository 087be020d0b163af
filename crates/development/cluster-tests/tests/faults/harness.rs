//! Test that a removed cluster leaves nothing on this machine.

use std::path::Path;

use ambit_cluster_tests::{
    Cluster, ClusterPaths, IpFamily, Mesh, Options, PrimaryCni, Slot, sources, target_directory,
};

#[test]
fn a_cluster_comes_and_goes_without_a_trace() {
    // No other test may load the machine while this one is up; and it shares the directories below.
    let _alone = Mesh::exclusive();
    let directories = [
        "/etc",
        "/opt",
        "/var",
        "/var/lib",
        "/etc/cni/net.d",
        "/opt/cni/bin",
    ];
    let before = directories.map(directory_entries);
    let places = ClusterPaths::in_target(&target_directory(), Slot::OWN);
    let _held = Cluster::lock_slot(&places).unwrap();
    let options = Options {
        nodes: 1,
        ip_family: IpFamily::Dual,
        primary_cni: PrimaryCni::Ptp,
        ..Options::default()
    };
    let cluster = Cluster::up(places.clone(), Slot::OWN, options, &sources()).unwrap();
    assert!(cluster.status().iter().all(|(_, pid)| pid.is_some()));
    Cluster::down(places.clone(), Slot::OWN).unwrap();

    assert_eq!(directories.map(directory_entries), before);
    assert!(!places.state.exists());
    let left = |directory: &str| -> Vec<String> {
        directory_entries(directory)
            .into_iter()
            .filter(|name| name.starts_with("kube2-"))
            .collect()
    };
    for directory in ["/run/netns", "/sys/class/net"] {
        assert_eq!(left(directory), [""; 0], "{directory}");
    }
    for hierarchy in directory_entries("/sys/fs/cgroup") {
        let directory = format!("/sys/fs/cgroup/{hierarchy}");
        assert_eq!(left(&directory), [""; 0], "{directory}");
    }
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
    assert!(!mounts.contains("slot-2"), "{mounts}");
}

fn directory_entries(directory: &str) -> Vec<String> {
    let mut names: Vec<String> = Path::new(directory)
        .read_dir()
        .into_iter()
        .flatten()
        .map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned())
        .collect();
    names.sort();
    names
}
