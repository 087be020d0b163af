//! Routes a request by the routes of its service.

use std::sync::Arc;

use ambit_l7::route::{
    self, CorsRequest, EffectiveFilters, InjectedFault, RouteDecision, RouteTable, Rule,
};
use ambit_model::{ArcStr, HttpBackend, HttpMirror, HttpRetry, HttpTimeouts, NamespacedHostname};
use ambit_route::BackendEndpoint;
use ambit_telemetry::http::ResponseFlag;
use http::{HeaderMap, HeaderValue, Request, Response, StatusCode, header::LOCATION};

use crate::{
    http::{
        backend::{
            affinity::{self, SessionAffinity, SessionEndpoint},
            destination::Destination,
        },
        normalized_target::NormalizedTarget,
        reply::Reply,
        report::observer::RequestObserver,
    },
    message::{self, Body},
    route_owner::RouteOwner,
    session::{MisdirectedHost, Session},
    target::Target,
};

/// Kind of route objects for which errors are gRPC statuses.
const GRPC_ROUTE: &str = "GRPCRoute";
/// Kinds of objects in the names of generated rules. The control plane generates such rules for services that another
/// waypoint serves: requests for these are misdirected (421).
const SERVICE_KINDS: [&str; 2] = ["Service", "ServiceEntry"];

/// Result of routing a request: a backend or a response.
pub(in crate::http) enum RoutingResult {
    /// Backend to which the request is forwarded.
    Selected(SelectedRoute),
    /// Response of the route itself: a redirect, or the response to a CORS preflight.
    Responded(Response<Body>),
}

/// Destination of a request, with the route rule that selected it.
#[derive(Debug)]
pub(in crate::http) struct SelectedRoute {
    pub(in crate::http) destination: Destination,
    /// Matching rule; `None` if no route exists, so that the request goes to the service itself.
    rule: Option<SelectedRule>,
}

/// Matching route rule of a request and the backend chosen from it.
#[derive(Clone, Debug)]
struct SelectedRule {
    rule: Arc<Rule>,
    /// Index of the chosen backend in the rule; `None` for a rule without backends.
    backend: Option<usize>,
    /// Number of bytes of the path that the match consumed as prefix.
    matched_prefix_bytes: usize,
    session: Option<SessionAffinity>,
}

/// CORS headers to set in the response, if the route has a CORS filter.
#[derive(Debug, Default)]
pub(in crate::http) struct CorsHeaders(Option<(SelectedRule, CorsRequest)>);

impl SelectedRule {
    fn effective_filters(&self) -> EffectiveFilters<'_> {
        self.rule.filters_for_backend(self.backend)
    }
}

impl CorsHeaders {
    /// Replaces the application's CORS headers by those of the route's CORS filter.
    pub(in crate::http) fn change_response(&self, headers: &mut HeaderMap) {
        if let Some((chosen, cors_request)) = &self.0
            && let Some(cors) = chosen.effective_filters().cors()
        {
            cors.change_response(cors_request, headers);
        }
    }
}

impl SelectedRoute {
    fn to_target() -> Self {
        Self {
            destination: Destination::Target,
            rule: None,
        }
    }

    /// Replaces a destination with a wildcard hostname by the host that the forwarded request names.
    pub(in crate::http) fn resolve_wildcard_host(
        &mut self,
        session: &Session,
        normalized: &NormalizedTarget,
    ) -> Result<(), Reply> {
        if self.destination != Destination::Target || !session.target.resolves_hosts() {
            return Ok(());
        }
        let host = session
            .target
            .host_below_wildcard(&normalized.host)
            .ok_or_else(|| {
                let name = session.target.service_name();
                let wildcard = name.map_or("", |name| name.hostname.as_str());
                let text = format!("the host is not below {wildcard}");
                Reply::new(StatusCode::NOT_FOUND, text, ResponseFlag::NoRoute)
            })?;
        // A plugin or a route has changed the host, which may have a more specific entry.
        self.destination = match session
            .more_specific_service(&host)
            .map_err(misdirected_reply)?
        {
            Some(specific) => {
                let port = session.target.address().port();
                Destination::Backend(specific.namespaced_hostname(), port)
            }
            None => Destination::Host(host),
        };
        Ok(())
    }

    pub(in crate::http) fn timeouts(&self) -> HttpTimeouts {
        let rule = self.rule.as_ref();
        rule.map(|chosen| chosen.rule.timeouts).unwrap_or_default()
    }

    pub(in crate::http) fn retry(&self) -> Option<&HttpRetry> {
        self.rule.as_ref()?.rule.retry.as_ref()
    }

    /// Returns the endpoint that the request's sticky session selects.
    pub(in crate::http) fn session_endpoint(&self) -> Option<&BackendEndpoint> {
        self.rule.as_ref()?.session.as_ref()?.endpoint.as_ref()
    }

    /// Adds the sticky session's value for the chosen endpoint to the response headers.
    pub(in crate::http) fn continue_session(&self, uid: &str, headers: &mut HeaderMap) {
        let Some(chosen) = &self.rule else { return };
        let backends = chosen.rule.backends();
        let backend = chosen.backend.and_then(|index| backends.get(index));
        if let (Some(session), Some(backend)) = (&chosen.session, backend) {
            session.change_response(&backend.target, uid, headers);
        }
    }

    /// Returns the mirrors that receive this request, chosen by their fractions.
    pub(in crate::http) fn draw_mirrors(&self) -> Vec<&HttpMirror> {
        let applied = self.rule.as_ref().map(SelectedRule::effective_filters);
        applied.map_or_else(Vec::new, |applied| applied.select_mirrors(&mut rand::rng()))
    }

    /// Draws the fault to inject into this request, by the fractions of the rule's fault filter.
    pub(in crate::http) fn draw_fault(&self) -> Option<InjectedFault> {
        self.rule
            .as_ref()?
            .effective_filters()
            .draw_fault(&mut rand::rng())
    }

    /// Returns the filters of the rule and of the backend to apply to the request; `None` without a rule.
    pub(in crate::http) fn effective_filters(&self) -> Option<EffectiveFilters<'_>> {
        self.rule.as_ref().map(SelectedRule::effective_filters)
    }

    /// Returns the owner of the selected route.
    pub(in crate::http) fn route_owner(&self) -> RouteOwner {
        let rule = self.rule.as_ref();
        RouteOwner::from_is_consumer(rule.is_some_and(|chosen| chosen.rule.is_consumer_route))
    }

    /// Whether the route has filters that may change the request ([`Self::apply_request_filters`]).
    pub(in crate::http) fn changes_request(&self) -> bool {
        let applied = self.rule.as_ref().map(SelectedRule::effective_filters);
        applied.is_some_and(|applied| applied.changes_request())
    }

    /// Applies the request filters of the rule, and then those of the backend.
    pub(in crate::http) fn apply_request_filters(
        &self,
        session: &Session,
        headers: &mut HeaderMap,
        normalized: &mut NormalizedTarget,
    ) -> Result<(), Reply> {
        let Some(chosen) = &self.rule else {
            return Ok(());
        };
        let applied = chosen.effective_filters();
        applied.change_request(headers);
        let Some(rewrite) = applied.rewrite() else {
            return Ok(());
        };
        if let Some(host) = &rewrite.hostname {
            host.as_str().clone_into(&mut normalized.host);
        }
        if rewrite.path.is_some() {
            let published = &session.shard.waypoint.published;
            let mode = published.gateway().path_normalization;
            let matched_path = normalized.matched_path(chosen.matched_prefix_bytes);
            let target = route::rewrite_path(rewrite.path.as_ref(), matched_path, mode);
            let target = target.map_err(|error| unroutable_reply(&error.to_string()))?;
            normalized.target = target
                .try_into()
                .map_err(|error: http::uri::InvalidUri| unroutable_reply(&error.to_string()))?;
        }
        Ok(())
    }

    /// Applies the response-header filters of the rule and of the backend, in their order.
    pub(in crate::http) fn change_response(&self, headers: &mut HeaderMap) {
        if let Some(chosen) = &self.rule {
            chosen.effective_filters().change_response(headers);
        }
    }
}

/// Returns the reply to a request whose rule has no usable backend.
fn unroutable_reply(text: &str) -> Reply {
    let status = StatusCode::INTERNAL_SERVER_ERROR;
    Reply::new(status, text, ResponseFlag::NoCluster)
}

/// Returns the reply to a misdirected request (421; RFC 9110, section 15.5.20).
pub(in crate::http) fn misdirected_reply(error: MisdirectedHost) -> Reply {
    let status = StatusCode::MISDIRECTED_REQUEST;
    Reply::new(status, error.to_string(), ResponseFlag::NoRoute)
}

/// Returns the reply to a request whose backend is unusable: gRPC's `UNAVAILABLE` for a GRPCRoute, 421 for a service
/// that another waypoint serves, else 500.
fn unroutable_backend_reply(rule: &Rule, text: &str) -> Reply {
    let reply = unroutable_reply(text);
    if rule.route.kind == GRPC_ROUTE {
        return reply.with_status(StatusCode::SERVICE_UNAVAILABLE);
    }
    if SERVICE_KINDS.contains(&rule.route.kind.as_str()) {
        return reply.with_status(StatusCode::MISDIRECTED_REQUEST);
    }
    reply
}

/// Returns the destination for a route's backend, given the requested service port.
fn backend_destination<'a>(
    backend: &'a HttpBackend,
    served: &NamespacedHostname,
    port: u16,
) -> Result<Destination, &'a ArcStr> {
    let name = backend.service.as_ref()?;
    Ok(match &backend.subset {
        Some(subset) => Destination::Subset(name.clone(), backend.port, subset.clone()),
        None if *name == *served && backend.port == port => Destination::Target,
        None => Destination::Backend(name.clone(), backend.port),
    })
}

/// Returns the current route table for requests of a session; `None` for a pod. The table may have changed since the
/// tunnel was opened.
pub(in crate::http) fn route_table(session: &Session) -> Result<Option<Arc<RouteTable>>, Reply> {
    let Target::Service {
        served, address, ..
    } = &session.target
    else {
        return Ok(None);
    };
    let now = session.shard.waypoint.published.service(&served.name);
    let served = now.ok_or_else(|| {
        let text = "this waypoint does not serve the service any more";
        Reply::new(StatusCode::NOT_FOUND, text, ResponseFlag::NoRoute)
    })?;
    Ok(Some(
        served.routes(address.port(), session.caller.namespace()),
    ))
}

/// Matches a request with the routes of its service, and chooses a backend.
pub(in crate::http) fn route<B>(
    session: &Session,
    request: &Request<B>,
    normalized: &NormalizedTarget,
    observer: &mut impl RequestObserver,
    cors_headers: &mut CorsHeaders,
) -> Result<RoutingResult, Reply> {
    let table = route_table(session)?;
    let (
        Some(table),
        Target::Service {
            served, address, ..
        },
    ) = (table, &session.target)
    else {
        return Ok(RoutingResult::Selected(SelectedRoute::to_target()));
    };
    let port = address.port();
    let choice = table.select_rule(&normalized.route_request(request));
    let (rule, prefix) = match choice {
        RouteDecision::NoRoutes => return Ok(RoutingResult::Selected(SelectedRoute::to_target())),
        RouteDecision::NoMatchingRule => {
            return Err(Reply::new(StatusCode::NOT_FOUND, "", ResponseFlag::NoRoute));
        }
        RouteDecision::Rule(rule, prefix) => (rule, prefix),
    };
    observer.on_route_selected(rule);
    if let Some(why) = &rule.rejection_reason {
        return Err(unroutable_backend_reply(rule, why));
    }
    let affinity = rule.session_persistence.as_ref();
    let mut affinity = affinity.map(|of| {
        SessionAffinity::from_request(of, request.headers(), affinity::now_milliseconds())
    });
    let sticky = affinity.as_mut().and_then(|affinity| {
        let find = |to: &HttpBackend, mark: u64| match backend_destination(to, &served.name, port) {
            Ok(destination) => destination.find_session_endpoint(session, mark),
            Err(_) => SessionEndpoint::Gone,
        };
        affinity.backend(rule, find)
    });
    let drawn = sticky.or_else(|| rule.pick_backend(&mut rand::rng()));
    let chosen = SelectedRule {
        rule: rule.clone(),
        backend: drawn.map(|(index, _)| index),
        matched_prefix_bytes: prefix,
        session: affinity,
    };
    let applied = chosen.effective_filters();
    if applied.cors().is_some() {
        let cors_request = CorsRequest::from_request(request.method(), request.headers());
        let is_preflight = cors_request.is_preflight();
        cors_headers.0 = Some((chosen.clone(), cors_request));
        if is_preflight {
            return Ok(RoutingResult::Responded(Response::new(message::text_body(
                "",
            ))));
        }
    }
    if let Some((_, to)) = drawn
        && let Err(why) = &to.target.service
    {
        return Err(unroutable_backend_reply(rule, why));
    }
    if let Some(redirect) = applied.redirect() {
        let published = &session.shard.waypoint.published;
        let mode = published.gateway().path_normalization;
        let to = redirect.location_header(
            &normalized.host,
            port,
            normalized.matched_path(prefix),
            mode,
        );
        let location = to.map_err(|error| unroutable_reply(&error.to_string()))?;
        let location = HeaderValue::from_str(&location);
        let location = location.map_err(|error| unroutable_reply(&error.to_string()))?;
        let mut response = Response::new(message::text_body(""));
        *response.status_mut() = redirect.status;
        response.headers_mut().insert(LOCATION, location);
        applied.change_response(response.headers_mut());
        return Ok(RoutingResult::Responded(response));
    }
    let (_, to) = drawn.ok_or_else(|| unroutable_backend_reply(rule, "no backend"))?;
    let destination = backend_destination(&to.target, &served.name, port);
    let destination = destination.map_err(|why| unroutable_backend_reply(rule, why))?;
    Ok(RoutingResult::Selected(SelectedRoute {
        destination,
        rule: Some(chosen),
    }))
}
