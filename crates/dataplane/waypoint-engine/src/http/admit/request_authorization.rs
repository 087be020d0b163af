//! Authorizes requests for the requested service, in the form in which they are received.

use std::sync::Arc;

use ambit_jwt::AuthenticatedRequest;
use http::Request;

use super::{
    admission::{Admission, RequestAttributes},
    authorizer::ExternalAuthorization,
};
use crate::{
    http::{normalized_target::NormalizedTarget, reply::Reply, report::observer::RequestObserver},
    session::Session,
};

/// Authorizes a request in its received form, and records the decision.
pub(in crate::http) fn authorize<B>(
    session: &Arc<Session>,
    request: &Request<B>,
    normalized: &NormalizedTarget,
    authenticated: &AuthenticatedRequest,
    external: &ExternalAuthorization,
    observer: &mut impl RequestObserver,
) -> Result<Admission, Reply> {
    let facts = RequestAttributes::received(request, normalized);
    let (decision, admission) = Admission::new(
        session,
        facts,
        authenticated.clone(),
        external.provider.clone(),
    );
    observer.on_policy_decision(&decision);
    admission.ok_or_else(Reply::denied)
}
