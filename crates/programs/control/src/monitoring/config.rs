//! Page `/debug/configz`: objects of Istio's and the Gateway API's kinds as the API server returns them, without
//! secrets. The control plane stores only derived records, so that the objects are listed on request.

use std::time::Duration;

use ambit_k8s_api::{Definition, Kind};
use kube::{
    Api, Client,
    api::{DynamicObject, ListParams},
    discovery::ApiResource,
};
use serde_json::{Map, Value, json};

use crate::kubernetes::custom_resource;

/// Page size of lists from the API server.
const PAGE_SIZE: u32 = 500;
/// Annotation of `kubectl apply` that repeats the whole object.
const LAST_APPLIED_ANNOTATION: &str = "kubectl.kubernetes.io/last-applied-configuration";
/// Text that replaces a secret value.
const REDACTED: &str = "(secret)";
/// Fields that may contain secrets, by kind: paths, in which `*` stands for every item of a list.
const SECRET_FIELDS: [(Kind, &[&str]); 3] = [
    (Kind::WasmPlugin, &["spec", "pluginConfig"]),
    (Kind::WasmPlugin, &["spec", "vmConfig", "env", "*", "value"]),
    (
        Kind::RequestAuthentication,
        &["spec", "jwtRules", "*", "jwks"],
    ),
];

/// Timeout of all lists together; requests for other pages wait meanwhile.
const LIST_TIMEOUT: Duration = Duration::from_secs(30);

/// Lists all objects of Istio's and the Gateway API's kinds.
///
/// # Errors
///
/// If a kind with a CRD cannot be listed, which the text names, or if the API server takes too long.
pub(super) async fn list_objects(client: &Client) -> Result<Vec<Value>, String> {
    let listed = tokio::time::timeout(LIST_TIMEOUT, list_all_kinds(client)).await;
    listed.unwrap_or_else(|_| {
        Err(format!(
            "the API server did not list all objects in {LIST_TIMEOUT:?}"
        ))
    })
}

async fn list_all_kinds(client: &Client) -> Result<Vec<Value>, String> {
    let mut all = Vec::new();
    let custom = |kind: &&Kind| kind.definition() != Definition::BuiltIn;
    for kind in Kind::ALL.iter().filter(custom) {
        let listed = list_kind(client, *kind).await;
        all.extend(listed.map_err(|error| format!("cannot list objects of kind {kind}: {error}"))?);
    }
    Ok(all)
}

/// Lists the objects of a kind; empty if the cluster has no CRD of it.
async fn list_kind(client: &Client, kind: Kind) -> Result<Vec<Value>, kube::Error> {
    let resource = custom_resource(kind, kind.version());
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let mut all = Vec::new();
    let mut page = ListParams::default().limit(PAGE_SIZE);
    loop {
        let list = match api.list(&page).await {
            Ok(list) => list,
            Err(kube::Error::Api(status)) if status.code == 404 => return Ok(all),
            Err(error) => return Err(error),
        };
        all.extend(
            list.items
                .into_iter()
                .map(|object| redact_object(kind, &resource, object)),
        );
        match list.metadata.continue_ {
            Some(next) if !next.is_empty() => page = page.continue_token(&next),
            _ => return Ok(all),
        }
    }
}

/// Returns an object with API version and kind, which items of a list lack, and without secrets and `managedFields`.
fn redact_object(kind: Kind, resource: &ApiResource, object: DynamicObject) -> Value {
    let mut metadata = object.metadata;
    metadata.managed_fields = None;
    if let Some(annotations) = &mut metadata.annotations {
        annotations.remove(LAST_APPLIED_ANNOTATION);
    }
    let mut shown = Map::new();
    shown.insert("kind".to_owned(), json!(resource.kind));
    shown.insert("apiVersion".to_owned(), json!(resource.api_version));
    shown.insert("metadata".to_owned(), json!(metadata));
    if let Value::Object(data) = object.data {
        shown.extend(data);
    }
    let mut shown = Value::Object(shown);
    for (_, path) in SECRET_FIELDS.iter().filter(|(of, _)| *of == kind) {
        redact_path(&mut shown, path);
    }
    shown
}

/// Replaces the values at a path by [`REDACTED`].
fn redact_path(value: &mut Value, path: &[&str]) {
    match path.split_first() {
        None => *value = json!(REDACTED),
        Some((&"*", rest)) => {
            for item in value.as_array_mut().into_iter().flatten() {
                redact_path(item, rest);
            }
        }
        Some((field, rest)) => {
            if let Some(value) = value.get_mut(*field) {
                redact_path(value, rest);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_of_objects_are_left_out() {
        let object = json!({
            "metadata": {"name": "p", "namespace": "shop", "annotations": {
                "kubectl.kubernetes.io/last-applied-configuration": "hidden",
                "note": "kept",
            }},
            "spec": {
                "url": "oci://registry.example/p",
                "pluginConfig": {"password": "hidden"},
                "vmConfig": {"env": [{"name": "A", "value": "hidden"}, {"name": "B"}]},
                "jwtRules": [{"jwks": "kept"}],
            },
        });
        let kind = Kind::WasmPlugin;
        let resource = custom_resource(kind, kind.version());
        let read = |value: &Value| serde_json::from_value(value.clone()).unwrap();
        let plugin = redact_object(kind, &resource, read(&object));
        let expected = json!({
            "kind": "WasmPlugin",
            "apiVersion": "extensions.istio.io/v1alpha1",
            "metadata": {"name": "p", "namespace": "shop", "annotations": {"note": "kept"}},
            "spec": {
                "url": "oci://registry.example/p",
                "pluginConfig": "(secret)",
                "vmConfig": {"env": [{"name": "A", "value": "(secret)"}, {"name": "B"}]},
                "jwtRules": [{"jwks": "kept"}],
            },
        });
        assert_eq!(plugin, expected);
        let rules = redact_object(Kind::RequestAuthentication, &resource, read(&object));
        let keys = &rules["spec"]["jwtRules"][0]["jwks"];
        assert_eq!(keys, "(secret)");
    }
}
