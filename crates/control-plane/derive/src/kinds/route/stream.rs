//! Rendering of TCPRoutes and TLSRoutes for the records of waypoints.

use ambit_model::{StreamBackend, StreamRoute};

use crate::{
    kinds::route::attached::AttachedRoute,
    objects::route::{backends::BackendInput, stream_rules::StreamInput},
    view::MeshView,
};

impl StreamInput {
    /// Renders the rules with their resolved backends, for connections to a parent; the caller adds the route's name,
    /// ports and clients.
    pub(crate) fn render(&self, view: &MeshView, route: AttachedRoute<'_>) -> StreamRoute {
        let backend = |from: &BackendInput| {
            let (service, port) = from
                .service
                .split_resolved(from.service.resolve(view, route));
            StreamBackend {
                service: service.map_err(|error| error.text),
                port,
                weight: from.weight,
            }
        };
        StreamRoute {
            hostnames: self.hostnames.clone(),
            backends: self.backends.iter().map(backend).collect(),
            unsupported: self.unsupported_part.as_ref().map(|one| one.text.clone()),
            ..StreamRoute::default()
        }
    }
}
