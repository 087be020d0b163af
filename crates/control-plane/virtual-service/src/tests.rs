//! Tests with VirtualServices like those in Istio's documentation.

use ambit_k8s_api::{Kind, Object, VirtualService};
use serde_json::Value;

use super::*;

fn read(text: &str) -> std::sync::Arc<VirtualService> {
    let spec: Value = serde_saphyr::from_str(text).unwrap();
    let object = serde_json::json!({
        "apiVersion": "networking.istio.io/v1",
        "kind": "VirtualService",
        "metadata": {"name": "reviews", "namespace": "shop"},
        "spec": spec,
    });
    match Object::from_value(Kind::VirtualService, &object).unwrap() {
        Object::VirtualService(object) => object,
        other => panic!("{other:?}"),
    }
}

fn yaml(spec: &str) -> String {
    let conversion = convert_to_http_routes(&read(spec), "cluster.local").unwrap();
    let objects = conversion.objects.iter();
    let texts: Vec<_> = objects
        .map(|object| serde_saphyr::to_string(&object["spec"]).unwrap())
        .collect();
    texts.join("---\n")
}

fn unsupported_fields(spec: &str) -> Vec<String> {
    let reasons = convert_to_http_routes(&read(spec), "cluster.local").unwrap_err();
    reasons.iter().map(ToString::to_string).collect()
}

#[test]
fn weighted_subsets_become_weighted_backends() {
    insta::assert_snapshot!(yaml(
        "
hosts: [reviews]
http:
- match:
  - headers: {end-user: {exact: jason}}
  route:
  - destination: {host: reviews, subset: v2, port: {number: 9080}}
- route:
  - destination: {host: reviews.shop.svc.cluster.local, subset: v1, port: {number: 9080}}
    weight: 90
  - destination: {host: reviews, subset: v3, port: {number: 9080}}
    weight: 10
"
    ));
}

#[test]
fn filters_timeouts_and_retries_are_converted() {
    insta::assert_snapshot!(yaml(
        "
hosts: [reviews]
gateways: [mesh]
http:
- name: api
  match:
  - uri: {prefix: /api/}
    method: {exact: GET}
    queryParams: {v: {exact: '2'}, any: {}}
  rewrite: {uri: /, authority: reviews.example.com}
  route:
  - destination: {host: reviews, port: {number: 9080}}
    headers: {response: {remove: [x-debug]}}
  timeout: 1.5s
  retries: {attempts: 3, perTryTimeout: 500ms, retryOn: 'gateway-error,connect-failure,429'}
  mirror: {host: audit, port: {number: 80}}
  mirrorPercentage: {value: 12.5}
  corsPolicy: {allowOrigins: [{exact: 'https://a.example'}], allowMethods: [GET], maxAge: 24h}
  headers: {request: {set: {x-a: b}, remove: [x-c]}}
- match: [{uri: {exact: /old}}]
  redirect: {uri: /new, authority: shop.example}
- fault:
    delay: {fixedDelay: 7s, percentage: {value: 0.5}}
    abort: {httpStatus: 503, percentage: {value: 10}}
  route: [{destination: {host: reviews, port: {number: 9080}}}]
"
    ));
}

#[test]
fn unsupported_fields_reject_the_object_with_each_reason() {
    let reasons = unsupported_fields(
        "
hosts: ['*.example.com', reviews.shop, reviews]
gateways: [istio-system/edge]
exportTo: [.]
tcp: [{route: []}]
http:
- match:
  - sourceLabels: {app: a}
    ignoreUriCase: true
    method: {prefix: G}
    headers: {':authority': {exact: a}}
  directResponse: {status: 200}
- route:
  - destination: {host: reviews}
  retries: {attempts: 1, retryOn: odd}
  timeout: soon
  mirror: {host: reviews, subset: v1, port: {number: 80}}
  rewrite: {uri: /x}
- redirect: {redirectCode: 200, derivePort: FROM_REQUEST_PORT}
  headers: {request: {set: {x: '%START_TIME%'}}}
  corsPolicy: {allowOrigins: [{regex: a}]}
  fault: {abort: {http2Error: a, percentage: {value: 120}}}
",
    );
    insta::assert_snapshot!(reasons.join("\n"));
}

#[test]
fn rules_whose_order_would_change_are_rejected() {
    for (rules, field) in [
        // The catch-all rule is first.
        (
            "- {route: [TO]}\n- {match: [{uri: {exact: /a}}], route: [TO]}",
            Some("http[1]"),
        ),
        (
            "- {match: [{uri: {prefix: /a}}], route: [TO]}\n- {match: [{uri: {prefix: /a/b}}], route: [TO]}",
            Some("http[1]"),
        ),
        (
            "- {match: [{uri: {prefix: /a}}], route: [TO]}\n- {match: [{uri: {prefix: /ab}}], route: [TO]}",
            None,
        ),
        (
            "- {match: [{uri: {regex: /a.*}}], route: [TO]}\n- {match: [{uri: {prefix: /b}}], route: [TO]}",
            Some("http[1]"),
        ),
        (
            "- {match: [{headers: {a: {exact: x}}}], route: [TO]}\n- {match: [{headers: {A: {exact: other}, b: {exact: z}}}], route: [TO]}",
            None,
        ),
        (
            "- {match: [{headers: {a: {exact: x}}}], route: [TO]}\n- {match: [{headers: {a: {exact: x}, b: {exact: z}}}], route: [TO]}",
            Some("http[1]"),
        ),
        (
            "- {match: [{method: {exact: GET}}], route: [TO]}\n- {match: [{uri: {prefix: /x}, method: {exact: PUT}}], route: [TO]}",
            None,
        ),
    ] {
        let rules = rules.replace("TO", "{destination: {host: reviews, port: {number: 80}}}");
        let spec = format!("hosts: [reviews]\nhttp:\n{rules}\n");
        let result = convert_to_http_routes(&read(&spec), "cluster.local");
        match (field, result) {
            (None, Ok(_)) => {}
            (Some(field), Err(reasons)) => {
                assert_eq!(reasons.len(), 1, "{reasons:?}");
                assert_eq!(reasons[0].field, field, "{rules}");
            }
            (_, other) => panic!("{rules}: {other:?}"),
        }
    }
}
