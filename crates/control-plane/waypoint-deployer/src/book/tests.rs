//! Decisions about Gateways.

use ambit_waypoint_objects::{MANAGED_BY, Unusable};
use serde_json::json;

use super::*;

fn name() -> Name {
    Name {
        namespace: "shop".into(),
        name: "way".into(),
    }
}

fn gateway(metadata: Value, status: Value) -> Gateway {
    let mut value = json!({
        "metadata": {"name": "way", "namespace": "shop", "uid": "1", "generation": 3},
        "spec": {"gatewayClassName": "istio-waypoint"},
        "status": status,
    });
    let into = value["metadata"].as_object_mut().unwrap();
    into.extend(metadata.as_object().unwrap().clone());
    serde_json::from_value(value).unwrap()
}

/// A book that knows the class and one Gateway.
fn book(metadata: Value) -> Book {
    book_of("default", metadata)
}

/// The same of the control plane of a revision.
fn book_of(revision: &str, metadata: Value) -> Book {
    let release = Release::of(None);
    let mut book = Book::new(Settings::default(), revision, release, "istio-system");
    book.class(Some(class(CONTROLLER)));
    book.gateway(name(), Some(gateway(metadata, Value::Null)));
    book
}

fn class(controller: &str) -> Class {
    Class {
        controller: controller.into(),
        generation: Some(1),
        is_accepted: true,
        release: Some(Release::of(None)),
    }
}

fn metadata(entries: Value) -> ObjectMeta {
    serde_json::from_value(json!({"labels": {MANAGED: MANAGED_BY}, "managedFields": entries}))
        .unwrap()
}

fn applied_by(manager: &str, fields: Value) -> Value {
    let mut all = json!({"f:metadata": {"f:labels": {format!("f:{MANAGED}"): {}}}});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    json!({"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": all})
}

fn applied(book: &Book) -> (Vec<Write>, Vec<Removal>) {
    match book.plan(&name()) {
        Some(Plan::Apply(writes, removals)) => (writes, removals),
        other => panic!("{other:?}"),
    }
}

fn writes(book: &Book) -> Vec<Write> {
    let (writes, removals) = applied(book);
    assert_eq!(removals, []);
    writes
}

fn replicas(book: &Book) -> Value {
    let writes = writes(book);
    let deployment = writes.iter().find(|write| write.part == Part::Deployment);
    deployment.unwrap().object["spec"]["replicas"].clone()
}

#[test]
fn each_part_is_the_object_of_its_kind_and_new_until_it_is_seen() {
    let mut book = book(json!({}));
    let kinds: Vec<_> = writes(&book)
        .iter()
        .map(|write| {
            (
                write.part,
                write.object["kind"].as_str().unwrap().to_owned(),
                write.is_new,
            )
        })
        .collect();
    let expected = [
        (Part::ServiceAccount, "ServiceAccount", true),
        (Part::Service, "Service", true),
        (Part::Deployment, "Deployment", true),
        (Part::DisruptionBudget, "PodDisruptionBudget", true),
    ];
    let expected: Vec<_> = expected
        .map(|(part, kind, new)| (part, kind.to_owned(), new))
        .into();
    assert_eq!(kinds, expected);
    book.object(Part::Service, name(), Some(Standing::default()));
    let new: Vec<_> = writes(&book).iter().map(|write| write.is_new).collect();
    assert_eq!(new, [true, false, true, true]);
}

#[test]
fn what_changes_is_due_and_what_does_not_is_not() {
    let mut book = book(json!({}));
    assert_eq!(book.take_due(), [name()].into());
    assert!(book.take_due().is_empty());
    let standing = Standing {
        generation: Some(1),
        ..Standing::default()
    };
    for (generation, is_due) in [(1, true), (1, false), (2, true)] {
        let standing = Standing {
            generation: Some(generation),
            ..standing.clone()
        };
        book.object(Part::Deployment, name(), Some(standing));
        assert_eq!(!book.take_due().is_empty(), is_due, "{generation}");
    }
    let written = Standing {
        resource_version: Some("7".into()),
        generation: Some(2),
        ..standing
    };
    book.object(Part::Deployment, name(), Some(written));
    assert!(book.take_due().is_empty(), "its version alone");
    book.object(Part::Deployment, name(), None);
    assert!(!book.take_due().is_empty(), "deleted");
    book.namespace("other".into(), Some(BTreeMap::new()));
    assert!(book.take_due().is_empty());
    book.namespace(
        "shop".into(),
        Some([("istio.io/rev".into(), "canary".into())].into()),
    );
    assert!(!book.take_due().is_empty());
    assert_eq!(book.plan(&name()), None, "another revision's");
    book.gateway(name(), None);
    book.again(name());
    assert!(book.take_due().is_empty(), "gone");
}

#[test]
fn a_class_of_another_controller_or_none_is_left_alone() {
    let mut book = book(json!({}));
    book.class(Some(class("example.com/other")));
    assert_eq!(book.plan(&name()), None);
    book.class(None);
    assert_eq!(book.plan(&name()), None);
    book.class(Some(class(CONTROLLER)));
    assert!(!book.take_due().is_empty());
    assert!(book.plan(&name()).is_some());
}

#[test]
fn gateway_class_is_created_with_status_unless_foreign() {
    let mut book = book(json!({}));
    assert_eq!(book.class_work(), None);
    let other = Class {
        release: None,
        ..class("example.com/other")
    };
    book.class(Some(other));
    assert_eq!(book.class_work(), None);
    book.class(None);
    assert_eq!(book.class_work(), Some(ClassWork::Make));
    let unsaid = Class {
        release: None,
        ..class(CONTROLLER)
    };
    book.class(Some(unsaid));
    assert_eq!(
        book.class_work(),
        Some(ClassWork::Say(&Release::of(None), Some(1)))
    );
}

#[test]
fn a_gateway_of_another_class_loses_what_we_made_for_it_and_nothing_else() {
    let mut book = book(json!({}));
    let standing = |manager: &str, owner: &str| {
        let mut metadata = metadata(json!([applied_by(manager, json!({}))]));
        let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "name": "way", "uid": owner}]);
        metadata.owner_references = serde_json::from_value(owner).unwrap();
        metadata.uid = Some("7".into());
        Standing::of(&metadata)
    };
    for (part, manager, owner) in [
        (Part::Service, MANAGER, "1"),
        (Part::Deployment, "istio.io/mesh-controller", "1"),
        (Part::ServiceAccount, MANAGER, "of an earlier Gateway"),
    ] {
        book.object(part, name(), Some(standing(manager, owner)));
    }
    let mut other = gateway(json!({}), Value::Null);
    other.spec.gateway_class_name = "other".into();
    book.gateway(name(), Some(other));
    let removal = Removal {
        part: Part::Service,
        uid: Some("7".into()),
    };
    assert_eq!(book.plan(&name()), Some(Plan::Release(vec![removal])));
    book.object(Part::Service, name(), None);
    assert_eq!(book.plan(&name()), None);
}

#[test]
fn what_another_controller_applies_is_left_to_it() {
    let mut book = book(json!({}));
    let entries = json!([
        applied_by(MANAGER, json!({})),
        applied_by("istio.io/mesh-controller", json!({}))
    ]);
    book.object(
        Part::Service,
        name(),
        Some(Standing::of(&metadata(entries))),
    );
    let other = Verdict::Other("istio.io/mesh-controller".into());
    assert_eq!(book.plan(&name()), Some(Plan::Refuse(other)));
    // Whoever writes other fields is no other controller.
    let update = json!({"manager": "kubectl-edit", "operation": "Update",
        "fieldsV1": {"f:metadata": {"f:labels": {format!("f:{MANAGED}"): {}}}}});
    let label = json!({"manager": "kubectl", "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}});
    let ours = json!([applied_by(MANAGER, json!({})), update, label]);
    book.object(Part::Service, name(), Some(Standing::of(&metadata(ours))));
    assert_eq!(writes(&book).len(), 4);
}

#[test]
fn scaled_deployment_keeps_its_number_unless_the_gateway_sets_one() {
    let spec = json!({"f:spec": {"f:replicas": {}}});
    let standing = |entries: Value| {
        let metadata = metadata(entries);
        Standing {
            replicas_ours: replicas_ours(&metadata),
            ..Standing::of(&metadata)
        }
    };
    let mut book = book(json!({}));
    assert_eq!(replicas(&book), 2);
    book.object(
        Part::Deployment,
        name(),
        Some(standing(json!([applied_by(MANAGER, spec.clone())]))),
    );
    assert_eq!(replicas(&book), 2);
    let scaled = json!([applied_by(MANAGER, json!({})), {"manager": "kubectl", "operation": "Update",
        "subresource": "scale", "fieldsV1": spec}]);
    book.object(Part::Deployment, name(), Some(standing(scaled)));
    assert_eq!(replicas(&book), Value::Null);
    let own = json!({"annotations": {"ambit.io/waypoint-replicas": "4"}});
    book.gateway(name(), Some(gateway(own, Value::Null)));
    assert_eq!(replicas(&book), 4);
}

/// Else a number of pods would be omitted, or written, by its previous manager.
#[test]
fn deployment_is_written_for_the_version_seen_last() {
    let decided_by = |book: &Book| -> Vec<(Part, Option<String>)> {
        let writes = writes(book).into_iter();
        writes
            .filter(|write| write.decided_by.is_some() || write.part == Part::Deployment)
            .map(|write| (write.part, write.decided_by))
            .collect()
    };
    let mut book = book(json!({}));
    assert_eq!(decided_by(&book), [(Part::Deployment, None)], "a new one");
    for version in ["7", "8"] {
        let standing = Standing {
            resource_version: Some(version.into()),
            ..Standing::default()
        };
        for part in [Part::Deployment, Part::Service] {
            book.object(part, name(), Some(standing.clone()));
        }
        let expected = [(Part::Deployment, Some(version.to_owned()))];
        assert_eq!(decided_by(&book), expected);
    }
}

#[test]
fn a_gateway_that_cannot_be_made_is_refused() {
    let book = book(json!({"annotations": {"ambit.io/waypoint-replicas": "x"}}));
    let why = Verdict::Unusable(Unusable::Replicas("x".into()), None);
    assert_eq!(book.plan(&name()), Some(Plan::Refuse(why)));
}

/// A Gateway that refers to the ConfigMap `own`.
fn refers() -> Gateway {
    let mut gateway = gateway(json!({}), Value::Null);
    let infrastructure =
        json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "own"}});
    gateway.spec.infrastructure = serde_json::from_value(infrastructure).unwrap();
    gateway
}

fn map(name: &str) -> Name {
    Name {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn parameters(data: Value) -> Option<Parameters> {
    let map = serde_json::from_value(json!({"metadata": {}, "data": data})).unwrap();
    Some(Parameters::of(&map))
}

/// One of our objects, made for the Gateway, whose fields we apply.
fn made(fields: Value) -> Standing {
    let mut metadata = metadata(json!([applied_by(MANAGER, fields)]));
    let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "name": "way", "uid": "1"}]);
    metadata.owner_references = serde_json::from_value(owner).unwrap();
    Standing {
        replicas_ours: replicas_ours(&metadata),
        replicas: Some(2),
        ..Standing::of(&metadata)
    }
}

#[test]
fn config_map_changes_reconcile_only_their_gateways() {
    let mut book = book(json!({}));
    book.gateway(name(), Some(refers()));
    book.take_due();
    for (map_name, data, is_due) in [
        ("own", json!({"deployment": "spec: {replicas: 3}"}), true),
        ("other", json!({"deployment": "spec: {replicas: 3}"}), false),
        ("own", json!({}), true),
    ] {
        book.config_map(&map(map_name), parameters(data));
        assert_eq!(!book.take_due().is_empty(), is_due, "{map_name}");
    }
    assert_eq!(replicas(&book), 2, "what the key said is undone");
    book.config_map(&map("own"), None);
    assert!(!book.take_due().is_empty());
    let plan = book.plan(&name());
    assert!(
        matches!(plan, Some(Plan::Refuse(Verdict::Unusable(_, None)))),
        "{plan:?}"
    );
}

#[test]
fn unusable_overlay_changes_nothing_and_is_reported() {
    let mut book = book(json!({}));
    book.gateway(name(), Some(refers()));
    book.config_map(
        &map("own"),
        parameters(json!({"service": "spec: {type: ["})),
    );
    book.object(Part::Deployment, name(), Some(made(json!({}))));
    let Some(Plan::Refuse(verdict)) = book.plan(&name()) else {
        panic!("refused");
    };
    let status = book.status(&name(), &verdict).unwrap();
    let expected = [
        "Accepted=False InvalidParameters",
        "Programmed=False AddressNotAssigned",
    ];
    assert_eq!(conditions(&status), expected);
    let message = status["conditions"][0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("ConfigMap shop/own, key service: line 1"),
        "{message}"
    );
    let service = Standing {
        ips: vec!["10.96.0.7".into()],
        ..made(json!({}))
    };
    book.object(Part::Service, name(), Some(service));
    let ready = Standing {
        is_ready: true,
        ..made(json!({}))
    };
    book.object(Part::Deployment, name(), Some(ready));
    let Some(Plan::Refuse(verdict)) = book.plan(&name()) else {
        panic!("refused");
    };
    let status = book.status(&name(), &verdict).unwrap();
    let expected = [
        "Accepted=False InvalidParameters",
        "Programmed=True Programmed",
    ];
    assert_eq!(conditions(&status), expected);
    assert_eq!(
        status["addresses"][0]["value"], "10.96.0.7",
        "clients keep their way"
    );
}

/// An autoscaler takes the number of pods over as it is, and leaves it to us when it goes.
#[test]
fn the_number_of_pods_is_handed_to_an_autoscaler_and_taken_back() {
    let mut book = book(json!({}));
    book.gateway(name(), Some(refers()));
    let scaled = json!({"horizontalPodAutoscaler": "spec: {maxReplicas: 5}"});
    book.config_map(&map("own"), parameters(scaled));
    book.object(
        Part::Deployment,
        name(),
        Some(made(json!({"f:spec": {"f:replicas": {}}}))),
    );
    let writes = writes(&book);
    let first = &writes[0];
    assert_eq!(
        (first.part, first.manager),
        (Part::Deployment, REPLICAS_MANAGER)
    );
    assert_eq!(first.object["spec"], json!({"replicas": 2}));
    let ours: Vec<_> = writes
        .iter()
        .filter(|write| write.manager == MANAGER)
        .collect();
    assert!(ours.iter().any(|write| write.part == Part::Autoscaler));
    let deployment = ours.iter().find(|write| write.part == Part::Deployment);
    assert_eq!(deployment.unwrap().object["spec"].get("replicas"), None);

    // From then on it is not reported.
    book.object(Part::Deployment, name(), Some(made(json!({}))));
    book.object(Part::Autoscaler, name(), Some(made(json!({}))));
    assert!(
        self::writes(&book)
            .iter()
            .all(|write| write.manager == MANAGER)
    );

    book.config_map(&map("own"), parameters(json!({})));
    let (writes, removals) = applied(&book);
    let parts: Vec<_> = removals.iter().map(|removal| removal.part).collect();
    assert_eq!(parts, [Part::Autoscaler]);
    let deployment = writes.iter().find(|write| write.part == Part::Deployment);
    assert_eq!(deployment.unwrap().object["spec"]["replicas"], 2);
}

fn conditions(status: &Value) -> Vec<String> {
    let all = status["conditions"].as_array().unwrap().iter();
    let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
    all.map(|one| {
        format!(
            "{}={} {}",
            text(one, "type"),
            text(one, "status"),
            text(one, "reason")
        )
    })
    .collect()
}

#[test]
fn addresses_come_with_the_first_ready_pod_and_stay_without_one() {
    let mut book = book(json!({}));
    let progress = |book: &Book| book.status(&name(), &Verdict::Made(book.progress(&name())));
    let status = progress(&book).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Accepted=True Accepted",
            "Programmed=False AddressNotAssigned"
        ]
    );
    // A pod that is ready is of no use before the Service has an address.
    let early = Standing {
        is_ready: true,
        ..Standing::default()
    };
    book.object(Part::Deployment, name(), Some(early));
    let status = progress(&book).unwrap();
    assert_eq!(
        conditions(&status)[1],
        "Programmed=False AddressNotAssigned"
    );
    book.object(Part::Deployment, name(), None);
    let service = Standing {
        ips: vec!["10.96.0.7".into()],
        ..Standing::default()
    };
    book.object(Part::Service, name(), Some(service));
    let status = progress(&book).unwrap();
    assert_eq!(conditions(&status)[1], "Programmed=False AddressNotUsable");
    assert_eq!(status.get("addresses"), None);
    let deployment = |is_ready| Standing {
        is_ready,
        ..Standing::default()
    };
    book.object(Part::Deployment, name(), Some(deployment(true)));
    let ready = progress(&book).unwrap();
    assert_eq!(conditions(&ready)[1], "Programmed=True Programmed");
    let addresses = json!([
        {"type": "IPAddress", "value": "10.96.0.7"},
        {"type": "Hostname", "value": "way.shop.svc.cluster.local"},
    ]);
    assert_eq!(ready["addresses"], addresses);
    let balanced = Standing {
        ips: vec!["10.96.0.7".into()],
        outside: vec!["192.0.2.1".into()],
        ..Standing::default()
    };
    book.object(Part::Service, name(), Some(balanced));
    assert_eq!(
        progress(&book).unwrap()["addresses"][2]["value"],
        "192.0.2.1"
    );
    let service = Standing {
        ips: vec!["10.96.0.7".into()],
        ..Standing::default()
    };
    book.object(Part::Service, name(), Some(service));
    assert_eq!(ready["conditions"][0]["observedGeneration"], 3);

    // It is in place: nothing to write.
    book.gateway(name(), Some(gateway(json!({}), ready)));
    assert_eq!(progress(&book), None);
    book.object(Part::Deployment, name(), Some(deployment(false)));
    let away = progress(&book).unwrap();
    assert_eq!(conditions(&away)[1], "Programmed=False AddressNotUsable");
    assert_eq!(away["addresses"], addresses);
}

#[test]
fn foreign_managed_gateway_reports_only_its_controller() {
    let book = book(json!({}));
    let status = book
        .status(&name(), &Verdict::Other("istiod".into()))
        .unwrap();
    assert_eq!(
        conditions(&status),
        ["ambit.io/Deployed=False ManagedByOther"]
    );
    assert_eq!(status.get("addresses"), None);
    let status = book
        .status(&name(), &Verdict::Taken("Service shop/way".into()))
        .unwrap();
    assert_eq!(conditions(&status)[1], "Programmed=False Invalid");
}

mod revisions;
