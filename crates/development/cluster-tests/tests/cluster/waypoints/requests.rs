//! Tests of requests that a waypoint forwards, rejects, and routes.

use ambit_cluster_tests::{Mesh, wait_until};

use super::{WaypointFixture, reported_source_address};

#[test]
fn requests_by_any_path_pass_the_waypoint_and_its_policies() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("covered");
    let covered = WaypointFixture::new(&space);
    let outside = mesh.test_namespace("outside");
    outside.deploy_client("client", Some("n2"));
    let ways = || {
        let inside = covered.urls.iter().map(|url| (&space, url));
        inside.chain(covered.urls.iter().map(|url| (&outside, url)))
    };
    for (number, (from, url)) in ways().enumerate() {
        covered.wait_until_via_waypoint(from, url);
        let path = format!("/way-{number}");
        from.get("client", &format!("{url}{path}")).unwrap();
        // The log is written after the answer.
        wait_until(&format!("the waypoint has logged {path}"), || {
            covered.waypoint.access_log().contains(&path)
        });
        assert_eq!(covered.logged_requests(&path).len(), 1, "{path}");
    }
    let metrics = covered.waypoint.metrics("client");
    let counted = metrics.lines().any(|line| {
        line.starts_with("istio_requests_total{")
            && line.contains(r#"reporter="waypoint""#)
            && line.contains(r#"destination_service_name="server""#)
            && line.contains(r#"source_workload="client""#)
    });
    assert!(counted, "{metrics}");

    space.apply(
        "apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: no-admin}
spec:
  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}]
  action: DENY
  rules: [{to: [{operation: {paths: [/admin*]}}]}]
",
    );
    let refused = |from: &ambit_cluster_tests::TestNamespace<'_>, url: &str| {
        let (_, text) = from.try_get("client", url);
        text.contains("403 RBAC: access denied")
    };
    wait_until("the policy is in force at both pods", || {
        let url = format!("{}/admin/first", covered.urls[0]);
        (0..8).all(|_| refused(&space, &url))
    });
    for (from, url) in ways() {
        let asked = format!("{url}/admin/later");
        assert!(refused(from, &asked), "{} -> {asked}", from.name());
        from.get("client", &format!("{url}/")).unwrap();
    }
    assert_eq!(covered.logged_requests("/admin/later"), [""; 0]);
}

/// Tests the example in Ambit's project description: a route forwards requests to another service.
#[test]
fn route_forwards_requests_to_another_service() {
    let mesh = Mesh::shared();
    let space = mesh.test_namespace("routed");
    let covered = WaypointFixture::new(&space);
    for name in ["echo-v1", "echo-v2"] {
        let labels = serde_json::json!({"group": "echo"});
        let called = format!("--name={name}");
        let args = ["serve", "--port=8080", "--quiet", &called];
        space.create_ownerless_tool_pod(name, None, labels, &args);
        space.wait_until_ready(name, 1);
    }
    space.apply(
        "apiVersion: v1
kind: Service
metadata: {name: echo}
spec: {selector: {group: echo}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: echo-v1}
spec: {selector: {app: echo-v1}, ports: [{name: http, port: 80, targetPort: 8080}]}
",
    );
    let answers = || -> Vec<String> {
        let answers = (0..12).map(|_| space.get("client", "http://echo/"));
        answers.map(Result::unwrap_or_default).collect()
    };
    let of = |answers: &[String], name: &str| {
        let of = answers.iter().filter(|answer| {
            let is_through = reported_source_address(answer)
                .is_some_and(|caller| covered.waypoint.addresses().contains(&caller));
            is_through && answer.starts_with(&format!("200 {name} in "))
        });
        of.count()
    };
    wait_until("both answer for the Service, through the waypoint", || {
        let answers = answers();
        let counts = ["echo-v1", "echo-v2"].map(|name| of(&answers, name));
        counts.iter().all(|count| *count > 0) && counts.iter().sum::<usize>() == answers.len()
    });
    space.apply(
        "apiVersion: gateway.networking.k8s.io/v1beta1
kind: HTTPRoute
metadata: {name: echo}
spec:
  parentRefs: [{group: '', kind: Service, name: echo}]
  rules: [{backendRefs: [{name: echo-v1, port: 80}]}]
",
    );
    wait_until("the first alone answers for it", || {
        let answers = answers();
        of(&answers, "echo-v1") == answers.len()
    });
}
