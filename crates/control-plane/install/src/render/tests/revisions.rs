//! Tests of control planes of several revisions, rendered beside each other.

use std::collections::BTreeSet;

use super::*;

const CANARY: &[&str] = &[
    "global.revision=canary,global.components=control-plane,revisionTags={stable}",
    "global.networkPolicy.enabled=true",
];

fn names(objects: &[Value]) -> BTreeSet<String> {
    let names = objects.iter().filter_map(ObjectRef::from_object);
    names.map(|name| name.to_string()).collect()
}

fn env_of<'a>(objects: &'a [Value], kind: &str, name: &str, variable: &str) -> Option<&'a str> {
    let container = &find(objects, kind, name)["spec"]["template"]["spec"]["containers"][0];
    let mut env = container["env"].as_array().unwrap().iter();
    env.find(|one| one["name"] == variable)?["value"].as_str()
}

fn rejection_message(setting: &str) -> String {
    let mut overrides = ValueOverrides::default();
    overrides.set(setting, false).unwrap();
    let refused = render_objects(&Release::default(), &overrides.with_defaults().unwrap());
    format!("{:?}", refused.unwrap_err())
}

#[test]
fn two_revisions_share_no_object() {
    let first = names(&render(&["global.networkPolicy.enabled=true"]));
    let second = names(&render(CANARY));
    assert_eq!(first.intersection(&second).collect::<Vec<_>>(), [""; 0]);
    insta::assert_snapshot!("canary", second.into_iter().collect::<Vec<_>>().join("\n"));
}

#[test]
fn services_and_budgets_select_pods_of_their_revision() {
    for (settings, revision, suffix) in [(&[][..], "default", ""), (CANARY, "canary", "-canary")] {
        let objects = render(settings);
        let name = format!("ambit-control{suffix}");
        let wanted = json!({"app": "istiod", "istio.io/rev": revision});
        let service = find(&objects, "Service", &format!("istiod{suffix}"));
        assert_eq!(service["spec"]["selector"], wanted);
        assert_eq!(service["metadata"]["labels"]["istio.io/rev"], revision);
        let budget = find(&objects, "PodDisruptionBudget", &name);
        assert_eq!(budget["spec"]["selector"]["matchLabels"], wanted);
        let pod = &find(&objects, "Deployment", &name)["spec"]["template"];
        for (label, value) in wanted.as_object().unwrap() {
            assert_eq!(pod["metadata"]["labels"][label], *value);
        }
        // The Service `istiod` of Istio's default revision selects pods by this label.
        let is_default = pod["metadata"]["labels"]["istio"] == "pilot";
        assert_eq!(is_default, revision == "default");
        assert_eq!(pod["spec"]["serviceAccountName"], *name);
        assert_eq!(
            env_of(&objects, "Deployment", &name, "REVISION"),
            Some(revision)
        );
    }
    // Selectors of Deployments never change: releases before the support of revisions had this one.
    let plain = render(&[]);
    let selector = &find(&plain, "Deployment", "ambit-control")["spec"]["selector"];
    assert_eq!(selector["matchLabels"], json!({"app": "istiod"}));
    let canary = render(CANARY);
    let selector = &find(&canary, "Deployment", "ambit-control-canary")["spec"]["selector"];
    assert_eq!(selector["matchLabels"]["istio.io/rev"], "canary");
}

#[test]
fn revisions_share_the_root_and_have_separate_leases() {
    for (settings, name, lease) in [
        (&[][..], "ambit-control", "ambit-control-leader"),
        (
            CANARY,
            "ambit-control-canary",
            "ambit-control-leader-canary",
        ),
    ] {
        let objects = render(settings);
        let rules = find(&objects, "Role", name)["rules"].as_array().unwrap();
        let named: Vec<_> = rules.iter().map(|rule| &rule["resourceNames"]).collect();
        assert!(named.contains(&&json!(["istio-ca-secret"])), "{named:?}");
        assert!(
            named.contains(&&json!([lease, "ambit-mesh-leader"])),
            "{named:?}"
        );
    }
}

#[test]
fn tags_are_services_of_their_revision_and_in_its_certificate() {
    let objects = render(CANARY);
    let tag = find(&objects, "Service", "istiod-revision-tag-stable");
    let service = find(&objects, "Service", "istiod-canary");
    assert_eq!(tag["metadata"]["labels"]["istio.io/tag"], "stable");
    assert_eq!(tag["metadata"]["labels"]["istio.io/rev"], "canary");
    assert_eq!(tag["spec"], service["spec"]);
    let names = env_of(
        &objects,
        "Deployment",
        "ambit-control-canary",
        "AMBIT_SERVER_SAN",
    );
    let names: BTreeSet<_> = names.unwrap().split(',').collect();
    for service in ["istiod-canary", "istiod-revision-tag-stable"] {
        for domain in ["", ".cluster.local"] {
            let name = format!("{service}.istio-system.svc{domain}");
            assert!(names.contains(name.as_str()), "{names:?}");
        }
    }
}

#[test]
fn node_parts_belong_to_one_release() {
    let all = names(&render(&[]));
    let node = names(&render(&["global.components=node"]));
    let control = names(&render(&["global.components=control-plane"]));
    assert_eq!(&node | &control, all);
    assert_eq!(node.intersection(&control).collect::<Vec<_>>(), [""; 0]);
    assert!(node.contains("DaemonSet istio-system/ztunnel"), "{node:?}");
    for (settings, revision) in [
        ("global.hub=x", ""),
        ("revision=canary", "-canary"),
        ("ztunnel.revision=canary", "-canary"),
        ("global.revision=canary,ztunnel.revision=default", ""),
    ] {
        let objects = render(&[settings]);
        let value = |variable: &str| env_of(&objects, "DaemonSet", "ztunnel", variable).unwrap();
        let address = format!("https://istiod{revision}.istio-system.svc:15012");
        assert_eq!(value("XDS_ADDRESS"), address, "{settings}");
        assert_eq!(value("CA_ADDRESS"), address, "{settings}");
        let reader = format!("spiffe://cluster.local/ns/istio-system/sa/ambit-control{revision}");
        assert_eq!(value("AMBIT_FLOW_READER"), reader, "{settings}");
    }
}

#[test]
fn alias_and_labels_must_agree_with_the_revision() {
    let same = render(&["revision=canary,global.revision=canary"]);
    find(&same, "ConfigMap", "istio-canary");
    let plain = names(&render(&["global.revision=default"]));
    assert_eq!(plain, names(&render(&[])));
    for (setting, problem) in [
        ("revision=one,global.revision=two", "are the same setting"),
        ("pilot.env.REVISION=one", "set global.revision instead"),
        (
            "pilot.podLabels.istio\\.io/rev=one",
            "set global.revision instead",
        ),
    ] {
        let refused = rejection_message(setting);
        assert!(refused.contains(problem), "{refused}");
    }
}

#[test]
fn notes_of_a_control_plane_alone_are_about_revisions() {
    let mut values = ValueOverrides::default();
    for setting in CANARY {
        values.set(setting, false).unwrap();
    }
    let text = render_notes(&Release::default(), &values.with_defaults().unwrap()).unwrap();
    assert!(text.contains("istio.io/rev=canary"), "{text}");
    assert!(!text.contains("enroll"), "{text}");
    assert!(text.contains("this control plane alone"), "{text}");
}
