//! Records and status conditions of Gateways that are waypoints.

use std::collections::BTreeMap;

use ambit_k8s_api::{Gateway, ObjectKey};
use ambit_model::{GatewayName, WaypointGateway};
use serde_json::json;

use crate::{
    condition::{
        ConditionType, EFFECTIVE, INTRODUCED, Part, PartsType, REPLACES, Standing, Verdict,
    },
    config::ServicePolicyScope,
    index::{Index, change::Change},
    kinds::{authorization_policy::callers, kind::MeshKind, telemetry, unread},
    objects::{gateway::GatewayInput, inbound_binding},
    pod_directory::PodDirectory,
    relations::references::Edge,
    view::{MeshView, rendered::Rendered},
};

impl MeshKind for Gateway {
    const CONDITIONS: &'static [ConditionType] = &[EFFECTIVE, INTRODUCED, REPLACES];

    const PARTS: Option<PartsType> = Some(PartsType {
        list: "listeners",
        manager: "ambit-listeners",
        is_shared: false,
    });

    fn standing(view: &MeshView, _: &ObjectKey, gateway: &GatewayInput) -> Option<Standing> {
        if !view.is_waypoint(gateway) {
            return Some(Standing::default());
        }
        Some(Standing {
            verdict: Some(Verdict {
                is_true: true,
                reason: "Waypoint",
                message: String::new(),
                is_trouble: false,
            }),
            parts: gateway.listeners.iter().map(judge).collect(),
            introduction: view.introduction_verdict(&gateway.name),
            replaces: view.replaced_verdict(&gateway.name),
        })
    }

    fn changed(index: &mut Index, change: &Change<'_, GatewayInput>, _: &mut PodDirectory) {
        let name = GatewayName::new(change.key.namespace.clone(), change.key.name.clone());
        let of = change.new.map(|one| (one.uid.as_str(), &one.replaced));
        index.view.introductions.follow(&name, of);
        let address = |gateway: Option<&GatewayInput>| gateway.and_then(|one| one.address.clone());
        let (old, new) = (address(change.old), address(change.new));
        index
            .view
            .references
            .replace(Edge::GatewayAddress, change.key, old, new);
        let classes: Vec<_> = change.both().map(|one| one.class.clone()).collect();
        for class in &classes {
            index.mark_gateway(&name, class);
        }
        if index.view.has_telemetry() {
            index.mark_telemetry();
        }
    }

    fn render(view: &MeshView, _: &ObjectKey, gateway: &GatewayInput) -> Rendered {
        let is_waypoint = view.waypoint(&gateway.name).is_some();
        let own = gateway.config.trusted_proxies;
        let record = is_waypoint.then(|| WaypointGateway {
            gateway: gateway.name.clone(),
            path_normalization: view.path_normalization(),
            trusted_proxies: own.unwrap_or_else(|| view.trusted_proxies()),
            client_identity_header: gateway.client_identity_header,
            cluster_addresses: view.cluster_addresses.all(),
            allowed_addresses: view.config.allowed_addresses.clone(),
            services_alone: view.config.service_policy_scope == ServicePolicyScope::Istio,
        });
        let (waypoint_telemetry, of_telemetry) = match is_waypoint {
            true => telemetry::render(view, &gateway.name),
            false => Default::default(),
        };
        let conflicts = is_waypoint.then(|| {
            let mut notes = view.strangers(&gateway.name);
            notes.extend(of_telemetry);
            notes.extend(unread::note(view, &gateway.name));
            notes.extend(callers::gateway_note(view, &gateway.name));
            notes.extend(view.passed_on_nodes(&gateway.name));
            notes.extend(
                gateway
                    .inbound_binding
                    .map(|_| inbound_binding::without_effect()),
            );
            notes
        });
        let mut rendered = Rendered {
            conflicts: conflicts.unwrap_or_default(),
            ..Rendered::default()
        };
        rendered.add(record.map(|one| (gateway.name.clone(), one)));
        let telemetry = waypoint_telemetry.into_iter();
        rendered.add(telemetry.map(|one| (gateway.name.clone(), one)));
        rendered
    }
}

/// Builds the status conditions of a listener, with Istio's reasons.
fn judge((name, is_good): &(String, bool)) -> Part {
    let expected = "a waypoint has exactly one listener, of protocol HBONE and on port 15008";
    let verdict = |is_true: bool, is_trouble: bool, reason: &'static str| Verdict {
        is_true,
        reason,
        message: if is_trouble {
            expected
        } else {
            "No errors found"
        }
        .to_owned(),
        is_trouble,
    };
    let (accepted, programmed) = if *is_good {
        (
            verdict(true, false, "Accepted"),
            verdict(true, false, "Programmed"),
        )
    } else {
        (
            verdict(false, true, "UnsupportedProtocol"),
            verdict(false, true, "Invalid"),
        )
    };
    Part {
        identity: BTreeMap::from([("name", name.as_str().into())]),
        fields: BTreeMap::from([("attachedRoutes", json!(0)), ("supportedKinds", json!([]))]),
        conditions: vec![
            ("Accepted", accepted),
            ("Conflicted", verdict(false, false, "NoConflicts")),
            ("Programmed", programmed),
            ("ResolvedRefs", verdict(true, false, "ResolvedRefs")),
        ],
    }
}
