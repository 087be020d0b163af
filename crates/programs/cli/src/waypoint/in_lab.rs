//! Manages the waypoints of a lab by one manifest for each in the lab's directory.

use std::{
    fs,
    path::{Path, PathBuf},
    time::Duration,
};

use ambit_k8s_api::Kind;
use ambit_lab::{Client, LabNetns};
use ambit_model::DEFAULT_TRUST_DOMAIN;
use hyper::Method;
use serde_json::Value;

use super::{
    args::ApplyArgs,
    gateway::{GatewayObject, no_pod_error},
    migration::unmigratable_error,
};
use crate::{
    CliError, ErrorKind,
    http::HttpResponse,
    labs::{client_error, find_lab, objects_of_kind, values_of_kind},
    manifest,
    output::print_line,
    source::{self, ADMIN_ADDRESS, CONFIG_DUMP_PATH},
};

/// Lists the Gateways of all namespaces in a lab.
pub(super) fn list_gateways(lab: &str) -> Result<Vec<Value>, CliError> {
    let status = find_lab(lab)?.status().map_err(client_error)?;
    Ok(status.gateways)
}

/// Fetches the `/config_dump` of one of a waypoint's pods, preferably of a ready one.
pub(super) fn fetch_dump(lab: &str, gateway: &GatewayObject) -> Result<HttpResponse, CliError> {
    let client = find_lab(lab)?;
    let status = client.status().map_err(client_error)?;
    let mut pods = status.pods.iter().filter(|pod| gateway.has_pod(pod));
    let pod = pods.clone().find(|pod| pod.ready).or_else(|| pods.next());
    let pod = pod.ok_or_else(|| no_pod_error(gateway))?;
    let name = format!("{}/{}", pod.namespace, pod.name);
    let stream = client.dial(LabNetns::Pod(name), ADMIN_ADDRESS.into());
    let stream = stream.map_err(client_error)?;
    source::request_blocking(stream, &Method::GET, "localhost", CONFIG_DUMP_PATH)
}

/// Returns the path of the manifest that this command writes for a waypoint.
fn manifest_file(client: &Client, namespace: &str, name: &str) -> Result<PathBuf, CliError> {
    let status = client.status().map_err(client_error)?;
    let name = format!("waypoint-{namespace}-{name}.yaml");
    Ok(PathBuf::from(status.manifests).join(name))
}

/// Writes the manifest of a waypoint into the lab's directory, after the manifests of migrated policies.
pub(super) fn apply(lab: &str, args: &ApplyArgs) -> Result<(), CliError> {
    let (namespace, name) = (args.spec.place.namespace(), &args.spec.name);
    if args.enroll_namespace {
        let what = "in a lab, namespaces are enrolled in their manifests";
        let hint = format!("label the Namespace {namespace} with istio.io/use-waypoint: {name}");
        return Err(CliError::new(ErrorKind::Usage, what).with_hint(hint));
    }
    let client = find_lab(lab)?;
    let path = manifest_file(&client, namespace, name)?;
    let is_there = list_gateways(lab)?.into_iter().map(GatewayObject::new);
    let mut is_there = is_there.filter(|one| one.namespace() == namespace && one.name() == name);
    if !path.exists() && is_there.next().is_some() {
        let what = format!("the Gateway {namespace}/{name} is in another manifest of the lab");
        return Err(CliError::new(ErrorKind::Failed, what).with_hint("change it there"));
    }
    migrate_policies(&client, &path, args)?;
    write_manifest(&path, &args.spec.manifest())?;
    if args.wait {
        wait_until_programmed(&client, namespace, name, args.waypoint_timeout)?;
        print_line(&format!("waypoint {namespace}/{name} is ready"))?;
    }
    Ok(())
}

/// Writes an object as a YAML manifest.
fn write_manifest(path: &Path, object: &Value) -> Result<(), CliError> {
    let text = serde_saphyr::to_string(object);
    let text = text.map_err(|error| {
        CliError::new(ErrorKind::Failed, "cannot write the manifest").with_source(error.to_string())
    })?;
    fs::write(path, text).map_err(|error| {
        let what = format!("cannot write {}", path.display());
        CliError::new(ErrorKind::Failed, what).with_source(error)
    })?;
    print_line(&format!("{} written", path.display()))
}

/// Writes, beside the waypoint's manifest, copies of the policies that the waypoint makes ineffective; an error if a
/// policy's own manifest would have to be changed.
fn migrate_policies(client: &Client, waypoint: &Path, args: &ApplyArgs) -> Result<(), CliError> {
    let objects = client.objects().map_err(client_error)?;
    let policies: Vec<_> = values_of_kind(&objects, Kind::AuthorizationPolicy)
        .cloned()
        .collect();
    let services = objects_of_kind(&objects);
    let migrations = args.migrations(&policies, &services, DEFAULT_TRUST_DOMAIN)?;
    // A manifest may say anything else, too, and is the user's to change.
    if let Some((moot, _)) = migrations
        .iter()
        .find(|(_, one)| one.changed_rules.is_some())
    {
        let why = "in a lab, its manifest has to be changed so that it spares the waypoint";
        return Err(unmigratable_error(&moot.policy, why));
    }
    for policy in migrations
        .iter()
        .flat_map(|(_, migration)| &migration.added_policies)
    {
        let metadata = &policy.metadata;
        let [namespace, name] =
            [&metadata.namespace, &metadata.name].map(|text| text.as_deref().unwrap_or_default());
        write_manifest(
            &waypoint.with_file_name(format!("policy-{namespace}-{name}.yaml")),
            &manifest::to_manifest(policy),
        )?;
    }
    Ok(())
}

fn wait_until_programmed(
    client: &Client,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<(), CliError> {
    let is_ready = |status: &ambit_lab::Status| {
        let mut all = status.gateways.iter().cloned().map(GatewayObject::new);
        all.any(|one| one.namespace() == namespace && one.name() == name && one.is_programmed())
    };
    match client.wait_until(timeout, is_ready).map_err(client_error)? {
        Ok(_) => Ok(()),
        Err(_) => {
            let what = format!(
                "the waypoint {namespace}/{name} is not ready after {} s",
                timeout.as_secs()
            );
            let hint = "`ambit lab status` and `ambit lab logs` of its pod say why";
            Err(CliError::new(ErrorKind::Failed, what).with_hint(hint))
        }
    }
}

/// Removes the manifest that this command wrote for a waypoint.
pub(super) fn delete(lab: &str, namespace: &str, name: &str) -> Result<(), CliError> {
    let path = manifest_file(&find_lab(lab)?, namespace, name)?;
    fs::remove_file(&path).map_err(|error| {
        let what = format!("cannot remove {}", path.display());
        let error = CliError::new(ErrorKind::Failed, what).with_source(error);
        error.with_hint("a Gateway that is in another manifest is removed there")
    })
}
