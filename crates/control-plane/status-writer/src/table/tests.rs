//! Tests with reports as input and writes as output; [`Server`] plays the API server and holds the written status.

use ambit_derive::{
    Problem, Severity,
    condition::{DerivedStatus, StatusEntry},
};

use super::*;
use crate::report::StatusFacts;

#[derive(Default)]
struct Server {
    table: StatusTable,
    objects: BTreeMap<ObjectKey, ObservedObject>,
    events: Vec<String>,
}

fn key(kind: Kind, name: &str) -> ObjectKey {
    ObjectKey::new(kind, "shop", name)
}

fn policy(problems: &[(Severity, &str)], in_force: bool) -> ObservedObject {
    let key = key(Kind::AuthorizationPolicy, "p");
    let problem = |(severity, message): &(Severity, &str)| Problem {
        severity: *severity,
        object: key.clone(),
        field: "spec.rules[0]".into(),
        message: (*message).into(),
        origin: None,
    };
    ObservedObject {
        problems: problems.iter().map(problem).collect(),
        facts: StatusFacts {
            api_version: "security.istio.io/v1".into(),
            uid: "u".into(),
            generation: Some(1),
            ..StatusFacts::default()
        },
        has_new_problems: true,
        in_force,
        derived_status: None,
        key,
    }
}

fn waypoint_bound_status(is_true: bool, reason: &'static str) -> DerivedStatus {
    let condition = ConditionContent {
        is_true,
        reason,
        message: "m".into(),
        needs_attention: !is_true,
    };
    DerivedStatus {
        condition: Some(condition),
        ..DerivedStatus::default()
    }
}

fn service(derived_status: Option<DerivedStatus>) -> ObservedObject {
    ObservedObject {
        key: key(Kind::Service, "s"),
        facts: StatusFacts {
            api_version: "v1".into(),
            ..StatusFacts::default()
        },
        problems: Vec::new(),
        has_new_problems: false,
        in_force: false,
        derived_status,
    }
}

impl Server {
    fn leader() -> Self {
        let mut server = Self::default();
        server.set_leader(true);
        server
    }

    fn set_leader(&mut self, is_leader: bool) -> usize {
        let out = self.table.set_leader(is_leader);
        self.apply_writes(out)
    }

    /// Reports a changed object, with the conditions that were written for it. Returns the number of new writes.
    fn report_changed_object(&mut self, mut observed: ObservedObject) -> usize {
        if let Some(old) = self.objects.get(&observed.key) {
            observed.facts.conditions.clone_from(&old.facts.conditions);
        }
        self.objects.insert(observed.key.clone(), observed.clone());
        self.report(Report::ObjectObserved(Box::new(observed)))
    }

    fn report(&mut self, report: Report) -> usize {
        let out = self.table.apply(report);
        self.apply_writes(out)
    }

    fn apply_writes(&mut self, out: StatusWrites) -> usize {
        self.events.extend(
            out.events
                .into_iter()
                .map(|remark| remark.reason.to_owned()),
        );
        let mut writes = 0;
        for wish in out.desired_writes {
            let DesiredWrite::ApplyStatus(part, status) = wish else {
                continue;
            };
            writes += 1;
            let observed = self
                .objects
                .values_mut()
                .find(|observed| {
                    observed.key.name == part.name && observed.key.kind.as_str() == part.kind
                })
                .unwrap();
            let types = conditions(observed.key.kind).iter();
            let owned: Vec<_> = types.filter(|of| of.manager == part.manager).collect();
            let conditions = &mut observed.facts.conditions;
            conditions.retain(|one| owned.iter().all(|of| one["type"] != of.name));
            conditions.extend(ambit_k8s_api::status::conditions(&status));
        }
        writes
    }

    /// Reports every object as the server has it now, as the watch does. Returns the number of new writes.
    fn report_all_objects(&mut self) -> usize {
        let objects: Vec<_> = self.objects.values().cloned().collect();
        let show = |observed| self.report(Report::ObjectObserved(Box::new(observed)));
        objects.into_iter().map(show).sum()
    }

    fn conditions(&self, of: &ObjectKey) -> Vec<String> {
        let conditions = self.objects[of].facts.conditions.iter();
        let text = |one: &Value, field: &str| one[field].as_str().unwrap().to_owned();
        conditions
            .map(|one| {
                format!(
                    "{}={} {}",
                    text(one, "type"),
                    text(one, "status"),
                    text(one, "reason")
                )
            })
            .collect()
    }
}

#[test]
fn policy_conditions_report_its_state() {
    let mut server = Server::leader();
    let of = key(Kind::AuthorizationPolicy, "p");
    let warning = [(Severity::Warning, "a")];
    let cases = [
        (policy(&[], true), "True Accepted"),
        (policy(&warning, true), "True UnsupportedValue"),
        (policy(&warning, false), "False UnsupportedValue"),
        (policy(&[(Severity::Error, "a")], true), "False Outdated"),
        (policy(&[(Severity::Error, "a")], false), "False Invalid"),
    ];
    for (observed, expected) in cases {
        assert_eq!(server.report_changed_object(observed), 1);
        assert_eq!(
            server.report_all_objects(),
            0,
            "what is written is not written again"
        );
        assert_eq!(
            server.conditions(&of),
            [format!("ZtunnelAccepted={expected}")]
        );
    }
    assert_eq!(
        server.events,
        [
            "UnsupportedValue",
            "UnsupportedValue",
            "Outdated",
            "Invalid"
        ]
    );
    let mut attached = policy(&[], false);
    attached.facts.is_attached = true;
    attached.derived_status = Some(waypoint_bound_status(false, "AncestorNotBound"));
    assert_eq!(server.report_changed_object(attached), 2);
    assert_eq!(
        server.conditions(&of),
        ["WaypointAccepted=False AncestorNotBound"]
    );
}

#[test]
fn only_the_leader_writes_and_a_new_one_writes_differences() {
    let mut server = Server::default();
    assert_eq!(server.report_changed_object(policy(&[], true)), 0);
    assert_eq!(server.report_changed_object(service(None)), 0);
    assert_eq!(server.set_leader(true), 1);
    assert_eq!(server.set_leader(false), 0);
    assert_eq!(
        server.report_changed_object(policy(&[(Severity::Error, "a")], true)),
        0
    );
    server.report_all_objects();
    assert_eq!(server.set_leader(true), 1);
    assert_eq!(
        (server.report_all_objects(), server.set_leader(true)),
        (0, 0)
    );
}

#[test]
fn write_repeats_only_after_a_foreign_change() {
    let mut server = Server::leader();
    let observed = policy(&[], true);
    assert_eq!(server.report_changed_object(observed.clone()), 1);
    assert_eq!(
        server.report(Report::ObjectObserved(Box::new(observed))),
        0,
        "an old state, observed late"
    );
    assert_eq!(server.report_all_objects(), 0);
    let of = key(Kind::AuthorizationPolicy, "p");
    server
        .objects
        .get_mut(&of)
        .unwrap()
        .facts
        .conditions
        .clear();
    assert_eq!(server.report_all_objects(), 1);
    let mut next = policy(&[], true);
    next.facts.generation = Some(2);
    assert_eq!(
        server.report_changed_object(next),
        1,
        "observedGeneration follows"
    );
}

#[test]
fn derived_conditions_are_written_and_removed() {
    let mut server = Server::leader();
    let of = key(Kind::Service, "s");
    let missing = "istio.io/WaypointBound=False WaypointIsNotReady";
    let mut service = service(None);
    service.facts.conditions = vec![json!({"type": "istio.io/WaypointBound", "status": "True",
        "reason": "WaypointAccepted", "message": "m"})];
    assert_eq!(
        server.report_changed_object(service),
        0,
        "it is not known yet what is so"
    );
    let derived_status = waypoint_bound_status(false, "WaypointIsNotReady");
    assert_eq!(
        server.report(Report::DerivedStatusChanged(of.clone(), derived_status)),
        1
    );
    assert_eq!(server.conditions(&of), [missing]);
    assert_eq!(server.events, ["WaypointIsNotReady"]);
    assert_eq!(
        server.report(Report::DerivedStatusChanged(
            of.clone(),
            DerivedStatus::default()
        )),
        1
    );
    assert!(server.conditions(&of).is_empty());
}

#[test]
fn parts_of_other_controllers_stay_in_a_shared_list() {
    let mut table = StatusTable::default();
    table.set_leader(true);
    let condition = |is_true| ConditionContent {
        is_true,
        reason: "Accepted",
        message: "m".into(),
        needs_attention: false,
    };
    let entry = |is_true| StatusEntry {
        identity: BTreeMap::from([
            (
                "parentRef",
                json!({"name": "cart", "kind": "Service", "group": ""}),
            ),
            ("controllerName", ambit_derive::CONTROLLER.into()),
        ]),
        other_fields: BTreeMap::new(),
        conditions: vec![("Accepted", condition(is_true))],
    };
    let derived_status = |is_true| DerivedStatus {
        entries: vec![entry(is_true)],
        ..DerivedStatus::default()
    };
    let other = json!({"parentRef": {"name": "edge"}, "controllerName": "example.com/ingress", "conditions": []});
    let mut observed = service(Some(derived_status(true)));
    observed.key = key(Kind::HTTPRoute, "r");
    observed.facts.generation = Some(3);
    observed.facts.list_entries = vec![other.clone()];
    let written = |out: StatusWrites| -> Vec<Value> {
        let statuses = out
            .desired_writes
            .into_iter()
            .filter_map(|wish| match wish {
                DesiredWrite::ApplyStatus(part, status) => {
                    assert_eq!(part.manager, "ambit-routes");
                    Some(status)
                }
                DesiredWrite::Cancel(_) => None,
            });
        statuses.collect()
    };
    let report = |observed: &ObservedObject| Report::ObjectObserved(Box::new(observed.clone()));
    let first = written(table.apply(report(&observed)));
    let parents = first[0]["parents"].as_array().unwrap();
    assert_eq!(parents[0], other);
    assert_eq!(parents[1]["conditions"][0]["observedGeneration"], 3);
    assert!(
        written(table.apply(report(&observed))).is_empty(),
        "asked for already"
    );
    observed.facts.list_entries.clone_from(parents);
    observed.facts.list_entries[1]["conditions"][0]["lastTransitionTime"] =
        "2020-01-01T00:00:00Z".into();
    assert!(
        written(table.apply(report(&observed))).is_empty(),
        "it stands"
    );
    let changed = written(table.apply(Report::DerivedStatusChanged(
        observed.key.clone(),
        derived_status(false),
    )));
    assert_ne!(
        changed[0]["parents"][1]["conditions"][0]["lastTransitionTime"],
        "2020-01-01T00:00:00Z"
    );
    let gone = written(table.apply(Report::DerivedStatusChanged(
        observed.key.clone(),
        DerivedStatus::default(),
    )));
    assert_eq!(gone, [json!({"parents": [other]})]);
}

#[test]
fn transition_time_stays_while_a_condition_is_equal() {
    let mut server = Server::leader();
    server.report_changed_object(policy(&[], true));
    let of = key(Kind::AuthorizationPolicy, "p");
    let long_ago = json!("2020-01-01T00:00:00Z");
    server.objects.get_mut(&of).unwrap().facts.conditions[0]["lastTransitionTime"] =
        long_ago.clone();
    server.report_all_objects();
    server.report_changed_object(policy(&[(Severity::Warning, "a")], true));
    let since =
        |server: &Server| server.objects[&of].facts.conditions[0]["lastTransitionTime"].clone();
    assert_eq!(since(&server), long_ago);
    server.report_all_objects();
    server.report_changed_object(policy(&[(Severity::Warning, "a")], false));
    assert_ne!(since(&server), long_ago);
}

#[test]
fn problems_of_other_objects_are_reported_once() {
    let mut server = Server::leader();
    let mut pod = policy(&[(Severity::Error, "bad address")], false);
    pod.key = key(Kind::Pod, "a");
    assert_eq!(server.report(Report::ObjectObserved(Box::new(pod))), 0);
    assert_eq!(server.events, ["Unusable"]);
}
