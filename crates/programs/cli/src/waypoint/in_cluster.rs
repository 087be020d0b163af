//! Manages the waypoints of a cluster through its API server.

use std::time::{Duration, Instant};

use ambit_install::{
    cluster::{ClusterApi, ClusterError},
    object::{ObjectRef, name},
};
use ambit_k8s_api::{
    AuthorizationPolicy, Kind, Namespace, Pod,
    labels::{
        DATAPLANE_MODE, DATAPLANE_MODE_AMBIENT, GATEWAY_NAME, USE_WAYPOINT, USE_WAYPOINT_NAMESPACE,
    },
};
use hyper::Method;
use serde_json::{Value, json};

use super::{
    args::{ApplyArgs, WaypointScope},
    gateway::{API_VERSION, GatewayObject, no_pod_error},
};
use crate::{
    CliError, ErrorKind,
    cluster::Target,
    enrol,
    http::HttpResponse,
    install::{install_error, print_progress},
    manifest,
    output::print_line,
    pod_access, policy_test,
    source::{ADMIN_ADDRESS, CONFIG_DUMP_PATH},
};

/// Interval at which a waypoint's readiness is polled.
const POLL_INTERVAL: Duration = Duration::from_millis(200);
/// Timeout for the deletion of a Gateway.
const DELETION_TIMEOUT: Duration = Duration::from_secs(60);

fn cluster_error(error: ClusterError) -> CliError {
    install_error(error.into())
}

/// Lists the Gateways of all namespaces in the cluster that the flags select.
pub(super) async fn list_gateways(target: &Target) -> Result<Vec<Value>, CliError> {
    list_gateways_in(&target.connect().await?).await
}

/// Lists the Gateways of all namespaces in a cluster.
pub(super) async fn list_gateways_in(cluster: &ClusterApi) -> Result<Vec<Value>, CliError> {
    let list = cluster.list(API_VERSION, "Gateway", None, None).await;
    list.map_err(cluster_error)
}

/// Fetches the `/config_dump` of one of a waypoint's pods.
pub(super) async fn fetch_dump(
    target: &Target,
    gateway: &GatewayObject,
) -> Result<HttpResponse, CliError> {
    let cluster = target.connect().await?;
    let pods = list_pods(&cluster, gateway).await?;
    let pod = pod_access::choose_pod(&pods, None).ok_or_else(|| no_pod_error(gateway))?;
    let (namespace, pod, port) = (gateway.namespace(), name(pod), ADMIN_ADDRESS.1);
    pod_access::query_pod(
        &cluster,
        namespace,
        pod,
        port,
        Method::GET,
        CONFIG_DUMP_PATH,
    )
    .await
}

/// Lists the pods of a waypoint.
pub(super) async fn list_pods(
    cluster: &ClusterApi,
    gateway: &GatewayObject,
) -> Result<Vec<Pod>, CliError> {
    let label = format!("{GATEWAY_NAME}={}", gateway.name());
    pod_access::list_pods(cluster, gateway.namespace(), &label).await
}

fn reference(namespace: &str, name: &str) -> ObjectRef {
    ObjectRef {
        api_version: API_VERSION.to_owned(),
        kind: "Gateway".to_owned(),
        namespace: Some(namespace.to_owned()),
        name: name.to_owned(),
    }
}

/// Creates or changes a waypoint, after the policies that it makes ineffective are migrated.
pub(super) async fn apply(args: &ApplyArgs) -> Result<(), CliError> {
    let (namespace, name) = (args.spec.place.namespace(), &args.spec.name);
    let cluster = args.spec.place.target.connect().await?;
    let of = enrol::get_namespace(&cluster, namespace).await?;
    if args.enroll_namespace {
        check_no_other_waypoint(&of, namespace, name, args.overwrite)?;
    }
    if let Some(there) = cluster
        .get(&reference(namespace, name))
        .await
        .map_err(cluster_error)?
        && !GatewayObject::new(there).is_waypoint()
    {
        let what = format!("the Gateway {namespace}/{name} exists and is no waypoint");
        return Err(CliError::new(ErrorKind::Failed, what).with_hint("--name gives another name"));
    }
    migrate_policies(&cluster, args).await?;
    let applied = cluster.apply(&args.spec.manifest(), false).await;
    applied.map_err(|error| {
        cluster_error(error).with_hint(
            "the cluster needs the definitions of the Gateway API: gateway-api.sigs.k8s.io",
        )
    })?;
    print_line(&format!("waypoint {namespace}/{name} applied"))?;
    if args.enroll_namespace {
        enroll_namespace(&cluster, &of, namespace, name).await?;
    }
    if args.wait {
        wait_until_programmed(&cluster, namespace, name, args.waypoint_timeout).await?;
        print_line(&format!("waypoint {namespace}/{name} is ready"))?;
    }
    Ok(())
}

/// Migrates the policies that the waypoint makes ineffective, by copies and changed rules. The Gateway is applied after
/// that, so that no request is wrongly allowed or rejected in between.
async fn migrate_policies(cluster: &ClusterApi, args: &ApplyArgs) -> Result<(), CliError> {
    let policies = policy_test::list(cluster, Kind::AuthorizationPolicy).await?;
    if policies.is_empty() {
        return Ok(());
    }
    let namespace = args.spec.place.namespace();
    let services = cluster
        .list_typed(Some(namespace), None)
        .await
        .map_err(cluster_error)?;
    let settings =
        policy_test::load_settings(cluster, &args.spec.place.target.mesh_namespace).await?;
    for (moot, migration) in args.migrations(&policies, &services, &settings.trust_domain)? {
        for policy in &migration.added_policies {
            cluster
                .apply(&manifest::to_manifest(policy), false)
                .await
                .map_err(cluster_error)?;
        }
        if let Some(rules) = migration.changed_rules {
            let (namespace, name) = moot.policy.split_once('/').unwrap_or_default();
            let policy = ObjectRef::for_kind::<AuthorizationPolicy>(Some(namespace), name);
            let patch = json!({"spec": {"rules": manifest::to_manifest(&rules)}});
            cluster
                .merge_patch(&policy, &patch)
                .await
                .map_err(cluster_error)?;
        }
        print_line(&format!("policy {} migrated", moot.policy))?;
    }
    Ok(())
}

fn label<'a>(namespace: &'a Namespace, name: &str) -> Option<&'a str> {
    let labels = namespace.metadata.labels.as_ref()?;
    labels.get(name).map(String::as_str)
}

/// Checks that a namespace does not use another waypoint, unless it may be replaced.
fn check_no_other_waypoint(
    of: &Namespace,
    namespace: &str,
    name: &str,
    overwrite: bool,
) -> Result<(), CliError> {
    match label(of, USE_WAYPOINT) {
        Some(other) if other != name && !overwrite => {
            let what = format!("the namespace {namespace} uses the waypoint {other}");
            Err(CliError::new(ErrorKind::Failed, what).with_hint("--overwrite replaces it"))
        }
        _ => Ok(()),
    }
}

async fn enroll_namespace(
    cluster: &ClusterApi,
    of: &Namespace,
    namespace: &str,
    name: &str,
) -> Result<(), CliError> {
    let labels = json!({USE_WAYPOINT: name, USE_WAYPOINT_NAMESPACE: null});
    let object = ObjectRef::for_kind::<Namespace>(None, namespace);
    let patch = json!({"metadata": {"labels": labels}});
    cluster
        .merge_patch(&object, &patch)
        .await
        .map_err(cluster_error)?;
    print_line(&format!("namespace {namespace} uses the waypoint {name}"))?;
    if label(of, DATAPLANE_MODE) != Some(DATAPLANE_MODE_AMBIENT) {
        print_progress(&format!(
            "warning: the namespace {namespace} is not in the mesh; `ambit enroll {namespace}` enrols it"
        ));
    }
    Ok(())
}

/// Waits until a waypoint's Gateway is programmed.
async fn wait_until_programmed(
    cluster: &ClusterApi,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<(), CliError> {
    let started = Instant::now();
    loop {
        let found = cluster.get(&reference(namespace, name)).await;
        let found = found.map_err(cluster_error)?.map(GatewayObject::new);
        if found.as_ref().is_some_and(GatewayObject::is_programmed) {
            return Ok(());
        }
        if started.elapsed() >= timeout {
            let what = format!(
                "the waypoint {namespace}/{name} is not programmed after {} s",
                timeout.as_secs()
            );
            let error = CliError::new(ErrorKind::Failed, what);
            return Err(error.with_hint(format!(
                "`ambit waypoint status {name} -n {namespace}` shows the reason"
            )));
        }
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}

/// Deletes a waypoint's Gateway, and waits until the objects that it owns are deleted, too.
pub(super) async fn delete(scope: &WaypointScope, name: &str) -> Result<(), CliError> {
    let cluster = scope.target.connect().await?;
    let done = cluster
        .delete(&reference(scope.namespace(), name), DELETION_TIMEOUT)
        .await;
    done.map(drop).map_err(cluster_error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_namespace_keeps_the_waypoint_that_it_uses() {
        let namespace = |waypoint: Option<&str>| -> Namespace {
            let labels = waypoint.map(|waypoint| json!({USE_WAYPOINT: waypoint}));
            serde_json::from_value(json!({"metadata": {"name": "a", "labels": labels}})).unwrap()
        };
        for (there, overwrite, free) in [
            (None, false, true),
            (Some("way"), false, true),
            (Some("other"), false, false),
            (Some("none"), false, false),
            (Some("other"), true, true),
        ] {
            let checked = check_no_other_waypoint(&namespace(there), "a", "way", overwrite);
            assert_eq!(checked.is_ok(), free, "{there:?} {overwrite}");
        }
    }
}
