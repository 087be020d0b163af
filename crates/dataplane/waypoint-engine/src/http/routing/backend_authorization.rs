//! Authorizes requests for the backend, in the form in which they are forwarded.

use http::Request;

use super::route_selection::SelectedRoute;
use crate::{
    http::{
        admit::admission::{Admission, RequestAttributes},
        backend::destination::Destination,
        normalized_target::NormalizedTarget,
        reply::Reply,
        report::observer::RequestObserver,
    },
    route_owner::RouteOwner,
};

/// Authorizes a request for the service to which a route forwards it. A request that a consumer route changes is
/// authorized as if the client had sent it in that form.
pub(in crate::http) fn authorize_backend<B>(
    admission: Admission,
    selected: &SelectedRoute,
    request: &Request<B>,
    normalized: &NormalizedTarget,
    observer: &mut impl RequestObserver,
) -> Result<Admission, Reply> {
    let by = selected.route_owner();
    let is_requested = matches!(
        selected.destination,
        Destination::Target | Destination::Host(_)
    );
    if by == RouteOwner::Producer && is_requested {
        return Ok(admission);
    }
    let sent = selected
        .changes_request()
        .then(|| RequestAttributes::forwarded(request, normalized));
    let (decision, admission) = admission.authorize_backend(&selected.destination, by, sent);
    if let Some(decision) = decision {
        observer.on_policy_decision(&decision);
    }
    admission.ok_or_else(Reply::denied)
}
