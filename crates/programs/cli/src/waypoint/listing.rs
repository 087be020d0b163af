//! Lists of the waypoints of a lab or cluster.

use serde_json::Value;

use super::{
    args::{ListArgs, WaypointScope},
    gateway::GatewayObject,
    in_cluster, in_lab,
};
use crate::{CliError, ErrorKind, cluster::block_on};

impl WaypointScope {
    /// Lists the waypoints of the namespace, or of all, including those of other controllers.
    pub(crate) fn list_waypoints(
        &self,
        all_namespaces: bool,
    ) -> Result<Vec<GatewayObject>, CliError> {
        let all = match self.lab() {
            Some(lab) => in_lab::list_gateways(&lab)?,
            None => block_on(in_cluster::list_gateways(&self.target))?,
        };
        let here =
            |gateway: &GatewayObject| all_namespaces || gateway.namespace() == self.namespace();
        let is_one = |one: &GatewayObject| one.is_waypoint() || one.is_foreign_waypoint();
        Ok(sorted_waypoints(all, |gateway| {
            is_one(gateway) && here(gateway)
        }))
    }
}

impl ListArgs {
    /// Lists the selected waypoints, or those with this name; an error if none has it.
    pub(super) fn list_named(&self, name: Option<&str>) -> Result<Vec<GatewayObject>, CliError> {
        let mut found = self.list_waypoints()?;
        if let Some(name) = name {
            found.retain(|gateway| gateway.name() == name);
            if found.is_empty() {
                return Err(not_found_error(name, &self.place));
            }
        }
        Ok(found)
    }

    pub(super) fn list_waypoints(&self) -> Result<Vec<GatewayObject>, CliError> {
        self.place.list_waypoints(self.lists_all_namespaces())
    }
}

/// Creates the error for a waypoint that does not exist.
pub(super) fn not_found_error(name: &str, scope: &WaypointScope) -> CliError {
    let what = match &scope.namespace {
        Some(namespace) => format!("there is no waypoint {name} in the namespace {namespace}"),
        None => format!("there is no waypoint {name}"),
    };
    CliError::new(ErrorKind::NotFound, what).with_hint("`ambit waypoint list -A` lists all")
}

/// Returns the Gateways that `is_listed` accepts, sorted by namespace and name.
pub(super) fn sorted_waypoints(
    gateways: Vec<Value>,
    is_listed: impl Fn(&GatewayObject) -> bool,
) -> Vec<GatewayObject> {
    let mut found: Vec<_> = gateways.into_iter().map(GatewayObject::new).collect();
    found.retain(is_listed);
    found.sort_by_key(|gateway| (gateway.namespace().to_owned(), gateway.name().to_owned()));
    found
}
