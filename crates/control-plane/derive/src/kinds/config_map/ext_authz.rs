//! Authorization providers in the records of waypoints.

use ambit_model::{ArcStr, Provider, ProviderProtocol};

use crate::{
    objects::config_map::ext_authz::{DEFAULT_CHECK_TIMEOUT, DEFAULT_STATUS_ON_ERROR},
    view::MeshView,
};

impl MeshView {
    /// Returns the provider that a CUSTOM policy names, for its record; if it cannot be resolved, one with the reason,
    /// which makes waypoints refuse all requests.
    pub(crate) fn resolve_authorizer(&self, name: &ArcStr) -> Provider {
        let refused = |why: String| Provider {
            name: name.clone(),
            target: Err(why.into()),
            timeout: DEFAULT_CHECK_TIMEOUT,
            status_on_error: DEFAULT_STATUS_ON_ERROR,
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
        match self.resolve_callee(&authorizer.service) {
            Ok(service) => Provider {
                target: Ok((service, authorizer.port)),
                ..authorizer.provider.clone()
            },
            Err(why) => refused(why),
        }
    }
}
