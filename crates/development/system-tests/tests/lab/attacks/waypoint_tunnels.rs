//! Tests that a client that opens tunnels itself, with its own certificate, bypasses a waypoint neither by claiming to
//! call on behalf of another client, nor by requesting targets that the waypoint does not serve, nor by connecting to
//! the pod.

use std::net::SocketAddr;

use ambit_system_tests::{HbonePeer, Mesh, TunnelOutcome, wait_until, with_waypoint};

/// Pods with a token of their service account: outside of the mesh; uncaptured, under the account of the pod behind the
/// waypoint; and a namespace with its own waypoint and pod.
const PEER_PODS: &str = "
---
apiVersion: v1
kind: Pod
metadata: {name: sidecar, namespace: legacy}
spec:
  nodeName: node-1
  serviceAccountName: sidecar
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
---
apiVersion: v1
kind: Pod
metadata: {name: twin, namespace: shop, labels: {istio.io/dataplane-mode: none}}
spec:
  nodeName: node-2
  serviceAccountName: server
  containers: [{name: main, image: none, command: [$LAB_TOOL, sleep]}]
  volumes: [{name: token, projected: {sources: [{serviceAccountToken: {audience: istio-ca, path: token}}]}}]
---
apiVersion: v1
kind: Namespace
metadata: {name: other, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: passage, namespace: other}
spec:
  gatewayClassName: istio-waypoint
  listeners: [{name: mesh, port: 15008, protocol: HBONE}]
---
apiVersion: v1
kind: Pod
metadata: {name: api, namespace: other, labels: {app: api}}
spec:
  nodeName: node-2
  containers:
  - name: web
    image: none
    command: [$LAB_TOOL, serve, --port, '8080', --name, api]
    readinessProbe: {tcpSocket: {port: 8080}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: other}
spec:
  clusterIP: 10.96.0.77
  selector: {app: api}
  ports: [{name: http, port: 80, targetPort: 8080}]
";

const GET_REQUEST: &str = "GET / HTTP/1.1\r\nHost: server\r\nConnection: close\r\n\r\n";
const WAYPOINT_SPIFFE_ID: &str = "spiffe://cluster.local/ns/shop/sa/waypoint";
const SERVER_SPIFFE_ID: &str = "spiffe://cluster.local/ns/shop/sa/server";
const CLIENT_SPIFFE_ID: &str = "spiffe://cluster.local/ns/shop/sa/client";
const SIDECAR_SPIFFE_ID: &str = "spiffe://cluster.local/ns/legacy/sa/sidecar";
const ORIGINAL_PEER_HEADER: &str = "x-ambit-original-peer";

/// Applies a policy by which the waypoint allows this principal, and no other.
fn allow_only(mesh: &Mesh, spiffe: &str) {
    let principal = spiffe.trim_start_matches("spiffe://");
    mesh.apply(
        "policy",
        &format!(
            "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {{name: only, namespace: shop}}
spec:
  targetRefs: [{{group: gateway.networking.k8s.io, kind: Gateway, name: waypoint}}]
  action: ALLOW
  rules:
  - from: [{{source: {{principals: [{principal}]}}}}]
    to: [{{operation: {{methods: [GET]}}}}]
"
        ),
    );
}

fn port(mesh: &Mesh, pod: &str, port: u16) -> SocketAddr {
    SocketAddr::new(mesh.ip(pod), port)
}

fn is_denied(outcome: &TunnelOutcome) -> bool {
    matches!(outcome, TunnelOutcome::Established(received) if received.starts_with("HTTP/1.1 403"))
}

#[test]
fn claims_to_call_on_behalf_of_others_are_not_trusted() {
    let (mesh, _) = with_waypoint(PEER_PODS);
    let waypoint = (WAYPOINT_SPIFFE_ID, port(&mesh, "shop/waypoint", 15008));
    let target = port(&mesh, "shop/server", 8080).to_string();
    let sidecar = HbonePeer::of_pod(&mesh, "legacy/sidecar");
    let peers = [
        (
            "a pod outside of the mesh",
            sidecar.in_pod("legacy/sidecar"),
        ),
        (
            "a pod of the covered pod's account",
            HbonePeer::of_pod(&mesh, "shop/twin"),
        ),
        (
            "another waypoint",
            HbonePeer::of_pod(&mesh, "other/passage"),
        ),
    ];
    let client = format!("for=\"{}\"", port(&mesh, "shop/client", 4711));
    // They are authorized by their identity, from every address.
    allow_only(&mesh, CLIENT_SPIFFE_ID);
    for (what, peer) in &peers {
        let ask = |headers: &[(&'static str, &str)]| {
            peer.request_through_tunnel(waypoint, &target, headers, GET_REQUEST)
        };
        wait_until(&format!("{what} is refused for what it is"), || {
            is_denied(&ask(&[]))
        });
        let outcome = ask(&[("forwarded", &client)]);
        assert!(is_denied(&outcome), "{what}: {outcome:?}");
        for claim in [CLIENT_SPIFFE_ID, "none", "nobody", SERVER_SPIFFE_ID] {
            let outcome = ask(&[(ORIGINAL_PEER_HEADER, claim), ("forwarded", &client)]);
            assert_eq!(outcome, TunnelOutcome::Refused(403), "{what} says {claim}");
        }
        let outcome = ask(&[
            (ORIGINAL_PEER_HEADER, "none"),
            (ORIGINAL_PEER_HEADER, CLIENT_SPIFFE_ID),
            ("forwarded", &client),
        ]);
        assert_eq!(
            outcome,
            TunnelOutcome::Refused(403),
            "{what} says two things"
        );
    }
    // A captured pod with its own certificate is still at its own address.
    let captured = sidecar.in_pod("shop/client");
    for claim in [CLIENT_SPIFFE_ID, "none"] {
        let outcome = captured.request_through_tunnel(
            waypoint,
            &target,
            &[(ORIGINAL_PEER_HEADER, claim), ("forwarded", &client)],
            GET_REQUEST,
        );
        assert_eq!(outcome, TunnelOutcome::Refused(403), "{claim}");
    }
    let outcome = captured.request_through_tunnel(waypoint, &target, &[], GET_REQUEST);
    assert!(is_denied(&outcome), "{outcome:?}");
    // Not even an allowed caller may call on behalf of another.
    allow_only(&mesh, SIDECAR_SPIFFE_ID);
    wait_until("the sidecar may call", || {
        sidecar
            .request_through_tunnel(waypoint, &target, &[], GET_REQUEST)
            .is_from("plain-marker")
    });
    let outcome = sidecar.request_through_tunnel(
        waypoint,
        &target,
        &[(ORIGINAL_PEER_HEADER, SIDECAR_SPIFFE_ID)],
        GET_REQUEST,
    );
    assert_eq!(outcome, TunnelOutcome::Refused(403));
}

#[test]
fn waypoint_forwards_only_to_its_own_targets() {
    let (mesh, _) = with_waypoint(PEER_PODS);
    let address = port(&mesh, "shop/waypoint", 15008);
    let waypoint = (WAYPOINT_SPIFFE_ID, address);
    let sidecar = HbonePeer::of_pod(&mesh, "legacy/sidecar");
    let ask =
        |authority: &str| sidecar.request_through_tunnel(waypoint, authority, &[], GET_REQUEST);
    let server = mesh.ip("shop/server");
    for own in [
        format!("{server}:8080"),
        format!("[::ffff:{server}]:8080"),
        "server.shop.svc.cluster.local:80".to_owned(),
    ] {
        let outcome = ask(&own);
        assert!(outcome.is_from("plain-marker"), "{own}: {outcome:?}");
    }
    let [api, legacy, itself, client] = [
        "other/api",
        "legacy/server",
        "shop/waypoint",
        "legacy/client",
    ]
    .map(|pod| mesh.ip(pod).to_string());
    let others = [
        format!("{api}:8080"),
        "10.96.0.77:80".to_owned(),
        "api.other.svc.cluster.local:80".to_owned(),
        "api:80".to_owned(),
        format!("{legacy}:8080"),
        format!("{client}:8080"),
        format!("{itself}:15008"),
        format!("{itself}:15000"),
        format!("{itself}:15020"),
        format!("{itself}:15021"),
        "waypoint.shop.svc.cluster.local:15008".to_owned(),
        "waypoint.shop.svc.cluster.local:15021".to_owned(),
        "127.0.0.1:15000".to_owned(),
        "127.0.0.1:15020".to_owned(),
        "[::1]:15000".to_owned(),
        "[::ffff:127.0.0.1]:15000".to_owned(),
        "localhost:15000".to_owned(),
        "0.0.0.0:15020".to_owned(),
        "[::]:15020".to_owned(),
        "169.254.169.254:80".to_owned(),
        "[fe80::1]:80".to_owned(),
        "255.255.255.255:80".to_owned(),
        "224.0.0.1:80".to_owned(),
        "172.18.0.2:15012".to_owned(),
        "kubernetes.default.svc.cluster.local:443".to_owned(),
        "10.96.0.1:443".to_owned(),
        // The same address in spellings that others might parse differently.
        format!("{}:8080", u32::from_be_bytes(octets(&server.to_string()))),
        format!("0{server}:8080"),
        format!("{server}.:8080"),
        format!("someone@{server}:8080"),
        format!("{server}:0"),
        format!("{server}:15008"),
        format!("{server}:15001"),
        format!("{server}:15006"),
        "server.shop.svc.cluster.local:8080".to_owned(),
        "server.shop.svc.cluster.local:0".to_owned(),
    ];
    for authority in others {
        let outcome = ask(&authority);
        let refused = match &outcome {
            TunnelOutcome::Refused(status) => *status >= 400,
            // A pod of its own, whose proxy rejects its own ports: the tunnel fails.
            TunnelOutcome::Established(received) => {
                authority.starts_with(&format!("{server}:"))
                    && (received.is_empty() || received.starts_with("HTTP/1.1 50"))
            }
            TunnelOutcome::Failed(_) => false,
        };
        assert!(refused, "{authority}: {outcome:?}");
    }
    assert!(ask(&format!("{server}:8080")).is_from("plain-marker"));
}

fn octets(address: &str) -> [u8; 4] {
    let octets: Vec<u8> = address
        .split('.')
        .map(|part| part.parse().unwrap())
        .collect();
    octets.try_into().unwrap()
}

#[test]
fn direct_callers_pass_the_waypoint_with_their_identity() {
    let (mesh, address) = with_waypoint(PEER_PODS);
    let called = format!("called by {address}");
    let pod = (SERVER_SPIFFE_ID, port(&mesh, "shop/server", 15008));
    let waypoint = (WAYPOINT_SPIFFE_ID, port(&mesh, "shop/waypoint", 15008));
    let target = port(&mesh, "shop/server", 8080).to_string();
    // Certificates of another authority, or of another mesh, whatever their identity.
    for identity in [
        WAYPOINT_SPIFFE_ID,
        CLIENT_SPIFFE_ID,
        "spiffe://elsewhere/ns/shop/sa/waypoint",
    ] {
        let foreign = HbonePeer::with_foreign_ca(&mesh, "legacy/sidecar", identity);
        for server in [waypoint, pod] {
            let outcome = foreign.request_through_tunnel(server, &target, &[], GET_REQUEST);
            assert!(
                matches!(outcome, TunnelOutcome::Failed(_)),
                "{identity}: {outcome:?}"
            );
        }
    }
    let peers = [
        (
            SIDECAR_SPIFFE_ID,
            HbonePeer::of_pod(&mesh, "legacy/sidecar"),
        ),
        // A pod accepts direct tunnels only from its own waypoint.
        (
            "spiffe://cluster.local/ns/other/sa/passage",
            HbonePeer::of_pod(&mesh, "other/passage"),
        ),
        // The pod's own account may not deliver, either.
        (SERVER_SPIFFE_ID, HbonePeer::of_pod(&mesh, "shop/twin")),
    ];
    for (identity, peer) in &peers {
        let ask = |headers: &[(&'static str, &str)]| {
            peer.request_through_tunnel(pod, &target, headers, GET_REQUEST)
        };
        // Once there is a policy, the port counts as HTTP however slow its clients are.
        allow_only(&mesh, CLIENT_SPIFFE_ID);
        wait_until(&format!("{identity} may not call yet"), || {
            is_denied(&ask(&[]))
        });
        allow_only(&mesh, identity);
        wait_until(&format!("{identity} may call"), || {
            ask(&[]).is_from("plain-marker")
        });
        let outcome = ask(&[]);
        assert!(outcome.is_from(&called), "{outcome:?}");
        // That would be a routing loop, or a false claim.
        for claim in [CLIENT_SPIFFE_ID, "none"] {
            let outcome = ask(&[(ORIGINAL_PEER_HEADER, claim)]);
            assert_eq!(
                outcome,
                TunnelOutcome::Refused(508),
                "{identity} says {claim}"
            );
        }
        allow_only(&mesh, CLIENT_SPIFFE_ID);
        wait_until(&format!("{identity} may not call"), || is_denied(&ask(&[])));
    }
}

#[test]
fn identity_headers_come_only_from_the_waypoint() {
    let (mesh, waypoint) = with_waypoint("");
    let (address, heads) = mesh.serve_heads("shop/server", 8081);
    for (client, headers) in [
        ("shop/client", "X-Forwarded-For: 192.0.2.1\r\n"),
        ("legacy/client", ""),
    ] {
        let request = format!(
            "GET /{client} HTTP/1.1\r\nHost: server\r\nConnection: close\r\n{headers}\
             X-Forwarded-Client-Cert: By={WAYPOINT_SPIFFE_ID};URI={SERVER_SPIFFE_ID}\r\n{ORIGINAL_PEER_HEADER}: {SERVER_SPIFFE_ID}\r\n\
             Forwarded: for=192.0.2.2\r\n\r\n"
        );
        let answer = mesh.dial(client, address).unwrap();
        let answer = { answer }.send_raw(request.as_bytes(), |_| false).unwrap();
        assert!(
            answer.contains(&format!("called by {waypoint}")),
            "{answer}"
        );
        let heads = heads.recorded();
        let head = heads.last().unwrap();
        assert!(head.starts_with(&format!("get /{client} ")), "{head}");
        for absent in ["x-forwarded-client-cert", ORIGINAL_PEER_HEADER] {
            assert!(!head.contains(absent), "{head}");
        }
        let ip = mesh.ip(client);
        let chain = match headers.is_empty() {
            true => format!("x-forwarded-for: {ip}\r\n"),
            false => format!("x-forwarded-for: 192.0.2.1, {ip}\r\n"),
        };
        assert!(head.contains(&chain), "{head}");
        for made in ["x-request-id: ", "traceparent: 00-"] {
            assert!(head.contains(made), "{head}");
        }
    }
}
