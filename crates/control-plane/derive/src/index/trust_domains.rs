//! Marks policies as stale after a change of the names of the mesh's trust domain.

use ambit_k8s_api::{AuthorizationPolicy, Kind, ObjectKey};

use crate::index::Index;

impl Index {
    /// Marks as stale the policies that compare principals, after a change of the names of the mesh's trust domain.
    pub(crate) fn mark_principal_policies_stale(&mut self) {
        let mut all = Vec::new();
        for (namespace, objects) in self.view.all_objects() {
            for (name, policy) in objects.all_of_kind::<AuthorizationPolicy>() {
                let key =
                    ObjectKey::new(Kind::AuthorizationPolicy, namespace.clone(), name.clone());
                let attached = policy.attached.as_ref();
                let targets = attached.map(|one| one.targets.0.clone());
                all.push((key, targets.unwrap_or_default()));
            }
        }
        for (key, targets) in all {
            self.mark_object_stale(key.clone());
            // Their pods' records name the callers that rules of waypoints concern.
            self.update_policy_targets(&key, targets.clone(), targets);
        }
    }
}
