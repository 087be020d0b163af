//! Who leads a request or a connection to a service by a route, and so by which policies it is judged there.
//!
//! A route of the service's side, or of the waypoint's, leads where it may: the policies of the whole waypoint have
//! judged what came, and what the service says itself is added. One that clients have written for themselves is not to
//! get them further than they would get by asking: what it sends to a service of this waypoint is judged as if it had
//! been asked for.

use ambit_l7::authz::Scope;
use ambit_model::NamespacedHostname;

use crate::published::Published;

/// See the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LedBy {
    /// Who is responsible for the service or the waypoint.
    Service,
    /// Clients, for themselves.
    Clients,
}

impl LedBy {
    pub(crate) fn of(is_of_clients: bool) -> Self {
        if is_of_clients {
            Self::Clients
        } else {
            Self::Service
        }
    }

    /// By which policies it is judged there; `None`: nothing is said of the service here.
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
