//! CUSTOM policies (ext_authz): an authorization provider allows or denies a request, and may change it.
//!
//! A request is checked once. The provider's changes are applied before the other policies, so that these authorize the
//! changed form. A request in flight is not checked again when policies change; it is terminated if they require
//! another provider.

pub(in crate::http) mod changes;
mod check_client;

use ambit_l7::authz::RequiredCheck;
use ambit_model::{ArcStr, Provider, ProviderBody, ProviderProtocol};
use ambit_telemetry::http::ResponseFlag;
use ambit_wire::ext_authz::{CheckRequest, CheckResponse, DeniedResponse, HeaderMutation};
use http::{HeaderMap, Request, Response, StatusCode};
use hyper::body::Incoming;
use tokio::time::timeout;

use super::admission::build_policy_request;
use crate::{
    hops::Hops,
    http::{
        body::{
            idle::IdleTimeout,
            prefixed_body::{BufferedPrefix, PrefixError, PrefixedBody},
        },
        normalized_target::NormalizedTarget,
        reply::Reply,
        report::record::RequestRecord,
    },
    in_flight_checks::CheckService,
    message::{self, Body},
    session::Session,
};
pub(crate) use check_client::CheckError;
use check_client::CheckedRequest;
pub(in crate::http) use check_client::{UnaryCall, call_unary};

/// Result of the external authorization of a request.
pub(in crate::http) enum ExternalOutcome {
    /// Allowed request, with the changes of the provider. Requests without a provider are allowed without changes.
    Allowed(ExternalAuthorization),
    /// Response of the provider to the client, in place of the application's.
    Responded(Response<Body>),
}

/// Result of the external authorization of an allowed request, which later phases need.
#[derive(Debug, Default)]
pub(in crate::http) struct ExternalAuthorization {
    /// Authorization provider that has allowed the request, and the request headers before its changes; `None` without
    /// a provider.
    pub(in crate::http) provider: Option<(ArcStr, HeaderMap)>,
    response_headers: Vec<HeaderMutation>,
    body_prefix: BufferedPrefix,
}

impl ExternalAuthorization {
    /// Returns the result of a provider that allows a request with these headers and changes nothing. Explanations
    /// assume this result.
    pub(in crate::http) fn assume_allowed(provider: &Provider, headers: &HeaderMap) -> Self {
        Self {
            provider: Some((provider.name.clone(), headers.clone())),
            ..Self::default()
        }
    }

    /// Whether a prefix of the request body has been read for the provider.
    pub(in crate::http) fn has_body(&self) -> bool {
        self.body_prefix.has_frames()
    }

    /// Returns the request body, which begins with the prefix that was read for the provider.
    pub(in crate::http) fn take_body(&mut self, rest: Incoming) -> PrefixedBody {
        std::mem::take(&mut self.body_prefix).chain(rest)
    }

    /// Adds the headers that the provider has set for the response.
    pub(in crate::http) fn change_response(&self, session: &Session, headers: &mut HeaderMap) {
        if let Some((provider, _)) = &self.provider {
            let refused = changes::apply_header_changes(headers, &self.response_headers);
            count_rejected_headers(session, provider, refused);
        }
    }
}

fn count_rejected_headers(session: &Session, provider: &str, rejected: u64) {
    let metrics = &session.shard.waypoint.http_metrics;
    metrics.count_refused_provider_headers(provider, rejected);
}

/// Finds the authorization provider that must check a request, by CUSTOM policies.
pub(in crate::http) fn required_check<B>(
    session: &Session,
    request: &Request<B>,
    normalized: &NormalizedTarget,
) -> RequiredCheck {
    let method = request.method().as_str();
    let facts = build_policy_request(
        session,
        method,
        &normalized.host,
        &normalized.path,
        request.headers(),
    );
    let policies = session.shard.waypoint.published.policies();
    policies.required_check(session.attachments().scope(), &facts)
}

/// Returns the reply to a request whose authorization provider is missing, or whose policies name several.
pub(in crate::http) fn missing_provider_reply() -> Reply {
    let flag = ResponseFlag::UnauthorizedExternal;
    Reply::new(StatusCode::FORBIDDEN, "RBAC: access denied", flag)
}

/// Reads the beginning of a request's body, up to the size that its authorization provider receives.
///
/// # Errors
/// When the body is invalid, too large for the provider, too slow, or exceeds the memory budget; the error is the reply
/// to the client.
async fn read_body_prefix(
    session: &Session,
    request: &mut Request<Incoming>,
    limit: &ProviderBody,
    record: &mut RequestRecord,
    idle: &IdleTimeout,
) -> Result<BufferedPrefix, Reply> {
    let most = usize::try_from(limit.max_bytes).unwrap_or(usize::MAX);
    let prefix = BufferedPrefix::read(request.body_mut(), most, &session.memory, idle).await;
    let prefix = prefix.map_err(|error| match error {
        PrefixError::Broken(_) => {
            Reply::bad_request("the request's body is not what HTTP allows", "body")
        }
        PrefixError::BudgetExhausted(exhausted) => Reply::overloaded(exhausted),
        PrefixError::Idle(idle) => idle.into(),
    })?;
    if prefix.len() > most && !limit.allow_partial {
        record.record_external_denial("ext_authz_error");
        let flag = ResponseFlag::UnauthorizedExternal;
        let text = "the body is larger than its authorizer takes";
        return Err(Reply::new(StatusCode::PAYLOAD_TOO_LARGE, text, flag));
    }
    Ok(prefix)
}

/// Checks a request with its authorization provider, if a CUSTOM policy requires that, and applies the provider's
/// changes.
pub(in crate::http) async fn authorize_externally(
    session: &Session,
    request: &mut Request<Incoming>,
    normalized: &mut NormalizedTarget,
    record: &mut RequestRecord,
    hops: Hops,
    is_grpc: bool,
    idle: &IdleTimeout,
) -> Result<ExternalOutcome, Reply> {
    let waypoint = &session.shard.waypoint;
    let provider = match required_check(session, request, normalized) {
        RequiredCheck::NotRequired => {
            return Ok(ExternalOutcome::Allowed(ExternalAuthorization::default()));
        }
        RequiredCheck::Denied(why) => {
            tracing::debug!(why, "a request is denied: no provider can be called");
            waypoint.http_metrics.count_authorization("", "nobody");
            record.record_external_denial("ext_authz_error");
            return Err(missing_provider_reply());
        }
        RequiredCheck::CheckBy(provider, _) => provider,
    };
    let mut authorization = ExternalAuthorization {
        provider: Some((provider.name.clone(), request.headers().clone())),
        ..ExternalAuthorization::default()
    };
    if let Some(limit) = &provider.body {
        authorization.body_prefix = read_body_prefix(session, request, limit, record, idle).await?;
    }
    let service = CheckService::Provider(provider.name.clone());
    let Some(_check) = session.begin_check(service) else {
        return apply_failure_mode(
            session,
            &provider,
            authorization,
            record,
            &CheckError::TooManyChecks,
        );
    };
    let checked = CheckedRequest {
        request,
        normalized,
        prefix: &authorization.body_prefix,
    };
    let checking = check_client::send_check(session, &provider, checked, hops);
    let answer = match timeout(provider.timeout, checking).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(error)) => {
            return apply_failure_mode(session, &provider, authorization, record, &error);
        }
        Err(_) => {
            return apply_failure_mode(
                session,
                &provider,
                authorization,
                record,
                &CheckError::Timeout,
            );
        }
    };
    let allowed = match answer {
        CheckResponse::Denied(denied) => {
            waypoint
                .http_metrics
                .count_authorization(&provider.name, "denied");
            record.record_external_denial("ext_authz_denied");
            let response = build_denial(session, &provider, denied, record, is_grpc);
            return Ok(ExternalOutcome::Responded(response));
        }
        CheckResponse::Allowed(allowed) => allowed,
    };
    let refused = changes::apply_header_changes(request.headers_mut(), &allowed.headers)
        + changes::remove_headers(request.headers_mut(), &allowed.remove_headers);
    count_rejected_headers(session, &provider.name, refused);
    let target = changes::apply_query_changes(
        &normalized.target,
        &allowed.query_set,
        &allowed.query_remove,
    );
    match target {
        Some(target) if changes::is_within_limits(request.headers()) => normalized.target = target,
        _ => {
            return apply_failure_mode(
                session,
                &provider,
                authorization,
                record,
                &CheckError::InvalidHeaderChanges,
            );
        }
    }
    waypoint
        .http_metrics
        .count_authorization(&provider.name, "allowed");
    authorization.response_headers = allowed.response_headers;
    Ok(ExternalOutcome::Allowed(authorization))
}

/// Allows or rejects a request whose check has failed, as the provider's settings configure (fail open).
fn apply_failure_mode(
    session: &Session,
    provider: &Provider,
    authorization: ExternalAuthorization,
    record: &mut RequestRecord,
    error: &CheckError,
) -> Result<ExternalOutcome, Reply> {
    let name = provider.name.as_str();
    let metrics = &session.shard.waypoint.http_metrics;
    if let CheckError::BudgetExhausted(exhausted) = error {
        metrics.count_authorization(name, error.outcome());
        return Err(Reply::overloaded(*exhausted));
    }
    tracing::debug!(
        provider = name,
        error = ambit_proxy::report::format_error_chain(error),
        "a provider has not answered"
    );
    metrics.count_authorization(name, error.outcome());
    if provider.fail_open && error.may_fail_open() {
        metrics.count_authorization(name, "failed_open");
        return Ok(ExternalOutcome::Allowed(authorization));
    }
    record.record_external_denial("ext_authz_error");
    let status = StatusCode::from_u16(provider.status_on_error);
    let flag = ResponseFlag::UnauthorizedExternal;
    Err(Reply::new(
        status.unwrap_or(StatusCode::FORBIDDEN),
        "",
        flag,
    ))
}

/// Builds the response to the client from a provider's denial.
fn build_denial(
    session: &Session,
    provider: &Provider,
    denied: DeniedResponse,
    record: &mut RequestRecord,
    is_grpc: bool,
) -> Response<Body> {
    // An informational status is not a final response.
    let status = denied.status.filter(|status| *status >= 200);
    let status = status.and_then(|status| StatusCode::from_u16(status).ok());
    let text = String::from_utf8_lossy(&denied.body).into_owned();
    let status = status.unwrap_or(StatusCode::FORBIDDEN);
    let reply = Reply::new(status, text, ResponseFlag::UnauthorizedExternal);
    record.record_reply(&reply);
    let mut response = reply.into_response(is_grpc);
    let of_grpc = |one: &HeaderMutation| {
        let name = one.name.to_ascii_lowercase();
        name.starts_with("grpc-") || name == "content-type"
    };
    let headers = denied.headers.into_iter();
    let headers: Vec<_> = headers.filter(|one| !is_grpc || !of_grpc(one)).collect();
    let refused = changes::apply_header_changes(response.headers_mut(), &headers);
    count_rejected_headers(session, &provider.name, refused);
    if !is_grpc {
        *response.body_mut() = message::text_body(denied.body);
    }
    response
}

/// Checks an opaque TCP connection with its authorization provider. Returns the provider that has allowed the
/// connection; `None` if no policy requires a check.
///
/// # Errors
/// When the connection is rejected; the error is the reason.
pub(crate) async fn authorize_connection(
    session: &Session,
    sni: Option<&str>,
) -> Result<Option<ArcStr>, String> {
    let waypoint = &session.shard.waypoint;
    let required = {
        let policies = waypoint.published.policies();
        policies.required_connection_check(
            session.attachments().scope(),
            &session.connection_attributes(sni),
        )
    };
    let provider = match required {
        RequiredCheck::NotRequired => return Ok(None),
        RequiredCheck::Denied(why) => return Err(why),
        RequiredCheck::CheckBy(provider, _) => provider,
    };
    let name = &provider.name;
    if provider.protocol != ProviderProtocol::Grpc {
        return Err(format!("provider {name} decides about HTTP alone"));
    }
    let checking = async {
        let service = CheckService::Provider(name.clone());
        let _check = session
            .begin_check(service)
            .ok_or(CheckError::TooManyChecks)?;
        let source = check_client::source_peer(session);
        let destination = check_client::destination_peer(session);
        let check = CheckRequest {
            source: check_client::peer(&source),
            destination: check_client::peer(&destination),
            time: std::time::SystemTime::now(),
            http: None,
            sni,
        };
        check_client::check_by_grpc(session, &provider, check, session.hops).await
    };
    let answer = timeout(provider.timeout, checking).await;
    let metrics = &waypoint.http_metrics;
    match answer.unwrap_or(Err(CheckError::Timeout)) {
        Ok(CheckResponse::Allowed(_)) => {
            metrics.count_authorization(name, "allowed");
            Ok(Some(name.clone()))
        }
        Ok(CheckResponse::Denied(_)) => {
            metrics.count_authorization(name, "denied");
            Err(format!("provider {name} denies it"))
        }
        Err(error) => {
            metrics.count_authorization(name, error.outcome());
            if provider.fail_open && error.may_fail_open() {
                metrics.count_authorization(name, "failed_open");
                return Ok(Some(name.clone()));
            }
            Err(format!("provider {name} has not answered: {error}"))
        }
    }
}
