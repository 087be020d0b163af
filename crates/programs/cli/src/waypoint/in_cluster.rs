//! Waypoints of a cluster, through its API server.

use std::time::{Duration, Instant};

use ambit_install::{
    cluster::{Cluster, ClusterError},
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
    args::{ApplyArgs, Where},
    gateway::{API_VERSION, Seen, no_pod},
};
use crate::{
    CliError, ErrorKind,
    cluster::Target,
    enrol,
    http::Answer,
    install::{failed, progress},
    manifest,
    output::print_line,
    reach, rehearsal,
    source::{ADMIN, DUMP},
};

/// Interval at which a waypoint's readiness is polled.
const PAUSE: Duration = Duration::from_millis(200);
/// Timeout for the deletion of a Gateway.
const DELETION: Duration = Duration::from_secs(60);

fn refused(error: ClusterError) -> CliError {
    failed(error.into())
}

/// Lists the Gateways of all namespaces in the cluster that the flags select.
pub(super) async fn gateways(target: &Target) -> Result<Vec<Value>, CliError> {
    of(&target.cluster().await?).await
}

/// Lists the Gateways of all namespaces in a cluster.
pub(super) async fn of(cluster: &Cluster) -> Result<Vec<Value>, CliError> {
    let list = cluster.list(API_VERSION, "Gateway", None, None).await;
    list.map_err(refused)
}

/// Fetches the `/config_dump` of one of a waypoint's pods.
pub(super) async fn dump(target: &Target, gateway: &Seen) -> Result<Answer, CliError> {
    let cluster = target.cluster().await?;
    let pods = pods(&cluster, gateway).await?;
    let pod = reach::best(&pods, None).ok_or_else(|| no_pod(gateway))?;
    let (namespace, pod, port) = (gateway.namespace(), name(pod), ADMIN.1);
    reach::ask_pod(&cluster, namespace, pod, port, Method::GET, DUMP).await
}

/// Lists the pods of a waypoint.
pub(super) async fn pods(cluster: &Cluster, gateway: &Seen) -> Result<Vec<Pod>, CliError> {
    let label = format!("{GATEWAY_NAME}={}", gateway.name());
    reach::pods(cluster, gateway.namespace(), &label).await
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
    let (namespace, name) = (args.made.place.namespace(), &args.made.name);
    let cluster = args.made.place.target.cluster().await?;
    let of = enrol::namespace(&cluster, namespace).await?;
    if args.enroll_namespace {
        check_free(&of, namespace, name, args.overwrite)?;
    }
    if let Some(there) = cluster
        .get(&reference(namespace, name))
        .await
        .map_err(refused)?
        && !Seen::new(there).is_waypoint()
    {
        let what = format!("the Gateway {namespace}/{name} exists and is no waypoint");
        return Err(CliError::new(ErrorKind::Failed, what).hint("--name gives another name"));
    }
    migrate(&cluster, args).await?;
    let applied = cluster.apply(&args.made.manifest(), false).await;
    applied.map_err(|error| {
        refused(error)
            .hint("the cluster needs the definitions of the Gateway API: gateway-api.sigs.k8s.io")
    })?;
    print_line(&format!("waypoint {namespace}/{name} applied"))?;
    if args.enroll_namespace {
        enroll(&cluster, &of, namespace, name).await?;
    }
    if args.wait {
        programmed(&cluster, namespace, name, args.waypoint_timeout).await?;
        print_line(&format!("waypoint {namespace}/{name} is ready"))?;
    }
    Ok(())
}

/// Migrates the policies that the waypoint makes ineffective, by copies and changed rules. The Gateway is applied after
/// that, so that no request is wrongly allowed or rejected in between.
async fn migrate(cluster: &Cluster, args: &ApplyArgs) -> Result<(), CliError> {
    let policies = rehearsal::list(cluster, Kind::AuthorizationPolicy).await?;
    if policies.is_empty() {
        return Ok(());
    }
    let namespace = args.made.place.namespace();
    let services = cluster.all(Some(namespace), None).await.map_err(refused)?;
    let settings = rehearsal::settings(cluster, &args.made.place.target.mesh_namespace).await?;
    for (moot, migration) in args.migrations(&policies, &services, &settings.trust_domain)? {
        for policy in &migration.added {
            cluster
                .apply(&manifest::of(policy), false)
                .await
                .map_err(refused)?;
        }
        if let Some(rules) = migration.rules {
            let (namespace, name) = moot.policy.split_once('/').unwrap_or_default();
            let policy = ObjectRef::of_kind::<AuthorizationPolicy>(Some(namespace), name);
            let patch = json!({"spec": {"rules": manifest::of(&rules)}});
            cluster.merge(&policy, &patch).await.map_err(refused)?;
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
fn check_free(
    of: &Namespace,
    namespace: &str,
    name: &str,
    overwrite: bool,
) -> Result<(), CliError> {
    match label(of, USE_WAYPOINT) {
        Some(other) if other != name && !overwrite => {
            let what = format!("the namespace {namespace} uses the waypoint {other}");
            Err(CliError::new(ErrorKind::Failed, what).hint("--overwrite replaces it"))
        }
        _ => Ok(()),
    }
}

async fn enroll(
    cluster: &Cluster,
    of: &Namespace,
    namespace: &str,
    name: &str,
) -> Result<(), CliError> {
    let labels = json!({USE_WAYPOINT: name, USE_WAYPOINT_NAMESPACE: null});
    let object = ObjectRef::of_kind::<Namespace>(None, namespace);
    let patch = json!({"metadata": {"labels": labels}});
    cluster.merge(&object, &patch).await.map_err(refused)?;
    print_line(&format!("namespace {namespace} uses the waypoint {name}"))?;
    if label(of, DATAPLANE_MODE) != Some(DATAPLANE_MODE_AMBIENT) {
        progress(&format!(
            "warning: the namespace {namespace} is not in the mesh; `ambit enroll {namespace}` enrols it"
        ));
    }
    Ok(())
}

/// Waits until a waypoint's Gateway is programmed.
async fn programmed(
    cluster: &Cluster,
    namespace: &str,
    name: &str,
    timeout: Duration,
) -> Result<(), CliError> {
    let started = Instant::now();
    loop {
        let found = cluster.get(&reference(namespace, name)).await;
        let found = found.map_err(refused)?.map(Seen::new);
        if found.as_ref().is_some_and(Seen::is_programmed) {
            return Ok(());
        }
        if started.elapsed() >= timeout {
            let what = format!(
                "the waypoint {namespace}/{name} is not programmed after {} s",
                timeout.as_secs()
            );
            let error = CliError::new(ErrorKind::Failed, what);
            return Err(error.hint(format!(
                "`ambit waypoint status {name} -n {namespace}` shows the reason"
            )));
        }
        tokio::time::sleep(PAUSE).await;
    }
}

/// Deletes a waypoint's Gateway, and waits until the objects that it owns are deleted, too.
pub(super) async fn delete(place: &Where, name: &str) -> Result<(), CliError> {
    let cluster = place.target.cluster().await?;
    let done = cluster
        .delete(&reference(place.namespace(), name), DELETION)
        .await;
    done.map(drop).map_err(refused)
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
            let checked = check_free(&namespace(there), "a", "way", overwrite);
            assert_eq!(checked.is_ok(), free, "{there:?} {overwrite}");
        }
    }
}
