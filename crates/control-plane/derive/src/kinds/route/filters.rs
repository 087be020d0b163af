//! Resolution of route filters that refer to services and other objects.

use ambit_k8s_api::{HTTPFault, Kind};
use ambit_model::{HttpFilter, HttpMirror};

use crate::{
    kinds::route::{attached::AttachedRoute, references::UnresolvedReference},
    objects::route::{extension::ExtensionFilterInput, filters::FilterInput, mirrors::MirrorInput},
    view::MeshView,
};

impl MirrorInput {
    /// Resolves the mirror for requests to a parent; `None` if its service cannot be used.
    pub(crate) fn resolve(&self, view: &MeshView, route: AttachedRoute<'_>) -> Option<HttpMirror> {
        let (service, port) = self.service.resolve(view, route).ok()?;
        Some(HttpMirror {
            service,
            port,
            numerator: self.share.numerator,
            denominator: self.share.denominator,
        })
    }
}

/// Resolves the services and objects that filters refer to. Mirrors that cannot be resolved are left out.
///
/// # Errors
///
/// If another filter cannot be resolved: requests must not skip it.
pub(crate) fn resolve_filters(
    filters: &[FilterInput],
    view: &MeshView,
    route: AttachedRoute<'_>,
) -> Result<Vec<HttpFilter>, UnresolvedReference> {
    let one = |filter: &FilterInput| match filter {
        FilterInput::WithoutReferences(filter) => Some(Ok(filter.clone())),
        FilterInput::Mirror(mirror) => {
            let mirror = mirror.resolve(view, route)?;
            Some(Ok(HttpFilter::Mirror(mirror)))
        }
        FilterInput::Extension(extension) => Some(extension.resolve(view)),
    };
    filters.iter().filter_map(one).collect()
}

impl ExtensionFilterInput {
    /// Returns the current content of the object that the filter refers to.
    pub(crate) fn resolve(&self, view: &MeshView) -> Result<HttpFilter, UnresolvedReference> {
        let key = &self.0;
        let found = match key.kind {
            Kind::HTTPFault => view.get::<HTTPFault>(key).cloned().map(HttpFilter::Fault),
            _ => None,
        };
        found.ok_or_else(|| UnresolvedReference {
            reason: "FilterNotFound",
            text: arcstr::format!("there is no {key} that can be used"),
        })
    }
}
