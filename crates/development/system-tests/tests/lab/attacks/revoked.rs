//! Tests that a client whose certificate the mesh's CA has revoked reaches no server behind a waypoint, and no other
//! client is affected.

use std::{fs, net::SocketAddr};

use ambit_system_tests::{HbonePeer, TunnelOutcome, options, wait_until, with_waypoint_options};

/// Pod that speaks HBONE itself, with a certificate for its own service account.
const SIDECAR_POD: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: sidecar, namespace: legacy}
spec:
  nodeName: node-1
  serviceAccountName: sidecar
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
";
const WAYPOINT_SPIFFE_ID: &str = "spiffe://cluster.local/ns/shop/sa/waypoint";
const GET_REQUEST: &str = "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";

#[test]
fn revoked_client_reaches_no_server_through_a_waypoint() {
    let directory = tempfile::tempdir().unwrap();
    let list = directory.path().join("ca-crl.pem");
    let publish = |text: &str| {
        let beside = list.with_extension("new");
        fs::write(&beside, text).unwrap();
        fs::rename(&beside, &list).unwrap();
    };
    let mut options = options();
    let path = list.display().to_string();
    options.env.insert("CRL_PATH".to_owned(), path);
    let (mesh, _) = with_waypoint_options(SIDECAR_POD, options);
    let waypoint = (
        WAYPOINT_SPIFFE_ID,
        SocketAddr::new(mesh.ip("shop/waypoint"), 15008),
    );
    let target = SocketAddr::new(mesh.ip("shop/server"), 8080).to_string();
    // Two certificates of one identity.
    let [revoked, other] = [(); 2].map(|()| HbonePeer::of_pod(&mesh, "legacy/sidecar"));
    let ask =
        |peer: &HbonePeer<'_>| peer.request_through_tunnel(waypoint, &target, &[], GET_REQUEST);
    let passes = |outcome: &TunnelOutcome| matches!(outcome, TunnelOutcome::Established(received) if received.starts_with("HTTP/1.1 200"));
    for peer in [&revoked, &other] {
        let outcome = ask(peer);
        assert!(passes(&outcome), "before: {outcome:?}");
    }
    publish(&revoked.revocation_list());
    wait_until("the waypoint refuses the revoked certificate", || {
        matches!(ask(&revoked), TunnelOutcome::Failed(_))
    });
    let outcome = ask(&other);
    assert!(passes(&outcome), "not revoked: {outcome:?}");
    // An invalid revocation file changes nothing.
    publish("nonsense");
    let outcome = ask(&revoked);
    assert!(
        matches!(outcome, TunnelOutcome::Failed(_)),
        "after nonsense: {outcome:?}"
    );
    assert!(mesh.get("shop/client", "http://server.shop/").succeeded());
}
