//! Owner of the route that forwards a request or connection to another service. It decides which policies apply to the
//! forwarded request.
//!
//! Producer routes, and routes of the waypoint's own namespace, are trusted: the Gateway's policies apply to the
//! original request, and the backend's own policies apply as well. Consumer routes must not give clients more access
//! than a direct request: a request that they forward to a service of this waypoint is authorized as a request to that
//! service.

use ambit_l7::authz::Scope;
use ambit_model::NamespacedHostname;

use crate::published::PublishedConfig;

/// Owner of the route that matches a request or connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RouteOwner {
    /// Namespace of the service or of the waypoint (producer route).
    Producer,
    /// Namespace of the client (consumer route).
    Consumer,
}

impl RouteOwner {
    pub(crate) fn from_is_consumer(is_consumer_route: bool) -> Self {
        if is_consumer_route {
            Self::Consumer
        } else {
            Self::Producer
        }
    }

    /// Returns the scope of the policies that authorize the request at the route's backend; `None` if this waypoint has
    /// no policies for it.
    pub(crate) fn scope<'a>(
        self,
        published: &PublishedConfig,
        service: &'a NamespacedHostname,
    ) -> Option<Scope<'a>> {
        if self == Self::Consumer && published.service(service).is_some() {
            return Some(Scope::Service(service));
        }
        let has_own = published.policies().has_service_policies(service);
        has_own.then_some(Scope::Backend(service))
    }
}
