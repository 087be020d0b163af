//! Who gets which certificate, and why not.

use ambit_derive::{Index, MeshConfig};
use ambit_model::Identity;

use super::*;
use crate::{
    access::parse_accounts,
    auth::{BoundPod, NoKeys},
};

/// ztunnel on n1 and n2, a web pod on n1, an ended one and an unscheduled one.
fn pods() -> PodDirectory {
    let pod = |namespace: &str, name: &str, account: &str, node: &str, phase: &str| {
        serde_json::json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}")},
            "spec": {"serviceAccountName": account, "nodeName": node, "containers": []},
            "status": {"phase": phase, "podIP": "10.0.0.1"},
        })
    };
    let mut pods = PodDirectory::default();
    let mut index = Index::new(MeshConfig::default());
    for value in [
        pod("istio-system", "zt-1", "ztunnel", "n1", "Running"),
        pod("istio-system", "zt-2", "ztunnel", "n2", "Running"),
        pod("istio-system", "zt-ended", "ztunnel", "n1", "Succeeded"),
        pod("istio-system", "zt-nowhere", "ztunnel", "", "Pending"),
        pod("istio-system", "impostor", "default", "n1", "Running"),
        pod("shop", "web-1", "web", "n1", "Running"),
        pod("shop", "job-1", "job", "n1", "Succeeded"),
        pod("shop", "starting-1", "starting", "n1", "Pending"),
    ] {
        let object = ambit_k8s_api::Object::from_value(ambit_k8s_api::Kind::Pod, &value).unwrap();
        index.apply(&object, None, &mut pods);
    }
    pods
}

fn caller(account: &str, pod: Option<(&str, &str)>) -> Caller {
    Caller {
        namespace: "istio-system".into(),
        service_account: account.into(),
        pod: pod.map(|(name, uid)| BoundPod {
            name: name.into(),
            uid: uid.into(),
        }),
    }
}

fn check(caller: &Caller, requested: &str) -> Result<Identity, Denied> {
    let trusted = parse_accounts("istio-system/ztunnel").unwrap();
    let access = Access::new(
        Arc::new(NoKeys),
        trusted,
        false,
        Arc::default(),
        Arc::default(),
    );
    check_impersonation(&access, &pods(), caller, requested, "cluster.local")
}

const WEB: &str = "spiffe://cluster.local/ns/shop/sa/web";

#[test]
fn a_node_proxy_may_act_for_the_pods_of_its_node() {
    let good = caller("ztunnel", Some(("zt-1", "uid-zt-1")));
    assert_eq!(check(&good, WEB).unwrap().to_string(), WEB);
    // A pod that is starting needs its certificate already.
    assert!(check(&good, "spiffe://cluster.local/ns/shop/sa/starting").is_ok());
}

#[test]
fn everything_else_is_denied_for_its_own_reason() {
    let good = || caller("ztunnel", Some(("zt-1", "uid-zt-1")));
    let name = |name: &str| format!("istio-system/{name}");
    let web: Identity = WEB.parse().unwrap();
    for (caller, requested, expected) in [
        (
            caller("default", Some(("impostor", "uid-impostor"))),
            WEB,
            Denied::NotTrusted("istio-system/default (pod impostor)".into()),
        ),
        (
            good(),
            "spiffe://cluster.local/ns/shop",
            Denied::BadIdentity("spiffe://cluster.local/ns/shop".into()),
        ),
        (good(), "web", Denied::BadIdentity("web".into())),
        (
            good(),
            "spiffe://other.td/ns/shop/sa/web",
            Denied::TrustDomain("spiffe://other.td/ns/shop/sa/web".into()),
        ),
        (caller("ztunnel", None), WEB, Denied::NotBound),
        (
            caller("ztunnel", Some(("gone", "u"))),
            WEB,
            Denied::UnknownPod(name("gone")),
        ),
        (
            caller("ztunnel", Some(("zt-1", "older"))),
            WEB,
            Denied::OtherUid(name("zt-1")),
        ),
        (
            caller("ztunnel", Some(("zt-1", ""))),
            WEB,
            Denied::OtherUid(name("zt-1")),
        ),
        (
            caller("ztunnel", Some(("zt-ended", "uid-zt-ended"))),
            WEB,
            Denied::PodEnded(name("zt-ended")),
        ),
        (
            caller("ztunnel", Some(("impostor", "uid-impostor"))),
            WEB,
            Denied::OtherAccount(name("impostor")),
        ),
        (
            caller("ztunnel", Some(("zt-nowhere", "uid-zt-nowhere"))),
            WEB,
            Denied::NoNode(name("zt-nowhere")),
        ),
        (
            caller("ztunnel", Some(("zt-2", "uid-zt-2"))),
            WEB,
            Denied::NotOnNode {
                identity: web,
                node: "n2".into(),
            },
        ),
        (
            good(),
            "spiffe://cluster.local/ns/shop/sa/job",
            Denied::NotOnNode {
                identity: Identity::new("cluster.local", "shop", "job"),
                node: "n1".into(),
            },
        ),
        (
            good(),
            "spiffe://cluster.local/ns/other/sa/web",
            Denied::NotOnNode {
                identity: Identity::new("cluster.local", "other", "web"),
                node: "n1".into(),
            },
        ),
    ] {
        assert_eq!(check(&caller, requested).unwrap_err(), expected);
    }
}

#[test]
fn lives_are_defaulted_and_bounded() {
    assert_eq!(ttl(0).unwrap(), DEFAULT_TTL);
    assert_eq!(ttl(-5).unwrap(), DEFAULT_TTL);
    assert_eq!(ttl(3600).unwrap(), Duration::from_secs(3600));
    for seconds in [i64::MAX, 91 * 24 * 3600] {
        assert_eq!(
            ttl(seconds).unwrap_err().code(),
            tonic::Code::InvalidArgument
        );
    }
}
