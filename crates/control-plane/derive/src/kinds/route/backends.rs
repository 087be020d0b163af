//! Resolution of the backends of route rules to services.

use ambit_model::{GatewayName, NamespacedHostname};

use crate::{
    kinds::route::{attached::AttachedRoute, references::UnresolvedReference},
    objects::route::backends::BackendInput,
    view::MeshView,
};

impl BackendInput {
    /// Resolves the backend to a service and port, for requests to a parent at a waypoint, whose DestinationRule must
    /// have the backend's subset.
    pub(crate) fn resolve(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
        gateway: &GatewayName,
    ) -> Result<(NamespacedHostname, u16), UnresolvedReference> {
        let (service, port) = self.service.resolve(view, route)?;
        if let Some(subset) = &self.subset
            && !view.has_subset(&service, gateway, subset)
        {
            let text = arcstr::format!(
                "no DestinationRule that {gateway} follows for {service} has the subset {subset}"
            );
            return Err(UnresolvedReference {
                reason: "BackendNotFound",
                text,
            });
        }
        Ok((service, port))
    }
}
