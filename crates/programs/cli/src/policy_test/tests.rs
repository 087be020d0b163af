//! Tests of rehearsals with manifests and access log lines, without a mesh.

use std::path::Path;

use ambit_derive::MeshConfig;
use ambit_k8s_api::ObjectEvent;

use super::{evaluation::PolicyTest, observed, report::Report};

mod without_logs;

/// Manifests of two pods of a service with a waypoint, a pod that has neither service nor waypoint, and their callers.
const MESH: &str = "
kind: Namespace
apiVersion: v1
metadata: {name: shop, labels: {istio.io/dataplane-mode: ambient}}
---
kind: Namespace
apiVersion: v1
metadata: {name: out}
---
kind: Service
apiVersion: v1
metadata: {name: web, namespace: shop, labels: {istio.io/use-waypoint: way}}
spec: {clusterIP: 10.96.0.1, clusterIPs: [10.96.0.1], selector: {app: web}, ports: [{name: http, port: 80, targetPort: 8080}]}
---
kind: Gateway
apiVersion: gateway.networking.k8s.io/v1
metadata: {name: way, namespace: shop, labels: {istio.io/waypoint-for: service}}
spec: {gatewayClassName: istio-waypoint, listeners: [{name: mesh, port: 15008, protocol: HBONE}]}
---
";

fn pod(namespace: &str, name: &str, ip: &str) -> String {
    let captured = match namespace {
        "shop" => ", annotations: {ambient.istio.io/redirection: enabled}",
        _ => "",
    };
    format!(
        "
kind: Pod
apiVersion: v1
metadata: {{name: {name}, namespace: {namespace}, uid: {name}, labels: {{app: {name}}}{captured}}}
spec: {{nodeName: n, serviceAccountName: {name}, containers: [{{name: c}}]}}
status:
  phase: Running
  podIP: {ip}
  podIPs: [{{ip: {ip}}}]
  conditions: [{{type: Ready, status: 'True'}}]
---
"
    )
}

fn objects(text: &str) -> Vec<ObjectEvent> {
    let snapshot = ambit_manifests::parse(Path::new("a.yaml"), text);
    assert_eq!(snapshot.problems, []);
    let objects = snapshot.objects.into_values();
    objects
        .map(|(object, origin)| ObjectEvent::Applied {
            object,
            origin: Some(origin),
        })
        .collect()
}

fn mesh(more: &str) -> Vec<ObjectEvent> {
    let pods = [
        pod("shop", "web", "10.0.0.1"),
        pod("shop", "db", "10.0.0.2"),
        pod("shop", "front", "10.0.0.3"),
        pod("out", "batch", "10.0.0.4"),
    ];
    objects(&format!("{MESH}{}{more}", pods.concat()))
}

fn policy(name: &str, annotations: &str, spec: &str) -> String {
    format!(
        "
kind: AuthorizationPolicy
apiVersion: security.istio.io/v1
metadata: {{name: {name}, namespace: shop, annotations: {{{annotations}}}}}
spec: {spec}
---
"
    )
}

/// Formats a node proxy's access log line of a connection to the pod `db` that was allowed.
fn log_line_to_db(source: &str) -> String {
    let from = match source {
        "front" => "src.addr=10.0.0.3:1 src.identity=\"spiffe://cluster.local/ns/shop/sa/front\"",
        _ => "src.addr=10.0.0.4:1",
    };
    let dst = match source {
        "front" => "dst.addr=10.0.0.2:15008 dst.hbone_addr=10.0.0.2:5432",
        _ => "dst.addr=10.0.0.2:5432",
    };
    format!(
        "2026-01-01T00:00:00Z\tinfo\taccess\tconnection complete\t{from} {dst} direction=\"inbound\" \
         bytes_sent=1 bytes_recv=1 duration=\"1ms\""
    )
}

/// Formats a waypoint's access log line of a request to the service `web` that was forwarded.
fn log_line_to_web(method: &str, path: &str) -> String {
    format!(
        "[2020-11-25T21:26:18.409Z] \"{method} {path} HTTP/1.1\" 200 - via_upstream - \"-\" 3 135 4 5 \"-\" \
         \"curl/8 (a b)\" \"84961386\" \"web:80\" \"10.0.0.1:8080\" inbound-vip|80|http|web.shop.svc.cluster.local \
         10.0.0.9:46520 10.96.0.1:80 10.0.0.3:37652 - default"
    )
}

fn rehearse(more: &str, policies: &str, lines: &[String]) -> Report {
    let lines: Vec<_> = lines
        .iter()
        .filter_map(|line| observed::parse_line(line))
        .collect();
    let config = MeshConfig::default();
    PolicyTest::new(config, mesh(more), objects(policies), false).report(&lines, &[])
}

/// Formats each row of refused calls as `from to what by xTIMES`.
fn refused_rows(report: &Report) -> Vec<String> {
    let rows = report.refused.iter();
    rows.map(|row| {
        format!(
            "{} {} {} {} x{}",
            row.from, row.to, row.what, row.by, row.times
        )
    })
    .collect()
}

const FRONT_IDENTITY: &str = "spiffe://cluster.local/ns/shop/sa/front";

#[test]
fn connections_that_a_policy_would_refuse_are_named_with_it() {
    let lines = [
        log_line_to_db("front"),
        log_line_to_db("front"),
        log_line_to_db("batch"),
    ];
    let deny = policy(
        "no-front",
        "",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{from: [{source: {namespaces: [other]}}]}, \
         {from: [{source: {principals: [cluster.local/ns/shop/sa/front]}}]}]}",
    );
    let report = rehearse("", &deny, &lines);
    assert_eq!(
        refused_rows(&report),
        [format!(
            "{FRONT_IDENTITY} shop/db port 5432 shop/no-front x2"
        )]
    );
    assert_eq!(report.refused[0].why, "rule 2 of a DENY policy matches");
    assert_eq!((report.allowed, report.undecided.len()), (1, 0));

    // Callers that an ALLOW policy does not name.
    let allow = policy(
        "only-front",
        "",
        "{selector: {matchLabels: {app: db}}, rules: [{from: [{source: {principals: [cluster.local/ns/shop/sa/front]}}]}]}",
    );
    let report = rehearse("", &allow, &lines);
    assert_eq!(
        refused_rows(&report),
        ["out/batch (plaintext) shop/db port 5432 shop/only-front x1"]
    );
    // What is refused already is not the new policy's doing.
    let report = rehearse(&allow, &deny.replace("no-front", "again"), &lines);
    assert_eq!(
        refused_rows(&report),
        [format!("{FRONT_IDENTITY} shop/db port 5432 shop/again x2")]
    );
    assert_eq!(report.refused_already, 1);
    // A policy that replaces one may admit.
    let open = policy(
        "only-front",
        "",
        "{selector: {matchLabels: {app: db}}, rules: [{}]}",
    );
    let report = rehearse(&allow, &open, &lines);
    assert_eq!((report.refused.len(), report.admitted.len()), (0, 1));
    assert_eq!(report.admitted[0].by, "shop/only-front");
}

#[test]
fn plaintext_is_refused_by_a_strict_peer_authentication() {
    let strict = "
kind: PeerAuthentication
apiVersion: security.istio.io/v1
metadata: {name: strict, namespace: shop}
spec: {mtls: {mode: STRICT}}
";
    let report = rehearse(
        "",
        strict,
        &[log_line_to_db("front"), log_line_to_db("batch")],
    );
    assert_eq!(report.refused.len(), 1);
    assert_eq!(report.refused[0].from, "out/batch (plaintext)");
    assert_eq!(report.allowed, 1);
}

#[test]
fn waypoint_requests_are_decided_by_path_method_and_caller() {
    let target = "targetRefs: [{kind: Service, group: '', name: web}]";
    let deny = policy(
        "no-admin",
        "",
        &format!(
            "{{{target}, action: DENY, rules: [{{to: [{{operation: {{paths: [/admin*], methods: [POST]}}}}]}}]}}"
        ),
    );
    let lines = [
        log_line_to_web("POST", "/admin/a?b=c"),
        log_line_to_web("GET", "/admin/a"),
        log_line_to_web("POST", "/shop"),
    ];
    let report = rehearse("", &deny, &lines);
    assert_eq!(
        refused_rows(&report),
        [format!(
            "{FRONT_IDENTITY} shop/web POST /admin/a shop/no-admin x1"
        )]
    );
    assert_eq!((report.allowed, report.undecided.len()), (2, 0));

    let other = policy(
        "only-db",
        "",
        &format!(
            "{{{target}, rules: [{{from: [{{source: {{principals: [cluster.local/ns/shop/sa/db]}}}}]}}]}}"
        ),
    );
    let report = rehearse("", &other, &lines);
    assert_eq!(report.refused.len(), 3);
    assert_eq!(report.refused[0].by, "shop/only-db");
}

#[test]
fn json_logs_of_either_proxy_equal_their_text() {
    let waypoint = "{\"start_time\":\"2020-11-25T21:26:18.409Z\",\"method\":\"GET\",\"path\":\"/a?b=c\",\
        \"authority\":\"web:80\",\"user_agent\":\"curl/8 (a b)\",\"request_id\":\"84961386\",\"x_forwarded_for\":null,\
        \"upstream_cluster\":\"inbound-vip|80|http|web.shop.svc.cluster.local\",\
        \"downstream_local_address\":\"10.96.0.1:80\",\"downstream_remote_address\":\"10.0.0.3:37652\",\
        \"requested_server_name\":null}";
    let text = observed::parse_line(&log_line_to_web("GET", "/a?b=c"));
    assert!(text.is_some());
    assert_eq!(observed::parse_line(waypoint), text);
    let node = "{\"level\":\"info\",\"scope\":\"access\",\"message\":\"connection complete\",\
        \"src.addr\":\"10.0.0.3:1\",\"src.identity\":\"spiffe://cluster.local/ns/shop/sa/front\",\
        \"dst.addr\":\"10.0.0.2:15008\",\"dst.hbone_addr\":\"10.0.0.2:5432\",\"direction\":\"inbound\",\
        \"bytes_sent\":1,\"duration\":\"1ms\"}";
    let text = observed::parse_line(&log_line_to_db("front"));
    assert!(text.is_some());
    assert_eq!(observed::parse_line(node), text);
    // The caller's side of the same connection is not counted twice, nor what is no line of an access log.
    for line in [
        log_line_to_db("front").replace("inbound", "outbound"),
        "{\"level\":\"info\"}".to_owned(),
        "[error] \"".to_owned(),
        String::new(),
    ] {
        assert_eq!(observed::parse_line(&line), None, "{line}");
    }
}

#[test]
fn unlogged_attributes_leave_only_dependent_calls_undecided() {
    let target = "targetRefs: [{kind: Service, group: '', name: web}]";
    let header = |action: &str, name: &str| {
        let when = format!("when: [{{key: 'request.headers[{name}]', values: [a]}}]");
        policy(
            "header",
            "",
            &format!("{{{target}, action: {action}, rules: [{{{when}}}]}}"),
        )
    };
    let line = [log_line_to_web("GET", "/a")];
    for action in ["DENY", "ALLOW"] {
        let report = rehearse("", &header(action, "x-team"), &line);
        assert_eq!(report.refused, [], "{action}");
        let why = "it depends on fields that logs do not contain: headers or tokens in shop/header";
        assert_eq!(report.undecided[0].why, why, "{action}");
    }
    let report = rehearse("", &header("DENY", "user-agent"), &line);
    assert_eq!((report.allowed, report.undecided.len()), (1, 0));
    // For every value of the header, another policy refuses.
    let both = header("ALLOW", "x-team")
        + &policy(
            "none",
            "",
            &format!("{{{target}, action: DENY, rules: [{{}}]}}"),
        );
    assert_eq!(rehearse("", &both, &line).refused[0].by, "shop/none");

    // Nobody can be asked whom the mesh does not know, and who is known is not asked.
    let custom = policy(
        "custom",
        "",
        &format!("{{{target}, action: CUSTOM, provider: {{name: missing}}, rules: [{{}}]}}"),
    );
    let refused = &rehearse("", &custom, &line).refused[0];
    assert_eq!(refused.by, "CUSTOM policies");
    assert!(refused.why.contains("missing"), "{}", refused.why);

    let gone = [log_line_to_db("front").replace("10.0.0.2", "10.0.0.99")];
    let report = rehearse("", &header("DENY", "x-team"), &gone);
    assert!(
        report.undecided[0]
            .why
            .contains("10.0.0.99, is no pod that is known now")
    );
    let cut = [log_line_to_web("GET", &format!("/{}...", "a".repeat(20)))];
    let report = rehearse("", &header("DENY", "user-agent"), &cut);
    assert_eq!(
        report.undecided[0].why,
        "the log holds only the beginning of the path"
    );
}

#[test]
fn dry_run_policies_are_rehearsed_on_request() {
    let dry = policy(
        "dry",
        "istio.io/dry-run: 'true'",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{}]}",
    );
    let lines: Vec<_> = observed::parse_line(&log_line_to_db("front"))
        .into_iter()
        .collect();
    let report = |enforce: bool| {
        let config = MeshConfig::default();
        PolicyTest::new(config, mesh(&dry), Vec::new(), enforce).report(&lines, &[])
    };
    assert_eq!((report(false).refused.len(), report(false).allowed), (0, 1));
    assert_eq!(report(true).refused[0].by, "shop/dry");
}
