//! Which of several control planes takes care of a Gateway.

use super::*;

/// Takes in the objects of the Gateway, as any revision makes them.
fn with_objects(book: &mut Book) {
    for part in [Part::ServiceAccount, Part::Service, Part::Deployment] {
        let mut metadata = metadata(json!([applied_by(MANAGER, json!({}))]));
        let owner = json!([{"apiVersion": "gateway.networking.k8s.io/v1", "kind": "Gateway",
            "name": "way", "uid": "1"}]);
        metadata.owner_references = serde_json::from_value(owner).unwrap();
        book.object(part, name(), Some(Standing::of(&metadata)));
    }
}

fn both() -> [Book; 2] {
    let mut books = ["default", "canary"].map(|revision| book_of(revision, json!({})));
    books.iter_mut().for_each(with_objects);
    books
}

/// Control planes that have a plan for the Gateway: each takes its objects over as they are.
fn owners(books: &[Book; 2]) -> Vec<&'static str> {
    let names = ["default", "canary"].into_iter().zip(books);
    let plans = names.filter_map(|(revision, book)| Some((revision, book.plan(&name())?)));
    let plans = plans.map(|(revision, plan)| {
        let Plan::Apply(writes, removals) = plan else {
            panic!("{plan:?}");
        };
        assert_eq!(removals, []);
        let new: Vec<_> = writes.iter().filter(|write| write.is_new).collect();
        assert!(new.iter().all(|write| write.part == Part::DisruptionBudget));
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
    ControlPlane::of(Some(&labels.into()))
}

#[test]
fn gateway_moves_to_another_revision_and_loses_nothing() {
    let mut books = both();
    for (label, owner) in [
        ("", &["default"][..]),
        ("canary", &["canary"]),
        ("default", &["default"]),
        ("nobody", &[]),
    ] {
        for book in &mut books {
            let moved = json!({"labels": {"istio.io/rev": label}});
            book.gateway(name(), Some(gateway(moved, Value::Null)));
            assert_eq!(book.take_due(), [name()].into());
        }
        assert_eq!(owners(&books), owner, "{label}");
    }
}

#[test]
fn tag_that_moves_takes_its_gateways_along() {
    let mut books = both();
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
        for book in &mut books {
            book.gateway(name(), Some(gateway(labels.clone(), Value::Null)));
            book.take_due();
            book.control_plane(&service, of.clone());
            assert_eq!(book.take_due(), [name()].into(), "{tag} {revision:?}");
            book.control_plane(&service, of.clone());
            assert!(book.take_due().is_empty(), "the same again");
        }
        assert_eq!(owners(&books), owner, "{tag} {revision:?}");
    }
}

#[test]
fn only_its_own_revision_takes_a_gateway_of_another_class_apart() {
    let mut book = book_of("canary", json!({}));
    with_objects(&mut book);
    let mut other = gateway(json!({}), Value::Null);
    other.spec.gateway_class_name = "other".into();
    book.gateway(name(), Some(other.clone()));
    assert_eq!(book.plan(&name()), None);
    let labels = [("istio.io/rev".to_owned(), "canary".to_owned())];
    other.metadata.labels = Some(labels.into());
    book.gateway(name(), Some(other));
    assert!(matches!(book.plan(&name()), Some(Plan::Release(_))));
}

#[test]
fn waypoints_of_namespaces_that_are_not_discovered_are_left_alone() {
    let mut book = book(json!({}));
    with_objects(&mut book);
    book.take_due();
    let selector = json!({"matchLabels": {"mesh": "yes"}});
    book.discover(vec![serde_json::from_value(selector).unwrap()]);
    assert_eq!(book.take_due(), [name()].into());
    assert_eq!(book.plan(&name()), None);
    let labels = [("mesh".to_owned(), "yes".to_owned())];
    book.namespace("shop".into(), Some(labels.into()));
    assert!(book.plan(&name()).is_some());
    book.namespace("shop".into(), Some(BTreeMap::new()));
    book.discover(Vec::new());
    assert!(book.plan(&name()).is_some());
}
