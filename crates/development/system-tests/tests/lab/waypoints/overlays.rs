//! Tests that a waypoint follows the overlay in its Gateway's ConfigMap, stays unchanged while the overlay is invalid,
//! and returns to the default without an overlay.

use ambit_system_tests::{CLIENT_AND_SERVER, GATEWAY, Mesh, wait_until};

/// Returns the mesh's manifests, with this data in the Gateway's ConfigMap.
fn manifests(data: &str) -> String {
    let reference =
        "spec:\n  infrastructure: {parametersRef: {group: '', kind: ConfigMap, name: own}}\n";
    let gateway = GATEWAY.replace("spec:\n", reference);
    format!(
        "{CLIENT_AND_SERVER}\n---{gateway}---\napiVersion: v1\nkind: ConfigMap\nmetadata: {{name: own, namespace: shop}}\ndata: {data}\n"
    )
}

/// Returns the names of the waypoint's pods.
fn pods(mesh: &Mesh) -> Vec<String> {
    let pods = mesh.client().status().unwrap().pods.into_iter();
    let of_it = pods.filter(|pod| pod.namespace == "shop" && pod.name.starts_with("waypoint-"));
    of_it.map(|pod| pod.name).collect()
}

/// Returns the reason of a status condition of the Gateway.
fn reason(mesh: &Mesh, condition: &str) -> Option<String> {
    let gateways = mesh.client().status().unwrap().gateways;
    let conditions = gateways.first()?["status"]["conditions"].as_array()?;
    let found = conditions.iter().find(|one| one["type"] == condition)?;
    found["reason"].as_str().map(str::to_owned)
}

#[test]
fn waypoint_follows_valid_overlays_only() {
    let mesh = Mesh::up(&manifests("{deployment: 'spec: {replicas: 2}'}"));
    let first = pods(&mesh);
    assert_eq!(first.len(), 2);
    let direct = format!("http://{}:8080/", mesh.ip("shop/server"));
    let by_client = format!("called by {}\n", mesh.ip("shop/client"));
    let goes_through = || {
        wait_until("requests go through a waypoint", || {
            let answer = mesh.get("shop/client", &direct);
            answer.succeeded() && !answer.body.contains(by_client.trim())
        });
    };
    goes_through();

    for (bad, place) in [
        (
            "{deployment: 'spec: {replicas: ['}",
            "key deployment: line 1",
        ),
        (
            "{deployment: 'spec: {template: {spec: {serviceAccountName: server}}}'}",
            "key deployment: spec.template.spec.serviceAccountName",
        ),
    ] {
        mesh.apply("manifests", &manifests(bad));
        mesh.wait_for_status("the problem is reported", |status| {
            status
                .problems
                .iter()
                .any(|problem| problem.contains(place))
        });
        assert_eq!(
            reason(&mesh, "Accepted").as_deref(),
            Some("InvalidParameters")
        );
        assert_eq!(reason(&mesh, "Programmed").as_deref(), Some("Programmed"));
        assert_eq!(pods(&mesh), first);
        goes_through();
    }

    let scaled = "{horizontalPodAutoscaler: 'spec: {minReplicas: 3, maxReplicas: 5}'}";
    mesh.apply("manifests", &manifests(scaled));
    wait_until("there are three", || pods(&mesh).len() == 3);
    assert_eq!(reason(&mesh, "Accepted").as_deref(), Some("Accepted"));
    assert_eq!(
        reason(&mesh, "ambit.io/Autoscaled").as_deref(),
        Some("NotInLab")
    );

    mesh.apply("manifests", &manifests("{}"));
    wait_until("one is left", || pods(&mesh).len() == 1);
    assert_eq!(reason(&mesh, "ambit.io/Autoscaled"), None);
    goes_through();
}
