//! Predicts the response to a request: runs the steps of [`super::exchange`] with the same functions on the published
//! configuration, without sending or counting anything. Plugins are not run, providers and rate-limit services not
//! called.

mod step_texts;

use std::sync::Arc;

use ambit_jwt::{AuthenticatedRequest, RejectionReason};
use ambit_l7::{
    authz::{HttpDecision, HttpExplanation, RequiredCheck},
    route::Rule,
};
use ambit_mesh_json::explain::{
    EvaluatedObject, ExplainedResult, Explanation, Peer, Step, StepKind, StepResult,
};
use ambit_model::RequestFraction;
use ambit_proxy::{LocalPod, explain as shared};
use ambit_resilience::PickRequest;
use ambit_route::Route;
use http::{Request, Response, header::LOCATION, uri::PathAndQuery};

use super::{
    admit::{
        admission::{Admission, RequestAttributes},
        authentication::authenticate,
        authorizer::{self, ExternalAuthorization},
        request_authorization::authorize,
    },
    backend::destination::Destination,
    fault,
    normalized_target::{self, NormalizedTarget, is_grpc},
    reply::Reply,
    report::observer::RequestObserver,
    request_headers::sanitize,
    routing::{
        backend_authorization::authorize_backend,
        client_route::{ChangedRequest, OriginalRequest},
        route_selection::{self, CorsHeaders, RoutingResult, SelectedRoute, misdirected_reply},
    },
    send::Failure,
};
use crate::{
    destination::NoUpstream, headers, hops::Hops, message::Body, retry_mark::RetryMark,
    session::Session,
};

/// Maximum number of route rules that an explanation lists with the reason why they do not match.
const MAX_EXPLAINED_RULES: usize = 50;

/// Predicts the response to a request in the tunnel of a session.
pub(crate) async fn explain(session: Session, mut request: Request<()>) -> Explanation {
    let is_grpc = is_grpc(&request);
    let mut walk = ExplanationBuilder {
        session: Arc::new(session),
        steps: Vec::new(),
        decisions: ObservedDecisions::default(),
    };
    let end = match walk.run(&mut request).await {
        Ok(end) => end,
        Err(reply) => step_texts::response_end(&reply.clone().into_response(is_grpc), &reply.text),
    };
    Explanation {
        steps: walk.steps,
        end,
    }
}

/// Explanation in progress: the steps of a request that have been explained so far.
struct ExplanationBuilder {
    session: Arc<Session>,
    steps: Vec<Step>,
    decisions: ObservedDecisions,
}

/// Decisions about the predicted request, reported by the functions of the data path.
#[derive(Default)]
struct ObservedDecisions {
    unauthenticated: Option<RejectionReason>,
    decision: Option<HttpDecision>,
    rule: Option<Arc<Rule>>,
}

impl RequestObserver for ObservedDecisions {
    fn on_normalized(&mut self, _host: &str, _target: &PathAndQuery) {}

    fn on_unauthenticated(&mut self, why: &RejectionReason) {
        self.unauthenticated = Some(why.clone());
    }

    fn on_policy_decision(&mut self, decision: &HttpDecision) {
        self.decision = Some(decision.clone());
    }

    fn on_route_selected(&mut self, rule: &Arc<Rule>) {
        self.rule = Some(rule.clone());
    }
}

impl ExplanationBuilder {
    async fn run(&mut self, request: &mut Request<()>) -> Result<ExplainedResult, Reply> {
        let mut normalized = self.normalize(request)?;
        self.explain_plugins();
        let external = self.explain_provider(request, &normalized)?;
        let proved = self.explain_authentication(request, &mut normalized)?;
        let admission = self.explain_authorization(request, &normalized, &proved, &external)?;
        let mut selected = match self.explain_route(request, &normalized)? {
            RoutingResult::Selected(selected) => selected,
            RoutingResult::Responded(response) => return Ok(self.explain_route_response(&response)),
        };
        self.explain_rate_limits();
        let original = OriginalRequest::save(&selected, request, &normalized);
        let changed =
            selected.apply_request_filters(&self.session, request.headers_mut(), &mut normalized);
        let changed =
            changed.and_then(|()| selected.resolve_wildcard_host(&self.session, &normalized));
        self.explain_filters(&selected, changed.as_ref().err());
        changed?;
        if let Some(original) = &original {
            original.restore_token_headers(&self.session, request.headers_mut());
        }
        self.explain_backend_authorization(admission, &selected, request, &normalized)?;
        if let Some(original) = &original {
            let sent = ChangedRequest {
                destination: &selected.destination,
                request,
                normalized: &normalized,
            };
            if let Err(reply) = original.attachments(&self.session, sent) {
                let why = "tokens or plugins of the service that the route forwards to were not applied to the request";
                self.push_step(StepKind::BackendAuthorization, StepResult::Refused, why);
                return Err(reply);
            }
        }
        self.explain_fault(&selected)?;
        self.explain_destination(&selected.destination).await
    }

    fn push_step(&mut self, step: StepKind, result: StepResult, why: impl Into<String>) {
        self.steps.push(Step::new(step, result, why));
    }

    /// Explains the normalization of host and path, and removes the headers that are removed before authorization.
    fn normalize(&mut self, request: &mut Request<()>) -> Result<NormalizedTarget, Reply> {
        let normalized = self.strip_and_normalize(request);
        match &normalized {
            Ok(normalized) => {
                let why = format!("host {:?}, path {:?}", normalized.host, normalized.path);
                self.push_step(StepKind::RequestValidity, StepResult::Passed, why);
            }
            Err(reply) => {
                self.push_step(StepKind::RequestValidity, StepResult::Refused, &*reply.text)
            }
        }
        normalized
    }

    fn strip_and_normalize(
        &mut self,
        request: &mut Request<()>,
    ) -> Result<NormalizedTarget, Reply> {
        // A request with an invalid host is refused below.
        if let Ok(host) = normalized_target::request_host(request)
            && let Some(specific) = self.session.for_host(&host).map_err(misdirected_reply)?
        {
            self.session = Arc::new(specific);
        }
        headers::join_cookies(request.headers_mut());
        let normalized = NormalizedTarget::from_request(&self.session, request)?;
        Hops::take_from_headers(request.headers_mut()).ok_or_else(Reply::routing_loop)?;
        let _mark = RetryMark::take_from_headers(request.headers_mut());
        sanitize(request)?;
        Ok(normalized)
    }

    fn explain_plugins(&mut self) {
        let Some(chain) = self.session.shard.waypoint.published.extensions() else {
            return;
        };
        let plugins = chain.plugins_for(&self.session.attachments());
        let seeing = plugins.iter().map(|plugin| &plugin.config);
        let seeing = seeing.filter(|one| !self.session.caller.calls_on_behalf_of(&one.namespace));
        let considered: Vec<_> = seeing
            .map(|one| EvaluatedObject {
                object: format!("{}/{}", one.namespace, one.name),
                effect: "WASMPLUGIN".to_owned(),
                result: "not run".to_owned(),
            })
            .collect();
        if !considered.is_empty() {
            let why = "plugins see the request and may change or answer it; they are not run here";
            let step = Step::new(StepKind::Plugins, StepResult::NotEvaluated, why);
            self.steps.push(step.with_evaluated_objects(considered));
        }
    }

    /// Explains the check by an authorization provider, which is assumed to allow the request.
    fn explain_provider(
        &mut self,
        request: &Request<()>,
        normalized: &NormalizedTarget,
    ) -> Result<ExternalAuthorization, Reply> {
        match authorizer::required_check(&self.session, request, normalized) {
            RequiredCheck::NotRequired => Ok(ExternalAuthorization::default()),
            RequiredCheck::Denied(why) => {
                self.push_step(StepKind::ExternalAuthorization, StepResult::Refused, why);
                Err(authorizer::missing_provider_reply())
            }
            RequiredCheck::CheckBy(provider, rule) => {
                let why = format!(
                    "its rule {} requires a check by the provider {}; it is not called here, and may deny",
                    rule.rule + 1,
                    provider.name
                );
                let step = Step::new(
                    StepKind::ExternalAuthorization,
                    StepResult::NotEvaluated,
                    why,
                );
                self.steps
                    .push(step.with_object(format!("AuthorizationPolicy {}", rule.policy)));
                Ok(ExternalAuthorization::assume_allowed(
                    &provider,
                    request.headers(),
                ))
            }
        }
    }

    fn explain_authentication(
        &mut self,
        request: &mut Request<()>,
        normalized: &mut NormalizedTarget,
    ) -> Result<AuthenticatedRequest, Reply> {
        let all = self.session.shard.waypoint.published.authentications();
        let attachments = self.session.attachments();
        let applied: Vec<_> = all.attached_policies(attachments.services()).collect();
        let outcome = authenticate(&self.session, request, normalized, &mut self.decisions);
        if !applied.is_empty() {
            let denial = self.decisions.unauthenticated.as_ref();
            let step = step_texts::authentication(&applied, outcome.as_ref().ok(), denial);
            self.steps.push(step);
        }
        outcome
    }

    fn explain_authorization(
        &mut self,
        request: &Request<()>,
        normalized: &NormalizedTarget,
        proved: &AuthenticatedRequest,
        external: &ExternalAuthorization,
    ) -> Result<Admission, Reply> {
        let facts = RequestAttributes::received(request, normalized);
        let explanation = Admission::explain(&self.session, facts, proved.clone());
        let seen = &mut self.decisions;
        let admission = authorize(&self.session, request, normalized, proved, external, seen);
        self.explain_policy_decision(StepKind::Authorization, explanation, admission.is_ok());
        admission
    }

    /// Explains the decision of the policies, as the data path's function has returned it, with all evaluated policies.
    fn explain_policy_decision(
        &mut self,
        step: StepKind,
        explanation: HttpExplanation,
        is_allowed: bool,
    ) {
        let decision = self.decisions.decision.take();
        let decision = decision.unwrap_or(explanation.decision);
        let step = step_texts::authorization(step, &decision, &explanation.policies, is_allowed);
        self.steps.push(step);
    }

    fn explain_route(
        &mut self,
        request: &Request<()>,
        normalized: &NormalizedTarget,
    ) -> Result<RoutingResult, Reply> {
        let mut cors_headers = CorsHeaders::default();
        let routed = route_selection::route(
            &self.session,
            request,
            normalized,
            &mut self.decisions,
            &mut cors_headers,
        );
        let considered = self.considered_rules(request, normalized);
        let is_answered = matches!(&routed, Ok(RoutingResult::Responded(_)));
        let step = match (&self.decisions.rule, &routed) {
            (Some(rule), result) => {
                let refused = result.as_ref().err().map(|reply| &*reply.text);
                let step = step_texts::route(rule, refused, is_answered);
                step.with_evaluated_objects(considered)
            }
            (None, Ok(_)) => {
                let why = "no route matches: it goes to the called destination";
                Step::new(StepKind::Route, StepResult::Passed, why)
            }
            (None, Err(reply)) => {
                let why = match &*reply.text {
                    "" => "there are routes for the service, and no rule matches",
                    text => text,
                };
                let step = Step::new(StepKind::Route, StepResult::Refused, why);
                step.with_evaluated_objects(considered)
            }
        };
        self.steps.push(step);
        routed
    }

    /// Lists the route rules up to the one that matches, each with the reason why the request does not match it.
    fn considered_rules(
        &self,
        request: &Request<()>,
        normalized: &NormalizedTarget,
    ) -> Vec<EvaluatedObject> {
        let Ok(Some(table)) = route_selection::route_table(&self.session) else {
            return Vec::new();
        };
        let request = normalized.route_request(request);
        let considered = table.explain_candidates(&request).take(MAX_EXPLAINED_RULES);
        considered
            .map(|(rule, mismatch)| step_texts::considered_rule(rule, mismatch.as_ref()))
            .collect()
    }

    fn explain_route_response(&mut self, response: &Response<Body>) -> ExplainedResult {
        let location = response.headers().get(LOCATION);
        let why = match location.and_then(|location| location.to_str().ok()) {
            Some(location) => format!("the route redirects to {location}"),
            None => "the route answers the preflight request itself".to_owned(),
        };
        self.push_step(StepKind::Filters, StepResult::Responded, &*why);
        step_texts::response_end(response, &why)
    }

    fn explain_rate_limits(&mut self) {
        let Some(limits) = self.session.shard.waypoint.published.limits() else {
            return;
        };
        let limits = limits.for_services(self.session.attachments().services());
        let considered: Vec<_> = limits
            .iter()
            .map(|limiter| step_texts::considered_limit(&limiter.config))
            .collect();
        if !considered.is_empty() {
            let why = "rate limits count the request, and answer 429 above the limit; it is not counted here";
            let step = Step::new(StepKind::RateLimits, StepResult::NotEvaluated, why);
            self.steps.push(step.with_evaluated_objects(considered));
        }
    }

    fn explain_filters(&mut self, selected: &SelectedRoute, refused: Option<&Reply>) {
        let names = selected
            .effective_filters()
            .map(|applied| applied.filter_names());
        let names = names.unwrap_or_default().join(", ");
        match refused {
            Some(reply) => self.push_step(StepKind::Filters, StepResult::Refused, &*reply.text),
            None if names.is_empty() => {}
            None => self.push_step(StepKind::Filters, StepResult::Passed, names),
        }
    }

    fn explain_backend_authorization(
        &mut self,
        admission: Admission,
        selected: &SelectedRoute,
        request: &Request<()>,
        normalized: &NormalizedTarget,
    ) -> Result<Admission, Reply> {
        let sent = || RequestAttributes::forwarded(request, normalized);
        let sent = selected.changes_request().then(sent);
        let explanation =
            admission.explain_backend(&selected.destination, selected.route_owner(), sent);
        let admission = authorize_backend(
            admission,
            selected,
            request,
            normalized,
            &mut self.decisions,
        );
        if let Some(explanation) = explanation {
            let is_allowed = admission.is_ok();
            self.explain_policy_decision(StepKind::BackendAuthorization, explanation, is_allowed);
        }
        admission
    }

    fn explain_fault(&mut self, selected: &SelectedRoute) -> Result<(), Reply> {
        let fault = selected
            .effective_filters()
            .and_then(|applied| applied.configured_fault());
        let Some(fault) = fault else {
            return Ok(());
        };
        let is_certain = |share: RequestFraction| share.numerator >= share.denominator;
        let aborts = fault.abort.filter(|(_, share)| is_certain(*share));
        let result = match aborts {
            Some(_) => StepResult::Responded,
            None => StepResult::NotEvaluated,
        };
        self.push_step(StepKind::Filters, result, step_texts::fault(fault));
        aborts.map_or(Ok(()), |(status, _)| Err(fault::abort_reply(status)))
    }

    async fn explain_destination(
        &mut self,
        destination: &Destination,
    ) -> Result<ExplainedResult, Reply> {
        if let Destination::Host(host) = destination {
            let why = format!("{host} is outside of the mesh; its name is not looked up here");
            self.push_step(StepKind::Endpoint, StepResult::NotEvaluated, &*why);
            return Ok(ExplainedResult::Delivered {
                address: host.to_string(),
            });
        }
        let Some(own) = self
            .session
            .shard
            .waypoint
            .local
            .wait_until_published()
            .await
        else {
            return Err(Failure::without_own_workload().reply);
        };
        match Box::pin(self.explain_endpoint(destination, &own)).await {
            Ok(route) => Ok(self.explain_forwarding(&route, &own)),
            Err(failure) => {
                self.push_step(StepKind::Endpoint, StepResult::Refused, failure.details);
                Err(failure.reply)
            }
        }
    }

    /// Explains the choice of an endpoint by the destination's rule, and the route to it.
    async fn explain_endpoint(
        &mut self,
        destination: &Destination,
        own: &LocalPod,
    ) -> Result<Route, Failure> {
        let session = self.session.clone();
        let waypoint = &session.shard.waypoint;
        if matches!(destination, Destination::Target)
            && let Some(route) = session.target.pass_through_route(waypoint)
        {
            return Ok(route);
        }
        let Some(port) = destination.destination_rule_port(&session) else {
            if let Destination::Subset(service, _, subset) = destination {
                return Err(NoUpstream::UnusableSubset(service.to_string(), subset.clone()).into());
            }
            let route = destination.route(&session, own, &[]).await;
            return route.map_err(|error| NoUpstream::from(error).into());
        };
        let step = step_texts::destination(destination, &port);
        self.steps.push(step);
        port.check_supported()?;
        let wish = PickRequest {
            hash: None,
            tried_uids: &[],
            preferred_uid: None,
        };
        // The lease ends immediately, and no outcome is reported.
        let request = destination.backend_request(&session, own, &[]);
        match port.route(waypoint.rule_context(), request, wish)? {
            Some((route, _lease)) => Ok(route),
            // The service's own waypoint chooses the endpoint.
            None => {
                let route = destination.route(&session, own, &[]).await;
                route.map_err(|error| NoUpstream::from(error).into())
            }
        }
    }

    fn explain_forwarding(&mut self, route: &Route, own: &LocalPod) -> ExplainedResult {
        let waypoint = &self.session.shard.waypoint;
        let is_same =
            |hop: &std::net::IpAddr| route_ip(route).is_none_or(|to| to.is_ipv4() == hop.is_ipv4());
        let ips = &own.workload.workload_ips;
        let address = ips.iter().find(|ip| is_same(ip)).or_else(|| ips.first());
        let sender = Peer {
            identity: Some(waypoint.dialer.identity.to_string()),
            address: *address.unwrap_or(&crate::target::UNKNOWN_ADDRESS),
        };
        let Some(hop) = shared::next_hop(route, sender) else {
            let why = "the endpoint is known by name only; its name is not looked up here";
            self.push_step(StepKind::Endpoint, StepResult::NotEvaluated, why);
            return ExplainedResult::Delivered {
                address: "a host outside of the mesh".to_owned(),
            };
        };
        let why = step_texts::endpoint(&hop);
        self.push_step(StepKind::Endpoint, StepResult::Passed, why);
        ExplainedResult::Forwarded(hop)
    }
}

fn route_ip(route: &Route) -> Option<std::net::IpAddr> {
    match route {
        Route::Passthrough { dst, .. } => Some(dst.ip()),
        Route::Plain(plain) => Some(plain.addr.ip()),
        Route::Hbone(hbone) => Some(hbone.addr.ip()),
        Route::DoubleHbone { outer, .. } => Some(outer.addr.ip()),
        Route::NeedsDns(_) => None,
    }
}
