//! Deploys waypoints on a cluster: applies the objects of each Gateway of the class `istio-waypoint`, and reports their
//! progress in the Gateway's status. Only the leader of the revision deploys; the leader of the mesh writes the class.
//! The objects are owned by their Gateway and deleted with it.
//!
//! Objects that another controller manages are not changed: a class of another controller, a Gateway of another
//! revision or in an undiscovered namespace, an object that does not belong to a waypoint, or that another manager
//! applies, for instance Istio's control plane.

#![forbid(unsafe_code)]

mod gateway_table;
mod release;
mod status;
mod write;

use std::{collections::BTreeSet, fmt, time::Duration};

use ambit_k8s_api::{Gateway, revisions::ControlPlane, selector::LabelSelector};
use ambit_kube_kit::watch::{self as objects, ObjectId, ObjectWatch, WatchEvent};
use ambit_rt::{Backoff, ErrorChain};
use ambit_waypoint_objects::{
    GATEWAY_CLASS, MANAGED_BY_VALUE, MANAGED_LABEL, Parameters, Settings, WaypointObjectKind,
};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        autoscaling::v2::HorizontalPodAutoscaler,
        core::v1::{ConfigMap, Namespace, Service, ServiceAccount},
        policy::v1::PodDisruptionBudget,
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Resource,
    core::{DynamicObject, PartialObjectMeta},
};
use serde_json::{Value, json};
use tokio::{sync::watch, time::Instant};

use gateway_table::{
    ClassAction, DeploymentPlan, ExistingObject, GatewayClassState, GatewayName, GatewayTable,
};
use release::GatewayApiRelease;
use status::GatewayState;

/// First and longest backoff after a write that failed.
const WRITE_BACKOFF: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));
/// Name of the CRD of Gateways.
const GATEWAY_CRD: &str = "gateways.gateway.networking.k8s.io";

/// Controller that deploys waypoints, with its settings and inputs.
#[derive(Clone)]
pub struct WaypointDeployer {
    /// Client of the cluster's API.
    pub client: Client,
    /// Settings of all waypoints.
    pub settings: Settings,
    /// Revision of this control plane.
    pub revision: String,
    /// Namespace of the control planes.
    pub system_namespace: String,
    /// Whether this replica is the leader of the whole mesh, and so writes the GatewayClass that all revisions share.
    pub is_mesh_leader: watch::Receiver<bool>,
    /// Discovery selectors of the mesh's namespaces; `None` until they are known.
    pub discovery_selectors: watch::Receiver<Option<Vec<LabelSelector>>>,
}

impl fmt::Debug for WaypointDeployer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WaypointDeployer")
            .field("revision", &self.revision)
            .finish_non_exhaustive()
    }
}

impl WaypointDeployer {
    /// Deploys waypoints while the cluster has the CRD of Gateways; never returns.
    pub async fn run(self) {
        let config = objects::watcher_config().fields(&format!("metadata.name={GATEWAY_CRD}"));
        let api = Api::<CustomResourceDefinition>::all(self.client.clone());
        let mut definition =
            ObjectWatch::new("CustomResourceDefinition", api, config, |definition| {
                let release =
                    GatewayApiRelease::from_annotations(definition.metadata.annotations.as_ref());
                serves_v1(definition).then_some(release)
            });
        let mut there = None;
        loop {
            let Some(release) = there.take() else {
                there = wait_for_release_change(&mut definition, None).await;
                continue;
            };
            release.warn();
            tokio::select! {
                () = self.clone().deploy(release.clone()) => {}
                now = wait_for_release_change(&mut definition, Some(&release)) => there = now,
            }
        }
    }

    /// Deploys waypoints with the CRDs of this release of the Gateway API; never returns.
    async fn deploy(mut self, release: GatewayApiRelease) {
        let namespace = self.system_namespace.as_str();
        let mut table = GatewayTable::new(self.settings, &self.revision, release, namespace);
        let mut watches = Watches::new(&self.client, namespace);
        let mut listed = BTreeSet::new();
        let mut backoff = Backoff::new(WRITE_BACKOFF.0, WRITE_BACKOFF.1, 0.2);
        let mut retry_at: Option<Instant> = None;
        loop {
            tokio::select! {
                what = watches.apply_next_event(&mut table) => listed.extend(what),
                Ok(()) = self.is_mesh_leader.changed() => {}
                Ok(()) = self.discovery_selectors.changed() => {}
                () = tokio::time::sleep_until(retry_at.unwrap_or_else(Instant::now)), if retry_at.is_some() => {
                    retry_at = None;
                }
            }
            let Some(selectors) = self.discovery_selectors.borrow_and_update().clone() else {
                continue;
            };
            table.set_discovery_selectors(selectors);
            if listed.len() < LISTED_KIND_COUNT || retry_at.is_some() {
                continue;
            }
            let is_mesh_leader = *self.is_mesh_leader.borrow_and_update();
            match process_due_gateways(&self.client, &mut table, is_mesh_leader).await {
                Ok(()) => backoff.reset(),
                // The watch delivers the conflicting change: plan again when it should have
                // arrived.
                Err(error) if is_api_status(&error, 409) => {
                    retry_at = Some(Instant::now() + WRITE_BACKOFF.0)
                }
                Err(error) => {
                    let error = ErrorChain(&error);
                    tracing::warn!(%error, "a waypoint's objects cannot be written; trying again");
                    retry_at = Some(Instant::now() + backoff.next_delay(rand::random()));
                }
            }
        }
    }
}

/// Waits until the release of the CRD differs, and returns it; `None` when the CRD is deleted.
async fn wait_for_release_change(
    crd: &mut ObjectWatch<CustomResourceDefinition, GatewayApiRelease>,
    before: Option<&GatewayApiRelease>,
) -> Option<GatewayApiRelease> {
    loop {
        match crd.next().await {
            WatchEvent::Object(_, now) if before != Some(&now) => return Some(now),
            WatchEvent::Removed(_) => return None,
            _ => {}
        }
    }
}

/// Returns whether the CRD serves `v1`; otherwise the control plane logs an error when it reads Gateways.
fn serves_v1(definition: &CustomResourceDefinition) -> bool {
    let mut versions = definition.spec.versions.iter();
    versions.any(|version| version.name == "v1" && version.served)
}

/// Watches of Gateways, of waypoints' objects, and of all other objects that determine them.
struct Watches {
    class: ObjectWatch<DynamicObject, GatewayClassState>,
    gateways: ObjectWatch<DynamicObject, Box<Gateway>>,
    namespaces:
        ObjectWatch<PartialObjectMeta<Namespace>, std::collections::BTreeMap<String, String>>,
    service_accounts: ObjectWatch<PartialObjectMeta<ServiceAccount>, ExistingObject>,
    services: ObjectWatch<Service, ExistingObject>,
    /// Services of control planes, from which the revisions and their tags are read.
    control_planes: ObjectWatch<PartialObjectMeta<Service>, ControlPlane>,
    deployments: ObjectWatch<Deployment, ExistingObject>,
    autoscalers: ObjectWatch<PartialObjectMeta<HorizontalPodAutoscaler>, ExistingObject>,
    disruption_budgets: ObjectWatch<PartialObjectMeta<PodDisruptionBudget>, ExistingObject>,
    /// All ConfigMaps, since a Gateway may refer to any; of a ConfigMap without settings of waypoints only the name is
    /// kept.
    config_maps: ObjectWatch<ConfigMap, Parameters>,
}

impl Watches {
    fn new(client: &Client, system_namespace: &str) -> Self {
        let config = objects::watcher_config;
        let of_control_planes = Api::namespaced(client.clone(), system_namespace);
        let managed = || config().labels(&format!("{MANAGED_LABEL}={MANAGED_BY_VALUE}"));
        let of_class = config().fields(&format!("metadata.name={GATEWAY_CLASS}"));
        let classes = Api::all_with(client.clone(), &write::gateway_class_resource());
        let gateways = Api::all_with(client.clone(), &write::gateway_resource());
        Self {
            class: ObjectWatch::new("GatewayClass", classes, of_class, |class| {
                Some(read_class(class))
            }),
            gateways: ObjectWatch::new("Gateway", gateways, config(), read_gateway),
            namespaces: ObjectWatch::new("Namespace", Api::all(client.clone()), config(), |of| {
                Some(of.metadata.labels.clone().unwrap_or_default())
            }),
            service_accounts: ObjectWatch::new(
                "ServiceAccount",
                Api::all(client.clone()),
                managed(),
                existing_object,
            ),
            services: ObjectWatch::new(
                "Service",
                Api::all(client.clone()),
                managed(),
                existing_service,
            ),
            control_planes: ObjectWatch::new(
                "Service",
                of_control_planes,
                config().labels("app=istiod"),
                |service| ControlPlane::from_labels(service.metadata.labels.as_ref()),
            ),
            deployments: ObjectWatch::new(
                "Deployment",
                Api::all(client.clone()),
                managed(),
                existing_deployment,
            ),
            autoscalers: ObjectWatch::new(
                "HorizontalPodAutoscaler",
                Api::all(client.clone()),
                managed(),
                existing_object,
            ),
            disruption_budgets: ObjectWatch::new(
                "PodDisruptionBudget",
                Api::all(client.clone()),
                managed(),
                existing_object,
            ),
            config_maps: ObjectWatch::new("ConfigMap", Api::all(client.clone()), config(), |map| {
                Some(Parameters::from_config_map(map))
            }),
        }
    }

    /// Applies the next watch event to the table. Returns the kind whose initial list is complete, if any.
    async fn apply_next_event(&mut self, table: &mut GatewayTable) -> Option<&'static str> {
        tokio::select! {
            event = self.class.next() => match event {
                WatchEvent::Object(_, class) => table.set_class(Some(class)),
                WatchEvent::Removed(_) => table.set_class(None),
                WatchEvent::ListCompleted => return Some("class"),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = self.gateways.next() => match event {
                WatchEvent::Object(id, gateway) => table.set_gateway(to_gateway_name(id), Some(*gateway)),
                WatchEvent::Removed(id) => table.set_gateway(to_gateway_name(id), None),
                WatchEvent::ListCompleted => return Some("gateways"),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = self.namespaces.next() => match event {
                WatchEvent::Object(id, labels) => table.set_namespace(id.name, Some(labels)),
                WatchEvent::Removed(id) => table.set_namespace(id.name, None),
                WatchEvent::ListCompleted => return Some("namespaces"),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = self.service_accounts.next() => return handle_object_event(table, WaypointObjectKind::ServiceAccount, event, "accounts"),
            event = self.services.next() => return handle_object_event(table, WaypointObjectKind::Service, event, "services"),
            event = self.control_planes.next() => match event {
                WatchEvent::Object(id, of) => table.set_control_plane(&id.name, Some(of)),
                WatchEvent::Removed(id) => table.set_control_plane(&id.name, None),
                WatchEvent::ListCompleted => return Some("control planes"),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = self.deployments.next() => return handle_object_event(table, WaypointObjectKind::Deployment, event, "deployments"),
            event = self.autoscalers.next() => {
                return handle_object_event(table, WaypointObjectKind::Autoscaler, event, "autoscalers");
            }
            event = self.config_maps.next() => match event {
                WatchEvent::Object(id, parameters) => table.set_config_map(&to_gateway_name(id), Some(parameters)),
                WatchEvent::Removed(id) => table.set_config_map(&to_gateway_name(id), None),
                WatchEvent::ListCompleted => return Some("config maps"),
                WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
            },
            event = self.disruption_budgets.next() => return handle_object_event(table, WaypointObjectKind::DisruptionBudget, event, "budgets"),
        }
        None
    }
}

/// Number of kinds that must be listed before any write, since an object that seems missing may exist.
const LISTED_KIND_COUNT: usize = 10;

fn handle_object_event(
    table: &mut GatewayTable,
    part: WaypointObjectKind,
    event: WatchEvent<ExistingObject>,
    kind_name: &'static str,
) -> Option<&'static str> {
    match event {
        WatchEvent::Object(id, existing) => {
            table.set_object(part, to_gateway_name(id), Some(existing))
        }
        WatchEvent::Removed(id) => table.set_object(part, to_gateway_name(id), None),
        WatchEvent::ListCompleted => return Some(kind_name),
        WatchEvent::ListStarted | WatchEvent::Unavailable(_) => {}
    }
    None
}

fn to_gateway_name(id: ObjectId) -> GatewayName {
    GatewayName {
        namespace: id.namespace,
        name: id.name,
    }
}

fn read_class(class: &DynamicObject) -> GatewayClassState {
    let controller = class
        .data
        .pointer("/spec/controllerName")
        .and_then(Value::as_str);
    let status = class.data.get("status").unwrap_or(&Value::Null);
    let conditions = ambit_k8s_api::status::conditions(status);
    let generation = class.metadata.generation;
    // Conditions of an older generation are written again.
    let current =
        |one: &&Value| one.get("observedGeneration").and_then(Value::as_i64) == generation;
    let conditions: Vec<_> = conditions.iter().filter(current).cloned().collect();
    let is_accepted = conditions.iter().any(|one| {
        let has = |field: &str, value: &str| one.get(field).and_then(Value::as_str) == Some(value);
        has("type", "Accepted") && has("status", "True")
    });
    GatewayClassState {
        controller: controller.unwrap_or_default().to_owned(),
        generation,
        is_accepted,
        release: GatewayApiRelease::from_conditions(&conditions),
    }
}

/// Parses a Gateway; `None` if it is invalid, which the publisher of records reports.
fn read_gateway(object: &DynamicObject) -> Option<Box<Gateway>> {
    let mut value = object.data.clone();
    let fields = value.as_object_mut()?;
    let mut metadata = object.metadata.clone();
    metadata.managed_fields = None;
    fields.insert("metadata".to_owned(), json!(metadata));
    let gateway: Gateway = serde_json::from_value(value).ok()?;
    let stays = metadata.deletion_timestamp.is_none();
    stays.then(|| Box::new(gateway))
}

#[expect(clippy::unnecessary_wraps, reason = "a watch's projection")]
fn existing_object<K: Resource>(object: &K) -> Option<ExistingObject> {
    Some(ExistingObject::from_metadata(object.meta()))
}

fn existing_service(service: &Service) -> Option<ExistingObject> {
    let ips = service
        .spec
        .as_ref()
        .and_then(|spec| spec.cluster_ips.clone());
    let mut ips = ips.unwrap_or_default();
    ips.retain(|ip| ip != "None");
    let balancer = service
        .status
        .as_ref()
        .and_then(|status| status.load_balancer.as_ref());
    let ingress = balancer.and_then(|balancer| balancer.ingress.as_ref());
    let load_balancers = ingress.into_iter().flatten();
    Some(ExistingObject {
        ips,
        load_balancers: load_balancers.filter_map(|one| one.ip.clone()).collect(),
        ..existing_object(service)?
    })
}

fn existing_deployment(deployment: &Deployment) -> Option<ExistingObject> {
    let status = deployment.status.as_ref();
    let ready = status.and_then(|status| status.ready_replicas);
    Some(ExistingObject {
        owns_replicas: gateway_table::owns_replicas(&deployment.metadata),
        replicas: deployment.spec.as_ref().and_then(|spec| spec.replicas),
        is_ready: ready.unwrap_or_default() > 0,
        ..existing_object(deployment)?
    })
}

/// Performs all writes that are due. A failed write becomes due again; the others proceed.
async fn process_due_gateways(
    client: &Client,
    table: &mut GatewayTable,
    is_mesh_leader: bool,
) -> Result<(), kube::Error> {
    let class = match table.class_action().filter(|_| is_mesh_leader) {
        Some(ClassAction::Create) => write::create_class(client).await,
        Some(ClassAction::Accept(release, generation)) => {
            write::accept_class(client, release, generation).await
        }
        None => Ok(()),
    };
    let mut failed = class.err();
    for name in table.take_due_gateways() {
        let Some(plan) = table.plan(&name) else {
            continue;
        };
        if let Err(error) = apply_plan(client, table, &name, plan).await {
            // The object was deleted meanwhile, as the watch will report.
            if !is_api_status(&error, 404) {
                table.requeue(name);
                if failed
                    .as_ref()
                    .is_none_or(|error| is_api_status(error, 409))
                {
                    failed = Some(error);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

fn is_api_status(error: &kube::Error, code: u16) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == code)
}

async fn apply_plan(
    client: &Client,
    table: &GatewayTable,
    name: &GatewayName,
    plan: DeploymentPlan,
) -> Result<(), kube::Error> {
    let state: GatewayState = match plan {
        DeploymentPlan::Undeploy(removals) => {
            return write::undeploy_waypoint(client, name, &removals).await;
        }
        DeploymentPlan::WriteStatus(state) => state,
        DeploymentPlan::Apply(writes, removals) => {
            let mut taken = write::apply_objects(client, name, &writes).await?;
            if taken.is_none() {
                write::remove_objects(client, name, &removals).await?;
                if removals
                    .iter()
                    .any(|of| of.object_kind == WaypointObjectKind::Autoscaler)
                {
                    // While the old object existed, it may have undone the number of pods.
                    let mut again = writes;
                    again.retain(|write| {
                        write.object_kind == WaypointObjectKind::Deployment && !write.is_new
                    });
                    for write in &mut again {
                        write.required_version = None;
                    }
                    taken = write::apply_objects(client, name, &again).await?;
                }
            }
            taken.unwrap_or_else(|| GatewayState::Deployed(table.progress(name)))
        }
    };
    match table.status(name, &state) {
        Some(status) => write::apply_status(client, name, &status).await,
        None => Ok(()),
    }
}
