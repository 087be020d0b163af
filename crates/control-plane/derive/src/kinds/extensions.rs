//! Objects of Ambit's own kinds that routes name in filters of the type `ExtensionRef`.

use ambit_k8s_api::ObjectKey;

use crate::{
    condition::{Standing, Verdict},
    index::Index,
    names::listed,
    relations::references::Edge,
    view::MeshView,
};

/// Marks an object of Ambit's own kinds, and the routes that name it in a filter.
pub(crate) fn mark(index: &mut Index, key: &ObjectKey) {
    index.mark(key.clone());
    index.mark_leading_to(key);
}

/// Returns the state of an object of Ambit's own kinds: the routes that name it in a filter.
pub(crate) fn standing(view: &MeshView, key: &ObjectKey) -> Standing {
    let routes: Vec<String> = view
        .references
        .of(Edge::RouteBackend, key)
        .map(ToString::to_string)
        .collect();
    let verdict = match listed(&routes) {
        Some(routes) => Verdict {
            is_true: true,
            reason: "Used",
            message: format!("named by {routes}"),
            is_trouble: false,
        },
        None => Verdict {
            is_true: false,
            reason: "NotReferenced",
            message: "no route of the namespace that waypoints follow names it".to_owned(),
            is_trouble: true,
        },
    };
    Standing {
        verdict: Some(verdict),
        ..Standing::default()
    }
}
