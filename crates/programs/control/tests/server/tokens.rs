//! Tests of the records and certificates to which a token gives access: a matrix of tokens and uses.

use std::collections::BTreeSet;

use ambit_model::HttpPolicy;
use ambit_wire::encode::WORKLOAD_TYPE_URL;
use futures_util::{StreamExt, stream};

use super::*;

/// Objects of the cluster besides the node proxy's node: two waypoints in `shop`, one of whose names is a prefix of the
/// other's, one in `store` with the name of the first, and pods of the first one's service account.
const OBJECTS_OF_ALL_KINDS: &str = r#"
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Namespace
metadata: {name: store, labels: {istio.io/dataplane-mode: ambient, istio.io/use-waypoint: wp}}
---
apiVersion: v1
kind: Pod
metadata: {name: zt-1, namespace: istio-system, uid: zu1}
spec: {nodeName: n1, serviceAccountName: ztunnel, containers: []}
status: {phase: Running}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, uid: u1, labels: {app: web}}
spec: {nodeName: n1, serviceAccountName: web, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.1}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop, labels: {istio.io/use-waypoint: wp}}
spec: {clusterIP: 10.96.0.1, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop, labels: {istio.io/use-waypoint: wp-2}}
spec: {clusterIP: 10.96.0.2, selector: {app: web}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: v1
kind: Service
metadata: {name: db, namespace: store}
spec: {clusterIP: 10.96.0.3, selector: {app: db}, ports: [{port: 80, targetPort: 8080}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp-2, namespace: shop}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: Gateway
metadata: {name: wp, namespace: store}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-a, namespace: shop, uid: wu1, labels: {gateway.networking.k8s.io/gateway-name: wp, istio.io/dataplane-mode: none}}
spec: {nodeName: n1, serviceAccountName: wp, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.3}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-2-a, namespace: shop, uid: wu2, labels: {gateway.networking.k8s.io/gateway-name: wp-2, istio.io/dataplane-mode: none}}
spec: {nodeName: n1, serviceAccountName: wp-2, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.4}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-b, namespace: store, uid: wu3, labels: {gateway.networking.k8s.io/gateway-name: wp, istio.io/dataplane-mode: none}}
spec: {nodeName: n2, serviceAccountName: wp, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.5}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: wp-ended, namespace: shop, uid: wu4, labels: {gateway.networking.k8s.io/gateway-name: wp}}
spec: {nodeName: n1, serviceAccountName: wp, containers: []}
status: {phase: Succeeded}
---
apiVersion: v1
kind: Pod
metadata: {name: thief, namespace: shop, uid: tu1, labels: {app: thief}}
spec: {nodeName: n1, serviceAccountName: wp, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.6}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: v1
kind: Pod
metadata: {name: legacy-1, namespace: legacy, uid: lu1}
spec: {nodeName: n1, serviceAccountName: legacy, containers: []}
status: {phase: Running, podIPs: [{ip: 10.0.0.7}], conditions: [{type: Ready, status: "True"}]}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: p, namespace: shop}
spec: {selector: {matchLabels: {app: web}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web]}}]}]}
"#;

const RESOURCE_TYPES: [&str; 6] = [
    WaypointGateway::TYPE_URL,
    WaypointService::TYPE_URL,
    HttpPolicy::TYPE_URL,
    AUTHORIZATION_TYPE_URL,
    WORKLOAD_TYPE_URL,
    ADDRESS_TYPE_URL,
];

/// Names of records for every waypoint and for node proxies, to which a client may subscribe.
const RESOURCE_NAMES: [&str; 9] = [
    "*",
    "shop/wp",
    "shop/wp-2",
    "store/wp",
    "shop/wp/shop/api.shop.svc.cluster.local",
    "shop/wp-2/shop/other.shop.svc.cluster.local",
    "store/wp/store/db.store.svc.cluster.local",
    "shop/p",
    "../store/wp",
];

/// Returns an xDS node that claims this node type and namespace.
fn node_claiming(kind: &str, namespace: &str) -> Node {
    node(&format!("{kind}~10.0.0.9~any.{namespace}~x"), namespace)
}

/// Runs the attempts a few at a time, since the control plane limits the open connections of an address.
async fn run_concurrently(attempts: impl Iterator<Item = impl Future<Output = ()>>) {
    stream::iter(attempts)
        .buffer_unordered(4)
        .collect::<()>()
        .await;
}

/// Returns the records that a stream receives for subscriptions to all types, first by wildcard and then by
/// `RESOURCE_NAMES`, without the addresses that node proxies and waypoints both receive.
async fn received_names(
    plane: &ControlPlane,
    token: &str,
    node: Node,
) -> Result<BTreeSet<String>, Status> {
    let Stream {
        requests,
        mut responses,
    } = plane.stream_as(token).await?;
    let subscriptions = [
        vec!["*".to_owned()],
        RESOURCE_NAMES.map(str::to_owned).to_vec(),
    ];
    for names in subscriptions {
        for type_url in RESOURCE_TYPES {
            let request = DeltaDiscoveryRequest {
                node: Some(node.clone()),
                type_url: type_url.to_owned(),
                resource_names_subscribe: names.clone(),
                // A client that claims to have records is not sent more.
                initial_resource_versions: [("store/wp".to_owned(), "0".to_owned())].into(),
                ..DeltaDiscoveryRequest::default()
            };
            // Sending fails once the stream was rejected, which the response shows.
            let _sent = requests.send(request).await;
        }
    }
    // All requests are answered before the stream ends.
    drop(requests);
    let mut all = BTreeSet::new();
    while let Some(response) = responses.message().await? {
        match response.type_url.as_str() {
            ADDRESS_TYPE_URL => {}
            WORKLOAD_TYPE_URL => drop(all.insert("workloads".to_owned())),
            _ => all.extend(names(&response).into_iter().map(str::to_owned)),
        }
    }
    Ok(all)
}

#[tokio::test]
async fn token_sees_only_records_of_its_scope() {
    let plane =
        ControlPlane::start_with(OBJECTS_OF_ALL_KINDS, &["--waypoint-attachment", "labels"]).await;
    plane.page_until("/ready", "200 OK").await;
    let of_mesh = ["shop/p", "workloads"];
    for (who, token, namespace, expected) in [
        (
            "shop/wp",
            plane.token_of("shop", "wp", "wp-a", "wu1"),
            "shop",
            vec!["shop/wp", "shop/wp/shop/api.shop.svc.cluster.local"],
        ),
        (
            "shop/wp-2",
            plane.token_of("shop", "wp-2", "wp-2-a", "wu2"),
            "shop",
            vec!["shop/wp-2", "shop/wp-2/shop/other.shop.svc.cluster.local"],
        ),
        (
            "store/wp",
            plane.token_of("store", "wp", "wp-b", "wu3"),
            "store",
            vec!["store/wp", "store/wp/store/db.store.svc.cluster.local"],
        ),
        (
            "a node proxy",
            plane.token(),
            "istio-system",
            of_mesh.to_vec(),
        ),
    ] {
        let expected: BTreeSet<_> = expected.into_iter().map(str::to_owned).collect();
        // Claims of the client change nothing.
        for kind in ["waypoint", "ztunnel", "sidecar", "router"] {
            let sees = received_names(&plane, &token, node_claiming(kind, namespace))
                .await
                .unwrap();
            assert_eq!(sees, expected, "{who} as a {kind}");
        }
        // The client cannot act for another namespace.
        for other in ["shop", "store", "istio-system", ""] {
            if other != namespace {
                let refused =
                    received_names(&plane, &token, node_claiming("waypoint", other)).await;
                let code = refused.unwrap_err().code();
                assert_eq!(code, Code::PermissionDenied, "{who} of {other:?}");
            }
        }
    }
    plane.running.stop().await;
}

/// Returns tokens that do not belong to a live waypoint or node proxy, each with its description and the expected
/// status.
fn rejected_tokens(plane: &ControlPlane) -> Vec<(&'static str, String, Code)> {
    let changed = |of: [&str; 4], change: fn(&mut serde_json::Value)| {
        let [namespace, account, pod, uid] = of;
        let mut claims = claims_of(namespace, account, pod, uid);
        change(&mut claims);
        plane.sign(&claims)
    };
    let wp = ["shop", "wp", "wp-a", "wu1"];
    let of =
        |[namespace, account, pod, uid]: [&str; 4]| plane.token_of(namespace, account, pod, uid);
    let stranger = KeyPair::generate_for(&PKCS_ECDSA_P256_SHA256).unwrap();
    let good = of(wp);
    let (head, signature) = good.rsplit_once('.').unwrap();
    let other_claims = of(["store", "wp", "wp-b", "wu3"]);
    let (other_head, _) = other_claims.rsplit_once('.').unwrap();
    let unauthenticated = |what, token| (what, token, Code::Unauthenticated);
    let denied = |what, token| (what, token, Code::PermissionDenied);
    vec![
        unauthenticated(
            "expired",
            changed(wp, |claims| claims["exp"] = 1_000_000.into()),
        ),
        unauthenticated(
            "not valid yet",
            changed(wp, |claims| claims["nbf"] = 99_999_999_999_u64.into()),
        ),
        unauthenticated(
            "without an end",
            changed(wp, |claims| claims["exp"] = serde_json::Value::Null),
        ),
        unauthenticated(
            "for the API server",
            changed(wp, |claims| {
                claims["aud"] = serde_json::json!(["https://kubernetes.default.svc"])
            }),
        ),
        unauthenticated(
            "for nobody",
            changed(wp, |claims| claims["aud"] = serde_json::json!([])),
        ),
        unauthenticated(
            "of two accounts",
            changed(wp, |claims| {
                claims["sub"] = "system:serviceaccount:store:wp".into()
            }),
        ),
        unauthenticated(
            "of a user",
            changed(wp, |claims| claims["sub"] = "system:node:n1".into()),
        ),
        unauthenticated(
            "signed by somebody else",
            sign_claims(&stranger, &claims_of("shop", "wp", "wp-a", "wu1")),
        ),
        unauthenticated(
            "with another's signature",
            format!("{other_head}.{signature}"),
        ),
        unauthenticated("cut off", format!("{head}.")),
        unauthenticated("none", String::new()),
        denied(
            "of an earlier pod of the name",
            of(["shop", "wp", "wp-a", "wu0"]),
        ),
        denied("without the pod's uid", of(["shop", "wp", "wp-a", ""])),
        denied("of a pod that is gone", of(["shop", "wp", "wp-z", "wu9"])),
        denied(
            "of a pod that has ended",
            of(["shop", "wp", "wp-ended", "wu4"]),
        ),
        denied(
            "of no pod",
            changed(wp, |claims| {
                *claims.pointer_mut("/kubernetes.io/pod").unwrap() = serde_json::Value::Null;
            }),
        ),
        denied(
            "of another pod of the account",
            of(["shop", "wp", "thief", "tu1"]),
        ),
        denied(
            "of another waypoint's pod",
            of(["shop", "wp", "wp-2-a", "wu2"]),
        ),
        denied("of an ordinary pod", of(["shop", "web", "web-1", "u1"])),
        denied(
            "of a namesake of the node proxy",
            of(["shop", "ztunnel", "zt-1", "zu1"]),
        ),
    ]
}

#[tokio::test]
async fn other_tokens_cannot_open_a_stream() {
    let plane = ControlPlane::start_with(OBJECTS_OF_ALL_KINDS, &[]).await;
    plane.page_until("/ready", "200 OK").await;
    let attempts = rejected_tokens(&plane)
        .into_iter()
        .map(|(what, token, code)| {
            let plane = &plane;
            async move {
                let refused = plane.stream_as(&token).await.err();
                assert_eq!(refused.map(|status| status.code()), Some(code), "{what}");
            }
        });
    run_concurrently(attempts).await;
    plane.running.stop().await;
}

#[tokio::test]
async fn token_gets_only_certificates_of_its_identities() {
    let plane = ControlPlane::start_with(OBJECTS_OF_ALL_KINDS, &[]).await;
    plane.page_until("/ready", "200 OK").await;
    let names = |namespace: &str, account: &str| {
        format!("spiffe://cluster.local/ns/{namespace}/sa/{account}")
    };
    let (web, legacy, wp) = (
        names("shop", "web"),
        names("legacy", "legacy"),
        names("shop", "wp"),
    );
    let proxy = names("istio-system", "ztunnel");
    let csr = CertificateRequest::new(&web.parse().unwrap()).unwrap().pem;
    let of_wp = plane.token_of("shop", "wp", "wp-a", "wu1");
    let of_thief = plane.token_of("shop", "wp", "thief", "tu1");
    let of_web = plane.token_of("shop", "web", "web-1", "u1");
    let of_proxy = plane.token();
    let mut cases = vec![
        ("the node proxy", of_proxy.clone(), Some(web.clone()), true),
        ("the node proxy", of_proxy.clone(), Some(proxy), true),
        ("the node proxy", of_proxy.clone(), None, true),
        // Neither pods outside of the mesh nor waypoints may be impersonated.
        ("the node proxy", of_proxy.clone(), Some(legacy), false),
        ("the node proxy", of_proxy.clone(), Some(wp.clone()), false),
        (
            "the node proxy",
            of_proxy,
            Some(names("store", "wp")),
            false,
        ),
        ("the waypoint", of_wp.clone(), None, true),
        ("the waypoint", of_wp.clone(), Some(wp.clone()), false),
        ("the waypoint", of_wp.clone(), Some(web.clone()), false),
        ("the waypoint", of_wp, Some(names("shop", "wp-2")), false),
        (
            "a pod of the waypoint's account",
            of_thief.clone(),
            None,
            false,
        ),
        ("a pod of the waypoint's account", of_thief, Some(wp), false),
        ("a pod", of_web.clone(), None, true),
        ("a pod", of_web, Some(web), false),
    ];
    let others = rejected_tokens(&plane).into_iter();
    // Pods of other accounts get their own certificates, but no records.
    let others = others.filter(|(what, ..)| {
        !["of an ordinary pod", "of a namesake of the node proxy"].contains(what)
    });
    cases.extend(others.map(|(what, token, _)| (what, token, None, false)));
    let attempts = cases.into_iter().map(|(who, token, identity, expected)| {
        let (plane, csr) = (&plane, &csr);
        async move {
            let answer = plane.certificate(&token, csr, identity.as_deref(), 0).await;
            assert_eq!(
                answer.is_ok(),
                expected,
                "{who} for {identity:?}: {answer:?}"
            );
            if let Err(refused) = answer {
                assert_eq!(
                    refused.code(),
                    Code::Unauthenticated,
                    "{who} for {identity:?}"
                );
            }
        }
    });
    run_concurrently(attempts).await;
    plane.running.stop().await;
}

#[tokio::test]
async fn certificate_lifetime_is_limited_by_the_mesh() {
    let plane =
        ControlPlane::start_with(OBJECTS_OF_ALL_KINDS, &["--max-workload-cert-ttl", "2h"]).await;
    plane.page_until("/ready", "200 OK").await;
    let hour = 3600;
    let of_web = plane.token_of("shop", "web", "web-1", "u1");
    let web = Identity::new("cluster.local", "shop", "web");
    for (token, impersonated) in [(of_web, None), (plane.token(), Some(web.to_string()))] {
        for (requested, expected) in [
            (0, 2 * hour),
            (-1, 2 * hour),
            (hour, hour),
            (2 * hour, 2 * hour),
            (90 * 24 * hour, 2 * hour),
            (i64::MAX, 2 * hour),
        ] {
            let request = CertificateRequest::new(&web).unwrap();
            let chain = plane
                .certificate(&token, &request.pem, impersonated.as_deref(), requested)
                .await
                .unwrap();
            let issued =
                WorkloadCert::from_response(&TlsSettings::default(), &web, request.key, &chain)
                    .unwrap();
            let life = issued
                .not_after()
                .duration_since(issued.not_before())
                .unwrap();
            // Backdated, for clocks that differ.
            let backdated = Duration::from_secs(120);
            let expected = Duration::from_secs(u64::try_from(expected).unwrap()) + backdated;
            assert_eq!(life, expected, "{requested} s by {impersonated:?}");
        }
    }
    plane.running.stop().await;
}

#[tokio::test]
async fn newly_labelled_pod_gets_a_certificate() {
    let plane = ControlPlane::start_with(OBJECTS_OF_ALL_KINDS, &[]).await;
    plane.page_until("/ready", "200 OK").await;
    let legacy = Identity::new("cluster.local", "legacy", "legacy");
    let csr = CertificateRequest::new(&legacy).unwrap().pem;
    let token = plane.token();
    let identity = legacy.to_string();
    let ask = || plane.certificate(&token, &csr, Some(&identity), 0);
    assert_eq!(ask().await.unwrap_err().code(), Code::Unauthenticated);
    // The agent has observed the pod before the control plane: the response waits for it.
    let namespace = "apiVersion: v1\nkind: Namespace\nmetadata: {name: legacy, labels: {istio.io/dataplane-mode: ambient}}\n";
    let (answer, ()) = tokio::join!(ask(), async { plane.write("legacy.yaml", namespace) });
    answer.unwrap();
    plane.running.stop().await;
}
