//! Input of a rehearsal: the objects of the mesh and the recorded traffic of its proxies, from files, a lab or a
//! cluster.

use std::path::{Path, PathBuf};

use ambit_derive::{
    MeshConfig, ReferenceGrants, ServicePolicyScope, WaypointAttachment, WaypointBinding,
    WaypointMissing, WorkloadWaypoints,
};
use ambit_install::{cluster::ClusterApi, object::ObjectRef};
use ambit_k8s_api::{
    Deployment, Kind, ManifestPosition, Object, ObjectEvent, ObjectKey, ObjectKeyError, Pod,
};
use ambit_lab::LogSource;
use ambit_manifests::Snapshot;
use ambit_waypoint_objects::GATEWAY_NAME_LABEL;
use serde_json::Value;

use super::{
    counted_calls::CountedCalls,
    observed::{self, ObservedCall},
    proxies::ProxyResponses,
};
use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    files::{read_text, unreadable_file_error},
    install::install_error,
    labs, pod_access,
};

/// Kinds of objects that determine to which workloads policies apply.
const POLICY_TEST_KINDS: [Kind; 10] = [
    Kind::Namespace,
    Kind::Node,
    Kind::Pod,
    Kind::Service,
    Kind::ServiceEntry,
    Kind::WorkloadEntry,
    Kind::GatewayClass,
    Kind::Gateway,
    Kind::AuthorizationPolicy,
    Kind::PeerAuthentication,
];
/// API versions in which objects are looked for, the preferred one first.
const API_VERSIONS: [&str; 5] = ["v1", "v1beta1", "v1alpha3", "v1alpha2", "v1alpha1"];
/// Maximum number of lines that are read from the end of each access log in a cluster.
const MAX_LOG_LINES: i64 = 100_000;
/// Name of the control plane's Deployment, whose environment has the settings of the mesh.
const CONTROL_PLANE_DEPLOYMENT: &str = "ambit-control";

/// Sources of the objects and the traffic. If no files of logs, dumps or metrics are given, the proxies of the lab or
/// cluster are queried.
pub(super) struct InputSources<'a> {
    pub(super) lab: Option<&'a str>,
    pub(super) target: &'a Target,
    /// Directories of manifests, instead of the objects of a lab or cluster.
    pub(super) objects: &'a [PathBuf],
    /// Files with access logs of node proxies and waypoints.
    pub(super) logs: &'a [PathBuf],
    /// Files with node proxies' `/config_dump`.
    pub(super) dumps: &'a [PathBuf],
    /// Files with proxies' metrics in Prometheus text format.
    pub(super) metrics: &'a [PathBuf],
}

/// Objects of the mesh and the traffic that its proxies observed.
#[derive(Default)]
pub(super) struct PolicyTestInputs {
    pub(super) objects: Vec<ObjectEvent>,
    /// Calls from access logs and from dumps of open connections.
    pub(super) observed_calls: Vec<ObservedCall>,
    pub(super) counted_calls: Vec<CountedCalls>,
    /// Notes on proxies that could not be queried.
    pub(super) notes: Vec<String>,
    pub(super) config: MeshConfig,
}

impl PolicyTestInputs {
    /// Reads the objects and the recorded traffic.
    pub(super) fn gather(sources: &InputSources<'_>) -> Result<Self, CliError> {
        let files = [sources.logs, sources.dumps, sources.metrics];
        let queries_proxies = files.iter().all(|files| files.is_empty());
        let mut world = if !sources.objects.is_empty() {
            Self {
                objects: read_directories(sources.objects)?,
                ..Self::default()
            }
        } else {
            let lab = sources.target.lab_name(sources.lab);
            Self::load(lab.as_deref(), sources.target, queries_proxies)?
        };
        world.config.root_namespace = sources.target.mesh_namespace.as_str().into();
        for file in sources.logs {
            world.add_log(&read_text(file)?);
        }
        let mut answers = ProxyResponses::default();
        for file in sources.dumps {
            answers.add_dump(&file.display().to_string(), read_text(file)?.as_bytes());
        }
        for file in sources.metrics {
            answers.add_metrics(read_text(file)?.as_bytes());
        }
        world.add_proxy_responses(answers);
        Ok(world)
    }

    /// Reads the settings and objects of a lab or a cluster, without traffic.
    pub(super) fn load_objects(lab: Option<&str>, target: &Target) -> Result<Self, CliError> {
        let mut world = Self::load(lab, target, false)?;
        world.config.root_namespace = target.mesh_namespace.as_str().into();
        Ok(world)
    }

    fn load(lab: Option<&str>, target: &Target, queries_proxies: bool) -> Result<Self, CliError> {
        match lab {
            Some(lab) => Self::load_from_lab(lab, queries_proxies),
            None => block_on(async {
                let cluster = target.connect().await?;
                Self::load_from_cluster(&cluster, &target.mesh_namespace, queries_proxies).await
            }),
        }
    }

    fn add_proxy_responses(&mut self, responses: ProxyResponses) {
        self.observed_calls.extend(responses.open_connections);
        self.counted_calls.extend(responses.counted_calls);
        self.notes.extend(responses.notes);
    }

    fn add_log(&mut self, log: &str) {
        self.observed_calls
            .extend(log.lines().filter_map(observed::parse_line));
    }

    fn load_from_lab(lab: &str, queries_proxies: bool) -> Result<Self, CliError> {
        let client = labs::find_lab(lab)?;
        let mut world = Self::default();
        let values = client.objects().map_err(labs::client_error)?;
        let mut sources = vec![LogSource::Daemon {
            name: "proxy".to_owned(),
            node: None,
        }];
        let mut waypoints = Vec::new();
        for value in &values {
            let object = to_event(value)?;
            if let ObjectEvent::Applied {
                object: Object::Pod(pod),
                ..
            } = &object
                && is_waypoint(pod)
            {
                let key = object_key(&object);
                let pod = format!("{}/{}", key.namespace, key.name);
                waypoints.push(pod.clone());
                sources.push(LogSource::Pod {
                    pod,
                    container: None,
                });
            }
            world.objects.push(object);
        }
        if !queries_proxies {
            return Ok(world);
        }
        // What closes meanwhile is in the log, too: once more is better than not at all.
        world.add_proxy_responses(ProxyResponses::query_lab(&client, &waypoints)?);
        for source in sources {
            let log = client.log_text(source).map_err(labs::client_error)?;
            world.add_log(&log);
        }
        Ok(world)
    }

    async fn load_from_cluster(
        cluster: &ClusterApi,
        mesh_namespace: &str,
        queries_proxies: bool,
    ) -> Result<Self, CliError> {
        let mut world = Self {
            config: load_settings(cluster, mesh_namespace).await?,
            ..Self::default()
        };
        let proxies =
            pod_access::list_pods(cluster, mesh_namespace, pod_access::NODE_PROXY_ADMIN.0).await?;
        let mut waypoints = Vec::new();
        for kind in POLICY_TEST_KINDS {
            for value in list(cluster, kind).await? {
                let event = to_event(&value)?;
                if let ObjectEvent::Applied {
                    object: Object::Pod(pod),
                    ..
                } = &event
                    && is_waypoint(pod)
                {
                    waypoints.push(Pod::clone(pod));
                }
                world.objects.push(event);
            }
        }
        let found = cluster.get(&mesh_settings(mesh_namespace)).await;
        if let Some(value) = found.map_err(|error| install_error(error.into()))? {
            world.objects.push(to_event(&value)?);
        }
        if !queries_proxies {
            return Ok(world);
        }
        world.add_proxy_responses(
            ProxyResponses::query_cluster(cluster, &proxies, &waypoints).await,
        );
        for pod in proxies.iter().chain(&waypoints) {
            let metadata = &pod.metadata;
            let text = |value: &Option<String>| value.clone().unwrap_or_default();
            let (namespace, name) = (text(&metadata.namespace), text(&metadata.name));
            for container in pod.spec.iter().flat_map(|spec| &spec.containers) {
                let lines = Some(MAX_LOG_LINES);
                let log = cluster.logs(&namespace, &name, &container.name, lines, false);
                if let Some(log) = log.await {
                    world.add_log(&log);
                }
            }
        }
        Ok(world)
    }
}

/// Returns the reference of the MeshConfig's ConfigMap. It is read by name, since a list would include unrelated
/// ConfigMaps.
fn mesh_settings(mesh_namespace: &str) -> ObjectRef {
    ObjectRef {
        api_version: "v1".to_owned(),
        kind: "ConfigMap".to_owned(),
        namespace: Some(mesh_namespace.to_owned()),
        name: "istio".to_owned(),
    }
}

/// Parses the policies to rehearse. An unreadable policy is an error, since results without it would be wrong.
pub(super) fn read_policies(files: &[impl AsRef<Path>]) -> Result<Vec<ObjectEvent>, CliError> {
    let mut events = Vec::new();
    for path in files.iter().map(AsRef::as_ref) {
        events.extend(if path.is_dir() {
            let snapshot = ambit_manifests::read_snapshot(&[path]);
            policies_in_snapshot(
                path,
                snapshot.map_err(|error| unreadable_file_error(path, error))?,
            )?
        } else {
            parse_policies(path, &read_text(path)?)?
        });
    }
    Ok(events)
}

/// Parses the policies of a manifest's text; errors name `name` as the file.
pub(super) fn parse_policies(name: &Path, text: &str) -> Result<Vec<ObjectEvent>, CliError> {
    policies_in_snapshot(name, ambit_manifests::parse(name, text))
}

fn policies_in_snapshot(name: &Path, snapshot: Snapshot) -> Result<Vec<ObjectEvent>, CliError> {
    let is_policy =
        |kind: Kind| matches!(kind, Kind::AuthorizationPolicy | Kind::PeerAuthentication);
    let mut policies = require_readable(snapshot)?;
    policies.retain(|event| is_policy(object_key(event).kind));
    if policies.is_empty() {
        let what = format!(
            "{} holds no AuthorizationPolicy and no PeerAuthentication",
            name.display()
        );
        return Err(CliError::new(ErrorKind::Usage, what));
    }
    Ok(policies)
}

fn read_directories(paths: &[impl AsRef<Path>]) -> Result<Vec<ObjectEvent>, CliError> {
    let snapshot = ambit_manifests::read_snapshot(paths);
    require_readable(snapshot.map_err(|error| {
        CliError::new(ErrorKind::NotFound, "the objects cannot be read").with_source(error)
    })?)
}

fn require_readable(snapshot: Snapshot) -> Result<Vec<ObjectEvent>, CliError> {
    if let Some(problem) = snapshot.problems.first() {
        return Err(CliError::new(ErrorKind::Usage, problem.to_string()));
    }
    let objects = snapshot.objects.into_values();
    let applied = |(object, origin)| ObjectEvent::Applied {
        object,
        origin: Some(origin),
    };
    Ok(objects.map(applied).collect())
}

/// Converts an object's JSON to an event for the control plane's index. A malformed object becomes an event, too, and
/// is treated as the control plane does.
pub(crate) fn to_event(value: &Value) -> Result<ObjectEvent, CliError> {
    to_event_with_origin(value, None)
        .map_err(|error| CliError::new(ErrorKind::Failed, "an object").with_source(error))
}

/// Converts an object's JSON to an event like [`to_event`], with the object's file and line.
///
/// # Errors
/// The control plane does not read the object's kind, or the object has no valid name.
pub(crate) fn to_event_with_origin(
    value: &Value,
    origin: Option<&ManifestPosition>,
) -> Result<ObjectEvent, ObjectKeyError> {
    let key = ObjectKey::read(value)?;
    Ok(match Object::from_value(key.kind, value) {
        Ok(object) => ObjectEvent::Applied {
            object,
            origin: origin.cloned(),
        },
        Err(error) => ObjectEvent::Invalid {
            key,
            error,
            value: Box::new(value.clone()),
        },
    })
}

pub(crate) fn object_key(event: &ObjectEvent) -> ObjectKey {
    match event {
        ObjectEvent::Applied { object, .. } => object.key(),
        ObjectEvent::Invalid { key, .. } | ObjectEvent::Deleted(key) => key.clone(),
    }
}

fn is_waypoint(pod: &Pod) -> bool {
    let labels = pod.metadata.labels.as_ref();
    labels.is_some_and(|labels| labels.contains_key(GATEWAY_NAME_LABEL))
}

/// Lists the objects of a kind in the first API version that has any.
pub(crate) async fn list(cluster: &ClusterApi, kind: Kind) -> Result<Vec<Value>, CliError> {
    for version in API_VERSIONS {
        let api_version = match kind.group() {
            "" => version.to_owned(),
            group => format!("{group}/{version}"),
        };
        let found = cluster.list(&api_version, kind.as_str(), None, None).await;
        let found = found.map_err(|error| install_error(error.into()))?;
        if !found.is_empty() || kind.group().is_empty() {
            return Ok(found);
        }
    }
    Ok(Vec::new())
}

/// Reads the mesh's settings from the environment of the control plane's Deployment.
pub(crate) async fn load_settings(
    cluster: &ClusterApi,
    mesh_namespace: &str,
) -> Result<MeshConfig, CliError> {
    let all = cluster
        .list_typed::<Deployment>(Some(mesh_namespace), None)
        .await;
    let all = all.map_err(|error| install_error(error.into()))?;
    let control = all
        .into_iter()
        .find(|one| one.metadata.name.as_deref() == Some(CONTROL_PLANE_DEPLOYMENT));
    let pod = control.and_then(|control| control.spec?.template.spec);
    let container = pod.and_then(|pod| pod.containers.into_iter().next());
    let env = container.and_then(|container| container.env);
    let env = env.unwrap_or_default();
    let text = |name: &str| {
        let found = env.iter().find(|one| one.name == name)?;
        found.value.as_deref().filter(|text| !text.is_empty())
    };
    let mut config = MeshConfig::default();
    for (place, name) in [
        (&mut config.trust_domain, "TRUST_DOMAIN"),
        (&mut config.cluster_id, "CLUSTER_ID"),
        (&mut config.cluster_domain, "CLUSTER_DOMAIN"),
        (&mut config.revision, "REVISION"),
    ] {
        if let Some(text) = text(name) {
            *place = text.into();
        }
    }
    let is_set =
        |name: &str, to: &str| text(name).is_some_and(|text| text.eq_ignore_ascii_case(to));
    if is_set("AMBIT_WAYPOINT_ATTACHMENT", "labels") {
        config.waypoint_attachment = WaypointAttachment::LabelsOnly;
    }
    if is_set("AMBIT_WORKLOAD_WAYPOINTS", "istio") {
        config.workload_waypoints = WorkloadWaypoints::CapturedClients;
    }
    if is_set("AMBIT_WAYPOINT_MISSING", "allow") {
        config.waypoint_missing = WaypointMissing::BypassWaypoint;
    }
    if is_set("AMBIT_WAYPOINT_BINDING", "ready") {
        config.waypoint_binding = WaypointBinding::WhenReady;
    }
    if is_set("AMBIT_REFERENCE_GRANTS", "ignored") {
        config.reference_grants = ReferenceGrants::Ignored;
    }
    if is_set("AMBIT_SERVICE_POLICY_SCOPE", "istio") {
        config.service_policy_scope = ServicePolicyScope::ServiceOnly;
    }
    config.registry_only = is_set("AMBIT_OUTBOUND_TRAFFIC_POLICY", "REGISTRY_ONLY");
    config.image_pull_secrets = is_set("AMBIT_IMAGE_PULL_SECRETS", "true");
    Ok(config)
}
