//! What operators see on their objects: status conditions and events. Written by the leader of the mesh
//! only, which may be of another revision than the control plane that runs a waypoint.
//!
//! `ambit_derive` computes the desired conditions of an object; [`StatusTable`] compares them with the published ones. Nothing
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

#![forbid(unsafe_code)]

mod addresses;
mod parts;
mod report;
mod table;

use ambit_kube_kit::{apply, events};
use ambit_rt::DrainWatcher;
use kube::Client;
use tokio::sync::{mpsc, watch};

pub use addresses::Addresses;
pub use report::{Facts, Report, Seen, concerns};
pub use table::{Out, StatusTable};

/// The name under which events are written.
const CONTROLLER: &str = "ambit-control";

/// Starts to write reported conditions while this replica is the leader of the mesh; ends with the drain.
///
/// `replica` is the name of this replica in events; `is_mesh_leader` whether it writes what all revisions share.
pub fn start(
    client: Client,
    replica: String,
    is_mesh_leader: watch::Receiver<bool>,
    drain: &DrainWatcher,
) -> mpsc::UnboundedSender<Report> {
    let (reports, taken) = mpsc::unbounded_channel();
    let (wishes, wished) = mpsc::unbounded_channel();
    let (remarks, remarked) = mpsc::unbounded_channel();
    ambit_rt::spawn("status", apply::run(client.clone(), wished));
    ambit_rt::spawn("events", async move {
        events::run(client, CONTROLLER, &replica, remarked).await;
    });
    ambit_rt::spawn(
        "status book",
        keep(taken, is_mesh_leader, wishes, remarks, drain.clone()),
    );
    reports
}

async fn keep(
    mut reports: mpsc::UnboundedReceiver<Report>,
    mut is_leader: watch::Receiver<bool>,
    wishes: mpsc::UnboundedSender<apply::Wish>,
    remarks: mpsc::UnboundedSender<events::Remark>,
    mut drain: DrainWatcher,
) {
    let mut table = StatusTable::default();
    loop {
        let out = tokio::select! {
            report = reports.recv() => match report {
                Some(report) => table.take(report),
                None => return,
            },
            Ok(()) = is_leader.changed() => {
                let is_leader = *is_leader.borrow_and_update();
                table.set_leader(is_leader)
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
