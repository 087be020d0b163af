//! Status condition `WaypointBound`: the waypoint of a service or workload, or the reason why it has none.

use std::collections::BTreeSet;

use ambit_k8s_api::labels;
use ambit_model::GatewayName;

use crate::{
    condition::{Standing, Verdict},
    config::WaypointMissing,
    names::{listed, names},
    view::{
        MeshView,
        attachment::{Attachment, Obstacle, Origin},
        foreign::Foreign,
    },
};

impl MeshView {
    /// Builds the condition `WaypointBound` of a service or workload from its attachment; `of_endpoints` are the
    /// waypoints of a service's endpoints.
    pub(crate) fn bound(
        &self,
        attachment: Option<&Attachment>,
        of_endpoints: &BTreeSet<GatewayName>,
    ) -> Standing {
        let verdict = match attachment {
            Some(attachment) => Some(self.attached(attachment)),
            None => self.through_endpoints(of_endpoints),
        };
        Standing {
            verdict,
            ..Standing::default()
        }
    }

    /// Builds the condition of a service without a common waypoint whose endpoints have waypoints; `None` if they have
    /// none.
    fn through_endpoints(&self, waypoints: &BTreeSet<GatewayName>) -> Option<Verdict> {
        let all = names(waypoints)?;
        let without = waypoints.iter().filter(|one| !self.is_ready(one));
        Some(names(without).map_or_else(
            || Verdict {
                is_true: true,
                reason: "WaypointAccepted",
                message: format!("each endpoint is reached through its own waypoint: {all}"),
                is_trouble: false,
            },
            |names| not_ready(&names, ""),
        ))
    }

    fn attached(&self, attachment: &Attachment) -> Verdict {
        let GatewayName { namespace, name } = &attachment.gateway;
        if let Some(awaited) = &attachment.awaited {
            return waiting(awaited, attachment);
        }
        let Err(obstacle) = attachment.outcome else {
            if let Some(foreign) = &attachment.foreign {
                return self.attached_to_foreign(&attachment.gateway, foreign);
            }
            if !self.is_ready(&attachment.gateway) {
                let gateway = &attachment.gateway;
                return not_ready(&gateway.to_string(), self.strictness(gateway));
            }
            return Verdict {
                is_true: true,
                reason: "WaypointAccepted",
                message: format!("Successfully attached to waypoint {namespace}/{name}"),
                is_trouble: false,
            };
        };
        let (reason, why) = match obstacle {
            Obstacle::Missing => ("WaypointIsNotReady", "there is no such Gateway"),
            Obstacle::NoAddress => (
                "WaypointIsNotReady",
                "the Gateway is another controller's, which has given it no address in its status",
            ),
            Obstacle::NameTaken => (
                "WaypointIsNotReady",
                "a Service that was not made for the Gateway, or the account default, has its name: rename the Gateway",
            ),
            Obstacle::Unusable => (
                "WaypointIsNotReady",
                "the Gateway cannot be used as it is written",
            ),
            Obstacle::NotPermitted => (
                "AttachmentDenied",
                "allowedRoutes of the Gateway's HBONE listener do not allow this namespace",
            ),
            Obstacle::UnsupportedType | Obstacle::NotServed => (
                "UnsupportedTrafficType",
                "the Gateway's label istio.io/waypoint-for does not include such objects",
            ),
            Obstacle::Waiting => ("Waiting", "the waypoint has not been ready yet"),
        };
        let consequence = match obstacle {
            Obstacle::NotServed | Obstacle::Waiting => "traffic goes without it",
            _ if self.config.waypoint_missing == WaypointMissing::Allow => {
                "traffic goes without one"
            }
            _ => "connections are refused",
        };
        let label = labels::USE_WAYPOINT;
        let by = match attachment.origin {
            Origin::Own => format!("label {label} names"),
            Origin::Namespace => format!("its namespace's label {label} names"),
            Origin::Gateway => "its namespace has the waypoint".to_owned(),
        };
        Verdict {
            is_true: false,
            reason,
            message: format!("{by} {namespace}/{name}: {why}; {consequence}"),
            is_trouble: true,
        }
    }

    /// Builds the condition of an object that is attached to another controller's waypoint.
    fn attached_to_foreign(&self, gateway: &GatewayName, foreign: &Foreign) -> Verdict {
        let Foreign { class, at } = foreign;
        let accounts = self.instances.accounts(gateway);
        let accounts: Vec<String> = accounts.iter().map(ToString::to_string).collect();
        if !self.is_foreign_ready(gateway) {
            return not_ready(&gateway.to_string(), "");
        }
        let GatewayName { namespace, name } = gateway;
        let label = labels::GATEWAY_NAME;
        let trusted = listed(&accounts).map_or_else(
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
        Verdict {
            is_true: true,
            reason: "WaypointAccepted",
            message: format!(
                "Successfully attached to waypoint {gateway}, which is at {at} and not run by this control plane \
                 (class {class}); {trusted}"
            ),
            is_trouble: false,
        }
    }
}

/// Builds the condition of an object whose label names a waypoint that has never been ready: its traffic takes the same
/// route as before.
fn waiting(awaited: &GatewayName, attachment: &Attachment) -> Verdict {
    let meanwhile = match attachment.outcome {
        Ok(_) => format!("through the waypoint {}", attachment.gateway),
        Err(_) => "to pods directly".to_owned(),
    };
    Verdict {
        is_true: false,
        reason: "Waiting",
        message: format!(
            "the waypoint {awaited} has not been ready yet; traffic goes {meanwhile} until it is"
        ),
        is_trouble: true,
    }
}

/// Builds the condition for waypoints without a ready pod: clients refuse connections until one is ready.
fn not_ready(names: &str, why: &str) -> Verdict {
    Verdict {
        is_true: false,
        reason: "NoReadyWaypoint",
        message: format!(
            "no pod of the waypoint {names} is ready (scaled to zero, starting or failing); connections through it \
             are refused until one is{why}"
        ),
        is_trouble: true,
    }
}
