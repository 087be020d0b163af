//! Secrets: a change marks as stale the WasmPlugins that name the Secret as their `imagePullSecret`.

use ambit_k8s_api::{ObjectKey, Secret};

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    objects::secret::Credentials,
    pod_directory::PodDirectory,
    relations::references::ReferenceKind,
};

impl MeshKind for Secret {
    fn on_change(index: &mut Index, change: &Change<'_, Credentials>, _: &mut PodDirectory) {
        let users: Vec<ObjectKey> = index
            .view
            .references
            .referrers(ReferenceKind::PullSecret, change.key)
            .cloned()
            .collect();
        for user in users {
            index.mark_object_stale(user);
        }
    }
}
