//! Plugins of waypoints, as they are sent.

use ambit_model as model;

use super::waypoint::optional;
use crate::ambit as wire;

/// Type URL of the plugins of waypoints.
pub const WAYPOINT_PLUGIN_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointExtension";

impl From<&model::WaypointExtension> for wire::WaypointExtension {
    fn from(from: &model::WaypointExtension) -> Self {
        let phase = match from.phase {
            model::ExtensionPhase::Authn => wire::ExtensionPhase::Authn,
            model::ExtensionPhase::Authz => wire::ExtensionPhase::Authz,
            model::ExtensionPhase::Stats => wire::ExtensionPhase::Stats,
            model::ExtensionPhase::Unspecified => wire::ExtensionPhase::UnspecifiedPhase,
        };
        let environment = from.environment.iter();
        Self {
            namespace: from.namespace.to_string(),
            name: from.name.to_string(),
            for_gateway: from.for_gateway,
            services: from.services.iter().map(Into::into).collect(),
            phase: phase.into(),
            priority: from.priority,
            created: from.created.to_string(),
            url: from.url.to_string(),
            sha256: from.sha256.to_string(),
            always_pull: from.always_pull,
            pull_secret: from.pull_secret.clone().into(),
            fail_open: from.fail_open,
            plugin_name: from.plugin_name.to_string(),
            configuration: from.configuration.to_string(),
            environment: environment
                .map(|(name, value)| wire::ExtensionVariable {
                    name: name.to_string(),
                    value: value.to_string(),
                })
                .collect(),
            ports: from.ports.iter().map(|port| (*port).into()).collect(),
            callees: from.callees.iter().map(Into::into).collect(),
            unsupported: optional(from.unsupported.as_ref()),
        }
    }
}
