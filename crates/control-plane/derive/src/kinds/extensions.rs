//! Objects of Ambit's own kinds (`ambit.io`), which routes name in filters of the type `ExtensionRef`.

use ambit_k8s_api::ObjectKey;

use crate::{
    condition::{ConditionContent, DerivedStatus},
    index::Index,
    names::join_names,
    relations::references::ReferenceKind,
    view::MeshView,
};

/// Marks an object of Ambit's own kinds, and the routes that name it in a filter.
pub(crate) fn mark_extension_routes_stale(index: &mut Index, key: &ObjectKey) {
    index.mark_object_stale(key.clone());
    index.mark_backend_routes_stale(key);
}

/// Returns the derived status of an object of Ambit's own kinds: the routes that name it in a filter.
pub(crate) fn derived_status(view: &MeshView, key: &ObjectKey) -> DerivedStatus {
    let routes: Vec<String> = view
        .references
        .referrers(ReferenceKind::RouteBackend, key)
        .map(ToString::to_string)
        .collect();
    let condition = match join_names(&routes) {
        Some(routes) => ConditionContent {
            is_true: true,
            reason: "Used",
            message: format!("named by {routes}"),
            needs_attention: false,
        },
        None => ConditionContent {
            is_true: false,
            reason: "NotReferenced",
            message: "no route of the namespace that waypoints follow names it".to_owned(),
            needs_attention: true,
        },
    };
    DerivedStatus {
        condition: Some(condition),
        ..DerivedStatus::default()
    }
}
