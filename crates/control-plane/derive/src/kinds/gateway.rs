//! Records and status conditions of Gateways that are waypoints.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, ObjectKey};
use ambit_model::{GatewayName, WaypointGateway};
use serde_json::json;

use crate::{
    condition::{
        ConditionContent, ConditionType, DerivedStatus, GATEWAY_EFFECTIVE, GATEWAY_REPLACES,
        StatusEntry, StatusListType, WAYPOINT_INTRODUCED,
    },
    config::ServicePolicyScope,
    index::{Index, change::Change},
    kinds::{authorization_policy::callers, kind::MeshKind, telemetry, unread},
    objects::{gateway::GatewayInput, inbound_binding},
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
    view::{MeshView, rendered::RenderedRecords},
};

impl MeshKind for Gateway {
    const CONDITIONS: &'static [ConditionType] =
        &[GATEWAY_EFFECTIVE, WAYPOINT_INTRODUCED, GATEWAY_REPLACES];

    const STATUS_LIST: Option<StatusListType> = Some(StatusListType {
        list: "listeners",
        manager: "ambit-listeners",
        is_shared: false,
    });

    fn derived_status(
        view: &MeshView,
        _: &ObjectKey,
        gateway: &GatewayInput,
    ) -> Option<DerivedStatus> {
        if !view.is_waypoint(gateway) {
            return Some(DerivedStatus::default());
        }
        Some(DerivedStatus {
            condition: Some(ConditionContent {
                is_true: true,
                reason: "Waypoint",
                message: String::new(),
                needs_attention: false,
            }),
            entries: gateway.listeners.iter().map(listener_status).collect(),
            introduced_condition: view.introduced_condition(&gateway.name),
            replaces_condition: view.replaces_condition(&gateway.name),
        })
    }

    fn on_change(index: &mut Index, change: &Change<'_, GatewayInput>, _: &mut PodDirectory) {
        let name = GatewayName::new(change.key.namespace.clone(), change.key.name.clone());
        let of = change
            .new
            .map(|one| (one.uid.as_str(), &one.previous_waypoints));
        index.view.introductions.update_gateway(&name, of);
        let address = |gateway: Option<&GatewayInput>| gateway.and_then(|one| one.address.clone());
        let (old, new) = (address(change.old), address(change.new));
        index
            .view
            .references
            .replace(ReferenceKind::GatewayAddress, change.key, old, new);
        let classes: Vec<_> = change
            .both_versions()
            .map(|one| one.class.clone())
            .collect();
        for class in &classes {
            index.mark_gateway_dependents_stale(&name, class);
        }
        if index.view.has_telemetry() {
            index.mark_all_telemetry_stale();
        }
    }

    fn render(view: &MeshView, _: &ObjectKey, gateway: &GatewayInput) -> RenderedRecords {
        let is_waypoint = view.waypoint(&gateway.name).is_some();
        let own = gateway.proxy_config.trusted_proxies;
        let record = is_waypoint.then(|| WaypointGateway {
            gateway: gateway.name.clone(),
            path_normalization: view.path_normalization(),
            trusted_proxies: own.unwrap_or_else(|| view.trusted_proxies()),
            client_identity_header: gateway.sends_client_identity_header,
            cluster_addresses: view.cluster_addresses.all(),
            allowed_addresses: view.config.allowed_addresses.clone(),
            policies_only_for_services: view.config.service_policy_scope
                == ServicePolicyScope::ServiceOnly,
        });
        let (waypoint_telemetry, of_telemetry) = match is_waypoint {
            true => telemetry::render(view, &gateway.name),
            false => Default::default(),
        };
        let conflicts = is_waypoint.then(|| {
            let mut notes = view.mismatched_workload_notes(&gateway.name);
            notes.extend(of_telemetry);
            notes.extend(unread::unsupported_objects_note(view, &gateway.name));
            notes.extend(callers::gateway_note(view, &gateway.name));
            notes.extend(view.bypassable_nodes_note(&gateway.name));
            notes.extend(
                gateway
                    .inbound_binding
                    .map(|_| inbound_binding::no_effect_note()),
            );
            notes
        });
        let mut rendered = RenderedRecords {
            conflicts: conflicts.unwrap_or_default(),
            ..RenderedRecords::default()
        };
        rendered.add_waypoint_records(record.map(|one| (gateway.name.clone(), one)));
        let telemetry = waypoint_telemetry.into_iter();
        rendered.add_waypoint_records(telemetry.map(|one| (gateway.name.clone(), one)));
        rendered
    }
}

/// Builds the status entry of a listener, whose conditions have Istio's reasons.
fn listener_status((name, is_good): &(String, bool)) -> StatusEntry {
    let expected = "a waypoint has exactly one listener, of protocol HBONE and on port 15008";
    let condition = |is_true: bool, needs_attention: bool, reason: &'static str| ConditionContent {
        is_true,
        reason,
        message: if needs_attention {
            expected
        } else {
            "No errors found"
        }
        .to_owned(),
        needs_attention,
    };
    let (accepted, programmed) = if *is_good {
        (
            condition(true, false, "Accepted"),
            condition(true, false, "Programmed"),
        )
    } else {
        (
            condition(false, true, "UnsupportedProtocol"),
            condition(false, true, "Invalid"),
        )
    };
    StatusEntry {
        identity: BTreeMap::from([("name", name.as_str().into())]),
        other_fields: BTreeMap::from([("attachedRoutes", json!(0)), ("supportedKinds", json!([]))]),
        conditions: vec![
            ("Accepted", accepted),
            ("Conflicted", condition(false, false, "NoConflicts")),
            ("Programmed", programmed),
            ("ResolvedRefs", condition(true, false, "ResolvedRefs")),
        ],
    }
}
