//! What operators see on their objects: status conditions and events. Written by the leader of the mesh
//! only, which may be of another revision than the control plane that runs a waypoint.
//!
//! `ambit_derive` computes the desired conditions of an object; [`book`] compares them with the published ones. Nothing
//! is written on pods or namespaces.
//!
//! | object | condition | reasons |
//! |---|---|---|
//! | AuthorizationPolicy | `ZtunnelAccepted` | True: `Accepted`, `UnsupportedValue` (a part of it is in force). False: `UnsupportedValue` (nothing is), `Invalid` (nothing is), `Outdated` (something else is: what it said before, or the refusal of everything) |
//! | AuthorizationPolicy with targetRefs | `WaypointAccepted` | True: `Accepted`, `PartiallyInvalid` (a part of it, or at some of its targets). False: `AncestorNotBound` (its targets have no waypoint), `TargetNotFound`, `Invalid` |
//! | PeerAuthentication | `ZtunnelAccepted` | as above |
//! | ServiceEntry, WorkloadEntry that are not used as they are | `ambit.io/Used` | False: `PartlyUsed`, `NotUsed` |
//! | HTTPFault | `ambit.io/Used` | True: `Used`, `PartiallyInvalid`. False: `NotReferenced`, `Invalid` |
//! | RateLimit | `WaypointAccepted` | True: `Accepted`, `PartiallyInvalid` (at some of its targets, or without its rate-limit service). False: `NoTargets`, `AncestorNotBound`, `TargetNotFound`, `Invalid` |
//! | Service, ServiceEntry, WorkloadEntry that have a waypoint or name one, or whose namespace does | `istio.io/WaypointBound` | True: `WaypointAccepted`. False: `Waiting` (the waypoint has never been ready), `NoReadyWaypoint`, `WaypointIsNotReady`, `AttachmentDenied`, `UnsupportedTrafficType`, `CanaryInvalidWeight`, `CanarySameAsPrimary` |
//! | Gateway of a waypoint with settings, pods or other objects that have not the effect one might expect | `ambit.io/Effective` | False: `PartlyUsed`, `NotUsed` |
//! | Gateway of a waypoint | `ambit.io/Introduced` | True: `Introduced` (it has been ready). False: `Waiting` (what names it goes without it until it is ready), `Strict` (is refused until it is ready) |
//! | Gateway of a waypoint that others are to give way to | `ambit.io/Replaces` | True: `Waiting` (what the message names keeps another waypoint until this one is ready; read back by control planes that start) |
//! | listeners of a waypoint's Gateway | `Accepted`, `Conflicted`, `Programmed`, `ResolvedRefs` | as the Gateway API has them |
//! | HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, for each parent that is a service | `Accepted` | True: `Accepted`. False: `NoMatchingParent`, `IncompatibleFilters`, `UnsupportedValue`, `Conflicted` (another route is followed there), `UnsupportedProtocol` (by what the ports speak) |
//! | | `ResolvedRefs` | True: `ResolvedRefs`. False: `BackendNotFound`, `FilterNotFound`, `InvalidKind`, `RefNotPermitted` |
//! | | `ResolvedWaypoints` | True: `ResolvedWaypoints`. False: `NoWaypoint` |
//! | BackendTLSPolicy, for each waypoint that reaches a target, and each target that none reaches | `Accepted` | True: `Accepted`. False: `TargetNotFound`, `NoValidCACertificate`, `Invalid`, `Conflicted` |
//! | | `ResolvedRefs` | True: `ResolvedRefs`. False: `InvalidCACertificateRef`, `InvalidKind` |

pub mod addresses;
mod book;
mod parts;

use ambit_derive::{Problem, condition::Standing};
use ambit_k8s_api::{Kind, Object, ObjectKey, status::conditions};
use ambit_kube_kit::{apply, events};
use ambit_rt::DrainWatcher;
use serde_json::Value;
use tokio::sync::mpsc;

use crate::environment::Cluster;
pub(crate) use book::Book;

/// The name under which events are written.
const CONTROLLER: &str = "ambit-control";

/// Report on an object, for the writers of conditions.
#[derive(Clone, Debug)]
pub enum Report {
    /// An object was taken in, or could not be.
    Seen(Box<Seen>),
    /// Change of an object's problems, because of other objects.
    Problems(ObjectKey, Vec<Problem>),
    /// Change of an object's state that depends on others.
    Standing(ObjectKey, Standing),
    /// Object that is gone.
    Gone(ObjectKey),
    /// Every object that existed at the start was reported.
    Complete,
}

/// An object and what became of it.
#[derive(Clone, Debug)]
pub struct Seen {
    /// Key of the object.
    pub key: ObjectKey,
    /// All its fields in the API.
    pub facts: Facts,
    /// Problems of the object.
    pub problems: Vec<Problem>,
    /// Whether the problems are others than before.
    pub is_news: bool,
    /// Of a policy: whether any of it is in force.
    pub in_force: bool,
    /// State of the object that depends on others; `None` if it is not known yet.
    pub standing: Option<Standing>,
}

/// Facts about an object itself that the writer needs.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Facts {
    /// API version, `group/version`.
    pub api_version: String,
    /// UID of the object.
    pub uid: String,
    /// Counts changes of what is wished.
    pub generation: Option<i64>,
    /// Whether it is attached to other objects, of which waypoints take care.
    pub is_attached: bool,
    /// Its conditions as they stand.
    pub conditions: Vec<Value>,
    /// Conditions of its parts.
    pub parts: Vec<Value>,
    /// The addresses of its hosts: of ServiceEntries.
    pub addresses: addresses::Addresses,
}

/// Whether objects of a kind are of interest here.
pub(crate) fn concerns(kind: Kind) -> bool {
    !ambit_derive::conditions(kind).is_empty() || ambit_derive::parts(kind).is_some()
}

impl Facts {
    /// Facts about an object.
    pub fn of(object: &Object) -> Self {
        let metadata = object.metadata();
        Self {
            api_version: object.status().api_version().to_owned(),
            uid: metadata.uid.clone().unwrap_or_default(),
            generation: metadata.generation,
            is_attached: ambit_derive::is_attached(object),
            conditions: object.status().conditions(),
            parts: parts(
                object.kind(),
                match object {
                    Object::Gateway(gateway) => &gateway.status,
                    Object::HTTPRoute(route) => &route.status,
                    Object::GRPCRoute(route) => &route.status,
                    Object::TLSRoute(route) => &route.status,
                    Object::TCPRoute(route) => &route.status,
                    Object::BackendTLSPolicy(policy) => &policy.status,
                    _ => &Value::Null,
                },
            ),
            addresses: match object {
                Object::ServiceEntry(entry) => addresses::Addresses::of(entry),
                _ => addresses::Addresses::default(),
            },
        }
    }

    /// Facts about an object that cannot be read.
    pub fn of_unreadable(kind: Kind, value: &Value) -> Self {
        let text = |pointer: &str| {
            let value = value.pointer(pointer).and_then(Value::as_str);
            value.unwrap_or_default().to_owned()
        };
        Self {
            api_version: text("/apiVersion"),
            uid: text("/metadata/uid"),
            generation: value
                .pointer("/metadata/generation")
                .and_then(Value::as_i64),
            conditions: value.get("status").map(conditions).unwrap_or_default(),
            parts: value
                .get("status")
                .map(|status| parts(kind, status))
                .unwrap_or_default(),
            ..Self::default()
        }
    }
}

/// The parts in a status that have conditions of their own.
fn parts(kind: Kind, status: &Value) -> Vec<Value> {
    let list = ambit_derive::parts(kind).map(|of| of.list);
    let parts = list.and_then(|list| status.get(list)?.as_array());
    parts.cloned().unwrap_or_default()
}

/// Starts to write reported conditions while this replica is the leader of the mesh; ends with the drain.
pub fn start(cluster: &Cluster, drain: &DrainWatcher) -> mpsc::UnboundedSender<Report> {
    let (reports, taken) = mpsc::unbounded_channel();
    let (wishes, wished) = mpsc::unbounded_channel();
    let (remarks, remarked) = mpsc::unbounded_channel();
    let client = cluster.client.clone();
    ambit_rt::spawn("status", apply::run(client.clone(), wished));
    let name = cluster.name.clone();
    ambit_rt::spawn("events", async move {
        events::run(client, CONTROLLER, &name, remarked).await;
    });
    let leads = cluster.leads_mesh.clone();
    ambit_rt::spawn(
        "status book",
        keep(taken, leads, wishes, remarks, drain.clone()),
    );
    reports
}

async fn keep(
    mut reports: mpsc::UnboundedReceiver<Report>,
    mut leads: tokio::sync::watch::Receiver<bool>,
    wishes: mpsc::UnboundedSender<apply::Wish>,
    remarks: mpsc::UnboundedSender<events::Remark>,
    mut drain: DrainWatcher,
) {
    let mut book = Book::default();
    loop {
        let out = tokio::select! {
            report = reports.recv() => match report {
                Some(report) => book.take(report),
                None => return,
            },
            Ok(()) = leads.changed() => {
                let leads = *leads.borrow_and_update();
                book.lead(leads)
            }
            _ = drain.started() => return,
        };
        // Fails only at the end.
        for wish in out.wishes {
            wishes.send(wish).ok();
        }
        for remark in out.remarks {
            remarks.send(remark).ok();
        }
    }
}
