//! Selects the layer 4 policies to migrate, since a waypoint makes them ineffective.

use ambit_k8s_api::Service;
use serde_json::Value;

use super::{
    args::{ApplyArgs, ServedTraffic},
    ineffective_policies::{self, IneffectivePolicy, PolicyMigration},
};
use crate::{CliError, ErrorKind, install::print_progress};

impl ApplyArgs {
    /// Returns the policies to migrate before the waypoint is created; an error if some become ineffective and no flag
    /// decides about them.
    pub(super) fn migrations(
        &self,
        policies: &[Value],
        services: &[Service],
        trust_domain: &str,
    ) -> Result<Vec<(IneffectivePolicy, PolicyMigration)>, CliError> {
        if self.spec.serves == Some(ServedTraffic::None) {
            return Ok(Vec::new());
        }
        let waypoint = ineffective_policies::Waypoint {
            trust_domain,
            root_namespace: &self.spec.place.target.mesh_namespace,
            namespace: self.spec.place.namespace(),
            name: &self.spec.name,
        };
        let found = ineffective_policies::find_ineffective_policies(policies, services, &waypoint);
        if found.is_empty() {
            return Ok(Vec::new());
        }
        let lines: Vec<_> = found.iter().map(IneffectivePolicy::format_line).collect();
        let what = format!(
            "pods of the namespace {} will see the waypoint as the caller, and layer 4 policies name callers:\n{}",
            waypoint.namespace,
            lines.join("\n")
        );
        if self.consent.allow_moot_policies {
            print_progress(&format!("warning: {what}"));
            return Ok(Vec::new());
        }
        if !self.consent.migrate_policies {
            return Err(CliError::new(ErrorKind::Failed, what)
                .with_hint("--migrate-policies attaches copies of them to the waypoint, and admits the waypoint to the pods")
                .with_hint("--allow-moot-policies goes on without"));
        }
        let migrated = found.into_iter().map(|moot| match moot.migration.clone() {
            Ok(migration) => Ok((moot, migration)),
            Err(why) => Err(unmigratable_error(&moot.policy, &why)),
        });
        migrated.collect()
    }
}

/// Creates the error for a policy that cannot be migrated.
pub(super) fn unmigratable_error(policy: &str, why: &str) -> CliError {
    let what = format!("the AuthorizationPolicy {policy} cannot be migrated: {why}");
    CliError::new(ErrorKind::Failed, what)
        .with_hint("nothing was changed; attach one to the waypoint by targetRefs, and name the waypoint's principal in this one")
}
