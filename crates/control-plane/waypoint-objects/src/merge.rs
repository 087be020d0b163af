//! Strategic merge, as `kubectl patch` does it: maps are merged, `null` removes a member, lists of
//! objects that have a merge key are merged by it, other lists are replaced, unless `$patch:
//! replace` or `$patch: delete` requires otherwise.
//!
//! `k8s_openapi::DeepMerge` has the same keys, but cannot remove members, replaces `nodeSelector`
//! as a whole and treats ports of two protocols as one; in everything else the tests compare both.

use serde_json::{Map, Value};

use crate::field_path::{FieldError, FieldPath};

/// Key of the directive in a map or in an element of a list.
pub(crate) const PATCH_DIRECTIVE: &str = "$patch";

/// Returns whether a patch deletes the whole object (`$patch: delete`).
pub(crate) fn is_delete_patch(patch: &Value) -> bool {
    patch.get(PATCH_DIRECTIVE).and_then(Value::as_str) == Some("delete")
}

/// Merges a patch into an object by the rules of a strategic merge.
pub(crate) fn merge(into: &mut Value, patch: &Value) -> Result<(), FieldError> {
    let Some(members) = patch.as_object() else {
        return Err(FieldPath::default().error("is not a map"));
    };
    merge_map(into, members, &FieldPath::default())
}

/// How a patch is merged into a value, as its directive `$patch` requires.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MergeStrategy {
    Merge,
    Replace,
    Delete,
}

fn merge_strategy(
    members: &Map<String, Value>,
    path: &FieldPath,
) -> Result<MergeStrategy, FieldError> {
    let other = members
        .keys()
        .find(|name| name.starts_with('$') && *name != PATCH_DIRECTIVE);
    if let Some(other) = other {
        return Err(path.join_member(other).error(
            "is a directive that is not supported: there are $patch: delete, replace and merge",
        ));
    }
    match members.get(PATCH_DIRECTIVE).map(Value::as_str) {
        None | Some(Some("merge")) => Ok(MergeStrategy::Merge),
        Some(Some("replace")) => Ok(MergeStrategy::Replace),
        Some(Some("delete")) => Ok(MergeStrategy::Delete),
        Some(_) => Err(path
            .join_member(PATCH_DIRECTIVE)
            .error("is none of delete, replace and merge")),
    }
}

fn merge_map(
    into: &mut Value,
    patch: &Map<String, Value>,
    path: &FieldPath,
) -> Result<(), FieldError> {
    if merge_strategy(patch, path)? == MergeStrategy::Replace || !into.is_object() {
        *into = Value::Object(Map::new());
    }
    let Some(members) = into.as_object_mut() else {
        return Ok(());
    };
    for (name, value) in patch.iter().filter(|(name, _)| *name != PATCH_DIRECTIVE) {
        let place = path.join_member(name);
        match value {
            Value::Null => drop(members.remove(name)),
            Value::Object(patch) if merge_strategy(patch, &place)? == MergeStrategy::Delete => {
                members.remove(name);
            }
            Value::Object(patch) => {
                merge_map(members.entry(name).or_insert(Value::Null), patch, &place)?;
            }
            Value::Array(patch) => {
                merge_list(members.entry(name).or_insert(Value::Null), patch, &place)?;
            }
            plain => drop(members.insert(name.clone(), plain.clone())),
        }
    }
    Ok(())
}

fn merge_list(into: &mut Value, patch: &[Value], place: &FieldPath) -> Result<(), FieldError> {
    let replaces = patch.iter().any(is_replace_directive);
    let keys = merge_keys(place);
    if keys.is_none() || replaces || !into.is_array() {
        *into = Value::Array(Vec::new());
    }
    let Some(list) = into.as_array_mut() else {
        return Ok(());
    };
    for (index, element) in patch.iter().enumerate() {
        let place = place.join_element(index);
        let (Some(keys), Value::Object(members)) = (keys, element) else {
            list.push(element.clone());
            continue;
        };
        if is_replace_directive(element) {
            continue;
        }
        let expected = merge_key_values(element, keys, &place)?;
        let found = list
            .iter()
            .position(|one| merge_key_values(one, keys, &place).is_ok_and(|key| key == expected));
        match (merge_strategy(members, &place)?, found) {
            (MergeStrategy::Delete, Some(found)) => drop(list.remove(found)),
            (MergeStrategy::Delete, None) => {}
            (_, Some(found)) => {
                if let Some(there) = list.get_mut(found) {
                    merge_map(there, members, &place)?;
                }
            }
            (_, None) => {
                let mut new = Value::Null;
                merge_map(&mut new, members, &place)?;
                list.push(new);
            }
        }
    }
    Ok(())
}

/// Returns whether a list element is only the directive `$patch: replace`, which replaces the whole list.
fn is_replace_directive(element: &Value) -> bool {
    element.as_object().is_some_and(|members| {
        members.len() == 1
            && members.get(PATCH_DIRECTIVE).and_then(Value::as_str) == Some("replace")
    })
}

type MergeKeys = &'static [&'static str];

/// Returns the merge keys that identify the elements of a list in a waypoint's objects; `None` for lists without merge
/// keys.
fn merge_keys(of: &FieldPath) -> Option<MergeKeys> {
    let name = of.last_member()?;
    Some(match name {
        "containers" | "initContainers" | "env" | "volumes" | "imagePullSecrets" | "secrets" => {
            &["name"]
        }
        "volumeMounts" => &["mountPath"],
        "hostAliases" => &["ip"],
        "topologySpreadConstraints" => &["topologyKey"],
        "ports" if of.is_below("containers") => &["containerPort", "protocol"],
        "ports" => &["port", "protocol"],
        _ => return None,
    })
}

/// Returns the values of an element's merge keys.
fn merge_key_values(
    element: &Value,
    keys: MergeKeys,
    path: &FieldPath,
) -> Result<Vec<Value>, FieldError> {
    let part = |name: &&str| match element.get(name) {
        Some(value) if !value.is_null() => Ok(value.clone()),
        _ if *name == "protocol" => Ok("TCP".into()),
        _ => Err(path.error(format!(
            "has no {name}, by which it is known which one is meant"
        ))),
    };
    keys.iter().map(part).collect()
}

#[cfg(test)]
mod tests {
    use k8s_openapi::{DeepMerge, api::apps::v1::Deployment, api::core::v1::Service};
    use serde_json::json;

    use super::*;

    fn merged(mut into: Value, patch: Value) -> Value {
        merge(&mut into, &patch).unwrap();
        into
    }

    /// Compares the result with `k8s_openapi::DeepMerge`, which knows the keys of every list but cannot remove members.
    #[test]
    fn patches_without_directives_merge_like_the_library() {
        let pod = |spec: Value| json!({"spec": {"selector": {}, "template": {"spec": spec}}});
        let base = pod(json!({
            "containers": [{"name": "a", "image": "i",
                "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                "args": ["x", "y"],
                "ports": [{"containerPort": 1, "protocol": "TCP"}, {"containerPort": 3, "protocol": "UDP"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v"}],
                "resources": {"limits": {"cpu": "1", "memory": "1Gi"}}}],
            "volumes": [{"name": "v", "emptyDir": {}}],
            "imagePullSecrets": [{"name": "one"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["a"]}],
            "tolerations": [{"key": "k", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
        }));
        let patch = pod(json!({
            "containers": [{"name": "a",
                "env": [{"name": "B", "value": "3"}, {"name": "C", "value": "4"}],
                "args": ["z"],
                "ports": [{"containerPort": 3, "protocol": "UDP", "name": "u"}, {"containerPort": 2, "protocol": "TCP"}],
                "volumeMounts": [{"name": "v", "mountPath": "/v", "readOnly": true}, {"name": "v", "mountPath": "/w"}],
                "resources": {"limits": {"cpu": "2"}}}, {"name": "b"}],
            "volumes": [{"name": "v", "emptyDir": {"medium": "Memory"}}, {"name": "w", "emptyDir": {}}],
            "imagePullSecrets": [{"name": "one"}, {"name": "two"}],
            "hostAliases": [{"ip": "10.0.0.1", "hostnames": ["b"]}, {"ip": "10.0.0.2"}],
            "tolerations": [{"key": "l", "operator": "Exists"}],
            "topologySpreadConstraints": [
                {"maxSkew": 2, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"},
                {"maxSkew": 1, "topologyKey": "host", "whenUnsatisfiable": "ScheduleAnyway"}],
        }));
        assert_eq!(
            merged(base.clone(), patch.clone()),
            merge_with_library::<Deployment>(base, patch)
        );
        let base = json!({"spec": {"type": "ClusterIP",
            "ports": [{"port": 1, "protocol": "TCP", "name": "a"}, {"port": 2, "protocol": "TCP"}]}});
        let patch = json!({"spec": {"type": "NodePort",
            "ports": [{"port": 1, "protocol": "TCP", "nodePort": 30000}, {"port": 3, "protocol": "UDP"}]}});
        assert_eq!(
            merged(base.clone(), patch.clone()),
            merge_with_library::<Service>(base, patch)
        );
    }

    fn merge_with_library<T>(base: Value, patch: Value) -> Value
    where
        T: DeepMerge + serde::Serialize + serde::de::DeserializeOwned,
    {
        let mut object: T = serde_json::from_value(base).unwrap();
        object.merge_from(serde_json::from_value(patch).unwrap());
        let mut value = serde_json::to_value(object).unwrap();
        // The library always serializes the kind.
        let members = value.as_object_mut().unwrap();
        for name in ["apiVersion", "kind", "metadata"] {
            members.remove(name);
        }
        value
    }

    #[test]
    fn ports_of_two_protocols_are_distinct() {
        let base = json!({"ports": [{"port": 53, "name": "t"}, {"port": 53, "protocol": "UDP"}]});
        let patch = json!({"ports": [{"port": 53, "protocol": "UDP", "name": "u"}, {"port": 53, "protocol": "TCP", "$patch": "delete"}]});
        let left = json!({"ports": [{"port": 53, "protocol": "UDP", "name": "u"}]});
        assert_eq!(merged(base, patch), left);
    }

    #[test]
    fn null_and_directives_remove_or_replace() {
        let base = || {
            json!({"spec": {"strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 1}},
                "nodeSelector": {"a": "b"},
                "volumes": [{"name": "v"}, {"name": "w", "emptyDir": {}}]}})
        };
        for (patch, place, expected) in [
            (json!({"strategy": null}), "/spec/strategy", None),
            (
                json!({"strategy": {"$patch": "replace", "type": "Recreate"}}),
                "/spec/strategy",
                Some(json!({"type": "Recreate"})),
            ),
            (
                json!({"strategy": {"$patch": "delete"}}),
                "/spec/strategy",
                None,
            ),
            (
                json!({"volumes": [{"name": "v", "$patch": "delete"}]}),
                "/spec/volumes",
                Some(json!([{"name": "w", "emptyDir": {}}])),
            ),
            (
                json!({"volumes": [{"$patch": "replace"}, {"name": "x"}]}),
                "/spec/volumes",
                Some(json!([{"name": "x"}])),
            ),
            (
                json!({"volumes": [{"name": "w", "$patch": "replace", "secret": {}}]}),
                "/spec/volumes/1",
                Some(json!({"name": "w", "secret": {}})),
            ),
            (
                json!({"volumes": [{"name": "absent", "$patch": "delete"}]}),
                "/spec/volumes/2",
                None,
            ),
            (
                json!({"nodeSelector": {"a": null, "c": "d"}}),
                "/spec/nodeSelector",
                Some(json!({"c": "d"})),
            ),
            // Nulls in a new member have no effect.
            (
                json!({"dnsConfig": {"options": null, "searches": ["s"]}}),
                "/spec/dnsConfig",
                Some(json!({"searches": ["s"]})),
            ),
        ] {
            let merged = merged(base(), json!({"spec": patch}));
            assert_eq!(merged.pointer(place), expected.as_ref(), "{patch}");
        }
    }

    #[test]
    fn invalid_patches_are_reported_with_their_path() {
        for (patch, place) in [
            (json!([]), "."),
            (
                json!({"spec": {"volumes": [{"emptyDir": {}}]}}),
                "spec.volumes[0]",
            ),
            (json!({"spec": {"$retainKeys": ["a"]}}), "spec.$retainKeys"),
            (json!({"spec": {"$patch": "remove"}}), "spec.$patch"),
            (json!({"spec": {"$patch": 7}}), "spec.$patch"),
        ] {
            let wrong = merge(&mut json!({}), &patch).unwrap_err();
            assert_eq!(wrong.path, place, "{patch}");
        }
    }
}
