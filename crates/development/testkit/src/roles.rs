//! Compares requests to the API server with RBAC roles: requests that the roles deny, and grants that no request needs.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::ApiRequest;

/// RBAC permission that a request needs.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct RequiredPermission {
    verb: &'static str,
    group: String,
    /// Resource with its subresource, such as `pods/status`.
    resource: String,
    /// Namespace of the request; empty for all, and for cluster-scoped objects.
    namespace: String,
    /// Name of the object; empty for all objects.
    name: String,
}

/// Differences between roles and needed permissions, as texts such as `get core/secrets
/// istio-ca-secret`.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct PermissionDifference {
    /// Permissions that requests need and the roles do not grant.
    pub missing: BTreeSet<String>,
    /// Permissions that the roles grant and no request needs.
    pub unused: BTreeSet<String>,
}

/// Compares `requests` with the ClusterRoles and Roles among `objects` that have this name.
pub fn compare(requests: &[ApiRequest], objects: &[Value], name: &str) -> PermissionDifference {
    let grants: Vec<_> = objects
        .iter()
        .filter(|object| object["metadata"]["name"] == name)
        .flat_map(Grant::from_role)
        .collect();
    let needs: BTreeSet<_> = requests
        .iter()
        .flat_map(RequiredPermission::from_request)
        .collect();
    let refused = needs
        .iter()
        .filter(|need| !grants.iter().any(|grant| grant.covers(need)));
    let unused = grants
        .iter()
        .filter(|grant| !needs.iter().any(|need| grant.covers(need)));
    PermissionDifference {
        missing: refused.map(RequiredPermission::text).collect(),
        unused: unused.map(Grant::text).collect(),
    }
}

fn permission_text(verb: &str, group: &str, resource: &str, name: &str) -> String {
    let group = if group.is_empty() { "core" } else { group };
    format!("{verb} {group}/{resource} {name}")
        .trim_end()
        .to_owned()
}

impl RequiredPermission {
    /// Returns the permissions that a request needs; none for discovery, which is open to all.
    fn from_request(request: &ApiRequest) -> Vec<Self> {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let (group, rest) = match parts.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return Vec::new(),
        };
        let (namespace, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, rest),
            _ => ("", rest),
        };
        let (resource, name) = match rest {
            [resource] => ((*resource).to_owned(), ""),
            [resource, name] => ((*resource).to_owned(), *name),
            [resource, name, part] => (format!("{resource}/{part}"), *name),
            _ => return Vec::new(),
        };
        // The API server treats the name that a list is restricted to as the request's name.
        let query = query.replace("%3D", "=");
        let selected = query.split('&').find_map(|pair| {
            let (_, name) = pair.split_once("fieldSelector=metadata.name=")?;
            Some(name.trim_start_matches('='))
        });
        let verbs: &[&str] = match (request.method.as_str(), name.is_empty()) {
            ("GET", true) if query.contains("watch=true") || query.contains("watch=1") => {
                &["watch"]
            }
            ("GET", true) => &["list"],
            ("GET", false) => &["get"],
            ("POST", _) => &["create"],
            ("PUT", _) => &["update"],
            ("DELETE", _) => &["delete"],
            // Server-side apply creates missing objects.
            ("PATCH", _) if request.body["kind"].is_string() && !resource.contains('/') => {
                &["patch", "create"]
            }
            ("PATCH", _) => &["patch"],
            _ => &[],
        };
        let need = |verb: &&'static str| Self {
            verb,
            group: group.to_owned(),
            resource: resource.clone(),
            namespace: namespace.to_owned(),
            name: match *verb {
                // The name of a created object is not checked.
                "create" => String::new(),
                _ => selected.unwrap_or(name).to_owned(),
            },
        };
        verbs.iter().map(need).collect()
    }

    fn text(&self) -> String {
        permission_text(self.verb, &self.group, &self.resource, &self.name)
    }
}

/// One verb for one resource that a role grants.
#[derive(Debug)]
struct Grant {
    verb: String,
    group: String,
    resource: String,
    /// Namespace of the grant; empty for all namespaces.
    namespace: String,
    /// Names of objects for which the grant applies; empty for all.
    names: Vec<String>,
}

impl Grant {
    fn from_role(role: &Value) -> Vec<Self> {
        let texts = |value: &Value| -> Vec<String> {
            let list = value.as_array().into_iter().flatten();
            list.filter_map(Value::as_str).map(str::to_owned).collect()
        };
        let namespace = role["metadata"]["namespace"].as_str().unwrap_or_default();
        let mut grants = Vec::new();
        for rule in role["rules"].as_array().into_iter().flatten() {
            for group in texts(&rule["apiGroups"]) {
                for resource in texts(&rule["resources"]) {
                    for verb in texts(&rule["verbs"]) {
                        grants.push(Self {
                            verb,
                            group: group.clone(),
                            resource: resource.clone(),
                            namespace: namespace.to_owned(),
                            names: texts(&rule["resourceNames"]),
                        });
                    }
                }
            }
        }
        grants
    }

    fn covers(&self, need: &RequiredPermission) -> bool {
        self.verb == need.verb
            && self.group == need.group
            && self.resource == need.resource
            && (self.namespace.is_empty() || self.namespace == need.namespace)
            && (self.names.is_empty() || self.names.contains(&need.name))
    }

    fn text(&self) -> String {
        permission_text(
            &self.verb,
            &self.group,
            &self.resource,
            &self.names.join(","),
        )
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn request(method: &str, path: &str, body: Value) -> ApiRequest {
        ApiRequest {
            method: method.to_owned(),
            path: path.to_owned(),
            body,
        }
    }

    #[test]
    fn roles_are_compared_with_requested_permissions() {
        let role = |kind: &str, rules: Value| {
            let mut role = json!({"kind": kind, "metadata": {"name": "r"}, "rules": rules});
            if kind == "Role" {
                role["metadata"]["namespace"] = json!("mesh");
            }
            role
        };
        let roles = [
            role(
                "ClusterRole",
                json!([
                    {"apiGroups": [""], "resources": ["pods"], "verbs": ["list", "watch"]},
                    {"apiGroups": [""], "resources": ["pods/status"], "verbs": ["patch", "update"]},
                    {"apiGroups": [""], "resources": ["configmaps"], "verbs": ["create"]},
                    {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["roots"],
                        "verbs": ["list", "patch"]},
                ]),
            ),
            role(
                "Role",
                json!([{"apiGroups": ["apps"], "resources": ["daemonsets"], "verbs": ["get"]}]),
            ),
        ];
        let difference = |requests: &[ApiRequest]| compare(requests, &roles, "r");
        let used = [
            request("GET", "/api/v1/pods?limit=100", Value::Null),
            request(
                "GET",
                "/api/v1/pods?watch=true&resourceVersion=1",
                Value::Null,
            ),
            request(
                "PATCH",
                "/api/v1/namespaces/a/pods/p/status",
                json!({"kind": "Pod"}),
            ),
            request(
                "PATCH",
                "/api/v1/namespaces/a/configmaps/roots",
                json!({"kind": "ConfigMap"}),
            ),
            request(
                "GET",
                "/api/v1/configmaps?fieldSelector=metadata.name%3Droots",
                Value::Null,
            ),
            request(
                "GET",
                "/apis/apps/v1/namespaces/mesh/daemonsets/d",
                Value::Null,
            ),
            request("GET", "/version", Value::Null),
        ];
        let unused = ["update core/pods/status".to_owned()];
        assert_eq!(
            difference(&used),
            PermissionDifference {
                missing: BTreeSet::new(),
                unused: unused.into(),
            }
        );
        let refused = difference(&[
            request("GET", "/api/v1/pods/p", Value::Null),
            request("GET", "/api/v1/configmaps", Value::Null),
            request(
                "GET",
                "/apis/apps/v1/namespaces/other/daemonsets/d",
                Value::Null,
            ),
        ]);
        let expected = [
            "get apps/daemonsets d",
            "get core/pods p",
            "list core/configmaps",
        ];
        assert_eq!(refused.missing, expected.map(str::to_owned).into());
    }
}
