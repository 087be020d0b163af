//! Nodes that fail and boot again.

use ambit_cluster_tests::{Boot, Mesh, assert_nothing_in_clear, is_ready, until};
use kube::ResourceExt;

#[test]
fn pods_of_a_node_that_boots_are_captured_before_they_talk() {
    reboot(Boot::Plain);
}

#[test]
fn a_primary_cni_that_rewrites_its_configuration_at_boot_lets_nothing_out_in_clear() {
    reboot(Boot::CniRewritten);
}

fn reboot(boot: Boot) {
    let mesh = Mesh::alone();
    let space = mesh.space("reboot");
    space.label(Some("ambient"));
    let server = space.serve("server", Some("n2"));
    space.until_captured("server", true);
    space.deploy_starters(3, Some("n1"));
    let pods = space.ready("starter", 3);
    for pod in &pods {
        space.until_event(&pod.name_any(), "first-connect");
    }

    let node = mesh.cluster().node(1);
    node.kill().unwrap();
    let wire = mesh.watch(&[&space.marker()]);
    let begin = std::time::Instant::now();
    node.start(boot).unwrap();
    until("the node's pods have started again and are ready", || {
        let pods = space.pods("starter");
        pods.len() == 3
            && pods.iter().all(|pod| {
                let statuses = pod.status.iter().flat_map(|s| s.container_statuses.iter());
                is_ready(pod) && statuses.flatten().any(|status| status.restart_count > 0)
            })
    });
    eprintln!(
        "{boot:?}: pods back {:.1} s after the boot",
        begin.elapsed().as_secs_f64()
    );
    for pod in space.pods("starter") {
        let event = space.until_event(&pod.name_any(), "first-connect");
        assert!(event["first_answer_ms"].is_number(), "{event}");
    }
    space.until_captured("starter", true);
    assert_nothing_in_clear(&wire.finish(), &[&server], &[9000]);
    mesh.until_installed();
}
