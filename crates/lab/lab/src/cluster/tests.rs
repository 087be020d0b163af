//! Tests of the effects that the cluster returns for events.

use ambit_k8s_api::Object;
use ambit_manifests::ManifestPosition;
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
        Some(Settings {
            command: vec!["/bin/ambit-waypoint".into()],
            replicas: 1,
            ..Settings::default()
        }),
        Box::new(uid),
    )
}

fn applied_event(value: Value) -> ObjectEvent {
    let kind = ObjectKey::read(&value).unwrap().kind;
    let object = Object::from_value(kind, &value).unwrap();
    let origin = ManifestPosition {
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

fn started_pods(effects: &[ClusterEffect]) -> Vec<&PodPlan> {
    let mut plans = Vec::new();
    for effect in effects {
        if let ClusterEffect::StartPod(plan) = effect {
            plans.push(plan);
        }
    }
    plans
}

fn stopped_count(effects: &[ClusterEffect]) -> usize {
    effects
        .iter()
        .filter(|effect| matches!(effect, ClusterEffect::StopPod { .. }))
        .count()
}

fn running_observation(ip: &str) -> PodObservation {
    let mut container = ContainerObservation::new("c");
    container.state = ContainerState::Running;
    container.ready = true;
    PodObservation {
        phase: Phase::Running,
        ips: vec![ip.parse().unwrap()],
        containers: vec![container],
        message: None,
    }
}

#[test]
fn replicas_are_spread_and_written_before_they_start() {
    let mut cluster = cluster(2);
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(4, "web"),
    )]));
    let plans = started_pods(&effects);
    let mut nodes: Vec<_> = plans.iter().map(|plan| plan.node.as_str()).collect();
    nodes.sort_unstable();
    assert_eq!(nodes, ["node-1", "node-1", "node-2", "node-2"]);
    for plan in plans {
        let key = ObjectKey::new(Kind::Pod, "shop", plan.name());
        let write = effects.iter().position(|e| {
            matches!(e, ClusterEffect::WriteObject(k, v)
            if *k == key && v["metadata"]["uid"] == plan.uid.as_str())
        });
        let start = effects
            .iter()
            .position(|e| matches!(e, ClusterEffect::StartPod(p) if p.uid == plan.uid));
        assert!(write.unwrap() < start.unwrap());
        assert!(plan.name().starts_with("web-"));
    }
}

#[test]
fn another_template_replaces_pods_and_another_count_does_not() {
    let mut cluster = cluster(1);
    cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(1, "web"),
    )]));
    let more = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(2, "web"),
    )]));
    assert_eq!((started_pods(&more).len(), stopped_count(&more)), (1, 0));
    let fewer = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(1, "web"),
    )]));
    assert_eq!((started_pods(&fewer).len(), stopped_count(&fewer)), (0, 1));
    let mut recreated = deployment(1, "other");
    recreated["spec"]["strategy"] = json!({"type": "Recreate"});
    let other = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        recreated,
    )]));
    assert_eq!((started_pods(&other).len(), stopped_count(&other)), (1, 1));
}

#[test]
fn old_pods_stop_when_their_replacements_are_ready() {
    let mut cluster = cluster(1);
    let first = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(2, "web"),
    )]));
    for plan in started_pods(&first) {
        let (uid, observed) = (plan.uid.clone(), running_observation("10.244.1.5"));
        cluster.apply(ClusterEvent::PodObserved { uid, observed });
    }
    let second = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(2, "other"),
    )]));
    assert_eq!(
        (started_pods(&second).len(), stopped_count(&second)),
        (2, 0)
    );
    for plan in started_pods(&second) {
        let observed = |observed| ClusterEvent::PodObserved {
            uid: plan.uid.clone(),
            observed,
        };
        let starting = cluster.apply(observed(PodObservation::default()));
        assert_eq!(stopped_count(&starting), 0);
        let ready = cluster.apply(observed(running_observation("10.244.1.6")));
        assert_eq!((started_pods(&ready).len(), stopped_count(&ready)), (0, 1));
    }
    // A third template replaces what is there of the second; nothing is left of the first.
    let third = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(2, "third"),
    )]));
    assert_eq!((started_pods(&third).len(), stopped_count(&third)), (2, 0));
    let none = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        deployment(0, "third"),
    )]));
    assert_eq!((started_pods(&none).len(), stopped_count(&none)), (0, 4));
}

#[test]
fn a_bare_pod_keeps_running_when_its_labels_change() {
    let pod = |labels: Value, command: &str| {
        applied_event(json!({"apiVersion": "v1", "kind": "Pod",
            "metadata": {"name": "a", "labels": labels},
            "spec": {"containers": [{"name": "c", "command": [command]}]}}))
    };
    let mut cluster = cluster(1);
    cluster.apply(ClusterEvent::ManifestsChanged(vec![pod(json!({}), "x")]));
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![pod(
        json!({"a": "b"}),
        "x",
    )]));
    assert_eq!(effects, []);
    // A changed command makes a new pod: the old one ends first, since both have the same name.
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![pod(json!({}), "y")]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (0, 1)
    );
    let effects = cluster.apply(ClusterEvent::PodGone {
        uid: "uid-1".into(),
    });
    assert_eq!(started_pods(&effects)[0].uid, "uid-2");
}

#[test]
fn overlays_alone_do_not_create_pods() {
    let mut cluster = cluster(1);
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"}, "spec": {"containers": []}});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(pod)]));
    let written = effects.iter().find_map(|effect| match effect {
        ClusterEffect::WriteObject(key, value) if key.kind == Kind::Pod => Some(value),
        _ => None,
    });
    let annotations = &written.unwrap()["metadata"]["annotations"];
    assert!(annotations.get(ambit_k8s_api::labels::OVERLAY).is_some());
}

#[test]
fn only_ready_pods_are_behind_a_service() {
    let mut cluster = cluster(1);
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![
        applied_event(deployment(1, "web")),
        applied_event(service(json!({}))),
    ]));
    let uid = started_pods(&effects)[0].uid.clone();
    let views = |effects: &[ClusterEffect]| {
        effects.iter().find_map(|effect| match effect {
            ClusterEffect::PublishServices(views) => Some(views.clone()),
            _ => None,
        })
    };
    let view = &views(&effects).unwrap()[0];
    assert_eq!(view.ips, ["10.96.1.0".parse::<IpAddr>().unwrap()]);
    assert_eq!(view.ports[0].targets, []);
    let mut observed = running_observation("10.244.1.5");
    let effects = cluster.apply(ClusterEvent::PodObserved {
        uid: uid.clone(),
        observed: observed.clone(),
    });
    let view = &views(&effects).unwrap()[0];
    assert_eq!(
        view.ports[0].targets,
        [("10.244.1.5".parse().unwrap(), 8080)]
    );
    observed.containers[0].ready = false;
    let effects = cluster.apply(ClusterEvent::PodObserved { uid, observed });
    assert_eq!(views(&effects).unwrap()[0].ports[0].targets, []);
}

#[test]
fn a_service_gets_the_families_it_asks_for_and_keeps_its_addresses() {
    let mut cluster = cluster(1);
    let ips = |effects: &[ClusterEffect]| {
        effects.iter().find_map(|effect| match effect {
            ClusterEffect::WriteObject(key, value) if key.kind == Kind::Service => {
                Some(value["spec"]["clusterIPs"].clone())
            }
            _ => None,
        })
    };
    let both = json!({"ipFamilyPolicy": "PreferDualStack"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        service(both.clone()),
    )]));
    assert_eq!(ips(&effects), Some(json!(["10.96.1.0", "fd00:10:96::100"])));
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        service(both),
    )]));
    assert_eq!(ips(&effects), None);
    let headless = json!({"clusterIP": "None"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        service(headless),
    )]));
    assert!(
        matches!(&effects[0], ClusterEffect::RemoveAddedFields(key) if key.kind == Kind::Service)
    );
}

#[test]
fn unschedulable_pods_are_reported_by_name() {
    let mut cluster = cluster(1);
    let pod = json!({"kind": "Pod", "metadata": {"name": "a"},
        "spec": {"nodeName": "node-9", "containers": []}});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(pod)]));
    assert!(started_pods(&effects).is_empty());
    assert!(
        cluster.problems()[0].contains("node-9"),
        "{:?}",
        cluster.problems()
    );
}

fn gateway(annotations: Value) -> Value {
    json!({"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "metadata": {"name": "waypoint", "namespace": "shop", "annotations": annotations},
        "spec": {"gatewayClassName": "istio-waypoint",
            "listeners": [{"name": "mesh", "port": 15008, "protocol": "HBONE"}]}})
}

fn written_object(effects: &[ClusterEffect], kind: Kind) -> Option<&Value> {
    let mut last = None;
    for effect in effects {
        if let ClusterEffect::WriteObject(key, value) = effect
            && key.kind == kind
        {
            last = Some(value);
        }
    }
    last
}

#[test]
fn a_gateway_makes_a_waypoint_that_runs_behind_a_service() {
    let mut cluster = cluster(2);
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        gateway(json!({})),
    )]));
    let plans = started_pods(&effects);
    assert_eq!(plans.len(), 1);
    let (uid, pod) = (plans[0].uid.clone(), plans[0].pod.clone());
    assert_eq!(plans[0].service_account(), "waypoint");
    assert!(plans[0].has_token_volume("istio-ca"));
    assert_eq!(
        pod.spec.as_ref().unwrap().containers[0].command,
        Some(vec!["/bin/ambit-waypoint".to_owned()])
    );
    // What is in no manifest is written in full, with an address.
    let service = written_object(&effects, Kind::Service).unwrap();
    assert_eq!(service["spec"]["clusterIP"], "10.96.1.0");
    assert_eq!(service["spec"]["ports"][1]["port"], 15008);
    let overlay = &service["metadata"]["annotations"][ambit_k8s_api::labels::OVERLAY];
    assert!(overlay.is_null());
    assert!(written_object(&effects, Kind::ServiceAccount).is_some());
    assert!(written_object(&effects, Kind::Deployment).is_some());
    let programmed = |effects: &[ClusterEffect]| {
        let gateway = written_object(effects, Kind::Gateway)?;
        let status = gateway["status"]["conditions"][1]["status"].as_str();
        Some((status?.to_owned(), gateway["status"]["addresses"].clone()))
    };
    assert_eq!(programmed(&effects), Some(("False".to_owned(), json!([]))));
    let expected = json!([
        {"type": "IPAddress", "value": "10.96.1.0"},
        {"type": "IPAddress", "value": "fd00:10:96::100"},
        {"type": "Hostname", "value": "waypoint.shop.svc.cluster.local"},
    ]);
    let observed = |ready: bool| {
        let mut observed = running_observation("10.244.1.5");
        observed.containers[0].ready = ready;
        ClusterEvent::PodObserved {
            uid: uid.clone(),
            observed,
        }
    };
    // From its first readiness on it has the waypoint's address.
    for (ready, status) in [(true, "True"), (false, "False")] {
        let effects = cluster.apply(observed(ready));
        let expected = (status.to_owned(), expected.clone());
        assert_eq!(programmed(&effects), Some(expected));
    }
}

#[test]
fn waypoint_follows_its_gateway_until_deletion() {
    let mut cluster = cluster(2);
    cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        gateway(json!({})),
    )]));
    let two = json!({"ambit.io/waypoint-replicas": "2"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        gateway(two),
    )]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (1, 0)
    );
    assert_eq!(started_pods(&effects)[0].node, "node-2");
    let key = ObjectKey::new(Kind::Gateway, "shop", "waypoint");
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![ObjectEvent::Deleted(
        key,
    )]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (0, 2)
    );
    for kind in [Kind::Service, Kind::Deployment, Kind::ServiceAccount] {
        let removed = |effect: &ClusterEffect| matches!(effect, ClusterEffect::RemoveAddedFields(key) if key.kind == kind);
        assert!(effects.iter().any(removed), "{kind}");
    }
}

#[test]
fn gateway_without_a_waypoint_is_a_problem_and_spares_others() {
    let mut cluster = cluster(1);
    let mut own = service(json!({}));
    own["metadata"]["name"] = "waypoint".into();
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![
        applied_event(own),
        applied_event(gateway(json!({}))),
    ]));
    assert!(started_pods(&effects).is_empty());
    let problems = cluster.problems();
    assert!(
        problems[0].starts_with("Gateway shop/waypoint")
            && problems[0].contains("Service shop/waypoint"),
        "{problems:?}"
    );
    let mut other = gateway(json!({}));
    other["metadata"]["name"] = "other".into();
    other["spec"]["gatewayClassName"] = "istio".into();
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(other)]));
    assert!(started_pods(&effects).is_empty());
    assert_eq!(cluster.problems().len(), 1);
}

fn overlay_config_map(data: Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap",
        "metadata": {"name": "own", "namespace": "shop"}, "data": data})
}

#[test]
fn bad_overlays_leave_the_waypoint_as_it_is() {
    let mut cluster = cluster(2);
    let mut refers = gateway(json!({}));
    refers["spec"]["infrastructure"] =
        json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "own"}});
    let two = json!({"deployment": "spec: {replicas: 2}"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![
        applied_event(refers),
        applied_event(overlay_config_map(two)),
    ]));
    assert_eq!(started_pods(&effects).len(), 2);

    let bad = json!({"deployment": "spec: {replicas: [}"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        overlay_config_map(bad),
    )]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (0, 0)
    );
    let problems = cluster.problems();
    let beginning =
        "Gateway shop/waypoint: ConfigMap shop/own, key deployment: line 1: is not YAML";
    assert!(problems[0].starts_with(beginning), "{problems:?}");
    let status = &written_object(&effects, Kind::Gateway).unwrap()["status"];
    let condition = |status: &Value, name: &str| {
        let all = status["conditions"].as_array().unwrap().iter();
        let mut found = all.filter(|one| one["type"] == name);
        let one = found.next().unwrap();
        assert_eq!(found.next(), None, "once");
        one["reason"].clone()
    };
    assert_eq!(condition(status, "Accepted"), "InvalidParameters");
    assert_eq!(condition(status, "Programmed"), "AddressNotUsable");
    assert_eq!(status["addresses"], json!([]));

    // A lab does not scale by itself, and reports it.
    let scaled = json!({"horizontalPodAutoscaler": "spec: {minReplicas: 3, maxReplicas: 5}"});
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        overlay_config_map(scaled),
    )]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (1, 0)
    );
    assert!(cluster.problems().is_empty());
    let status = &written_object(&effects, Kind::Gateway).unwrap()["status"];
    assert_eq!(condition(status, "Accepted"), "Accepted");
    assert_eq!(condition(status, "ambit.io/Autoscaled"), "NotInLab");

    // The overlay is undone.
    let effects = cluster.apply(ClusterEvent::ManifestsChanged(vec![applied_event(
        overlay_config_map(json!({})),
    )]));
    assert_eq!(
        (started_pods(&effects).len(), stopped_count(&effects)),
        (0, 2)
    );
}
