//! Lists of the waypoints of a lab or cluster.

use serde_json::Value;

use super::{
    args::{ListArgs, Where},
    gateway::Seen,
    in_cluster, in_lab,
};
use crate::{CliError, ErrorKind, cluster::wait};

impl Where {
    /// Lists the waypoints of the namespace, or of all, including those of other controllers.
    pub(crate) fn found(&self, everywhere: bool) -> Result<Vec<Seen>, CliError> {
        let all = match self.lab() {
            Some(lab) => in_lab::gateways(&lab)?,
            None => wait(in_cluster::gateways(&self.target))?,
        };
        let here = |gateway: &Seen| everywhere || gateway.namespace() == self.namespace();
        let is_one = |one: &Seen| one.is_waypoint() || one.is_foreign_waypoint();
        Ok(sorted(all, |gateway| is_one(gateway) && here(gateway)))
    }
}

impl ListArgs {
    /// Lists the selected waypoints, or those with this name; an error if none has it.
    pub(super) fn named(&self, name: Option<&str>) -> Result<Vec<Seen>, CliError> {
        let mut found = self.found()?;
        if let Some(name) = name {
            found.retain(|gateway| gateway.name() == name);
            if found.is_empty() {
                return Err(absent(name, &self.place));
            }
        }
        Ok(found)
    }

    pub(super) fn found(&self) -> Result<Vec<Seen>, CliError> {
        self.place.found(self.everywhere())
    }
}

/// Creates the error for a waypoint that does not exist.
pub(super) fn absent(name: &str, place: &Where) -> CliError {
    let what = match &place.namespace {
        Some(namespace) => format!("there is no waypoint {name} in the namespace {namespace}"),
        None => format!("there is no waypoint {name}"),
    };
    CliError::new(ErrorKind::NotFound, what).hint("`ambit waypoint list -A` lists all")
}

/// Returns the Gateways that `is_listed` accepts, sorted by namespace and name.
pub(super) fn sorted(all: Vec<Value>, is_listed: impl Fn(&Seen) -> bool) -> Vec<Seen> {
    let mut found: Vec<_> = all.into_iter().map(Seen::new).collect();
    found.retain(is_listed);
    found.sort_by_key(|gateway| (gateway.namespace().to_owned(), gateway.name().to_owned()));
    found
}
