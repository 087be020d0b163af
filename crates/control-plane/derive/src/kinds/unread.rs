//! Objects that have no effect on waypoints, such as EnvoyFilters: the status of waypoints' Gateways reports them.

use std::collections::BTreeSet;

use ambit_k8s_api::{EnvoyFilter, Kind, VirtualService};
use ambit_model::{ArcStr, GatewayName};

use crate::{
    index::{Index, change::Change},
    kinds::kind::MeshKind,
    names::join_names,
    objects::{Objects, route::virtual_service},
    pod_directory::PodDirectory,
    problem::Note,
    relations::references::ReferenceKind,
    view::MeshView,
};

impl MeshKind for EnvoyFilter {
    fn on_change(index: &mut Index, _: &Change<'_, ()>, _: &mut PodDirectory) {
        index.mark_all_gateways_stale();
    }
}

/// Returns the objects of a namespace that have no effect, as text: EnvoyFilters, and VirtualServices for gateways
/// alone.
fn unsupported_objects(namespace: &str, objects: &Objects) -> Vec<String> {
    let filters = objects.all_of_kind::<EnvoyFilter>().keys();
    let filters = filters.map(|name| (Kind::EnvoyFilter, name));
    let routes = objects.all_of_kind::<VirtualService>().iter();
    let routes = routes.filter(|(_, route)| !virtual_service::is_for_mesh(route));
    let routes = routes.map(|(name, _)| (Kind::VirtualService, name));
    let all = filters.chain(routes);
    all.map(|(kind, name)| format!("{kind} {namespace}/{name}"))
        .collect()
}

/// Builds the note on a waypoint's Gateway about objects that have no effect: in its namespace, in the root namespace,
/// and in namespaces whose label, or whose services' labels, name the Gateway. Selectors of these objects are not
/// evaluated.
pub(crate) fn unsupported_objects_note(view: &MeshView, gateway: &GatewayName) -> Option<Note> {
    let mut namespaces: BTreeSet<&ArcStr> =
        [&gateway.namespace, &view.config.root_namespace].into();
    for key in view.references.referrers(ReferenceKind::Waypoint, gateway) {
        match key.kind {
            // They come and go, and are of a namespace that is named or has such services.
            Kind::Pod => {}
            Kind::Namespace => drop(namespaces.insert(&key.name)),
            _ => drop(namespaces.insert(&key.namespace)),
        }
    }
    let of = |namespace: &&ArcStr| Some(unsupported_objects(namespace, view.objects(namespace)?));
    let all: Vec<_> = namespaces.iter().filter_map(of).flatten().collect();
    let message = format!(
        "{}: such objects have no effect on waypoints; use HTTPRoute and its like, DestinationRule, and AuthorizationPolicy with \
         targetRefs",
        join_names(&all)?
    );
    Some(Note::new(".", message))
}
