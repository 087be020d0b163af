//! Manifests of Istio's kinds, without empty fields, which mean the same as absent ones.

use serde::Serialize;
use serde_json::Value;

/// Returns the JSON form of an object, or of a part of one, for manifests and patches.
pub(crate) fn to_manifest(object: &impl Serialize) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    remove_empty_fields(&mut value);
    value
}

fn remove_empty_fields(value: &mut Value) {
    match value {
        Value::Object(members) => {
            let is_empty = |member: &Value| match member {
                Value::Array(all) => all.is_empty(),
                other => other.is_null(),
            };
            members.retain(|_, member| !is_empty(member));
            members.values_mut().for_each(remove_empty_fields);
        }
        Value::Array(all) => all.iter_mut().for_each(remove_empty_fields),
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use ambit_k8s_api::istio::{AuthorizationPolicySpec, Rule, RuleFrom, Source};
    use serde_json::json;

    use super::*;

    #[test]
    fn rules_without_conditions_remain_and_empty_fields_do_not() {
        let source = Source {
            namespaces: vec!["shop".to_owned()],
            ..Source::default()
        };
        let from = RuleFrom {
            source: Some(source),
        };
        let rule = Rule {
            from: vec![from],
            ..Rule::default()
        };
        let spec = AuthorizationPolicySpec {
            rules: vec![rule, Rule::default()],
            ..AuthorizationPolicySpec::default()
        };
        let expected = json!({
            "action": "ALLOW",
            "rules": [{"from": [{"source": {"namespaces": ["shop"]}}]}, {}],
        });
        assert_eq!(to_manifest(&spec), expected);
    }
}
