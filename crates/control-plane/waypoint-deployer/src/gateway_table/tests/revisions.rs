//! Tests of which of several control planes manages a Gateway.

use super::*;

/// Adds the Gateway's existing objects, which are equal for any revision.
fn add_existing_objects(table: &mut GatewayTable) {
    for part in [
        WaypointObjectKind::ServiceAccount,
        WaypointObjectKind::Service,
        WaypointObjectKind::Deployment,
    ] {
        let mut metadata = metadata(json!([managed_fields_entry(FIELD_MANAGER, json!({}))]));
        let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "name": "way", "uid": "1"}]);
        metadata.owner_references = serde_json::from_value(owner).unwrap();
        table.set_object(part, name(), Some(ExistingObject::from_metadata(&metadata)));
    }
}

fn tables_of_both_revisions() -> [GatewayTable; 2] {
    let mut tables = ["default", "canary"].map(|revision| table_of_revision(revision, json!({})));
    tables.iter_mut().for_each(add_existing_objects);
    tables
}

/// Returns the revisions whose control planes have a plan for the Gateway, after checking that each would take over its
/// objects unchanged.
fn managing_revisions(tables: &[GatewayTable; 2]) -> Vec<&'static str> {
    let names = ["default", "canary"].into_iter().zip(tables);
    let plans = names.filter_map(|(revision, table)| Some((revision, table.plan(&name())?)));
    let plans = plans.map(|(revision, plan)| {
        let DeploymentPlan::Apply(writes, removals) = plan else {
            panic!("{plan:?}");
        };
        assert_eq!(removals, []);
        let new: Vec<_> = writes.iter().filter(|write| write.is_new).collect();
        assert!(
            new.iter()
                .all(|write| write.object_kind == WaypointObjectKind::DisruptionBudget)
        );
        revision
    });
    plans.collect()
}

fn control_plane(revision: &str, tag: &str) -> Option<ControlPlane> {
    let labels = [
        ("app", "istiod"),
        ("app.kubernetes.io/part-of", "ambit"),
        ("istio.io/rev", revision),
        ("istio.io/tag", tag),
    ];
    let labels = labels.map(|(name, value)| (name.to_owned(), value.to_owned()));
    ControlPlane::from_labels(Some(&labels.into()))
}

#[test]
fn gateway_moves_to_another_revision_without_loss() {
    let mut tables = tables_of_both_revisions();
    for (label, owner) in [
        ("", &["default"][..]),
        ("canary", &["canary"]),
        ("default", &["default"]),
        ("nobody", &[]),
    ] {
        for table in &mut tables {
            let moved = json!({"labels": {"istio.io/rev": label}});
            table.set_gateway(name(), Some(gateway(moved, Value::Null)));
            assert_eq!(table.take_due_gateways(), [name()].into());
        }
        assert_eq!(managing_revisions(&tables), owner, "{label}");
    }
}

#[test]
fn moved_tag_moves_its_gateways() {
    let mut tables = tables_of_both_revisions();
    for (tag, revision, label, owner) in [
        ("stable", Some("default"), "stable", &["default"][..]),
        ("stable", Some("canary"), "stable", &["canary"]),
        ("stable", None, "stable", &[]),
        ("default", Some("canary"), "", &["canary"]),
        ("default", None, "", &["default"]),
    ] {
        let labels = json!({"labels": {"istio.io/rev": label}});
        let service = format!("istiod-revision-tag-{tag}");
        let of = revision.and_then(|revision| control_plane(revision, tag));
        for table in &mut tables {
            table.set_gateway(name(), Some(gateway(labels.clone(), Value::Null)));
            table.take_due_gateways();
            table.set_control_plane(&service, of.clone());
            assert_eq!(
                table.take_due_gateways(),
                [name()].into(),
                "{tag} {revision:?}"
            );
            table.set_control_plane(&service, of.clone());
            assert!(table.take_due_gateways().is_empty(), "the same again");
        }
        assert_eq!(managing_revisions(&tables), owner, "{tag} {revision:?}");
    }
}

#[test]
fn only_the_own_revision_cleans_up_after_a_class_change() {
    let mut table = table_of_revision("canary", json!({}));
    add_existing_objects(&mut table);
    let mut other = gateway(json!({}), Value::Null);
    other.spec.gateway_class_name = "other".into();
    table.set_gateway(name(), Some(other.clone()));
    assert_eq!(table.plan(&name()), None);
    let labels = [("istio.io/rev".to_owned(), "canary".to_owned())];
    other.metadata.labels = Some(labels.into());
    table.set_gateway(name(), Some(other));
    assert!(matches!(
        table.plan(&name()),
        Some(DeploymentPlan::Undeploy(_))
    ));
}

#[test]
fn waypoints_in_undiscovered_namespaces_are_ignored() {
    let mut table = table(json!({}));
    add_existing_objects(&mut table);
    table.take_due_gateways();
    let selector = json!({"matchLabels": {"mesh": "yes"}});
    table.set_discovery_selectors(vec![serde_json::from_value(selector).unwrap()]);
    assert_eq!(table.take_due_gateways(), [name()].into());
    assert_eq!(table.plan(&name()), None);
    let labels = [("mesh".to_owned(), "yes".to_owned())];
    table.set_namespace("shop".into(), Some(labels.into()));
    assert!(table.plan(&name()).is_some());
    table.set_namespace("shop".into(), Some(BTreeMap::new()));
    table.set_discovery_selectors(Vec::new());
    assert!(table.plan(&name()).is_some());
}
