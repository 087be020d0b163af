//! Scope of policies attached to services: requests to pods' own addresses.

use ambit_k8s_api::{Kind, ObjectKey};
use ambit_model::PodGrant;

use super::{routes_and_conditions::grant, *};
use crate::ServicePolicyScope;

const POLICY: &str = "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\nmetadata: {name: p, namespace: shop}\nspec: {targetRefs: [TARGET], rules: [{}]}\n";
const SERVICE_TARGET: &str = "{kind: Service, name: cart}";
const GATEWAY_TARGET: &str = "{group: gateway.networking.k8s.io, kind: Gateway, name: wp}";

fn condition_message(mesh: &TestMesh) -> String {
    let key = ObjectKey::new(Kind::AuthorizationPolicy, "shop", "p");
    let derived_status = mesh.index.derived_status(&key).unwrap();
    let condition = derived_status.condition.as_ref();
    condition.map(|one| one.message.clone()).unwrap_or_default()
}

#[test]
fn policies_of_services_say_that_they_leave_out_pods() {
    for (scope, target, leaves_out) in [
        (ServicePolicyScope::ServiceAndPods, SERVICE_TARGET, false),
        (ServicePolicyScope::ServiceAndPods, GATEWAY_TARGET, false),
        (ServicePolicyScope::ServiceOnly, SERVICE_TARGET, true),
        (ServicePolicyScope::ServiceOnly, GATEWAY_TARGET, false),
    ] {
        let mut mesh = TestMesh::with_config(MeshConfig {
            service_policy_scope: scope,
            ..MeshConfig::default()
        });
        let policy = POLICY.replace("TARGET", target);
        mesh.apply(&join_documents(&[
            CART_SERVICE,
            CART_POD,
            &gateway("wp", ""),
            &policy,
        ]));
        let settings = &mesh.waypoint_gateways["gateway shop/wp"];
        assert_eq!(
            settings.policies_only_for_services,
            scope == ServicePolicyScope::ServiceOnly
        );
        let message = condition_message(&mesh);
        let names_setting = message.contains("global.waypoint.servicePolicyScope");
        assert_eq!(names_setting, leaves_out, "{scope:?} {target}: {message}");
    }
}

#[test]
fn a_namespace_grants_that_attachments_of_others_concern_its_pods() {
    let mut mesh = TestMesh::from_yaml(&join_documents(&[
        CART_SERVICE,
        CART_POD,
        &gateway("wp", ""),
    ]));
    let pod_grants = |mesh: &TestMesh| {
        let mut served = mesh.waypoint_services.values();
        served
            .find(|one| one.service.namespace == "shop")
            .unwrap()
            .grantors
            .clone()
    };
    assert_eq!(pod_grants(&mesh), []);
    let service = "{group: '', kind: Service, namespace: shop}";
    for (namespace, from, to, pod) in [
        ("bank", service, "{group: '', kind: Pod}", Some("")),
        (
            "bank",
            service,
            "{group: '', kind: Pod, name: till}",
            Some("till"),
        ),
        ("bank", service, "{group: '', kind: Service}", None),
        ("bank", service, "{group: other, kind: Pod}", None),
        (
            "bank",
            "{group: other, kind: Service, namespace: shop}",
            "{group: '', kind: Pod}",
            None,
        ),
        (
            "bank",
            "{group: '', kind: Service, namespace: other}",
            "{group: '', kind: Pod}",
            None,
        ),
        (
            "bank",
            "{group: networking.istio.io, kind: ServiceEntry, namespace: shop}",
            "{group: '', kind: Pod}",
            None,
        ),
        ("shop", service, "{group: '', kind: Pod}", None),
    ] {
        mesh.apply(&grant(namespace, from, to));
        let expected = pod.map(|pod| PodGrant {
            namespace: namespace.into(),
            pod: pod.into(),
        });
        let expected: Vec<_> = expected.into_iter().collect();
        assert_eq!(pod_grants(&mesh), expected, "{namespace} {from} {to}");
        mesh.delete(Kind::ReferenceGrant, namespace, "g");
        assert_eq!(pod_grants(&mesh), []);
    }
}

#[test]
fn policies_of_services_say_that_their_waypoint_takes_no_pods() {
    let bound = CART_SERVICE.replace(
        "name: cart,",
        "name: cart, labels: {istio.io/use-waypoint: wp},",
    );
    let unselective = bound.replace("selector: {app: cart}", "type: ClusterIP");
    let served = |what: &str| {
        gateway(
            "wp",
            &format!(", labels: {{istio.io/waypoint-for: {what}}}"),
        )
    };
    for (service, gateway, target, leaves_out) in [
        (&bound, gateway("wp", ""), SERVICE_TARGET, true),
        (&bound, served("service"), SERVICE_TARGET, true),
        (&bound, served("all"), SERVICE_TARGET, false),
        (&bound, served("service"), GATEWAY_TARGET, false),
        (&unselective, served("service"), SERVICE_TARGET, false),
    ] {
        let policy = POLICY.replace("TARGET", target);
        let mut mesh =
            TestMesh::from_yaml(&join_documents(&[service, CART_POD, &gateway, &policy]));
        let excludes_pod_addresses = |mesh: &TestMesh| {
            condition_message(mesh).contains("not for requests to the pods' own addresses")
        };
        assert_eq!(
            excludes_pod_addresses(&mesh),
            leaves_out,
            "{gateway} {target}: {}",
            condition_message(&mesh)
        );
        mesh.apply(&served("all"));
        assert!(
            !excludes_pod_addresses(&mesh),
            "{}",
            condition_message(&mesh)
        );
    }
}
