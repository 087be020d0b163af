//! Authorizes requests in their received form.

use std::sync::Arc;

use ambit_jwt::Authenticated;
use http::Request;

use super::{
    admission::{Admission, Facts},
    authorizer::ExternalAuthorization,
};
use crate::{
    http::{normalized_target::NormalizedTarget, reply::Reply, report::observer::Observer},
    session::Session,
};

/// Authorizes a request in its received form, and records the decision.
pub(in crate::http) fn authorize<B>(
    session: &Arc<Session>,
    request: &Request<B>,
    normalized: &NormalizedTarget,
    proved: &Authenticated,
    external: &ExternalAuthorization,
    observer: &mut impl Observer,
) -> Result<Admission, Reply> {
    let facts = Facts::of(request, normalized);
    let (decision, admission) = Admission::of(session, facts, proved.clone(), external.by.clone());
    observer.policies_decided(&decision);
    admission.ok_or_else(Reply::denied)
}
