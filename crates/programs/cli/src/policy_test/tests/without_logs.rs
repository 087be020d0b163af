//! Tests of rehearsals without access logs: with open connections, and with metrics.

use super::*;
use crate::policy_test::{counted_calls, counted_calls::CountedCalls};

/// Formats a series of a proxy's metrics in Prometheus text format.
fn metric_series(family: &str, reporter: &str, labels: &[(&str, &str)], count: usize) -> String {
    let all = [
        ("source_workload", "front"),
        ("source_workload_namespace", "shop"),
        (
            "source_principal",
            "spiffe://cluster.local/ns/shop/sa/front",
        ),
        ("destination_service", "unknown"),
        ("destination_service_namespace", "unknown"),
        ("destination_service_name", "unknown"),
        ("destination_workload", "db"),
        ("destination_workload_namespace", "shop"),
        ("response_flags", "-"),
    ];
    let text = all.iter().map(|(name, value)| {
        let other = labels.iter().find(|(other, _)| other == name);
        format!(",{name}=\"{}\"", other.map_or(*value, |(_, value)| value))
    });
    let text = text.collect::<String>();
    format!("{family}_total{{reporter=\"{reporter}\"{text}}} {count}\n")
}

fn series_to_db(labels: &[(&str, &str)], count: usize) -> String {
    metric_series("istio_tcp_connections_opened", "destination", labels, count)
}

fn series_to_web(family: &str, labels: &[(&str, &str)], count: usize) -> String {
    let service = [
        ("destination_service", "web.shop.svc.cluster.local"),
        ("destination_service_namespace", "shop"),
        ("destination_service_name", "web"),
    ];
    metric_series(family, "waypoint", &[labels, &service].concat(), count)
}

fn rehearse(policies: &str, lines: &[String], scrape: &str) -> Report {
    let lines = lines.iter().filter_map(|line| observed::parse_line(line));
    let lines: Vec<_> = lines.collect();
    let counted: Vec<CountedCalls> = counted_calls::parse_metrics(scrape);
    let rehearsal = PolicyTest::new(MeshConfig::default(), mesh(""), objects(policies), false);
    rehearsal.report(&lines, &counted)
}

fn undecided_reasons(report: &Report) -> Vec<&str> {
    report
        .undecided
        .iter()
        .map(|row| row.why.as_str())
        .collect()
}

const PLAINTEXT_LABELS: [(&str, &str); 3] = [
    ("source_principal", "unknown"),
    ("source_workload", "batch"),
    ("source_workload_namespace", "out"),
];

#[test]
fn counted_connections_are_decided_by_caller_and_callee() {
    let scrape = [
        series_to_db(&[], 3),
        series_to_db(&[("response_flags", "DENY")], 2),
        series_to_db(&PLAINTEXT_LABELS, 7),
        // The callers' own, bytes, and what has not happened.
        metric_series("istio_tcp_connections_opened", "source", &[], 9),
        metric_series("istio_tcp_sent_bytes", "destination", &[], 9),
        series_to_db(
            &[
                ("source_principal", "unknown"),
                ("source_workload", "never"),
            ],
            0,
        ),
    ]
    .concat();
    let only = |rule: &str| {
        policy(
            "only",
            "",
            &format!("{{selector: {{matchLabels: {{app: db}}}}, rules: [{{{rule}}}]}}"),
        )
    };
    let from = "from: [{source: {principals: [cluster.local/ns/shop/sa/front]}}]";
    let report = rehearse(&only(from), &[], &scrape);
    assert_eq!(
        refused_rows(&report),
        ["out/batch (plaintext) shop/db connections, by metrics shop/only x7"]
    );
    assert_eq!((report.allowed, report.undecided.len()), (5, 0));

    // Ports matter for callers that the rule names, and for no others.
    let port = format!("{from}, to: [{{operation: {{ports: ['5432']}}}}]");
    let report = rehearse(&only(&port), &[], &scrape);
    assert_eq!(report.refused.len(), 1);
    assert_eq!(report.refused[0].from, "out/batch (plaintext)");
    let why = "it depends on fields that metrics do not contain: ports or addresses in shop/only";
    assert_eq!(undecided_reasons(&report), [why]);
    assert_eq!(report.undecided[0].times, 5);
    let report = rehearse(&only("to: [{operation: {ports: ['5432']}}]"), &[], &scrape);
    assert_eq!(undecided_reasons(&report), [why, why]);
    // The same of a DENY policy, and of addresses.
    let deny = policy(
        "no",
        "",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{from: [{source: {notIpBlocks: [10.0.0.0/8]}}]}]}",
    );
    let report = rehearse(&deny, &[], &scrape);
    assert_eq!((report.refused.len(), report.undecided.len()), (0, 2));

    // Removed workloads are not evaluated.
    let gone = series_to_db(&[("destination_workload", "old")], 1);
    let report = rehearse(&deny, &[], &gone);
    let why = "the destination shop/old is no longer a known workload";
    assert_eq!(undecided_reasons(&report), [why]);
}

#[test]
fn counted_requests_are_decided_if_paths_do_not_matter() {
    let attached = |name: &str, rest: &str| {
        let target = "targetRefs: [{kind: Service, group: '', name: web}]";
        policy(name, "", &format!("{{{target}, {rest}}}"))
    };
    let other = [("source_principal", "spiffe://cluster.local/ns/out/sa/batch")];
    let scrape = [
        series_to_web("istio_requests", &[], 3),
        series_to_web("istio_requests", &other, 4),
    ]
    .concat();
    let from = "from: [{source: {namespaces: [shop]}}]";
    let report = rehearse(
        &attached("only", &format!("rules: [{{{from}}}]")),
        &[],
        &scrape,
    );
    assert_eq!(
        refused_rows(&report),
        ["spiffe://cluster.local/ns/out/sa/batch shop/web requests, by metrics shop/only x4"]
    );
    assert_eq!(report.allowed, 3);
    let paths = "to: [{operation: {paths: [/admin*]}}]";
    let deny = attached("no", &format!("action: DENY, rules: [{{{from}, {paths}}}]"));
    let report = rehearse(&deny, &[], &scrape);
    assert_eq!(report.allowed, 4);
    assert_eq!(
        undecided_reasons(&report),
        [
            "it depends on fields that metrics do not contain: paths, methods, hosts, ports, addresses, headers or tokens in shop/no"
        ]
    );
    // Connections that are not HTTP.
    let tcp = series_to_web("istio_tcp_connections_opened", &other, 2);
    let report = rehearse(
        &attached("only", &format!("rules: [{{{from}}}]")),
        &[],
        &tcp,
    );
    assert_eq!(report.refused[0].what, "connections, by metrics");
    assert_eq!(report.refused[0].times, 2);
}

#[test]
fn logged_calls_are_not_evaluated_by_metrics_again() {
    let deny = policy(
        "no",
        "",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{}]}",
    );
    let scrape = [series_to_db(&[], 1), series_to_db(&PLAINTEXT_LABELS, 7)].concat();
    let report = rehearse(&deny, &[super::log_line_to_db("front")], &scrape);
    assert_eq!(
        refused_rows(&report),
        [
            "out/batch (plaintext) shop/db connections, by metrics shop/no x7".to_owned(),
            format!("{FRONT_IDENTITY} shop/db port 5432 shop/no x1"),
        ]
    );
    let any = policy(
        "any",
        "",
        "{targetRefs: [{kind: Service, group: '', name: web}], action: DENY, rules: [{}]}",
    );
    let scrape = series_to_web("istio_requests", &[], 1);
    let report = rehearse(&any, &[super::log_line_to_web("GET", "/a")], &scrape);
    assert_eq!(
        refused_rows(&report),
        [format!("{FRONT_IDENTITY} shop/web GET /a shop/any x1")]
    );
}

#[test]
fn calls_from_before_the_logs_are_decided_by_metrics() {
    let deny = policy(
        "no",
        "",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{}]}",
    );
    let report = rehearse(
        &deny,
        &[super::log_line_to_db("front")],
        &series_to_db(&[], 3),
    );
    assert_eq!(
        refused_rows(&report),
        [
            format!("{FRONT_IDENTITY} shop/db connections, by metrics shop/no x2"),
            format!("{FRONT_IDENTITY} shop/db port 5432 shop/no x1"),
        ]
    );
}

#[test]
fn missing_labels_leave_calls_undecided() {
    let target = "targetRefs: [{kind: Service, group: '', name: web}]";
    let from = "from: [{source: {principals: [cluster.local/ns/shop/sa/front]}}]";
    let scrape = series_to_web("istio_requests", &[], 3);
    for label in ["source_principal", "destination_service"] {
        let start = format!(",{label}=\"");
        let (before, rest) = scrape.split_once(&start).unwrap();
        let (value, after) = rest.split_once('"').unwrap();
        let mut forms = vec![format!("{before}{after}")];
        if label == "source_principal" {
            forms.push(scrape.replace(value, "somebody of the team"));
        }
        for scrape in forms {
            for action in ["ALLOW", "DENY"] {
                let rule = format!("{{{target}, action: {action}, rules: [{{{from}}}]}}");
                let rehearsed = policy("it", "", &rule);
                let report = rehearse(&rehearsed, &[], &scrape);
                let [why] = undecided_reasons(&report)[..] else {
                    panic!("{action} without {label}: {report:?}");
                };
                assert!(why.contains(label), "{why}");
                assert_eq!((report.refused.len(), report.allowed), (0, 0));
            }
        }
    }
    // A log line of the same requests has it.
    let removed = scrape.replace("source_principal", "other");
    let deny = format!("{{{target}, action: DENY, rules: [{{{from}}}]}}");
    let lines = ["/a", "/b", "/c"].map(|path| super::log_line_to_web("GET", path));
    let report = rehearse(&policy("it", "", &deny), &lines, &removed);
    assert_eq!((report.refused.len(), report.undecided.len()), (3, 0));
}

#[test]
fn counts_without_identity_match_lines_without_identity() {
    let deny = policy(
        "no",
        "",
        "{selector: {matchLabels: {app: db}}, action: DENY, rules: [{}]}",
    );
    let nobody = PLAINTEXT_LABELS.map(|(label, _)| (label, "unknown"));
    let scrape = series_to_db(&nobody, 1);
    let counted = "an unknown caller (plaintext) shop/db connections, by metrics shop/no x1";
    let refused_with = |line: &str| refused_rows(&rehearse(&deny, &[line.to_owned()], &scrape));
    assert_eq!(refused_with(""), [counted]);
    // Its caller has proved who he is, so that he is not the one that was counted; and another pod was called.
    let proved = super::log_line_to_db("front");
    assert_eq!(refused_with(&proved).len(), 2);
    assert!(refused_with(&proved).contains(&counted.to_owned()));
    let elsewhere = super::log_line_to_db("batch").replace("10.0.0.2:", "10.0.0.3:");
    assert_eq!(refused_with(&elsewhere), [counted]);
    let plaintext = refused_with(&super::log_line_to_db("batch"));
    assert_eq!(plaintext.len(), 1);
    assert!(plaintext[0].contains("port 5432"), "{plaintext:?}");
}

#[test]
fn open_connections_are_decided_like_logged_ones() {
    let dump = |connections: &str| {
        let text = format!(
            "{{\"workloads\": [], \"workloadState\": {{\"db\": {{\"state\": \"Up\", \"connections\": {connections}}}, \
             \"next\": {{\"state\": \"Pending\", \"connections\": null}}}}}}"
        );
        observed::open_connections(&serde_json::from_str(&text).unwrap())
    };
    let found = dump(
        "{\"inbound\": [\
         {\"src\": \"10.0.0.3:1\", \"originalDst\": \"10.0.0.2:5432\", \"actualDst\": \"10.0.0.2:5432\", \
          \"protocol\": \"HBONE\", \"srcIdentity\": \"spiffe://cluster.local/ns/shop/sa/front\"},\
         {\"src\": \"10.0.0.4:1\", \"originalDst\": \"10.0.0.2:5432\", \"actualDst\": \"10.0.0.9:15008\", \
          \"protocol\": \"HBONE\", \"srcIdentity\": null},\
         {\"src\": \"10.0.0.3:2\", \"originalDst\": \"10.0.0.2:5432\", \"actualDst\": \"\", \"protocol\": \"HBONE\"}],\
         \"outbound\": [{\"src\": \"10.0.0.2:1\", \"originalDst\": \"10.0.0.3:80\", \"actualDst\": \"10.0.0.3:80\", \
          \"protocol\": \"HBONE\"}]}",
    );
    let of_logs: Vec<_> = ["front", "batch"]
        .iter()
        .filter_map(|source| observed::parse_line(&super::log_line_to_db(source)))
        .collect();
    // Counters without a caller are not evaluated.
    assert_eq!(found, of_logs);
    assert_eq!(dump("{}"), []);
}
