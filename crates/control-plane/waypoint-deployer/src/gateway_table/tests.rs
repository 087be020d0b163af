//! Tests of which writes the table decides for a Gateway.

use ambit_waypoint_objects::{MANAGED_BY_VALUE, WaypointError};
use serde_json::json;

use super::*;

fn name() -> GatewayName {
    GatewayName {
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

/// Returns a table with the GatewayClass and one Gateway of this metadata.
fn table(metadata: Value) -> GatewayTable {
    table_of_revision("default", metadata)
}

/// Returns a table with the GatewayClass and one Gateway, of the control plane of a revision.
fn table_of_revision(revision: &str, metadata: Value) -> GatewayTable {
    let release = GatewayApiRelease::from_annotations(None);
    let mut table = GatewayTable::new(Settings::default(), revision, release, "istio-system");
    table.set_class(Some(class(CONTROLLER_NAME)));
    table.set_gateway(name(), Some(gateway(metadata, Value::Null)));
    table
}

fn class(controller: &str) -> GatewayClassState {
    GatewayClassState {
        controller: controller.into(),
        generation: Some(1),
        is_accepted: true,
        release: Some(GatewayApiRelease::from_annotations(None)),
    }
}

fn metadata(entries: Value) -> ObjectMeta {
    serde_json::from_value(
        json!({"labels": {MANAGED_LABEL: MANAGED_BY_VALUE}, "managedFields": entries}),
    )
    .unwrap()
}

fn managed_fields_entry(manager: &str, fields: Value) -> Value {
    let mut all = json!({"f:metadata": {"f:labels": {format!("f:{MANAGED_LABEL}"): {}}}});
    all.as_object_mut()
        .unwrap()
        .extend(fields.as_object().unwrap().clone());
    json!({"manager": manager, "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": all})
}

fn planned_writes_and_removals(table: &GatewayTable) -> (Vec<ObjectWrite>, Vec<ObjectRemoval>) {
    match table.plan(&name()) {
        Some(DeploymentPlan::Apply(writes, removals)) => (writes, removals),
        other => panic!("{other:?}"),
    }
}

fn planned_writes(table: &GatewayTable) -> Vec<ObjectWrite> {
    let (writes, removals) = planned_writes_and_removals(table);
    assert_eq!(removals, []);
    writes
}

fn planned_replicas(table: &GatewayTable) -> Value {
    let writes = planned_writes(table);
    let deployment = writes
        .iter()
        .find(|write| write.object_kind == WaypointObjectKind::Deployment);
    deployment.unwrap().object["spec"]["replicas"].clone()
}

#[test]
fn objects_are_marked_new_until_observed() {
    let mut table = table(json!({}));
    let kinds: Vec<_> = planned_writes(&table)
        .iter()
        .map(|write| {
            (
                write.object_kind,
                write.object["kind"].as_str().unwrap().to_owned(),
                write.is_new,
            )
        })
        .collect();
    let expected = [
        (WaypointObjectKind::ServiceAccount, "ServiceAccount", true),
        (WaypointObjectKind::Service, "Service", true),
        (WaypointObjectKind::Deployment, "Deployment", true),
        (
            WaypointObjectKind::DisruptionBudget,
            "PodDisruptionBudget",
            true,
        ),
    ];
    let expected: Vec<_> = expected
        .map(|(part, kind, new)| (part, kind.to_owned(), new))
        .into();
    assert_eq!(kinds, expected);
    table.set_object(
        WaypointObjectKind::Service,
        name(),
        Some(ExistingObject::default()),
    );
    let new: Vec<_> = planned_writes(&table)
        .iter()
        .map(|write| write.is_new)
        .collect();
    assert_eq!(new, [true, false, true, true]);
}

#[test]
fn only_changes_make_a_gateway_due() {
    let mut table = table(json!({}));
    assert_eq!(table.take_due_gateways(), [name()].into());
    assert!(table.take_due_gateways().is_empty());
    let existing = ExistingObject {
        generation: Some(1),
        ..ExistingObject::default()
    };
    for (generation, is_due) in [(1, true), (1, false), (2, true)] {
        let existing = ExistingObject {
            generation: Some(generation),
            ..existing.clone()
        };
        table.set_object(WaypointObjectKind::Deployment, name(), Some(existing));
        assert_eq!(
            !table.take_due_gateways().is_empty(),
            is_due,
            "{generation}"
        );
    }
    let written = ExistingObject {
        resource_version: Some("7".into()),
        generation: Some(2),
        ..existing
    };
    table.set_object(WaypointObjectKind::Deployment, name(), Some(written));
    assert!(table.take_due_gateways().is_empty(), "its version alone");
    table.set_object(WaypointObjectKind::Deployment, name(), None);
    assert!(!table.take_due_gateways().is_empty(), "deleted");
    table.set_namespace("other".into(), Some(BTreeMap::new()));
    assert!(table.take_due_gateways().is_empty());
    table.set_namespace(
        "shop".into(),
        Some([("istio.io/rev".into(), "canary".into())].into()),
    );
    assert!(!table.take_due_gateways().is_empty());
    assert_eq!(table.plan(&name()), None, "another revision's");
    table.set_gateway(name(), None);
    table.requeue(name());
    assert!(table.take_due_gateways().is_empty(), "gone");
}

#[test]
fn gateways_of_a_foreign_or_missing_class_are_ignored() {
    let mut table = table(json!({}));
    table.set_class(Some(class("example.com/other")));
    assert_eq!(table.plan(&name()), None);
    table.set_class(None);
    assert_eq!(table.plan(&name()), None);
    table.set_class(Some(class(CONTROLLER_NAME)));
    assert!(!table.take_due_gateways().is_empty());
    assert!(table.plan(&name()).is_some());
}

#[test]
fn gateway_class_is_created_with_status_unless_foreign() {
    let mut table = table(json!({}));
    assert_eq!(table.class_action(), None);
    let other = GatewayClassState {
        release: None,
        ..class("example.com/other")
    };
    table.set_class(Some(other));
    assert_eq!(table.class_action(), None);
    table.set_class(None);
    assert_eq!(table.class_action(), Some(ClassAction::Create));
    let unsaid = GatewayClassState {
        release: None,
        ..class(CONTROLLER_NAME)
    };
    table.set_class(Some(unsaid));
    assert_eq!(
        table.class_action(),
        Some(ClassAction::Accept(
            &GatewayApiRelease::from_annotations(None),
            Some(1)
        ))
    );
}

#[test]
fn class_change_deletes_only_our_objects() {
    let mut table = table(json!({}));
    let existing = |manager: &str, owner: &str| {
        let mut metadata = metadata(json!([managed_fields_entry(manager, json!({}))]));
        let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "name": "way", "uid": owner}]);
        metadata.owner_references = serde_json::from_value(owner).unwrap();
        metadata.uid = Some("7".into());
        ExistingObject::from_metadata(&metadata)
    };
    for (part, manager, owner) in [
        (WaypointObjectKind::Service, FIELD_MANAGER, "1"),
        (
            WaypointObjectKind::Deployment,
            "istio.io/mesh-controller",
            "1",
        ),
        (
            WaypointObjectKind::ServiceAccount,
            FIELD_MANAGER,
            "of an earlier Gateway",
        ),
    ] {
        table.set_object(part, name(), Some(existing(manager, owner)));
    }
    let mut other = gateway(json!({}), Value::Null);
    other.spec.gateway_class_name = "other".into();
    table.set_gateway(name(), Some(other));
    let removal = ObjectRemoval {
        object_kind: WaypointObjectKind::Service,
        uid: Some("7".into()),
    };
    assert_eq!(
        table.plan(&name()),
        Some(DeploymentPlan::Undeploy(vec![removal]))
    );
    table.set_object(WaypointObjectKind::Service, name(), None);
    assert_eq!(table.plan(&name()), None);
}

#[test]
fn objects_of_another_controller_are_not_changed() {
    let mut table = table(json!({}));
    let entries = json!([
        managed_fields_entry(FIELD_MANAGER, json!({})),
        managed_fields_entry("istio.io/mesh-controller", json!({}))
    ]);
    table.set_object(
        WaypointObjectKind::Service,
        name(),
        Some(ExistingObject::from_metadata(&metadata(entries))),
    );
    let other = GatewayState::ManagedByOther("istio.io/mesh-controller".into());
    assert_eq!(
        table.plan(&name()),
        Some(DeploymentPlan::WriteStatus(other))
    );
    // A manager of other fields is not another controller.
    let update = json!({"manager": "kubectl-edit", "operation": "Update",
        "fieldsV1": {"f:metadata": {"f:labels": {format!("f:{MANAGED_LABEL}"): {}}}}});
    let label = json!({"manager": "kubectl", "operation": "Apply",
        "fieldsV1": {"f:metadata": {"f:labels": {"f:team": {}}}}});
    let ours = json!([
        managed_fields_entry(FIELD_MANAGER, json!({})),
        update,
        label
    ]);
    table.set_object(
        WaypointObjectKind::Service,
        name(),
        Some(ExistingObject::from_metadata(&metadata(ours))),
    );
    assert_eq!(planned_writes(&table).len(), 4);
}

#[test]
fn scaled_deployment_keeps_its_number_unless_the_gateway_sets_one() {
    let spec = json!({"f:spec": {"f:replicas": {}}});
    let existing = |entries: Value| {
        let metadata = metadata(entries);
        ExistingObject {
            owns_replicas: owns_replicas(&metadata),
            ..ExistingObject::from_metadata(&metadata)
        }
    };
    let mut table = table(json!({}));
    assert_eq!(planned_replicas(&table), 2);
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(existing(json!([managed_fields_entry(
            FIELD_MANAGER,
            spec.clone()
        )]))),
    );
    assert_eq!(planned_replicas(&table), 2);
    let scaled = json!([managed_fields_entry(FIELD_MANAGER, json!({})), {"manager": "kubectl", "operation": "Update",
        "subresource": "scale", "fieldsV1": spec}]);
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(existing(scaled)),
    );
    assert_eq!(planned_replicas(&table), Value::Null);
    let own = json!({"annotations": {"ambit.io/waypoint-replicas": "4"}});
    table.set_gateway(name(), Some(gateway(own, Value::Null)));
    assert_eq!(planned_replicas(&table), 4);
}

/// Checks that a write of a Deployment requires the observed resource version, since the owner of `replicas` may have
/// changed meanwhile.
#[test]
fn deployment_is_written_for_the_version_seen_last() {
    let decided_by = |table: &GatewayTable| -> Vec<(WaypointObjectKind, Option<String>)> {
        let writes = planned_writes(table).into_iter();
        writes
            .filter(|write| {
                write.required_version.is_some()
                    || write.object_kind == WaypointObjectKind::Deployment
            })
            .map(|write| (write.object_kind, write.required_version))
            .collect()
    };
    let mut table = table(json!({}));
    assert_eq!(
        decided_by(&table),
        [(WaypointObjectKind::Deployment, None)],
        "a new one"
    );
    for version in ["7", "8"] {
        let existing = ExistingObject {
            resource_version: Some(version.into()),
            ..ExistingObject::default()
        };
        for part in [WaypointObjectKind::Deployment, WaypointObjectKind::Service] {
            table.set_object(part, name(), Some(existing.clone()));
        }
        let expected = [(WaypointObjectKind::Deployment, Some(version.to_owned()))];
        assert_eq!(decided_by(&table), expected);
    }
}

#[test]
fn unusable_gateway_gets_a_status_and_no_objects() {
    let table = table(json!({"annotations": {"ambit.io/waypoint-replicas": "x"}}));
    let why = GatewayState::Invalid(WaypointError::InvalidReplicas("x".into()), None);
    assert_eq!(table.plan(&name()), Some(DeploymentPlan::WriteStatus(why)));
}

/// Returns a Gateway that refers to the ConfigMap `own`.
fn gateway_with_parameters() -> Gateway {
    let mut gateway = gateway(json!({}), Value::Null);
    let infrastructure =
        json!({"parametersRef": {"group": "", "kind": "ConfigMap", "name": "own"}});
    gateway.spec.infrastructure = serde_json::from_value(infrastructure).unwrap();
    gateway
}

fn config_map_name(name: &str) -> GatewayName {
    GatewayName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn parameters(data: Value) -> Option<Parameters> {
    let map = serde_json::from_value(json!({"metadata": {}, "data": data})).unwrap();
    Some(Parameters::from_config_map(&map))
}

/// Returns an existing object that this crate applied for the Gateway, with these fields.
fn applied_object(fields: Value) -> ExistingObject {
    let mut metadata = metadata(json!([managed_fields_entry(FIELD_MANAGER, fields)]));
    let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
        "name": "way", "uid": "1"}]);
    metadata.owner_references = serde_json::from_value(owner).unwrap();
    ExistingObject {
        owns_replicas: owns_replicas(&metadata),
        replicas: Some(2),
        ..ExistingObject::from_metadata(&metadata)
    }
}

#[test]
fn config_map_changes_reconcile_only_their_gateways() {
    let mut table = table(json!({}));
    table.set_gateway(name(), Some(gateway_with_parameters()));
    table.take_due_gateways();
    for (map_name, data, is_due) in [
        ("own", json!({"deployment": "spec: {replicas: 3}"}), true),
        ("other", json!({"deployment": "spec: {replicas: 3}"}), false),
        ("own", json!({}), true),
    ] {
        table.set_config_map(&config_map_name(map_name), parameters(data));
        assert_eq!(!table.take_due_gateways().is_empty(), is_due, "{map_name}");
    }
    assert_eq!(
        planned_replicas(&table),
        2,
        "the effect of the key is undone"
    );
    table.set_config_map(&config_map_name("own"), None);
    assert!(!table.take_due_gateways().is_empty());
    let plan = table.plan(&name());
    assert!(
        matches!(
            plan,
            Some(DeploymentPlan::WriteStatus(GatewayState::Invalid(_, None)))
        ),
        "{plan:?}"
    );
}

#[test]
fn unusable_overlay_changes_nothing_and_is_reported() {
    let mut table = table(json!({}));
    table.set_gateway(name(), Some(gateway_with_parameters()));
    table.set_config_map(
        &config_map_name("own"),
        parameters(json!({"service": "spec: {type: ["})),
    );
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(applied_object(json!({}))),
    );
    let Some(DeploymentPlan::WriteStatus(state)) = table.plan(&name()) else {
        panic!("refused");
    };
    let status = table.status(&name(), &state).unwrap();
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
    let service = ExistingObject {
        ips: vec!["10.96.0.7".into()],
        ..applied_object(json!({}))
    };
    table.set_object(WaypointObjectKind::Service, name(), Some(service));
    let ready = ExistingObject {
        is_ready: true,
        ..applied_object(json!({}))
    };
    table.set_object(WaypointObjectKind::Deployment, name(), Some(ready));
    let Some(DeploymentPlan::WriteStatus(state)) = table.plan(&name()) else {
        panic!("refused");
    };
    let status = table.status(&name(), &state).unwrap();
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

/// Checks that an autoscaler takes `replicas` over at the current value, and that we own the field again when the
/// autoscaler is removed.
#[test]
fn replicas_are_handed_to_an_autoscaler_and_taken_back() {
    let mut table = table(json!({}));
    table.set_gateway(name(), Some(gateway_with_parameters()));
    let scaled = json!({"horizontalPodAutoscaler": "spec: {maxReplicas: 5}"});
    table.set_config_map(&config_map_name("own"), parameters(scaled));
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(applied_object(json!({"f:spec": {"f:replicas": {}}}))),
    );
    let writes = planned_writes(&table);
    let first = &writes[0];
    assert_eq!(
        (first.object_kind, first.manager),
        (WaypointObjectKind::Deployment, REPLICAS_FIELD_MANAGER)
    );
    assert_eq!(first.object["spec"], json!({"replicas": 2}));
    let ours: Vec<_> = writes
        .iter()
        .filter(|write| write.manager == FIELD_MANAGER)
        .collect();
    assert!(
        ours.iter()
            .any(|write| write.object_kind == WaypointObjectKind::Autoscaler)
    );
    let deployment = ours
        .iter()
        .find(|write| write.object_kind == WaypointObjectKind::Deployment);
    assert_eq!(deployment.unwrap().object["spec"].get("replicas"), None);

    // From then on the object is no longer observed.
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(applied_object(json!({}))),
    );
    table.set_object(
        WaypointObjectKind::Autoscaler,
        name(),
        Some(applied_object(json!({}))),
    );
    assert!(
        self::planned_writes(&table)
            .iter()
            .all(|write| write.manager == FIELD_MANAGER)
    );

    table.set_config_map(&config_map_name("own"), parameters(json!({})));
    let (writes, removals) = planned_writes_and_removals(&table);
    let parts: Vec<_> = removals.iter().map(|removal| removal.object_kind).collect();
    assert_eq!(parts, [WaypointObjectKind::Autoscaler]);
    let deployment = writes
        .iter()
        .find(|write| write.object_kind == WaypointObjectKind::Deployment);
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
fn addresses_appear_with_the_first_ready_pod_and_stay() {
    let mut table = table(json!({}));
    let progress = |table: &GatewayTable| {
        table.status(&name(), &GatewayState::Deployed(table.progress(&name())))
    };
    let status = progress(&table).unwrap();
    assert_eq!(
        conditions(&status),
        [
            "Accepted=True Accepted",
            "Programmed=False AddressNotAssigned"
        ]
    );
    // A ready pod is of no use before the Service has an address.
    let early = ExistingObject {
        is_ready: true,
        ..ExistingObject::default()
    };
    table.set_object(WaypointObjectKind::Deployment, name(), Some(early));
    let status = progress(&table).unwrap();
    assert_eq!(
        conditions(&status)[1],
        "Programmed=False AddressNotAssigned"
    );
    table.set_object(WaypointObjectKind::Deployment, name(), None);
    let service = ExistingObject {
        ips: vec!["10.96.0.7".into()],
        ..ExistingObject::default()
    };
    table.set_object(WaypointObjectKind::Service, name(), Some(service));
    let status = progress(&table).unwrap();
    assert_eq!(conditions(&status)[1], "Programmed=False AddressNotUsable");
    assert_eq!(status.get("addresses"), None);
    let deployment = |is_ready| ExistingObject {
        is_ready,
        ..ExistingObject::default()
    };
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(deployment(true)),
    );
    let ready = progress(&table).unwrap();
    assert_eq!(conditions(&ready)[1], "Programmed=True Programmed");
    let addresses = json!([
        {"type": "IPAddress", "value": "10.96.0.7"},
        {"type": "Hostname", "value": "way.shop.svc.cluster.local"},
    ]);
    assert_eq!(ready["addresses"], addresses);
    let balanced = ExistingObject {
        ips: vec!["10.96.0.7".into()],
        load_balancers: vec!["192.0.2.1".into()],
        ..ExistingObject::default()
    };
    table.set_object(WaypointObjectKind::Service, name(), Some(balanced));
    assert_eq!(
        progress(&table).unwrap()["addresses"][2]["value"],
        "192.0.2.1"
    );
    let service = ExistingObject {
        ips: vec!["10.96.0.7".into()],
        ..ExistingObject::default()
    };
    table.set_object(WaypointObjectKind::Service, name(), Some(service));
    assert_eq!(ready["conditions"][0]["observedGeneration"], 3);

    // The object is current: nothing to write.
    table.set_gateway(name(), Some(gateway(json!({}), ready)));
    assert_eq!(progress(&table), None);
    table.set_object(
        WaypointObjectKind::Deployment,
        name(),
        Some(deployment(false)),
    );
    let away = progress(&table).unwrap();
    assert_eq!(conditions(&away)[1], "Programmed=False AddressNotUsable");
    assert_eq!(away["addresses"], addresses);
}

#[test]
fn foreign_managed_gateway_reports_only_its_controller() {
    let table = table(json!({}));
    let status = table
        .status(&name(), &GatewayState::ManagedByOther("istiod".into()))
        .unwrap();
    assert_eq!(
        conditions(&status),
        ["ambit.io/Deployed=False ManagedByOther"]
    );
    assert_eq!(status.get("addresses"), None);
    let status = table
        .status(
            &name(),
            &GatewayState::NameConflict("Service shop/way".into()),
        )
        .unwrap();
    assert_eq!(conditions(&status)[1], "Programmed=False Invalid");
}

mod revisions;
