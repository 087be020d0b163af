//! Status condition `WaypointBound`: the waypoint of a service or workload, or the reason why it has none.

use std::collections::BTreeSet;

use ambit_k8s_api::labels;
use ambit_model::GatewayName;

use crate::{
    condition::{ConditionContent, DerivedStatus},
    config::WaypointMissing,
    names::{join_gateway_names, join_names},
    view::{
        MeshView,
        attachment::{Attachment, AttachmentError, AttachmentOrigin},
        foreign::ForeignWaypoint,
    },
};

impl MeshView {
    /// Builds the condition `WaypointBound` of a service or workload from its attachment; `of_endpoints` are the
    /// waypoints of a service's endpoints.
    pub(crate) fn bound_status(
        &self,
        attachment: Option<&Attachment>,
        of_endpoints: &BTreeSet<GatewayName>,
    ) -> DerivedStatus {
        let condition = match attachment {
            Some(attachment) => Some(self.attached_condition(attachment)),
            None => self.endpoints_condition(of_endpoints),
        };
        DerivedStatus {
            condition,
            ..DerivedStatus::default()
        }
    }

    /// Builds the condition of a service without a common waypoint whose endpoints have waypoints; `None` if they have
    /// none.
    fn endpoints_condition(&self, waypoints: &BTreeSet<GatewayName>) -> Option<ConditionContent> {
        let all = join_gateway_names(waypoints)?;
        let without = waypoints.iter().filter(|one| !self.is_waypoint_ready(one));
        Some(join_gateway_names(without).map_or_else(
            || ConditionContent {
                is_true: true,
                reason: "WaypointAccepted",
                message: format!("each endpoint is reached through its own waypoint: {all}"),
                needs_attention: false,
            },
            |names| not_ready_condition(&names, ""),
        ))
    }

    fn attached_condition(&self, attachment: &Attachment) -> ConditionContent {
        let GatewayName { namespace, name } = &attachment.gateway;
        if let Some(awaited) = &attachment.awaited_gateway {
            return waiting_condition(awaited, attachment);
        }
        let Err(obstacle) = attachment.outcome else {
            if let Some(foreign) = &attachment.foreign_waypoint {
                return self.foreign_condition(&attachment.gateway, foreign);
            }
            if !self.is_waypoint_ready(&attachment.gateway) {
                let gateway = &attachment.gateway;
                return not_ready_condition(&gateway.to_string(), self.binding_reason(gateway));
            }
            return ConditionContent {
                is_true: true,
                reason: "WaypointAccepted",
                message: format!("Successfully attached to waypoint {namespace}/{name}"),
                needs_attention: false,
            };
        };
        let (reason, why) = match obstacle {
            AttachmentError::MissingGateway => ("WaypointIsNotReady", "there is no such Gateway"),
            AttachmentError::NoAddress => (
                "WaypointIsNotReady",
                "the Gateway is another controller's, which has given it no address in its status",
            ),
            AttachmentError::NameTaken => (
                "WaypointIsNotReady",
                "a Service that was not made for the Gateway, or the account default, has its name: rename the Gateway",
            ),
            AttachmentError::InvalidGateway => (
                "WaypointIsNotReady",
                "the Gateway cannot be used as it is written",
            ),
            AttachmentError::NotPermitted => (
                "AttachmentDenied",
                "allowedRoutes of the Gateway's HBONE listener do not allow this namespace",
            ),
            AttachmentError::UnsupportedType | AttachmentError::NotServed => (
                "UnsupportedTrafficType",
                "the Gateway's label istio.io/waypoint-for does not include such objects",
            ),
            AttachmentError::NeverReady => ("Waiting", "the waypoint has not been ready yet"),
        };
        let consequence = match obstacle {
            AttachmentError::NotServed | AttachmentError::NeverReady => "traffic goes without it",
            _ if self.config.waypoint_missing == WaypointMissing::BypassWaypoint => {
                "traffic goes without one"
            }
            _ => "connections are refused",
        };
        let label = labels::USE_WAYPOINT;
        let by = match attachment.origin {
            AttachmentOrigin::ObjectLabel => format!("label {label} names"),
            AttachmentOrigin::NamespaceLabel => format!("its namespace's label {label} names"),
            AttachmentOrigin::UnlabelledGateway => "its namespace has the waypoint".to_owned(),
        };
        ConditionContent {
            is_true: false,
            reason,
            message: format!("{by} {namespace}/{name}: {why}; {consequence}"),
            needs_attention: true,
        }
    }

    /// Builds the condition of an object that is attached to another controller's waypoint.
    fn foreign_condition(
        &self,
        gateway: &GatewayName,
        foreign: &ForeignWaypoint,
    ) -> ConditionContent {
        let ForeignWaypoint {
            class,
            destination: at,
        } = foreign;
        let accounts = self.instances.accounts(gateway);
        let accounts: Vec<String> = accounts.iter().map(ToString::to_string).collect();
        if !self.is_foreign_ready(gateway) {
            return not_ready_condition(&gateway.to_string(), "");
        }
        let GatewayName { namespace, name } = gateway;
        let label = labels::GATEWAY_NAME;
        let trusted = join_names(&accounts).map_or_else(
            || {
                format!(
                    "no pod of {namespace} carries the label {label}={name}, so that nothing is known to be the \
                     waypoint, and pods behind it are not reached"
                )
            },
            |accounts| {
                format!(
                    "pods of {namespace} with the label {label}={name} are taken for it, and so is whoever else has \
                     one of their accounts: {accounts}"
                )
            },
        );
        ConditionContent {
            is_true: true,
            reason: "WaypointAccepted",
            message: format!(
                "Successfully attached to waypoint {gateway}, which is at {at} and not run by this control plane \
                 (class {class}); {trusted}"
            ),
            needs_attention: false,
        }
    }
}

/// Builds the condition of an object whose label names a waypoint that has never been ready: its traffic takes the same
/// route as before.
fn waiting_condition(awaited: &GatewayName, attachment: &Attachment) -> ConditionContent {
    let meanwhile = match attachment.outcome {
        Ok(_) => format!("through the waypoint {}", attachment.gateway),
        Err(_) => "to pods directly".to_owned(),
    };
    ConditionContent {
        is_true: false,
        reason: "Waiting",
        message: format!(
            "the waypoint {awaited} has not been ready yet; traffic goes {meanwhile} until it is"
        ),
        needs_attention: true,
    }
}

/// Builds the condition for waypoints without a ready pod: clients refuse connections until one is ready.
fn not_ready_condition(names: &str, why: &str) -> ConditionContent {
    ConditionContent {
        is_true: false,
        reason: "NoReadyWaypoint",
        message: format!(
            "no pod of the waypoint {names} is ready (scaled to zero, starting or failing); connections through it \
             are refused until one is{why}"
        ),
        needs_attention: true,
    }
}
