//! Requests to the API server that write or delete objects.

use std::collections::BTreeMap;

use ambit_k8s_api::status::DesiredCondition;
use ambit_waypoint_objects::{
    CONTROLLER_NAME, GATEWAY_CLASS, WaypointObjectKind, is_waypoint_object,
};
use kube::{
    Api, Client,
    api::{DeleteParams, Patch, PatchParams, PostParams, Preconditions},
    core::DynamicObject,
    discovery::ApiResource,
};
use serde_json::{Value, json};

use crate::{
    gateway_table::{FIELD_MANAGER, GatewayName, ObjectRemoval, ObjectWrite},
    release::GatewayApiRelease,
    status::GatewayState,
};

/// Description of the GatewayClass; the API allows at most 64 bytes.
const CLASS_DESCRIPTION: &str = "Waypoints: layer 7 of the ambient mesh";

/// Returns the API resource of a kind of the Gateway API.
fn gateway_api_resource(kind: &str, plural: &str) -> ApiResource {
    let group = ambit_k8s_api::gateway::GROUP;
    ApiResource {
        group: group.to_owned(),
        version: "v1".to_owned(),
        api_version: format!("{group}/v1"),
        kind: kind.to_owned(),
        plural: plural.to_owned(),
    }
}

pub(crate) fn gateway_resource() -> ApiResource {
    gateway_api_resource("Gateway", "gateways")
}

pub(crate) fn gateway_class_resource() -> ApiResource {
    gateway_api_resource("GatewayClass", "gatewayclasses")
}

fn object_resource(part: WaypointObjectKind) -> ApiResource {
    let api_version = part.api_version();
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    ApiResource {
        group: group.to_owned(),
        version: version.to_owned(),
        api_version: api_version.to_owned(),
        kind: part.kind().to_owned(),
        plural: part.plural().to_owned(),
    }
}

/// Applies objects in order. Stops at the first one whose name is taken by an object that does not belong to a
/// waypoint, and returns that conflict.
///
/// # Errors
///
/// When the API server rejects a write; with status 409 if an object has changed since its write was planned.
pub(crate) async fn apply_objects(
    client: &Client,
    name: &GatewayName,
    writes: &[ObjectWrite],
) -> Result<Option<GatewayState>, kube::Error> {
    // An earlier write of ours changes the version that the next one depends on, too.
    let mut ours = BTreeMap::new();
    for write in writes {
        let resource = object_resource(write.object_kind);
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), &name.namespace, &resource);
        if write.is_new
            && let Some(there) = api.get_metadata_opt(&name.name).await?
            && !is_waypoint_object(&there.metadata)
        {
            let what = format!("{} {}/{}", resource.kind, name.namespace, name.name);
            return Ok(Some(GatewayState::NameConflict(what)));
        }
        let params = PatchParams::apply(write.manager).force();
        let mut object = write.object.clone();
        if let Some(decided_by) = &write.required_version
            && let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut)
        {
            let version = ours.get(&write.object_kind).unwrap_or(decided_by);
            metadata.insert("resourceVersion".to_owned(), json!(version));
        }
        let done = api
            .patch(&name.name, &params, &Patch::Apply(&object))
            .await?;
        if let Some(version) = done.metadata.resource_version {
            ours.insert(write.object_kind, version);
        }
    }
    Ok(None)
}

/// Removes our fields from a Gateway's status, so that nothing is bound to it, and deletes its objects.
pub(crate) async fn undeploy_waypoint(
    client: &Client,
    name: &GatewayName,
    removals: &[ObjectRemoval],
) -> Result<(), kube::Error> {
    // Server-side apply removes the fields that are no longer applied.
    apply_status(client, name, &json!({})).await?;
    remove_objects(client, name, removals).await
}

/// Deletes generated objects of a Gateway.
pub(crate) async fn remove_objects(
    client: &Client,
    name: &GatewayName,
    removals: &[ObjectRemoval],
) -> Result<(), kube::Error> {
    for removal in removals {
        let resource = object_resource(removal.object_kind);
        let api = Api::<DynamicObject>::namespaced_with(client.clone(), &name.namespace, &resource);
        let only_this = Preconditions {
            uid: removal.uid.clone(),
            resource_version: None,
        };
        match api
            .delete(
                &name.name,
                &DeleteParams::background().preconditions(only_this),
            )
            .await
        {
            // The object was deleted, or another one has its name.
            Err(kube::Error::Api(status)) if [404, 409].contains(&status.code) => {}
            done => drop(done?),
        }
    }
    Ok(())
}

/// Writes a Gateway's desired status.
pub(crate) async fn apply_status(
    client: &Client,
    name: &GatewayName,
    status: &Value,
) -> Result<(), kube::Error> {
    let resource = gateway_resource();
    let api = Api::<DynamicObject>::namespaced_with(client.clone(), &name.namespace, &resource);
    let body = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": name.name, "namespace": name.namespace},
        "status": status,
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    let done = api
        .patch_status(&name.name, &params, &Patch::Apply(&body))
        .await;
    done.map(drop)
}

/// Creates the GatewayClass of waypoints, unless it exists.
pub(crate) async fn create_class(client: &Client) -> Result<(), kube::Error> {
    let resource = gateway_class_resource();
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let class = DynamicObject::new(GATEWAY_CLASS, &resource).data(json!({
        "spec": {
            "controllerName": CONTROLLER_NAME,
            "description": CLASS_DESCRIPTION,
        },
    }));
    match api.create(&PostParams::default(), &class).await {
        Err(kube::Error::Api(status)) if status.code == 409 => Ok(()),
        done => done.map(drop),
    }
}

/// Writes the status conditions of the GatewayClass for a generation: `Accepted`, and whether the release of the
/// Gateway API is supported.
pub(crate) async fn accept_class(
    client: &Client,
    release: &GatewayApiRelease,
    generation: Option<i64>,
) -> Result<(), kube::Error> {
    let resource = gateway_class_resource();
    let api = Api::<DynamicObject>::all_with(client.clone(), &resource);
    let accepted = DesiredCondition {
        type_: "Accepted",
        is_true: true,
        reason: "Accepted",
        message: "waypoints are made for Gateways of this class",
        generation,
    };
    let conditions = [accepted, release.condition(generation)];
    let body = json!({
        "apiVersion": resource.api_version,
        "kind": resource.kind,
        "metadata": {"name": GATEWAY_CLASS},
        "status": {"conditions": conditions.map(|one| one.to_json(None))},
    });
    let params = PatchParams::apply(FIELD_MANAGER).force();
    api.patch_status(GATEWAY_CLASS, &params, &Patch::Apply(&body))
        .await
        .map(drop)
}
