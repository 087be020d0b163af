//! Tests of the policies suggested for flow events and manifests.

use std::path::Path;

use ambit_flow::{
    Flow, FlowEventKind, Peer, ReporterKind, RequestSummary, ServiceName, StreamItem,
};
use serde_json::json;

use super::*;
use crate::flows::text::tests::flow;

fn pods(more: &str) -> Vec<ObjectEvent> {
    let pod = |name: &str, labels: &str, owner: &str| {
        format!(
            "kind: Pod\napiVersion: v1\nmetadata: {{name: {name}, namespace: shop, labels: {{{labels}}}, \
             ownerReferences: [{{apiVersion: v1, kind: R, name: {owner}, uid: {owner}}}]}}\n\
             spec: {{nodeName: n, containers: [{{name: c}}]}}\n---\n"
        )
    };
    let manifests = [
        pod("orders-1", "app: orders, pod-template-hash: a", "orders"),
        pod("orders-2", "app: orders, pod-template-hash: a", "orders"),
        pod("orders-3", "app: orders, pod-template-hash: a", "orders"),
        pod("web-1", "app: web, tier: front", "web"),
        pod("admin-1", "app: web", "admin"),
        more.to_owned(),
    ]
    .concat();
    let snapshot = ambit_manifests::parse(Path::new("a.yaml"), &manifests);
    assert_eq!(snapshot.problems, []);
    let objects = snapshot.objects.into_values();
    objects
        .map(|(object, origin)| ObjectEvent::Applied {
            object,
            origin: Some(origin),
        })
        .collect()
}

fn connection_flow(workload: &str, owner: &str, client: Option<&str>, port: u16) -> Flow {
    Flow {
        reporter: ambit_flow::Reporter {
            kind: ReporterKind::Destination,
            ..flow().reporter
        },
        source: Peer {
            identity: client.map(|name| format!("spiffe://td/ns/shop/sa/{name}")),
            address: Some("10.0.0.9:40000".to_owned()),
            ..Peer::default()
        },
        destination: Peer {
            workload: Some(workload.to_owned()),
            owner: Some(owner.to_owned()),
            namespace: Some("shop".to_owned()),
            address: Some(format!("10.0.0.1:{port}")),
            ..Peer::default()
        },
        ..flow()
    }
}

fn request_flow(client: &str, method: &str, path: &str) -> Flow {
    let reporter = ambit_flow::Reporter {
        kind: ReporterKind::Waypoint,
        ..flow().reporter
    };
    Flow {
        event: FlowEventKind::Request,
        reporter,
        service: Some(ServiceName {
            name: "orders".to_owned(),
            namespace: "shop".to_owned(),
            hostname: "orders.shop.svc.cluster.local".to_owned(),
        }),
        waypoint: Some("shop/waypoint".to_owned()),
        request: Some(RequestSummary {
            method: method.to_owned(),
            path: path.to_owned(),
            status: 200,
            ..RequestSummary::default()
        }),
        ..connection_flow("orders-1", "orders", Some(client), 8080)
    }
}

const OPTIONS: SuggestOptions<'_> = SuggestOptions {
    namespaces: &[],
    paths: false,
    dry_run: false,
    root_namespace: "istio-system",
};

fn suggested(flows: &[Flow], objects: &[ObjectEvent], options: &SuggestOptions<'_>) -> Suggestions {
    let mut seen = Observations::default();
    for flow in flows {
        seen.add(&StreamItem::Flow(Box::new(flow.clone())));
    }
    suggest(&seen, objects, options)
}

fn rules(suggestions: &Suggestions) -> Value {
    assert_eq!(suggestions.policies.len(), 1, "{suggestions:#?}");
    manifest::to_manifest(&suggestions.policies[0].spec.rules)
}

#[test]
fn callers_of_pods_are_allowed_with_the_ports_they_used() {
    let flows = [
        connection_flow("orders-1", "orders", Some("web"), 8080),
        connection_flow("orders-2", "orders", Some("web"), 9090),
        connection_flow("orders-2", "orders", Some("jobs"), 8080),
    ];
    let suggestions = suggested(&flows, &pods(""), &OPTIONS);
    assert_eq!(
        suggestions
            .policies
            .iter()
            .map(manifest::to_manifest)
            .collect::<Vec<_>>(),
        [json!({
            "apiVersion": "security.istio.io/v1",
            "kind": "AuthorizationPolicy",
            "metadata": {"name": "orders-callers", "namespace": "shop"},
            "spec": {
                "selector": {"matchLabels": {"app": "orders"}},
                "action": "ALLOW",
                "rules": [
                    {
                        "from": [{"source": {"principals": ["td/ns/shop/sa/web"]}}],
                        "to": [{"operation": {"ports": ["8080", "9090"]}}],
                    },
                    {
                        "from": [{"source": {"principals": ["td/ns/shop/sa/jobs"]}}],
                        "to": [{"operation": {"ports": ["8080"]}}],
                    },
                ],
            },
        })]
    );
}

#[test]
fn requests_are_allowed_at_the_waypoint_by_method_and_path() {
    let mut flows = Vec::new();
    for client in ["web", "jobs"] {
        flows.push(request_flow(client, "GET", "/a"));
        flows.push(request_flow(client, "HEAD", "/a"));
        flows.push(request_flow(client, "POST", "/b"));
    }
    let both = json!([{"source": {"principals": ["td/ns/shop/sa/jobs", "td/ns/shop/sa/web"]}}]);
    let suggestions = suggested(&flows, &pods(""), &OPTIONS);
    let target = json!([{"group": "", "kind": "Service", "name": "orders"}]);
    assert_eq!(
        manifest::to_manifest(&suggestions.policies[0].spec.target_refs),
        target
    );
    assert_eq!(
        rules(&suggestions),
        json!([{"from": both, "to": [{"operation": {"methods": ["GET", "HEAD", "POST"]}}]}])
    );
    let paths = SuggestOptions {
        paths: true,
        ..OPTIONS
    };
    assert_eq!(
        rules(&suggested(&flows, &pods(""), &paths)),
        json!([{"from": both, "to": [
            {"operation": {"methods": ["GET", "HEAD"], "paths": ["/a"]}},
            {"operation": {"methods": ["POST"], "paths": ["/b"]}},
        ]}])
    );
}

#[test]
fn paths_that_are_many_or_mean_more_are_not_named() {
    let paths = SuggestOptions {
        paths: true,
        ..OPTIONS
    };
    let many: Vec<_> = (0..=MAX_PATHS)
        .map(|number| request_flow("web", "GET", &format!("/{number}")))
        .collect();
    for flows in [
        many,
        vec![request_flow("web", "GET", "/a*")],
        vec![request_flow("web", "GET", "/{id}")],
        vec![request_flow("web", "GET", "/long...")],
    ] {
        let rules = rules(&suggested(&flows, &pods(""), &paths));
        assert_eq!(rules[0]["to"], json!([{"operation": {"methods": ["GET"]}}]));
    }
}

#[test]
fn refused_flows_never_become_rules() {
    let refused = |mut flow: Flow| {
        flow.event = FlowEventKind::Refused;
        flow
    };
    let flows = [
        connection_flow("orders-1", "orders", Some("web"), 8080),
        refused(connection_flow("orders-1", "orders", Some("thief"), 8080)),
        refused(connection_flow("web-1", "web", Some("thief"), 8080)),
    ];
    let suggestions = suggested(&flows, &pods(""), &OPTIONS);
    assert!(!rules(&suggestions).to_string().contains("thief"));
    let notes = suggestions.notes.join("\n");
    let thief = "spiffe://td/ns/shop/sa/thief -> shop/web was refused 1 times";
    assert!(notes.contains(thief), "{notes}");
}

#[test]
fn plaintext_clients_are_named_by_address_in_a_note() {
    let suggestions = suggested(
        &[connection_flow("orders-1", "orders", None, 80)],
        &pods(""),
        &OPTIONS,
    );
    let from = json!([{"source": {"ipBlocks": ["10.0.0.9"]}}]);
    assert_eq!(rules(&suggestions)[0]["from"], from);
    let notes = suggestions.notes.join("\n");
    assert!(notes.contains("in plaintext"), "{notes}");
}

#[test]
fn connections_that_are_open_all_the_time_count() {
    let pod: crate::dump::PodEntry = serde_json::from_value(json!({
        "state": "Up",
        "info": {"namespace": "shop", "name": "orders-1"},
        "connections": {"inbound": [
            {"src": "10.0.0.9:1", "originalDst": "10.0.0.1:9090", "actualDst": "10.0.0.1:9090",
             "srcIdentity": "spiffe://td/ns/shop/sa/web"},
            {"src": "10.0.0.7:1", "originalDst": "10.0.0.1:9090", "actualDst": "10.0.0.5:15008",
             "srcIdentity": "spiffe://td/ns/shop/sa/detour"},
        ]},
    }))
    .unwrap();
    let mut seen = Observations::default();
    let opened = connection_flow("orders-1", "orders", Some("jobs"), 8080);
    seen.add(&StreamItem::Flow(Box::new(opened)));
    seen.add_open(&pod);
    let suggestions = suggest(&seen, &pods(""), &OPTIONS);
    let text = rules(&suggestions).to_string();
    assert!(text.contains("sa/web") && text.contains("9090"), "{text}");
    assert!(!text.contains("detour"), "{text}");
}

#[test]
fn detours_by_waypoints_and_views_of_clients_make_no_rules() {
    let mut detour = connection_flow("orders-1", "orders", Some("web"), 8080);
    detour.waypoint = Some("shop/waypoint".to_owned());
    let mut client = connection_flow("orders-1", "orders", Some("web"), 8080);
    client.reporter.kind = ReporterKind::Source;
    let suggestions = suggested(&[detour, client], &pods(""), &OPTIONS);
    assert!(suggestions.policies.is_empty(), "{suggestions:#?}");
}

#[test]
fn pods_with_the_labels_of_others_get_no_policy() {
    let flows = [connection_flow("admin-1", "admin", Some("web"), 8080)];
    let suggestions = suggested(&flows, &pods(""), &OPTIONS);
    assert!(suggestions.policies.is_empty(), "{suggestions:#?}");
    let notes = suggestions.notes.join("\n");
    assert!(
        notes.contains("the pod web-1, for which no caller was observed"),
        "{notes}"
    );
}

#[test]
fn existing_policies_are_not_changed() {
    let policy = |namespace: &str, spec: &str| {
        format!(
            "apiVersion: security.istio.io/v1\nkind: AuthorizationPolicy\n\
             metadata: {{name: there, namespace: {namespace}}}\nspec: {spec}\n---\n"
        )
    };
    let at_pods = [connection_flow("orders-1", "orders", Some("web"), 8080)];
    let at_service = [request_flow("web", "GET", "/")];
    let selecting = |app: &str| format!("{{selector: {{matchLabels: {{app: {app}}}}}, rules: []}}");
    let attached = |service: &str| {
        format!("{{targetRefs: [{{kind: Service, group: '', name: {service}}}], rules: []}}")
    };
    let all = "{rules: []}".to_owned();
    for (flows, namespace, spec, is_suggested) in [
        (&at_pods, "shop", all.clone(), false),
        (&at_pods, "istio-system", all.clone(), false),
        (&at_pods, "other", all.clone(), true),
        (
            &at_pods,
            "shop",
            "{action: DENY, rules: []}".to_owned(),
            true,
        ),
        (&at_pods, "shop", selecting("orders"), false),
        (&at_pods, "shop", selecting("web"), true),
        (&at_pods, "shop", attached("orders"), true),
        (&at_service, "shop", attached("orders"), false),
        (&at_service, "shop", attached("web"), true),
        (&at_service, "shop", all, true),
    ] {
        let objects = pods(&policy(namespace, &spec));
        let suggestions = suggested(flows, &objects, &OPTIONS);
        assert_eq!(
            suggestions.policies.len() == 1,
            is_suggested,
            "{namespace} {spec}"
        );
    }
}

#[test]
fn gaps_are_stated() {
    let mut seen = Observations::default();
    seen.add(&StreamItem::Lost {
        sampled: 7,
        refusals: 1,
    });
    seen.add_interruption("the proxy of node a");
    let notes = suggest(&seen, &[], &OPTIONS).notes.join("\n");
    assert!(notes.contains("GAP: 7 events and 1 refusals"), "{notes}");
    assert!(
        notes.contains("GAP: events of the proxy of node a"),
        "{notes}"
    );
}

#[test]
fn dry_run_and_namespace_flags_are_followed() {
    let flows = [connection_flow("orders-1", "orders", Some("web"), 8080)];
    let trial = SuggestOptions {
        dry_run: true,
        ..OPTIONS
    };
    let policies = suggested(&flows, &pods(""), &trial).policies;
    assert_eq!(
        manifest::to_manifest(&policies[0].metadata)["annotations"]["istio.io/dry-run"],
        "true"
    );
    let other = SuggestOptions {
        namespaces: &["other".to_owned()],
        ..OPTIONS
    };
    let suggestions = suggested(&flows, &pods(""), &other);
    assert!(suggestions.policies.is_empty(), "{suggestions:#?}");
}
