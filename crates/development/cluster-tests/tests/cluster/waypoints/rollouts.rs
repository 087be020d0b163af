//! Tests of waypoints whose pods are replaced while they serve.

use ambit_cluster_tests::{Load, Mesh, Waypoint, wait_until};
use k8s_openapi::api::core::v1::Pod;
use serde_json::json;

use super::WaypointFixture;

/// Duration in seconds of a response that is streamed line by line.
const STREAM_SECONDS: usize = 20;

#[test]
fn no_request_fails_while_a_waypoint_is_restarted_scaled_and_changed() {
    // The requests are to be late for no other reason.
    let mesh = Mesh::exclusive();
    let space = mesh.test_namespace("rollouts");
    let covered = WaypointFixture::new(&space);
    let waypoint = &covered.waypoint;
    let loads = [("load-1", "n1"), ("load-2", "n2")]
        .map(|(name, node)| Load::start_slow(&space, name, node, "server"));
    let streams = ["restarted", "scaled", "changed"].map(|name| format!("stream-{name}"));
    let work: [(&str, &dyn Fn()); 3] = [
        (&streams[0], &|| waypoint.wait_until_replaced(restart)),
        (&streams[1], &|| {
            waypoint.scale(1);
            waypoint.scale(2);
        }),
        (&streams[2], &|| {
            waypoint.wait_until_replaced(change_pod_template)
        }),
    ];
    for (stream, work) in work {
        start_stream(&covered, stream);
        work();
    }
    for load in loads {
        load.finish().assert_no_failures();
    }
    for stream in &streams {
        wait_until(&format!("{stream} has its whole answer"), || {
            let pod = space.pods(stream).remove(0);
            assert_ne!(pod_phase(&pod), Some("Failed"), "{}", space.log(stream));
            pod_phase(&pod) == Some("Succeeded")
        });
        let lines = space.log(stream).matches("still here").count();
        assert_eq!(lines, STREAM_SECONDS * 10, "{stream}");
    }
}

fn restart(waypoint: &Waypoint<'_>) {
    waypoint.kubectl(&["rollout", "restart", "deployment/waypoint"]);
}

/// Changes a setting of the waypoint that is part of its pod template.
fn change_pod_template(waypoint: &Waypoint<'_>) {
    let infrastructure = json!({"annotations": {"example.com/note": "changed"}});
    waypoint.patch(&json!({"spec": {"infrastructure": infrastructure}}));
}

/// Starts a streamed response that outlasts the following steps.
fn start_stream(covered: &WaypointFixture<'_>, name: &str) {
    let url = format!("http://server/slowly/{STREAM_SECONDS}?{name}");
    let script = format!("exec ambit-lab-tool get '{url}' --timeout=20000");
    covered.space.run(name, Some("n1"), &script);
    wait_until(&format!("{name} has begun"), || {
        !covered.logged_requests(name).is_empty()
    });
}

fn pod_phase(pod: &Pod) -> Option<&str> {
    pod.status.as_ref()?.phase.as_deref()
}
