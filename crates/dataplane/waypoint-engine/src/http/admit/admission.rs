//! Authorization of a request in flight: when policies change, the request is authorized again, and cancelled if they
//! now deny it.
//!
//! A request that a route forwards to another service is authorized twice: in its original form, for the requested
//! service, and in its forwarded form, by the policies of the backend. A request that a consumer route changes is
//! authorized for every backend.
//!
//! An authorization provider checks a request once, in its original form. Where changed policies, or those of a route's
//! backend, require another provider, the request is refused.
//!
//! Tokens are not verified again: a token that expires meanwhile was valid when the request began. But when the rule,
//! the audience or the key of a token is withdrawn, the request is authorized as one without that token.

use std::{net::SocketAddr, sync::Arc};

use ambit_jwt::{AuthenticatedRequest, Claims};
use ambit_l7::authz::{Connection, HttpDecision, HttpExplanation, Request, RequiredCheck, Scope};
use ambit_model::{ArcStr, NamespacedHostname};
use http::{HeaderMap, HeaderName, Method};
use parking_lot::Mutex;
use tokio::sync::watch;

use crate::{
    attachments::Attachments,
    http::{
        backend::{destination::Destination, destination_attachments},
        normalized_target::NormalizedTarget,
    },
    published::PublishedConfig,
    route_owner::RouteOwner,
    session::Session,
};

/// Request that policies have allowed, with the inputs to authorize it again when policies change.
#[derive(Clone, Debug)]
pub(in crate::http) struct Admission {
    received: Arc<Inner>,
    /// Backend of the route, if its policies have authorized the request as well.
    backend: Option<RoutedBackend>,
}

#[derive(Debug)]
struct Inner {
    session: Arc<Session>,
    attributes: RequestAttributes,
    authenticated: AuthenticatedRequest,
    /// Authorization provider that has allowed the request, and the request headers before the provider's changes.
    provider_check: Option<(ArcStr, HeaderMap)>,
    changes: Mutex<watch::Receiver<u64>>,
}

/// Method, host, path and headers of a request, as policies match them.
#[derive(Clone, Debug)]
pub(in crate::http) struct RequestAttributes {
    pub(in crate::http) method: Method,
    pub(in crate::http) host: String,
    /// Path without the query.
    pub(in crate::http) path: String,
    pub(in crate::http) headers: HeaderMap,
}

impl RequestAttributes {
    /// Saves the attributes of a received request.
    pub(in crate::http) fn received<B>(
        request: &http::Request<B>,
        normalized: &NormalizedTarget,
    ) -> Self {
        Self {
            method: request.method().clone(),
            host: normalized.host.clone(),
            path: normalized.path.clone(),
            headers: request.headers().clone(),
        }
    }

    /// Saves the attributes of a request as it is forwarded, after route filters.
    pub(in crate::http) fn forwarded<B>(
        request: &http::Request<B>,
        normalized: &NormalizedTarget,
    ) -> Self {
        Self {
            path: normalized.target.path().to_owned(),
            ..Self::received(request, normalized)
        }
    }
}

/// Backend of a route whose policies authorize the request as well ([`Admission::authorize_backend`]).
#[derive(Clone, Debug)]
struct RoutedBackend {
    service: NamespacedHostname,
    port: u16,
    route_owner: RouteOwner,
    /// Attachments of the backend's service, if a consumer route forwards to it.
    attachments: Option<Arc<Attachments>>,
    /// Attributes of the request in its forwarded form, if filters have changed it.
    forwarded: Option<Arc<RequestAttributes>>,
}

impl RoutedBackend {
    /// Returns the scope of the policies that apply at the backend; `None` if this waypoint has no policies for it.
    fn scope(&self, published: &PublishedConfig) -> Option<Scope<'_>> {
        match &self.attachments {
            Some(attachments) => Some(attachments.scope()),
            None => self.route_owner.scope(published, &self.service),
        }
    }
}

/// Error of a request that changed policies no longer allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a policy changed and denies the request now")]
pub(in crate::http) struct Revoked;

impl Admission {
    /// Authorizes a request in its received form. Returns the decision; the admission is `None` if the request is
    /// denied.
    pub(in crate::http) fn new(
        session: &Arc<Session>,
        facts: RequestAttributes,
        verified: AuthenticatedRequest,
        checked: Option<(ArcStr, HeaderMap)>,
    ) -> (HttpDecision, Option<Self>) {
        // Subscribed before the decision, so that no change is missed.
        let changes = session.shard.waypoint.published.watch();
        let inner = Inner {
            session: session.clone(),
            attributes: facts,
            authenticated: verified,
            provider_check: checked,
            changes: Mutex::new(changes),
        };
        let decision = inner.evaluate();
        // Policies may have changed since the check, and require a provider now.
        let admitted = decision.is_allowed() && inner.is_provider_unchanged();
        let admission = || Self {
            received: Arc::new(inner),
            backend: None,
        };
        (decision, admitted.then(admission))
    }

    /// Evaluates the policies like [`Self::received`], and returns the decision with all evaluated policies.
    pub(in crate::http) fn explain(
        session: &Arc<Session>,
        facts: RequestAttributes,
        verified: AuthenticatedRequest,
    ) -> HttpExplanation {
        let inner = Inner {
            session: session.clone(),
            attributes: facts,
            authenticated: verified,
            provider_check: None,
            changes: Mutex::new(session.shard.waypoint.published.watch()),
        };
        inner.explain()
    }

    /// Evaluates the backend's policies like [`Self::authorize_backend`], and returns the decision with all evaluated
    /// policies; `None` if no further authorization is needed.
    pub(in crate::http) fn explain_backend(
        &self,
        destination: &Destination,
        by: RouteOwner,
        sent: Option<RequestAttributes>,
    ) -> Option<HttpExplanation> {
        let backend = self.routed_backend(destination, by, sent)?;
        let published = &self.received.session.shard.waypoint.published;
        let scope = backend.scope(published)?;
        let facts = backend
            .forwarded
            .as_deref()
            .unwrap_or(&self.received.attributes);
        let attachments = self.received.session.attachments();
        let policies = published.policies();
        let address = self.received.backend_address(&backend);
        let explain = |request: &Request<'_>| policies.explain(scope, request);
        Some(
            self.received
                .evaluate_for_tokens(&attachments, facts, address, explain, |one| {
                    one.decision.is_allowed()
                }),
        )
    }

    /// Returns the backend whose policies must also authorize the request; `None` if the backend is the requested
    /// service itself and the request is unchanged.
    fn routed_backend(
        &self,
        destination: &Destination,
        by: RouteOwner,
        sent: Option<RequestAttributes>,
    ) -> Option<RoutedBackend> {
        let session = &self.received.session;
        let is_as_asked = by == RouteOwner::Producer || sent.is_none();
        let (service, port) = destination.port(session)?;
        if is_as_asked && destination.is_requested_port(session) {
            return None;
        }
        Some(RoutedBackend {
            service: service.clone(),
            port,
            route_owner: by,
            attachments: destination_attachments::find(session, destination, by),
            forwarded: sent.map(Arc::new),
        })
    }

    /// Authorizes the request once more, if a route forwards it to another service or a consumer route changes it.
    /// `sent` is the forwarded form, if it differs from the received one. The returned decision is `None` if this
    /// waypoint has no policies for the backend. The returned admission is `None` if the request is denied.
    pub(in crate::http) fn authorize_backend(
        &self,
        destination: &Destination,
        by: RouteOwner,
        sent: Option<RequestAttributes>,
    ) -> (Option<HttpDecision>, Option<Self>) {
        let Some(backend) = self.routed_backend(destination, by, sent) else {
            return (None, Some(self.clone()));
        };
        let decision = self.received.evaluate_backend_policies(&backend);
        let is_denied = decision.as_ref().is_some_and(|one| !one.is_allowed())
            || !self.received.is_provider_unchanged_for_backend(&backend);
        let admission = || Self {
            received: self.received.clone(),
            backend: Some(backend),
        };
        (decision, (!is_denied).then(admission))
    }

    /// Whether a policy or a JWT rule reads a header of this name: then a trailer of this name must not be forwarded.
    pub(in crate::http) fn reads_header(&self, name: &HeaderName) -> bool {
        let session = &self.received.session;
        let published = &session.shard.waypoint.published;
        let backend = self.backend.as_ref();
        let backend = backend.and_then(|backend| backend.scope(published));
        let policies = published.policies();
        let attachments = session.attachments();
        let mut scopes = [Some(attachments.scope()), backend].into_iter().flatten();
        scopes.any(|scope| policies.reads_header(scope, name))
            || published
                .authentications()
                .is_reserved_header(attachments.services(), name)
    }

    /// Checks that policies still allow the request; cheap while the configuration is unchanged.
    ///
    /// # Errors
    /// When policies no longer allow the request.
    pub(in crate::http) fn check(&self) -> Result<(), Revoked> {
        {
            let mut changes = self.received.changes.lock();
            if !changes.has_changed().unwrap_or(false) {
                return Ok(());
            }
            changes.mark_unchanged();
        }
        if self.is_allowed() {
            Ok(())
        } else {
            Err(Revoked)
        }
    }

    fn is_allowed(&self) -> bool {
        let is_allowed_there = || {
            let decision = self
                .backend
                .as_ref()
                .and_then(|backend| self.received.evaluate_backend_policies(backend));
            decision.is_none_or(|one| one.is_allowed())
        };
        let has_provider_there = || {
            self.backend
                .as_ref()
                .is_none_or(|backend| self.received.is_provider_unchanged_for_backend(backend))
        };
        self.received.is_provider_unchanged()
            && has_provider_there()
            && self.received.evaluate().is_allowed()
            && is_allowed_there()
    }

    /// Completes when policies no longer allow the request.
    pub(in crate::http) async fn wait_until_revoked(&self) {
        let mut changes = self.received.session.shard.waypoint.published.watch();
        loop {
            if !self.is_allowed() {
                return;
            }
            if changes.changed().await.is_err() {
                return std::future::pending().await;
            }
        }
    }
}

impl Inner {
    fn evaluate(&self) -> HttpDecision {
        let attachments = self.session.attachments();
        let destination = self.session.target.address();
        self.evaluate_in_scope(
            &attachments,
            attachments.scope(),
            &self.attributes,
            destination,
        )
    }

    /// Evaluates the policies of the route's backend; `None` if this waypoint has no policies for it.
    fn evaluate_backend_policies(&self, backend: &RoutedBackend) -> Option<HttpDecision> {
        let published = &self.session.shard.waypoint.published;
        let scope = backend.scope(published)?;
        let facts = backend.forwarded.as_deref().unwrap_or(&self.attributes);
        let attachments = self.session.attachments();
        Some(self.evaluate_in_scope(&attachments, scope, facts, self.backend_address(backend)))
    }

    /// Returns the destination address that policies see for the backend: the address that a direct request would have.
    fn backend_address(&self, backend: &RoutedBackend) -> SocketAddr {
        let target = &self.session.target;
        if target.is_service_port(&backend.service, backend.port) {
            return target.address();
        }
        let waypoint = &self.session.shard.waypoint;
        waypoint.service_address(&backend.service, backend.port)
    }

    fn evaluate_in_scope(
        &self,
        attachments: &Attachments,
        scope: Scope<'_>,
        facts: &RequestAttributes,
        destination: SocketAddr,
    ) -> HttpDecision {
        let policies = self.session.shard.waypoint.published.policies();
        let evaluate = |request: &Request<'_>| policies.evaluate(scope, request);
        let is_allowed = HttpDecision::is_allowed;
        self.evaluate_for_tokens(attachments, facts, destination, evaluate, is_allowed)
    }

    /// Evaluates the policies like [`Self::evaluate`], and returns the decision with all evaluated policies.
    fn explain(&self) -> HttpExplanation {
        let attachments = self.session.attachments();
        let policies = self.session.shard.waypoint.published.policies();
        let destination = self.session.target.address();
        let scope = attachments.scope();
        let explain = |request: &Request<'_>| policies.explain(scope, request);
        self.evaluate_for_tokens(
            &attachments,
            &self.attributes,
            destination,
            explain,
            |one| one.decision.is_allowed(),
        )
    }

    /// Evaluates the request once with the claims of each valid token; all evaluations must allow it.
    fn evaluate_for_tokens<T>(
        &self,
        attachments: &Attachments,
        facts: &RequestAttributes,
        destination: SocketAddr,
        evaluate: impl Fn(&Request<'_>) -> T,
        is_allowed: impl Fn(&T) -> bool,
    ) -> T {
        let evaluate = |claims| evaluate(&self.policy_request(facts, destination, claims));
        if self.authenticated.is_empty() {
            return evaluate(None);
        }
        let all = self.session.shard.waypoint.published.authentications();
        let mut last = None;
        for claims in all.still_valid_claims(attachments.services(), &self.authenticated) {
            let result = evaluate(Some(claims));
            if !is_allowed(&result) {
                return result;
            }
            last = Some(result);
        }
        last.unwrap_or_else(|| evaluate(None))
    }

    fn policy_request<'a>(
        &'a self,
        facts: &'a RequestAttributes,
        destination: SocketAddr,
        claims: Option<&'a Claims>,
    ) -> Request<'a> {
        Request {
            connection: Connection {
                // From the client's headers, which routes do not change.
                remote_ip: self.session.remote_ip(&self.attributes.headers),
                destination,
                ..self.session.connection_attributes(None)
            },
            method: facts.method.as_str(),
            host: &facts.host,
            path: &facts.path,
            headers: &facts.headers,
            claims,
        }
    }

    /// Whether the current policies require no authorization provider other than the one that has allowed the request.
    fn is_provider_unchanged(&self) -> bool {
        let (by, received) = match &self.provider_check {
            Some((by, received)) => (Some(by), received),
            None => (None, &self.attributes.headers),
        };
        let attachments = self.session.attachments();
        let destination = self.session.target.address();
        self.is_allowed_by_provider(
            by,
            attachments.scope(),
            destination,
            &self.attributes,
            received,
        )
    }

    /// Whether the backend's current policies require no authorization provider other than the one that has allowed the
    /// request. After a consumer route has changed the request, they may require none.
    fn is_provider_unchanged_for_backend(&self, backend: &RoutedBackend) -> bool {
        let published = &self.session.shard.waypoint.published;
        let Some(scope) = backend.scope(published) else {
            return true;
        };
        let checked = self
            .provider_check
            .as_ref()
            .filter(|_| backend.route_owner == RouteOwner::Producer);
        let by = checked.map(|(by, _)| by);
        let facts = backend.forwarded.as_deref().unwrap_or(&self.attributes);
        self.is_allowed_by_provider(
            by,
            scope,
            self.backend_address(backend),
            facts,
            &facts.headers,
        )
    }

    fn is_allowed_by_provider(
        &self,
        by: Option<&ArcStr>,
        scope: Scope<'_>,
        destination: SocketAddr,
        facts: &RequestAttributes,
        headers: &HeaderMap,
    ) -> bool {
        let request = Request {
            headers,
            ..self.policy_request(facts, destination, None)
        };
        let policies = self.session.shard.waypoint.published.policies();
        is_check_satisfied(&policies.required_check(scope, &request), by)
    }
}

/// Collects the attributes of a request that policies match before its tokens have been verified.
pub(in crate::http) fn build_policy_request<'a>(
    session: &'a Session,
    method: &'a str,
    host: &'a str,
    path: &'a str,
    headers: &'a HeaderMap,
) -> Request<'a> {
    Request {
        connection: Connection {
            remote_ip: session.remote_ip(headers),
            ..session.connection_attributes(None)
        },
        method,
        host,
        path,
        headers,
        claims: None,
    }
}

/// Whether a policy requires no check, or only a check by the authorization provider that has allowed the request or
/// connection.
pub(crate) fn is_check_satisfied(required: &RequiredCheck, allowed_by: Option<&ArcStr>) -> bool {
    match required {
        RequiredCheck::NotRequired => true,
        RequiredCheck::Denied(_) => false,
        RequiredCheck::CheckBy(provider, _) => allowed_by == Some(&provider.name),
    }
}
