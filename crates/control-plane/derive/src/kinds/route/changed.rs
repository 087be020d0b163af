//! Marks as stale the objects that depend on a route.

use ambit_k8s_api::ObjectKey;
use ambit_model::ArcStr;

use crate::{
    index::{Index, change::Change},
    objects::route::input::RouteInput,
    relations::references::ReferenceKind,
};

/// Updates the relations of a changed route, and marks as stale the records that depend on it.
pub(crate) fn on_change(index: &mut Index, change: &Change<'_, RouteInput>) {
    let targets = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
        let parents = route.into_iter().flat_map(|route| &route.parents);
        parents.map(|parent| parent.target.clone()).collect()
    };
    let backends = |route: Option<&RouteInput>| -> Vec<ObjectKey> {
        let targets = route.into_iter().flat_map(RouteInput::referenced_objects);
        targets.cloned().collect()
    };
    let hosts = |route: Option<&RouteInput>| -> Vec<ArcStr> {
        let hosts = route.into_iter().flat_map(RouteInput::referenced_hosts);
        hosts.cloned().collect()
    };
    let (old, new) = (targets(change.old), targets(change.new));
    // Hosts mark the routes of their services, too: the conditions of one depend on the others.
    for target in old.iter().chain(&new) {
        index.mark_object_hosts_stale(target);
    }
    let key = change.key;
    index.mark_object_stale(key.clone());
    index
        .view
        .references
        .replace(ReferenceKind::RouteParent, key, old, new);
    let (old, new) = (backends(change.old), backends(change.new));
    for backend in old.iter().chain(&new) {
        index.mark_destinations_stale(backend);
        if backend.kind.group() == ambit_k8s_api::ambit::GROUP {
            // Its conditions list the routes that name it.
            index.mark_object_stale(backend.clone());
        }
    }
    index
        .view
        .references
        .replace(ReferenceKind::RouteBackend, key, old, new);
    let (old, new) = (hosts(change.old), hosts(change.new));
    for host in old.iter().chain(&new) {
        index.mark_host_rules_stale(host);
        index.mark_only_host_stale(host.clone());
    }
    index
        .view
        .references
        .replace(ReferenceKind::RouteHost, key, old, new);
}
