//! Authorization providers in the records of waypoints.

use ambit_model::{ArcStr, Provider, ProviderProtocol};

use crate::{
    objects::config_map::ext_authz::{STATUS_ON_ERROR, TIMEOUT},
    view::MeshView,
};

impl MeshView {
    /// Returns the provider that a CUSTOM policy names, for its record; if it cannot be resolved, one with the reason,
    /// which makes waypoints refuse all requests.
    pub(crate) fn authorizer(&self, name: &ArcStr) -> Provider {
        let refused = |why: String| Provider {
            name: name.clone(),
            place: Err(why.into()),
            timeout: TIMEOUT,
            status_on_error: STATUS_ON_ERROR,
            fail_open: false,
            body: None,
            protocol: ProviderProtocol::Grpc,
        };
        let Some(found) = self.extension_provider(name) else {
            return refused(format!("MeshConfig has no provider with the name {name}"));
        };
        let Some(authorizer) = &found.authorizer else {
            let kind = &found.kind;
            return refused(format!(
                "the provider {name} is {kind}, which decides about no requests"
            ));
        };
        match self.callee(&authorizer.service) {
            Ok(service) => Provider {
                place: Ok((service, authorizer.port)),
                ..authorizer.provider.clone()
            },
            Err(why) => refused(why),
        }
    }
}
