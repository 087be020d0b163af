//! Tests of the edges and events aggregated from flow events, and of their limits.

use ambit_flow::{FlowEventKind, Refusal, Reporter, RequestSummary, ServiceName};
use serde_json::{Value, json};

use super::*;

fn peer(namespace: &str, owner: &str) -> Peer {
    Peer {
        workload: Some(format!("{owner}-1")),
        owner: Some(owner.to_owned()),
        namespace: Some(namespace.to_owned()),
        ..Peer::default()
    }
}

fn flow(kind: ReporterKind, event: FlowEventKind) -> Flow {
    let reporter = Reporter {
        kind,
        pod: "ztunnel-x".to_owned(),
        namespace: "istio-system".to_owned(),
        node: "node-1".to_owned(),
    };
    Flow {
        time: "2026-01-01T00:00:00.000000Z".to_owned(),
        connection: 1,
        source: peer("shop", "web"),
        destination: peer("shop", "orders"),
        transport: Transport::Hbone,
        duration_ms: 0.2,
        ..Flow::new(event, reporter)
    }
}

fn edges(traffic: &Traffic, seconds: u64) -> Vec<Value> {
    let view = traffic.view(Duration::from_secs(seconds), 0);
    let view = serde_json::to_value(view).unwrap();
    view["edges"].as_array().unwrap().clone()
}

const START: Duration = Duration::from_secs(90);

#[test]
fn both_ends_report_one_connection() {
    let mut traffic = Traffic::default();
    for kind in [ReporterKind::Source, ReporterKind::Destination] {
        for _ in 0..20 {
            traffic.add(flow(kind, FlowEventKind::Opened), START);
        }
    }
    let edges = edges(&traffic, 100);
    assert_eq!(edges.len(), 1);
    assert_eq!(edges[0]["from"], json!(["workload", "shop", "web"]));
    assert_eq!(edges[0]["connections"], json!(2.0));
    assert_eq!(edges[0]["p50Ms"], json!(0.25));
    assert_eq!(edges[0]["plaintext"], json!(0));
}

#[test]
fn refusal_of_a_server_is_no_second_failure_of_its_client() {
    let mut traffic = Traffic::default();
    let mut refused = flow(ReporterKind::Destination, FlowEventKind::Refused);
    refused.count = 5;
    refused.refusal = Some(Refusal {
        policy: Some("shop/deny".to_owned()),
        reason: "denied".to_owned(),
    });
    traffic.add(refused, START);
    for _ in 0..5 {
        traffic.add(flow(ReporterKind::Source, FlowEventKind::Failed), START);
    }
    let edges = edges(&traffic, 100);
    assert_eq!(edges[0]["refused"], json!(0.5));
    assert_eq!(edges[0]["errors"], json!(0.0));
}

#[test]
fn request_through_a_waypoint_is_two_edges_unless_refused_there() {
    let mut traffic = Traffic::default();
    let mut request = flow(ReporterKind::Waypoint, FlowEventKind::Request);
    request.waypoint = Some("shop/gate".to_owned());
    request.duration_ms = 3.0;
    request.request = Some(RequestSummary {
        status: 503,
        route: Some("shop/split".to_owned()),
        ..RequestSummary::default()
    });
    traffic.add(request.clone(), START);
    request.event = FlowEventKind::Refused;
    request.source = peer("shop", "other");
    traffic.add(request, START);
    let edges = edges(&traffic, 91);
    let ends: Vec<_> = edges
        .iter()
        .map(|edge| (edge["from"][2].clone(), edge["to"][2].clone()))
        .collect();
    assert_eq!(
        ends,
        [
            (json!("gate"), json!("orders")),
            (json!("other"), json!("gate")),
            (json!("web"), json!("gate")),
        ]
    );
    assert_eq!(edges[0]["errors"], json!(1.0));
    // How it came to the waypoint is nothing of the way on.
    assert_eq!(
        (&edges[0]["encrypted"], &edges[2]["encrypted"]),
        (&json!(0), &json!(1))
    );
    assert_eq!(edges[0]["p99Ms"], json!(4.0));
    assert_eq!(edges[0]["routes"], json!({"shop/split": 1}));
}

#[test]
fn client_through_a_waypoint_calls_the_waypoint() {
    let mut traffic = Traffic::default();
    let mut opened = flow(ReporterKind::Source, FlowEventKind::Opened);
    opened.destination = Peer::default();
    opened.waypoint = Some("shop/gate".to_owned());
    opened.service = Some(ServiceName {
        name: "orders".to_owned(),
        namespace: "shop".to_owned(),
        hostname: "orders.shop.svc.cluster.local".to_owned(),
    });
    traffic.add(opened.clone(), START);
    opened.waypoint = None;
    traffic.add(opened.clone(), START);
    opened.service = None;
    traffic.add(opened, START);
    let edges = edges(&traffic, 91);
    let to: Vec<_> = edges.iter().map(|edge| edge["to"].clone()).collect();
    assert_eq!(
        to,
        [
            json!(["workload", "shop", "gate"]),
            json!(["service", "shop", "orders"]),
            json!(["outside", "", ""]),
        ]
    );
    assert_eq!(edges[0]["services"], json!(["shop/orders"]));
}

#[test]
fn rates_fall_as_the_window_passes() {
    let mut traffic = Traffic::default();
    for second in 0..60 {
        let now = START + Duration::from_secs(second);
        traffic.add(flow(ReporterKind::Source, FlowEventKind::Opened), now);
    }
    let rate = |traffic: &Traffic, seconds: u64| {
        edges(traffic, seconds)[0]["connections"].as_f64().unwrap()
    };
    let full = rate(&traffic, 149);
    assert!((0.9..=1.0).contains(&full), "{full}");
    let half = rate(&traffic, 164);
    assert!((0.3..=0.6).contains(&half), "{half}");
    assert!(traffic.is_active(Duration::from_secs(179)));
    assert!(!traffic.is_active(Duration::from_secs(181)));
    assert!(rate(&traffic, 181).abs() < f64::EPSILON);
    assert!(edges(&traffic, 149 + 600).is_empty());
}

#[test]
fn slices_of_an_earlier_window_are_not_counted_again() {
    let mut traffic = Traffic::default();
    traffic.add(flow(ReporterKind::Source, FlowEventKind::Opened), START);
    let later = START + Duration::from_secs(33);
    traffic.add(flow(ReporterKind::Source, FlowEventKind::Opened), later);
    let edges = edges(&traffic, later.as_secs());
    assert_eq!(edges[0]["connections"], json!(0.03));
}

#[test]
fn edges_and_events_are_bounded_and_the_longest_idle_go_first() {
    let mut traffic = Traffic::default();
    for number in 0..MAX_EDGES as u64 + 10 {
        let mut one = flow(ReporterKind::Source, FlowEventKind::Failed);
        one.source = peer("shop", &format!("client-{number}"));
        traffic.add(one, START + Duration::from_millis(number));
        traffic.add(
            flow(ReporterKind::Source, FlowEventKind::Opened),
            START + Duration::from_millis(number),
        );
    }
    let view = traffic.view(START + Duration::from_secs(10), 0);
    assert_eq!(view.edges.len(), MAX_EDGES);
    assert_eq!(view.forgotten, 11);
    assert_eq!(view.events.len(), MAX_REFUSALS + MAX_OTHER_EVENTS);
    assert!(
        view.edges
            .iter()
            .any(|edge| edge.from == TrafficNode::Workload("shop".into(), "web".into()))
    );
}

#[test]
fn pages_receive_only_later_events() {
    let mut traffic = Traffic::default();
    traffic.add(flow(ReporterKind::Source, FlowEventKind::Failed), START);
    let seen = traffic.latest();
    traffic.add(flow(ReporterKind::Source, FlowEventKind::Opened), START);
    traffic.add_lost(3, 1);
    let view = traffic.view(START, seen);
    assert_eq!(view.events.len(), 1);
    assert_eq!(view.events[0].flow.event, FlowEventKind::Opened);
    assert_eq!((view.lost.sampled, view.lost.refusals), (3, 1));
}

#[test]
fn long_texts_of_proxies_are_truncated() {
    let mut long = flow(ReporterKind::Source, FlowEventKind::Failed);
    long.source.owner = Some("é".repeat(70_000));
    long.error = Some("x".repeat(70_000));
    long.count = u64::MAX;
    let mut traffic = Traffic::default();
    traffic.add(long.clone(), START);
    traffic.add(long, START);
    let view = traffic.view(START, 0);
    let text = serde_json::to_string(&view).unwrap();
    assert!(text.len() < 8000, "{}", text.len());
}
