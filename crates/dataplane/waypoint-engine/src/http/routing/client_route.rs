//! Applies the policies, rate limits and plugins of the destination to requests that a consumer route changes or
//! forwards, and to their mirrored requests.

use std::sync::Arc;

use ambit_l7::route::RouteRequest;
use http::{HeaderMap, HeaderName, Request, uri::PathAndQuery};

use super::route_selection::SelectedRoute;
use crate::{
    attachments::Attachments,
    hops::Hops,
    http::{
        admit::admission::Admission,
        backend::{destination::Destination, destination_attachments},
        limits::{self, CountedRequest, RateLimitHeaders},
        normalized_target::NormalizedTarget,
        reply::Reply,
    },
    route_owner::RouteOwner,
    session::Session,
};

/// Request before a consumer route changes it, as plugins and rate limits have processed it.
#[derive(Debug)]
pub(in crate::http) struct OriginalRequest {
    headers: HeaderMap,
    host: String,
    path: String,
    target: PathAndQuery,
}

/// Request after a consumer route has changed it, with its destination.
#[derive(Debug)]
pub(in crate::http) struct ChangedRequest<'a, B> {
    pub(in crate::http) destination: &'a Destination,
    pub(in crate::http) request: &'a Request<B>,
    pub(in crate::http) normalized: &'a NormalizedTarget,
}

// A derived implementation would require `B: Clone`.
impl<B> Clone for ChangedRequest<'_, B> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<B> Copy for ChangedRequest<'_, B> {}

impl OriginalRequest {
    /// Saves a request before a consumer route changes it; `None` for other routes.
    pub(in crate::http) fn save<B>(
        selected: &SelectedRoute,
        request: &Request<B>,
        normalized: &NormalizedTarget,
    ) -> Option<Self> {
        (selected.route_owner() == RouteOwner::Consumer).then(|| Self {
            headers: request.headers().clone(),
            host: normalized.host.clone(),
            path: normalized.path.clone(),
            target: normalized.target.clone(),
        })
    }

    /// Restores headers that a consumer route may not change: those that hold tokens, and those that pass claims to
    /// applications.
    pub(in crate::http) fn restore_token_headers(
        &self,
        session: &Session,
        headers: &mut HeaderMap,
    ) {
        let all = session.shard.waypoint.published.authentications();
        if all.is_empty() {
            return;
        }
        let attachments = session.attachments();
        let is_own = |name: &HeaderName| all.is_reserved_header(attachments.services(), name);
        let names: Vec<_> = headers
            .keys()
            .filter(|name| is_own(name))
            .cloned()
            .collect();
        for name in names {
            headers.remove(name);
        }
        for (name, value) in self.headers.iter().filter(|(name, _)| is_own(name)) {
            headers.append(name.clone(), value.clone());
        }
    }

    /// Returns the attachments of the destination's service, if this waypoint serves the service.
    ///
    /// # Errors
    /// When the destination has JWT rules or plugins that were not applied to the request, or plugins while the route
    /// changes the request; the error is the reply to the client.
    pub(in crate::http) fn attachments<B>(
        &self,
        session: &Session,
        sent: ChangedRequest<'_, B>,
    ) -> Result<Option<Arc<Attachments>>, Reply> {
        let ChangedRequest {
            destination,
            request,
            normalized,
        } = sent;
        let there = destination_attachments::find(session, destination, RouteOwner::Consumer);
        let Some(there) = there else {
            return Ok(None);
        };
        let is_changed = self.headers != *request.headers()
            || self.host != normalized.host
            || self.target != normalized.target;
        let is_refused = !destination_attachments::are_tokens_applied(session, &there)
            || !destination_attachments::are_plugins_applied(session, &there)
            || is_changed && destination_attachments::have_plugins(session, &there);
        if is_refused {
            tracing::debug!(
                ?destination,
                "a route of clients passes tokens or plugins by"
            );
            return Err(Reply::denied());
        }
        Ok(Some(there))
    }

    /// Authorizes the changed request at its destination, and counts it against the rate limits there.
    ///
    /// # Errors
    /// When [`Self::attachments`] fails, or a policy or a limit rejects the request; the error is the reply to the
    /// client.
    pub(in crate::http) async fn admit<B>(
        &self,
        session: &Session,
        sent: ChangedRequest<'_, B>,
        admission: &Admission,
        hops: Hops,
        limit_headers: &mut RateLimitHeaders,
    ) -> Result<(), Reply> {
        let Some(there) = self.attachments(session, sent)? else {
            return Ok(());
        };
        let ChangedRequest {
            request,
            normalized,
            ..
        } = sent;
        let sent = RouteRequest {
            method: request.method().as_str(),
            path: normalized.target.path(),
            query: normalized.target.query(),
            host: &normalized.host,
            headers: request.headers(),
        };
        let came = RouteRequest {
            path: &self.path,
            query: self.target.query(),
            host: &self.host,
            headers: &self.headers,
            ..sent
        };
        let attachments = session.attachments();
        let [sent, came] = [
            CountedRequest {
                services: there.services(),
                request: sent,
            },
            CountedRequest {
                services: attachments.services(),
                request: came,
            },
        ];
        limits::enforce(session, sent, Some(came), admission, hops, limit_headers).await
    }
}
