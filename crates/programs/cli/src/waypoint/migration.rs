//! Selection of the layer 4 policies to migrate, since a waypoint makes them ineffective.

use ambit_k8s_api::Service;
use serde_json::Value;

use super::{
    args::{ApplyArgs, ServedTraffic},
    moot::{self, Migration, Moot},
};
use crate::{CliError, ErrorKind, install::progress};

impl ApplyArgs {
    /// Returns the policies to migrate before the waypoint is created; an error if some become ineffective and no flag
    /// decides about them.
    pub(super) fn migrations(
        &self,
        policies: &[Value],
        services: &[Service],
        trust_domain: &str,
    ) -> Result<Vec<(Moot, Migration)>, CliError> {
        if self.made.serves == Some(ServedTraffic::None) {
            return Ok(Vec::new());
        }
        let waypoint = moot::Waypoint {
            trust_domain,
            root_namespace: &self.made.place.target.mesh_namespace,
            namespace: self.made.place.namespace(),
            name: &self.made.name,
        };
        let found = moot::find(policies, services, &waypoint);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let lines: Vec<_> = found.iter().map(Moot::line).collect();
        let what = format!(
            "pods of the namespace {} will see the waypoint as the caller, and layer 4 policies name callers:\n{}",
            waypoint.namespace,
            lines.join("\n")
        );
        if self.consent.allow_moot_policies {
            progress(&format!("warning: {what}"));
            return Ok(Vec::new());
        }
        if !self.consent.migrate_policies {
            return Err(CliError::new(ErrorKind::Failed, what)
                .hint("--migrate-policies attaches copies of them to the waypoint, and admits the waypoint to the pods")
                .hint("--allow-moot-policies goes on without"));
        }
        let migrated = found.into_iter().map(|moot| match moot.migration.clone() {
            Ok(migration) => Ok((moot, migration)),
            Err(why) => Err(unmigratable(&moot.policy, &why)),
        });
        migrated.collect()
    }
}

/// Creates the error for a policy that cannot be migrated.
pub(super) fn unmigratable(policy: &str, why: &str) -> CliError {
    let what = format!("the AuthorizationPolicy {policy} cannot be migrated: {why}");
    CliError::new(ErrorKind::Failed, what)
        .hint("nothing was changed; attach one to the waypoint by targetRefs, and name the waypoint's principal in this one")
}
