//! Tests the detection of a pod's interfaces on which the node sees every frame, so that kubelet's probes may be exempt
//! on them.

use ambit_sys::{
    links::{PodLinks, classify_links},
    netns::Netns,
};
use std::os::fd::AsRawFd;

use super::world::*;

fn in_pod(node: &Netns, pod: &Netns, command: &str) {
    let open = rustix::io::fcntl_dupfd_cloexec(pod, 0).unwrap();
    let path = format!("/proc/{}/fd/{}", std::process::id(), open.as_raw_fd());
    sh(node, &command.replace("POD", &path));
}

#[test]
fn only_veth_pairs_of_the_node_on_its_own_stack_are_seen() {
    let (node, pod, other) = (new_netns(), new_netns(), new_netns());
    sh(
        &node,
        "ip link set lo up; ip link add br0 type bridge; ip link add up0 type veth peer name up1; ip link set up0 up",
    );
    assert_eq!(classify_links(&pod, &node).unwrap(), PodLinks::default());
    for wiring in [
        "ip link add ptp0 type veth peer name routed netns POD",
        "ip link add port0 type veth peer name bridged netns POD; ip link set port0 master br0",
        "ip link add sub0 link up0 type macvlan mode bridge; ip link set sub0 netns POD",
    ] {
        in_pod(&node, &pod, wiring);
    }
    // Interfaces of another namespace, and of the pod itself; their indexes may equal those of the
    // node's.
    in_pod(
        &other,
        &pod,
        "ip link add far0 type veth peer name far netns POD",
    );
    sh(
        &pod,
        "ip link add own0 type veth peer name own1; ip link add docker0 type bridge; \
         for link in routed bridged sub0 far own0 docker0; do ip link set $link up; done",
    );
    let mut found = classify_links(&pod, &node).unwrap();
    found.visible_on_node.sort();
    assert_eq!(found.visible_on_node, ["bridged", "routed"]);
    let unseen: Vec<_> = found
        .hidden_from_node
        .iter()
        .map(|(name, kind)| format!("{name}={kind}"))
        .collect();
    for link in ["sub0=macvlan", "far=veth", "own0=veth", "docker0=bridge"] {
        assert!(unseen.contains(&link.to_owned()), "{unseen:?}");
    }
    // A namespace without the peers guards no interface.
    assert_eq!(
        classify_links(&pod, &other).unwrap().visible_on_node,
        ["far"]
    );
    assert!(
        classify_links(&pod, &pod)
            .unwrap()
            .visible_on_node
            .is_empty()
    );
}
