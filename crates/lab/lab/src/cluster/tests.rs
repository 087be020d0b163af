//! The cluster's decisions, event by event.

use ambit_k8s_api::Object;
use ambit_manifests::Origin;
use serde_json::json;

use super::*;
use crate::IpFamily;

fn cluster(nodes: u8) -> Cluster {
    let nodes = (1..=nodes).map(|number| NodeInfo {
        name: format!("node-{number}"),
        ips: vec![format!("172.18.1.{number}").parse().unwrap()],
    });
    let mut count = 0;
    let uid = move || {
        count += 1;
        format!("uid-{count}")
    };
    Cluster::new(
        AddressPlan {
            family: IpFamily::Dual,
        },
        nodes.collect(),
        Box::new(uid),
    )
}

fn applied(value: Value) -> ObjectEvent {
    let kind = ObjectKey::read(&value).unwrap().kind;
    let object = Object::from_value(kind, &value).unwrap();
    let origin = Origin {
        file: std::path::Path::new("a.yaml").into(),
        line: 1,
    };
    ObjectEvent::Applied {
        object,
        origin: Some(origin),
    }
}

fn deployment(replicas: i32, label: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"replicas": replicas, "selector": {}, "template": {
            "metadata": {"labels": {"app": label}},
            "spec": {"containers": [{"name": "c", "command": ["run"],
                "ports": [{"name": "http", "containerPort": 8080}]}]}}}})
}

fn service(extra: Value) -> Value {
    let mut spec =
        json!({"selector": {"app": "web"}, "ports": [{"port": 80, "targetPort": "http"}]});
    spec.as_object_mut()
        .unwrap()
        .extend(extra.as_object().unwrap().clone());
    json!({"apiVersion": "v1", "kind": "Service",
        "metadata": {"name": "web", "namespace": "shop"}, "spec": spec})
}

fn started(effects: &[Effect]) -> Vec<&PodPlan> {
    let mut plans = Vec::new();
    for effect in effects {
        if let Effect::Start(plan) = effect {
            plans.push(plan);
        }
    }
    plans
}

fn stopped(effects: &[Effect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, Effect::Stop { .. }))
        .count()
}

fn running(ip: &str) -> Observed {
    let mut container = ContainerObserved::new("c");
    container.state = ContainerState::Running;
    container.ready = true;
    Observed {
        phase: Phase::Running,
        ips: vec![ip.parse().unwrap()],
        containers: vec![container],
        message: None,
    }
}

#[test]
fn replicas_are_spread_and_written_before_they_start() {
    let mut cluster = cluster(2);
    let effects = cluster.apply(Event::Manifests(vec![applied(deployment(4, "web"))]));
    let plans = started(&effects);
    let mut nodes: Vec<_> = plans.iter().map(|plan| plan.node.as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["node-1", "node-1", "node-2", "node-2"]);
    for plan in plans {
        let key = ObjectKey::new(Kind::Pod, "shop", plan.name());
        let write = effects.iter().position(|e| {
            matches!(e, Effect::Write(k, v)
            if *k == key && v["metadata"]["uid"] == plan.uid.as_str())
        });
        let start = effects
            .iter()
            .position(|e| matches!(e, Effect::Start(p) if p.uid == plan.uid));
        assert!(write.unwrap() < start.unwrap());
        assert!(plan.name().starts_with("web-"));
    }
}

#[test]
fn another_template_replaces_pods_and_another_count_does_not() {
    let mut cluster = cluster(1);
    cluster.apply(Event::Manifests(vec![applied(deployment(1, "web"))]));
    let more = cluster.apply(Event::Manifests(vec![applied(deployment(2, "web"))]));
    assert_eq!((started(&more).len(), stopped(&more)), (1, 0));
    let other = cluster.apply(Event::Manifests(vec![applied(deployment(2, "other"))]));
    assert_eq!((started(&other).len(), stopped(&other)), (2, 2));
}

#[test]
fn a_bare_pod_keeps_running_when_its_labels_change() {
    let pod = |labels: Value, command: &str| {
        applied(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": labels},
            "spec": {"containers": [{"name": "c", "command": [command]}]}}))
    };
    let mut cluster = cluster(1);
    cluster.apply(Event::Manifests(vec![pod(json!({}), "x")]));
    let effects = cluster.apply(Event::Manifests(vec![pod(json!({"a": "b"}), "x")]));
    assert_eq!(effects, []);
    // A changed command makes a new pod: the old one ends first, since both have the same name.
    let effects = cluster.apply(Event::Manifests(vec![pod(json!({}), "y")]));
    assert_eq!((started(&effects).len(), stopped(&effects)), (0, 1));
    let effects = cluster.apply(Event::Gone {
        uid: "uid-1".into(),
    });
    assert_eq!(started(&effects)[0].uid, "uid-2");
}

#[test]
fn what_the_lab_adds_to_a_bare_pod_does_not_make_it_exist() {
    let mut cluster = cluster(1);
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}});
    let effects = cluster.apply(Event::Manifests(vec![applied(pod)]));
    let written = effects.iter().find_map(|effect| match effect {
        Effect::Write(key, value) if key.kind == Kind::Pod => Some(value),
        _ => None,
    });
    let annotations = &written.unwrap()["metadata"]["annotations"];
    assert!(annotations.get(ambit_k8s_api::labels::OVERLAY).is_some());
}

#[test]
fn only_ready_pods_are_behind_a_service() {
    let mut cluster = cluster(1);
    let effects = cluster.apply(Event::Manifests(vec![
        applied(deployment(1, "web")),
        applied(service(json!({}))),
    ]));
    let uid = started(&effects)[0].uid.clone();
    let views = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Services(views) => Some(views.clone()),
            _ => None,
        })
    };
    let view = &views(&effects).unwrap()[0];
    assert_eq!(view.ips, ["10.96.1.0".parse::<IpAddr>().unwrap()]);
    assert_eq!(view.ports[0].targets, []);
    let mut observed = running("10.244.1.5");
    let effects = cluster.apply(Event::Observed {
        uid: uid.clone(),
        observed: observed.clone(),
    });
    let view = &views(&effects).unwrap()[0];
    assert_eq!(
        view.ports[0].targets,
        [("10.244.1.5".parse().unwrap(), 8080)]
    );
    observed.containers[0].ready = false;
    let effects = cluster.apply(Event::Observed { uid, observed });
    assert_eq!(views(&effects).unwrap()[0].ports[0].targets, []);
}

#[test]
fn a_service_gets_the_families_it_asks_for_and_keeps_its_addresses() {
    let mut cluster = cluster(1);
    let ips = |effects: &[Effect]| {
        effects.iter().find_map(|effect| match effect {
            Effect::Write(key, value) if key.kind == Kind::Service => {
                Some(value["spec"]["clusterIPs"].clone())
            }
            _ => None,
        })
    };
    let both = json!({"ipFamilyPolicy": "PreferDualStack"});
    let effects = cluster.apply(Event::Manifests(vec![applied(service(both.clone()))]));
    assert_eq!(ips(&effects), Some(json!(["10.96.1.0", "fd00:10:96::100"])));
    let effects = cluster.apply(Event::Manifests(vec![applied(service(both))]));
    assert_eq!(ips(&effects), None);
    let headless = json!({"clusterIP": "None"});
    let effects = cluster.apply(Event::Manifests(vec![applied(service(headless))]));
    assert!(matches!(&effects[0], Effect::Remove(key) if key.kind == Kind::Service));
}

#[test]
fn a_pod_no_node_can_take_is_a_problem_with_a_name() {
    let mut cluster = cluster(1);
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"},
        "spec": {"nodeName": "node-9", "containers": []}});
    let effects = cluster.apply(Event::Manifests(vec![applied(pod)]));
    assert!(started(&effects).is_empty());
    assert!(
        cluster.problems()[0].contains("node-9"),
        "{:?}",
        cluster.problems()
    );
}
