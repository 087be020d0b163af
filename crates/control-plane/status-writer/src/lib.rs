//! Writes status conditions and events of objects. Only the leader of the mesh writes, which may be of
//! another revision than the control plane that runs a waypoint.
//!
//! `ambit_derive` computes the desired conditions of an object; [`StatusTable`] compares them with the
//! published ones. Pods and namespaces get no conditions.
//!
//! | object | condition | reasons |
//! |---|---|---|
//! | AuthorizationPolicy | `ZtunnelAccepted` | True: `Accepted`, `UnsupportedValue` (a part of the policy is in force). False: `UnsupportedValue` and `Invalid` (no part is in force), `Outdated` (the last valid version, or a denial of everything, is in force) |
//! | AuthorizationPolicy with targetRefs | `WaypointAccepted` | True: `Accepted`, `PartiallyInvalid` (only a part of the policy, or only some of its targets). False: `AncestorNotBound` (the targets have no waypoint), `TargetNotFound`, `Invalid` |
//! | PeerAuthentication | `ZtunnelAccepted` | as above |
//! | ServiceEntry, WorkloadEntry that are ignored, or used only in part | `ambit.io/Used` | False: `PartlyUsed`, `NotUsed` |
//! | HTTPFault | `ambit.io/Used` | True: `Used`, `PartiallyInvalid`. False: `NotReferenced`, `Invalid` |
//! | RateLimit | `WaypointAccepted` | True: `Accepted`, `PartiallyInvalid` (only some of its targets, or no rate-limit service). False: `NoTargets`, `AncestorNotBound`, `TargetNotFound`, `Invalid` |
//! | Service, ServiceEntry, WorkloadEntry that have or name a waypoint, or whose namespace names one | `istio.io/WaypointBound` | True: `WaypointAccepted`. False: `Waiting` (the waypoint has never been ready), `NoReadyWaypoint`, `WaypointIsNotReady`, `AttachmentDenied`, `UnsupportedTrafficType`, `CanaryInvalidWeight`, `CanarySameAsPrimary` |
//! | Gateway of a waypoint with settings, pods or other objects without the effect that their authors may expect | `ambit.io/Effective` | False: `PartlyUsed`, `NotUsed` |
//! | Gateway of a waypoint | `ambit.io/Introduced` | True: `Introduced` (the waypoint has been ready). False: `Waiting` (until it is ready, traffic of objects that name it does not pass it), `Strict` (until it is ready, their traffic is rejected) |
//! | Gateway of a waypoint that replaces others | `ambit.io/Replaces` | True: `Waiting` (the objects in the message keep another waypoint until this one is ready; control planes read the condition at their start) |
//! | listeners of a waypoint's Gateway | `Accepted`, `Conflicted`, `Programmed`, `ResolvedRefs` | as the Gateway API has them |
//! | HTTPRoute, GRPCRoute, TLSRoute, TCPRoute, for each parent that is a service | `Accepted` | True: `Accepted`. False: `NoMatchingParent`, `IncompatibleFilters`, `UnsupportedValue`, `Conflicted` (another route applies there), `UnsupportedProtocol` (the ports have another protocol) |
//! | | `ResolvedRefs` | True: `ResolvedRefs`. False: `BackendNotFound`, `FilterNotFound`, `InvalidKind`, `RefNotPermitted` |
//! | | `ResolvedWaypoints` | True: `ResolvedWaypoints`. False: `NoWaypoint` |
//! | BackendTLSPolicy, for each waypoint that connects to a target, and each target without such a waypoint | `Accepted` | True: `Accepted`. False: `TargetNotFound`, `NoValidCACertificate`, `Invalid`, `Conflicted` |
//! | | `ResolvedRefs` | True: `ResolvedRefs`. False: `InvalidCACertificateRef`, `InvalidKind` |

#![forbid(unsafe_code)]

mod addresses;
mod report;
mod status_list;
mod table;

use ambit_kube_kit::{apply, events};
use ambit_rt::DrainWatcher;
use kube::Client;
use tokio::sync::{mpsc, watch};

pub use addresses::ServiceEntryAddresses;
pub use report::{ObservedObject, Report, StatusFacts, has_status};
pub use table::{StatusTable, StatusWrites};

/// Name under which the controller reports events.
const CONTROLLER: &str = "ambit-control";

/// Starts to write reported status conditions while this replica is the leader of the mesh; ends with the drain.
///
/// `replica` is the name of this replica in events; `is_mesh_leader` is true while this replica is the leader of the
/// whole mesh.
pub fn start(
    client: Client,
    replica: String,
    is_mesh_leader: watch::Receiver<bool>,
    drain: &DrainWatcher,
) -> mpsc::UnboundedSender<Report> {
    let (reports, taken) = mpsc::unbounded_channel();
    let (desired_writes, queued_writes) = mpsc::unbounded_channel();
    let (events, queued_events) = mpsc::unbounded_channel();
    ambit_rt::spawn(
        "status",
        apply::run_status_writer(client.clone(), queued_writes),
    );
    ambit_rt::spawn("events", async move {
        events::run_event_recorder(client, CONTROLLER, &replica, queued_events).await;
    });
    ambit_rt::spawn(
        "status book",
        run_status_table(taken, is_mesh_leader, desired_writes, events, drain.clone()),
    );
    reports
}

async fn run_status_table(
    mut reports: mpsc::UnboundedReceiver<Report>,
    mut is_leader: watch::Receiver<bool>,
    desired_writes: mpsc::UnboundedSender<apply::DesiredWrite>,
    events: mpsc::UnboundedSender<events::EventRecord>,
    mut drain: DrainWatcher,
) {
    let mut table = StatusTable::default();
    loop {
        let out = tokio::select! {
            report = reports.recv() => match report {
                Some(report) => table.apply(report),
                None => return,
            },
            Ok(()) = is_leader.changed() => {
                let is_leader = *is_leader.borrow_and_update();
                table.set_leader(is_leader)
            }
            _ = drain.wait_until_started() => return,
        };
        // Sending fails only when the process ends.
        for write in out.desired_writes {
            desired_writes.send(write).ok();
        }
        for event in out.events {
            events.send(event).ok();
        }
    }
}
