//! Owner of the route by which a request or connection is forwarded to another service; it decides the policies that
//! apply there.
//!
//! Producer routes, and routes of the waypoint, are trusted: the Gateway's policies apply to the original request, and
//! the backend's own policies apply as well. Consumer routes must not give clients more access than a direct request: a
//! request that they forward to a service of this waypoint is authorized as a request to that service.

use ambit_l7::authz::Scope;
use ambit_model::NamespacedHostname;

use crate::published::Published;

/// Owner of a route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOwner {
    /// The service's or the waypoint's namespace (producer route).
    Service,
    /// Owner of a consumer route: the client's namespace.
    Clients,
}

impl RouteOwner {
    pub(crate) fn of(is_of_clients: bool) -> Self {
        if is_of_clients {
            Self::Clients
        } else {
            Self::Service
        }
    }

    /// Returns the scope of the policies that apply at the backend; `None` if the waypoint has none for it.
    pub(crate) fn scope<'a>(
        self,
        published: &Published,
        service: &'a NamespacedHostname,
    ) -> Option<Scope<'a>> {
        if self == Self::Clients && published.service(service).is_some() {
            return Some(Scope::Service(service));
        }
        let has_own = published.policies().has_own(service);
        has_own.then_some(Scope::Backend(service))
    }
}
