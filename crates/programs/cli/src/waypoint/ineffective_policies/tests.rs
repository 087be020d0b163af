//! Tests of the policies that a waypoint makes ineffective, and of their migration.

use serde_json::json;

use super::*;
use crate::manifest;

const WAYPOINT: Waypoint<'static> = Waypoint {
    trust_domain: "cluster.local",
    root_namespace: "istio-system",
    namespace: "shop",
    name: "waypoint",
};
const PRINCIPAL: &str = "cluster.local/ns/shop/sa/waypoint";

fn policy(name: &str, action: &str, rules: Value) -> Value {
    json!({
        "apiVersion": "security.istio.io/v1", "kind": "AuthorizationPolicy",
        "metadata": {"name": name, "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "orders"}}, "action": action, "rules": rules},
    })
}

fn rule_from(source: Value) -> Value {
    json!([{"from": [{"source": source}]}])
}

fn services() -> Vec<Service> {
    let service = |name: &str, selector: Value| {
        let object = json!({"metadata": {"name": name, "namespace": "shop"}, "spec": {"selector": selector}});
        Service::deserialize(object).unwrap()
    };
    vec![
        service("orders", json!({"app": "orders"})),
        service("orders-v1", json!({"app": "orders", "version": "v1"})),
        service("all", json!({"tier": "web"})),
    ]
}

fn find_one(policy: &Value) -> Option<IneffectivePolicy> {
    find_ineffective_policies(std::slice::from_ref(policy), &services(), &WAYPOINT).pop()
}

fn effect_of(action: &str, rules: Value) -> Option<IneffectivePolicyEffect> {
    find_one(&policy("p", action, rules)).map(|moot| moot.effect)
}

const FRONTEND: &str = "cluster.local/ns/shop/sa/frontend";

#[test]
fn allow_policies_that_name_others_refuse_the_waypoint() {
    for source in [
        json!({"principals": [FRONTEND]}),
        json!({"principals": ["*/sa/frontend"]}),
        json!({"namespaces": ["legacy"]}),
        json!({"serviceAccounts": ["shop/frontend"]}),
        json!({"trustDomains": ["other.example"]}),
        json!({"notPrincipals": [format!("{}*", "cluster.local/ns/shop/")]}),
        json!({"notNamespaces": ["shop"]}),
        // The source address becomes the waypoint's.
        json!({"ipBlocks": ["10.0.0.0/8"]}),
    ] {
        let got = effect_of("ALLOW", rule_from(source.clone()));
        assert_eq!(
            got,
            Some(IneffectivePolicyEffect::DeniesAllCallers),
            "{source}"
        );
    }
    let when = json!([{"when": [{"key": "source.principal", "values": [FRONTEND]}]}]);
    assert_eq!(
        effect_of("ALLOW", when),
        Some(IneffectivePolicyEffect::DeniesAllCallers)
    );
}

#[test]
fn allow_policies_of_the_waypoints_namespace_admit_everybody() {
    for source in [
        json!({"namespaces": ["shop"]}),
        json!({"principals": ["cluster.local/ns/shop/*"]}),
        json!({"principals": ["*"]}),
        json!({"notPrincipals": [FRONTEND]}),
        json!({"notIpBlocks": ["10.0.0.0/8"]}),
    ] {
        let got = effect_of("ALLOW", rule_from(source.clone()));
        assert_eq!(
            got,
            Some(IneffectivePolicyEffect::AllowsAllCallers),
            "{source}"
        );
    }
}

#[test]
fn deny_policies_deny_no_caller_or_every_caller() {
    let deny = |source| effect_of("DENY", rule_from(source));
    let nobody = Some(IneffectivePolicyEffect::DeniesNoCaller);
    assert_eq!(deny(json!({"principals": [FRONTEND]})), nobody);
    assert_eq!(deny(json!({"namespaces": ["legacy"]})), nobody);
    assert_eq!(deny(json!({"ipBlocks": ["10.0.0.0/8"]})), nobody);
    let all = Some(IneffectivePolicyEffect::DeniesAllCallers);
    assert_eq!(deny(json!({"notPrincipals": [FRONTEND]})), all);
    assert_eq!(deny(json!({"namespaces": ["shop"]})), all);
}

#[test]
fn policies_that_name_no_caller_or_the_waypoint_are_untouched() {
    let ports = json!([{"to": [{"operation": {"ports": ["8080"]}}]}]);
    for rules in [json!([]), json!([{}]), ports] {
        assert_eq!(effect_of("ALLOW", rules.clone()), None);
        assert_eq!(effect_of("DENY", rules), None);
    }
    for source in [
        json!({"principals": [FRONTEND, PRINCIPAL]}),
        json!({"serviceAccounts": ["shop/waypoint"]}),
    ] {
        assert_eq!(effect_of("ALLOW", rule_from(source)), None);
    }
    let spared = json!({"namespaces": ["shop"], "notPrincipals": [PRINCIPAL]});
    assert_eq!(effect_of("DENY", rule_from(spared)), None);
    let callers = || rule_from(json!({"principals": [FRONTEND]}));
    for action in ["AUDIT", "CUSTOM"] {
        assert_eq!(effect_of(action, callers()), None);
    }
    let mut attached = policy("p", "ALLOW", callers());
    attached["spec"]["targetRefs"] = json!([{"kind": "Gateway", "name": "waypoint"}]);
    assert_eq!(find_one(&attached), None);
    let mut dry = policy("p", "ALLOW", callers());
    dry["metadata"]["annotations"] = json!({"istio.io/dry-run": "true"});
    assert_eq!(find_one(&dry), None);
    let mut elsewhere = policy("p", "ALLOW", callers());
    elsewhere["metadata"]["namespace"] = json!("legacy");
    assert_eq!(find_one(&elsewhere), None);
}

#[test]
fn allow_policies_are_copied_and_the_waypoint_is_admitted() {
    let old = policy("p", "ALLOW", rule_from(json!({"principals": [FRONTEND]})));
    // As a lab gives it.
    let mut given = old.clone();
    given["spec"]["targetRefs"] = json!([]);
    given["spec"]["rules"][0]["to"] = json!([]);
    let migration = find_one(&given).unwrap().migration.unwrap();
    let added: Vec<_> = migration
        .added_policies
        .iter()
        .map(manifest::to_manifest)
        .collect();
    let [copy, admission] = &*added else {
        panic!("{migration:?}");
    };
    assert_eq!(copy["metadata"]["name"], "p-waypoint");
    assert_eq!(
        copy["metadata"]["annotations"],
        json!({"ambit.io/migrated-from": "p"})
    );
    assert_eq!(copy["spec"]["rules"], old["spec"]["rules"]);
    assert_eq!(copy["spec"].get("selector"), None);
    let targets = migration.added_policies[0].spec.target_refs.iter();
    let names: Vec<_> = targets.map(|one| one.name.as_str()).collect();
    assert_eq!(names, ["orders", "orders-v1"]);
    assert_eq!(admission["metadata"]["name"], "p-from-waypoint");
    assert_eq!(admission["spec"]["selector"], old["spec"]["selector"]);
    let expected = rule_from(json!({"principals": [PRINCIPAL]}));
    assert_eq!(admission["spec"]["rules"], expected);
    assert_eq!(migration.changed_rules, None);
    // It is done once.
    let all = [vec![old], added].concat();
    assert_eq!(find_ineffective_policies(&all, &services(), &WAYPOINT), []);
}

#[test]
fn deny_policies_are_copied_and_spare_the_waypoint() {
    let old = policy("p", "DENY", rule_from(json!({"principals": [FRONTEND]})));
    let migration = find_one(&old).unwrap().migration.unwrap();
    assert_eq!(migration.added_policies.len(), 1);
    assert_eq!(migration.changed_rules, None);
    let all = [
        vec![old],
        migration
            .added_policies
            .iter()
            .map(manifest::to_manifest)
            .collect(),
    ]
    .concat();
    assert_eq!(find_ineffective_policies(&all, &services(), &WAYPOINT), []);

    let mut rules = rule_from(json!({"notPrincipals": [FRONTEND]}));
    let others = [
        json!({"when": [{"key": "source.namespace", "values": ["shop"]}]}),
        json!({"to": [{"operation": {"methods": ["PUT"]}}]}),
    ];
    rules.as_array_mut().unwrap().extend(others);
    let migration = find_one(&policy("p", "DENY", rules))
        .unwrap()
        .migration
        .unwrap();
    let changed = manifest::to_manifest(&migration.changed_rules.unwrap());
    let spared = json!([FRONTEND, PRINCIPAL]);
    assert_eq!(changed[0]["from"][0]["source"]["notPrincipals"], spared);
    assert_eq!(
        changed[1]["from"][0]["source"]["notPrincipals"],
        json!([PRINCIPAL])
    );
    assert_eq!(changed[2].get("from"), None);
    assert_eq!(
        manifest::to_manifest(&migration.added_policies[0])["spec"]["rules"],
        changed
    );
}

#[test]
fn a_namespaces_policy_is_attached_to_the_gateway() {
    let mut of_all = policy("p", "ALLOW", rule_from(json!({"namespaces": ["legacy"]})));
    of_all["spec"].as_object_mut().unwrap().remove("selector");
    let migration = find_one(&of_all).unwrap().migration.unwrap();
    let target = &migration.added_policies[0].spec.target_refs[0];
    assert_eq!((&*target.kind, &*target.name), ("Gateway", "waypoint"));
    assert_eq!(migration.added_policies[1].spec.selector, None);
}

#[test]
fn unmigratable_policies_have_a_reason() {
    let why = |policy: &Value| find_one(policy).unwrap().migration.unwrap_err();
    let callers = rule_from(json!({"principals": [FRONTEND]}));
    let mut other = policy("p", "ALLOW", callers.clone());
    other["spec"]["selector"] = json!({"matchLabels": {"app": "ledger"}});
    assert!(why(&other).contains("no Service"));
    let mut ports = callers.clone();
    ports[0]["to"] = json!([{"operation": {"ports": ["8080"]}}]);
    assert!(why(&policy("p", "ALLOW", ports)).contains("ports"));
    let mut root = policy("p", "ALLOW", callers.clone());
    root["metadata"]["namespace"] = json!("istio-system");
    assert!(why(&root).contains("root namespace"));
    let taken = [
        policy("p", "ALLOW", callers),
        policy("p-waypoint", "ALLOW", json!([])),
    ];
    let moot = find_ineffective_policies(&taken, &services(), &WAYPOINT).remove(0);
    assert!(moot.migration.unwrap_err().contains("p-waypoint already"));
}

#[test]
fn lines_name_the_policy_and_its_callers() {
    let line = |action, source| {
        find_one(&policy("p", action, rule_from(source)))
            .unwrap()
            .format_line()
    };
    insta::assert_snapshot!(
        [
            line("ALLOW", json!({"principals": [FRONTEND], "namespaces": ["a", "b"]})),
            line("ALLOW", json!({"namespaces": ["shop"]})),
            line("DENY", json!({"notPrincipals": [FRONTEND]})),
            line("DENY", json!({"ipBlocks": ["10.0.0.0/8"]})),
        ]
        .join("\n"),
        @r"
      shop/p (ALLOW): pods refuse the waypoint, and with it every caller allowed now: principals cluster.local/ns/shop/sa/frontend; namespaces a, b
      shop/p (ALLOW): allows the waypoint, and with it every caller; allowed now: namespaces shop
      shop/p (DENY): pods refuse the waypoint, and with it every caller; denied now: principals other than cluster.local/ns/shop/sa/frontend
      shop/p (DENY): denies no caller behind the waypoint; denied now: addresses 10.0.0.0/8
    "
    );
}
