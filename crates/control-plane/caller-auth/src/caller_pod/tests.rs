//! Tests which identities a pod's token may request, and why others are denied.

mod calls;

use ambit_derive::{Index, MeshConfig};
use ambit_k8s_api::{Kind, Object};
use serde_json::{Value, json};

use super::*;
use crate::{
    access::{CallerAccess, parse_accounts},
    token::{BoundPod, UnavailableAuthenticator},
    waypoints::WaypointRegistry,
};

const TRUST_DOMAIN: &str = "cluster.local";
const NODE_PROXY: (&str, &str) = ("istio-system", "ztunnel");

/// A mesh of two nodes. All eligible pods of namespace `shop` belong to it, and one pod of `legacy`. `wp` is a waypoint
/// in `shop`.
struct TestCluster {
    pods: PodDirectory,
    access: CallerAccess,
}

fn pod(namespace: &str, name: &str, account: &str, node: &str) -> Value {
    json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"), "labels": {}, "annotations": {}},
        "spec": {"serviceAccountName": account, "nodeName": node, "containers": []},
        "status": {"phase": "Running", "podIP": "10.0.0.1"},
    })
}

fn with_member(mut object: Value, pointer: &str, member: &str, value: impl Into<Value>) -> Value {
    object.pointer_mut(pointer).unwrap()[member] = value.into();
    object
}

impl TestCluster {
    fn new() -> Self {
        let namespace = |name: &str, labels: Value| json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name, "labels": labels}});
        let on_n1 = |account: &str| pod("shop", &format!("{account}-1"), account, "n1");
        let ended = |pod| with_member(pod, "/status", "phase", "Succeeded");
        let mode =
            |pod, mode: &str| with_member(pod, "/metadata/labels", "istio.io/dataplane-mode", mode);
        let annotated =
            |pod, name: &str, value: &str| with_member(pod, "/metadata/annotations", name, value);
        let host_network = |pod| with_member(pod, "/spec", "hostNetwork", true);
        let of_gateway = |pod, name: &str| {
            with_member(
                pod,
                "/metadata/labels",
                "gateway.networking.k8s.io/gateway-name",
                name,
            )
        };
        let waypoint_pod =
            |name: &str, node: &str| of_gateway(mode(pod("shop", name, "wp", node), "none"), "wp");
        let objects = [
            (
                Kind::Namespace,
                namespace("shop", json!({"istio.io/dataplane-mode": "ambient"})),
            ),
            (Kind::Namespace, namespace("legacy", json!({}))),
            (
                Kind::Namespace,
                namespace("kept-out", json!({"istio.io/dataplane-mode": "ambient"})),
            ),
            (
                Kind::Gateway,
                json!({
                    "apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
                    "metadata": {"name": "wp", "namespace": "shop"},
                    "spec": {"gatewayClassName": "istio-waypoint",
                        "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]},
                }),
            ),
        ];
        let pods = [
            pod("istio-system", "zt-1", "ztunnel", "n1"),
            pod("istio-system", "zt-2", "ztunnel", "n2"),
            ended(pod("istio-system", "zt-ended", "ztunnel", "n1")),
            pod("istio-system", "zt-nowhere", "ztunnel", ""),
            pod("istio-system", "other-1", "default", "n1"),
            on_n1("web"),
            ended(on_n1("job")),
            with_member(on_n1("starting"), "/status", "phase", "Pending"),
            mode(on_n1("opted-out"), "none"),
            host_network(on_n1("on-host")),
            host_network(annotated(
                on_n1("claiming"),
                "ambient.istio.io/redirection",
                "enabled",
            )),
            annotated(on_n1("sidecar"), "sidecar.istio.io/status", "{}"),
            waypoint_pod("wp-1", "n1"),
            waypoint_pod("wp-2", "n2"),
            ended(waypoint_pod("wp-0", "n1")),
            pod("shop", "thief-1", "wp", "n1"),
            of_gateway(pod("shop", "thief-2", "wp", "n1"), "other"),
            of_gateway(pod("shop", "claimant-1", "claimant", "n1"), "wp"),
            pod("legacy", "batch-1", "batch", "n1"),
            mode(pod("legacy", "joined-1", "joined", "n1"), "ambient"),
            annotated(
                pod("legacy", "captured-1", "captured", "n1"),
                "ambient.istio.io/redirection",
                "enabled",
            ),
            pod("legacy", "same-name-1", "wp", "n1"),
            pod("kept-out", "dns-1", "dns", "n1"),
        ];
        let mut index = Index::new(MeshConfig {
            enablement: ambit_k8s_api::enablement::Enablement::with_default_selectors(
                ["kept-out".to_owned()],
                "istio-system",
            ),
            ..MeshConfig::default()
        });
        let mut directory = PodDirectory::default();
        let pods = pods.into_iter().map(|pod| (Kind::Pod, pod));
        for (kind, value) in objects.into_iter().chain(pods) {
            let object = Object::from_value(kind, &value).unwrap();
            index.apply(&object, None, &mut directory);
        }
        let waypoints = Arc::new(WaypointRegistry::default());
        waypoints.update(&index.flush());
        Self {
            pods: directory,
            access: access(waypoints),
        }
    }

    fn impersonation(&self, caller: &Caller, requested: &str) -> Result<Identity, CallerDenied> {
        check_impersonation(&self.access, &self.pods, caller, requested, TRUST_DOMAIN)
    }
}

fn access(waypoints: Arc<WaypointRegistry>) -> CallerAccess {
    let (namespace, account) = NODE_PROXY;
    let trusted = parse_accounts(&format!("{namespace}/{account}")).unwrap();
    CallerAccess::new(
        Arc::new(UnavailableAuthenticator),
        trusted,
        false,
        "istio-system".into(),
        waypoints,
        crate::CallerMetrics::default(),
    )
}

fn caller((namespace, account): (&str, &str), pod: Option<(&str, &str)>) -> Caller {
    Caller {
        namespace: namespace.into(),
        service_account: account.into(),
        pod: pod.map(|(name, uid)| BoundPod {
            name: name.into(),
            uid: uid.into(),
        }),
    }
}

/// Returns the caller that presents the token of a node proxy's pod.
fn node_proxy(name: &str) -> Caller {
    caller(NODE_PROXY, Some((name, &format!("uid-{name}"))))
}

fn spiffe(namespace: &str, account: &str) -> String {
    format!("spiffe://{TRUST_DOMAIN}/ns/{namespace}/sa/{account}")
}

/// Expected denial of a requested identity; `None` if it is allowed.
type ExpectedDenial<'a> = Option<&'a dyn Fn(Identity) -> CallerDenied>;

#[test]
fn node_proxy_gets_identities_of_mesh_pods_of_its_node_only() {
    let world = TestCluster::new();
    let not_on = |node: &'static str| {
        move |identity: Identity| CallerDenied::IdentityNotOnNode {
            identity,
            node: node.into(),
        }
    };
    let (n1, n2) = (not_on("n1"), not_on("n2"));
    let cases: &[(&str, &str, &str, ExpectedDenial<'_>)] = &[
        ("zt-1", "shop", "web", None),
        // A starting pod needs its certificate already.
        ("zt-1", "shop", "starting", None),
        ("zt-1", "legacy", "joined", None),
        // The agent may know labels of the namespace that are not known here yet.
        ("zt-1", "legacy", "captured", None),
        // The proxy's own identity, for its own pod.
        ("zt-1", "istio-system", "ztunnel", None),
        ("zt-2", "shop", "web", Some(&n2)),
        ("zt-1", "shop", "job", Some(&n1)),
        ("zt-1", "other", "web", Some(&n1)),
        ("zt-1", "shop", "opted-out", Some(&n1)),
        ("zt-1", "shop", "on-host", Some(&n1)),
        ("zt-1", "shop", "claiming", Some(&n1)),
        ("zt-1", "shop", "sidecar", Some(&n1)),
        ("zt-1", "legacy", "batch", Some(&n1)),
        ("zt-1", "kept-out", "dns", Some(&n1)),
        ("zt-1", "istio-system", "default", Some(&n1)),
        // A waypoint requests its own certificate, regardless of other pods of its account on the node.
        ("zt-1", "shop", "wp", Some(&CallerDenied::WaypointIdentity)),
        ("zt-2", "shop", "wp", Some(&CallerDenied::WaypointIdentity)),
        // The label alone does not make a pod a waypoint.
        ("zt-1", "shop", "claimant", None),
        ("zt-1", "legacy", "wp", Some(&n1)),
    ];
    for &(proxy, namespace, account, refusal) in cases {
        let requested = spiffe(namespace, account);
        let identity: Identity = requested.parse().unwrap();
        let expected = match refusal {
            None => Ok(identity),
            Some(refusal) => Err(refusal(identity)),
        };
        let decided = world.impersonation(&node_proxy(proxy), &requested);
        assert_eq!(decided, expected, "{proxy}: {requested}");
    }
}

#[test]
fn impersonation_needs_a_live_node_proxy_with_a_bound_token() {
    let world = TestCluster::new();
    let web = spiffe("shop", "web");
    let name = |name: &str| format!("istio-system/{name}");
    for (caller, expected) in [
        (
            caller(
                ("istio-system", "default"),
                Some(("other-1", "uid-other-1")),
            ),
            CallerDenied::NotNodeProxy("istio-system/default (pod other-1)".into()),
        ),
        (
            caller(("shop", "ztunnel"), Some(("zt-1", "uid-zt-1"))),
            CallerDenied::NotNodeProxy("shop/ztunnel (pod zt-1)".into()),
        ),
        (
            caller(("shop", "wp"), Some(("wp-1", "uid-wp-1"))),
            CallerDenied::NotNodeProxy("shop/wp (pod wp-1)".into()),
        ),
        (caller(NODE_PROXY, None), CallerDenied::TokenNotBoundToPod),
        (
            caller(NODE_PROXY, Some(("gone", "u"))),
            CallerDenied::UnknownPod(name("gone")),
        ),
        (
            caller(NODE_PROXY, Some(("zt-1", "older"))),
            CallerDenied::PodUidMismatch(name("zt-1")),
        ),
        (
            caller(NODE_PROXY, Some(("zt-1", ""))),
            CallerDenied::PodUidMismatch(name("zt-1")),
        ),
        (
            node_proxy("zt-ended"),
            CallerDenied::PodEnded(name("zt-ended")),
        ),
        (
            node_proxy("other-1"),
            CallerDenied::ServiceAccountMismatch(name("other-1")),
        ),
        (
            node_proxy("zt-nowhere"),
            CallerDenied::PodWithoutNode(name("zt-nowhere")),
        ),
    ] {
        assert_eq!(
            world.impersonation(&caller, &web),
            Err(expected),
            "{caller}"
        );
    }
}

#[test]
fn malformed_identities_are_denied() {
    let world = TestCluster::new();
    for requested in [
        "web",
        "spiffe://cluster.local/ns/shop",
        "spiffe://cluster.local/ns/shop/sa/",
        "spiffe://cluster.local/ns//sa/web",
        "spiffe://cluster.local/ns/shop/sa/web/",
        "spiffe://cluster.local/ns/shop/sa/web/more",
        "spiffe://cluster.local/ns/shop/sa/web?x",
        "spiffe://cluster.local/ns/shop/sa/../sa/web",
        "spiffe://cluster.local/ns/shop/sa/%77eb",
        "spiffe://cluster.local/ns/shop/sa/web\0",
        "spiffe://cluster.local/ns/shop/sa/web ",
        "SPIFFE://cluster.local/ns/shop/sa/web",
        "spiffe://cluster.local/ns/SHOP/sa/web",
        "spiffe://cluster.local/sa/web/ns/shop",
        "spiffe://cluster.local:1/ns/shop/sa/web",
        "spiffe://a@cluster.local/ns/shop/sa/web",
        "spiffe://other.td/ns/shop/sa/web",
        "spiffe://cluster.local.other/ns/shop/sa/web",
        "spiffe://CLUSTER.LOCAL/ns/shop/sa/web",
        "https://cluster.local/ns/shop/sa/web",
    ] {
        let refused = world.impersonation(&node_proxy("zt-1"), requested);
        assert!(refused.is_err(), "{requested:?}: {refused:?}");
    }
}

#[test]
fn waypoint_identity_is_for_its_own_live_pods_only() {
    let world = TestCluster::new();
    let wp = ("shop", "wp");
    let pod = |name: &str| format!("shop/{name}");
    let not_its = |name: &str| CallerDenied::PodNotOfWaypoint {
        pod: pod(name),
        waypoint: GatewayName::new("shop", "wp"),
    };
    for (caller, expected) in [
        (caller(wp, Some(("wp-1", "uid-wp-1"))), Ok(())),
        (caller(wp, Some(("wp-2", "uid-wp-2"))), Ok(())),
        (caller(wp, None), Err(CallerDenied::TokenNotBoundToPod)),
        (
            caller(wp, Some(("wp-1", "uid-wp-2"))),
            Err(CallerDenied::PodUidMismatch(pod("wp-1"))),
        ),
        (
            caller(wp, Some(("wp-0", "uid-wp-0"))),
            Err(CallerDenied::PodEnded(pod("wp-0"))),
        ),
        (
            caller(wp, Some(("wp-9", "uid-wp-9"))),
            Err(CallerDenied::UnknownPod(pod("wp-9"))),
        ),
        (
            caller(wp, Some(("thief-1", "uid-thief-1"))),
            Err(not_its("thief-1")),
        ),
        (
            caller(wp, Some(("thief-2", "uid-thief-2"))),
            Err(not_its("thief-2")),
        ),
        (
            caller(wp, Some(("claimant-1", "uid-claimant-1"))),
            Err(CallerDenied::ServiceAccountMismatch(pod("claimant-1"))),
        ),
        // Any other caller has its token's identity: sidecars and gateways with certificates of
        // their own.
        (
            caller(("shop", "web"), Some(("web-1", "uid-web-1"))),
            Ok(()),
        ),
        (
            caller(("legacy", "wp"), Some(("same-name-1", "uid-same-name-1"))),
            Ok(()),
        ),
        (caller(("shop", "nobody"), None), Ok(())),
        (node_proxy("zt-1"), Ok(())),
    ] {
        let decided = authorize_own_identity(&world.access, &world.pods, &caller);
        assert_eq!(decided, expected, "{caller}");
    }
}

#[test]
fn no_identity_is_granted_until_waypoints_are_known() {
    let world = TestCluster::new();
    let access = access(Arc::default());
    let web = spiffe("shop", "web");
    let decided = check_impersonation(
        &access,
        &world.pods,
        &node_proxy("zt-1"),
        &web,
        TRUST_DOMAIN,
    );
    assert_eq!(decided, Err(CallerDenied::ObjectsNotListed));
    let wp = caller(("shop", "wp"), Some(("thief-1", "uid-thief-1")));
    assert_eq!(
        authorize_own_identity(&access, &world.pods, &wp),
        Err(CallerDenied::ObjectsNotListed)
    );
}
