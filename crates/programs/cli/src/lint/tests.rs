//! Tests of `ambit lint` with manifests alone, and with manifests together with a mesh's objects.

use std::path::Path;

use super::*;

const EXISTING_OBJECTS: &str = "
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
apiVersion: v1
kind: Pod
metadata: {name: web-1, namespace: shop, labels: {app: web}}
spec: {nodeName: n1, serviceAccountName: web, containers: []}
---
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {clusterIP: 10.0.0.9, selector: {app: web}, ports: [{port: 80}]}
---
apiVersion: networking.istio.io/v1
kind: VirtualService
metadata: {name: old, namespace: shop}
";

fn events(text: &str) -> Vec<ObjectEvent> {
    let snapshot = ambit_manifests::parse(Path::new("present.yaml"), text);
    assert_eq!(snapshot.problems, []);
    let objects = snapshot.objects.into_values();
    let applied = |(object, origin)| ObjectEvent::Applied {
        object,
        origin: Some(origin),
    };
    objects.map(applied).collect()
}

fn lint_messages(present: &str, manifests: &str) -> Vec<String> {
    let manifests = ambit_manifests::parse(Path::new("new.yaml"), manifests);
    let problems = lint(MeshConfig::default(), events(present), manifests);
    problems.iter().map(Problem::format_line).collect()
}

#[test]
fn selectors_and_principals_that_match_nothing_are_found() {
    let policies = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: typo, namespace: shop}
spec:
  selector: {matchLabels: {app: wbe}}
  rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/web, cluster.local/ns/shop/sa/wbe]}}]}]
---
apiVersion: security.istio.io/v1
kind: PeerAuthentication
metadata: {name: strict, namespace: shop}
spec: {selector: {matchLabels: {app: web, tier: back}}, mtls: {mode: STRICT}}
";
    let found = lint_messages(EXISTING_OBJECTS, policies);
    assert_eq!(
        found,
        [
            "new.yaml:2: AuthorizationPolicy shop/typo: spec.selector.matchLabels: no pod in shop has the labels \
             app=wbe: the policy applies to nothing",
            "new.yaml:2: AuthorizationPolicy shop/typo: spec.rules[0].from[0].source.principals[1]: no pod in shop runs \
             as the service account wbe",
            "new.yaml:9: PeerAuthentication shop/strict: spec.selector.matchLabels: no pod in shop has the labels \
             app=web,tier=back: the policy applies to nothing",
        ]
    );
}

#[test]
fn namespaces_without_pods_cause_no_findings() {
    let policy = "
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: other, namespace: elsewhere}
spec:
  selector: {matchLabels: {app: x}}
  rules: [{from: [{source: {principals: [cluster.local/ns/unknown/sa/x, cluster.local/ns/shop/*]}}]}]
";
    assert_eq!(
        lint_messages(EXISTING_OBJECTS, policy),
        Vec::<String>::new()
    );
}

#[test]
fn shadowed_rules_are_found() {
    let route = "
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: '', kind: Service, name: web, port: 80}]
  rules:
  - matches:
    - {path: {value: /a/}, headers: [{name: X-A, value: '1'}, {name: x-b, value: '2'}]}
    backendRefs: [{name: web, port: 80}]
  - matches:
    - {path: {type: PathPrefix, value: /a}, headers: [{name: x-b, value: '2'}, {name: x-a, value: '1'}]}
    - {path: {type: Exact, value: /a}}
    backendRefs: [{name: web, port: 80}]
  - backendRefs: [{name: web, port: 80}]
  - matches: [{path: {value: /}}]
    backendRefs: [{name: web, port: 80}]
";
    let found = lint_messages(EXISTING_OBJECTS, route);
    let shadowed: Vec<_> = found
        .iter()
        .filter(|line| line.contains("goes before it"))
        .map(String::as_str)
        .collect();
    assert_eq!(
        shadowed,
        [
            "new.yaml:2: HTTPRoute shop/web: spec.rules[1].matches[0]: spec.rules[0] matches the same requests and goes \
             before it",
            "new.yaml:2: HTTPRoute shop/web: spec.rules[3].matches[0]: spec.rules[2] matches the same requests and goes \
             before it",
        ]
    );
}

#[test]
fn problems_are_of_the_manifests_or_caused_by_them() {
    // The VirtualService is no news.
    assert_eq!(lint_messages(EXISTING_OBJECTS, ""), Vec::<String>::new());
    let manifests = "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: s, namespace: shop}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: methods, namespace: legacy}
spec: {rules: [{to: [{operation: {methods: [GET]}}]}]}
---
apiVersion: v1
kind: Namespace
metadata: {name: shop, labels: {istio.io/use-waypoint: gone}}
---
apiVersion: security.istio.io/v1
kind: AuthorizationPolicy
metadata: {name: broken, namespace: shop}
spec: {rulez: []}
";
    let found = lint_messages(EXISTING_OBJECTS, manifests);
    for part in [
        "new.yaml:2: is a networking.istio.io/v1 Sidecar",
        "spec.rules[0].to[0].operation.methods can only be evaluated by a waypoint",
        "there is no Gateway shop/gone",
        "Service shop/web: status.conditions[istio.io/WaypointBound]",
        "rulez",
    ] {
        assert!(
            found.iter().any(|line| line.contains(part)),
            "{part}: {found:#?}"
        );
    }
    assert!(
        !found.iter().any(|line| line.contains("VirtualService")),
        "{found:#?}"
    );
}

#[test]
fn kinds_and_labels_of_istio_without_effect_have_advice() {
    let manifests = "
apiVersion: networking.istio.io/v1
kind: Sidecar
metadata: {name: s, namespace: shop}
---
apiVersion: gateway.networking.x-k8s.io/v1alpha1
kind: XBackendTrafficPolicy
metadata: {name: x, namespace: shop}
---
apiVersion: v1
kind: Namespace
metadata: {name: legacy, labels: {istio-injection: enabled}}
---
apiVersion: v1
kind: Service
metadata: {name: api, namespace: shop, annotations: {networking.istio.io/exportTo: .}}
spec: {clusterIP: 10.0.0.8, ports: [{port: 80}]}
---
apiVersion: apps/v1
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  selector: {matchLabels: {app: web}}
  template: {metadata: {labels: {app: web}, annotations: {sidecar.istio.io/inject: 'false'}}, spec: {containers: []}}
";
    let found = lint_messages(EXISTING_OBJECTS, manifests);
    for part in [
        "new.yaml:2: is a networking.istio.io/v1 Sidecar, which nothing reads: it has no effect; delete it",
        "XBackendTrafficPolicy, which nothing reads: it has no effect; use trafficPolicy.retryBudget",
        "Namespace legacy: metadata.labels[istio-injection]: no sidecars are injected; label it \
         istio.io/dataplane-mode=ambient (`ambit enroll legacy`)",
        "Service shop/api: metadata.annotations[networking.istio.io/exportTo]: Services are seen in all namespaces",
        "Deployment shop/web: spec.template.metadata.annotations[sidecar.istio.io/inject]: it does not keep pods out",
    ] {
        assert!(
            found.iter().any(|line| line.contains(part)),
            "{part}: {found:#?}"
        );
    }
}
