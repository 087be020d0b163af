//! Check requests to an authorization provider by gRPC (`envoy.service.auth.v3`) or HTTP, and its responses.

use std::{
    net::SocketAddr,
    time::{Duration, SystemTime},
};

use ambit_model::{
    ArcStr, HttpProvider, NamespacedHostname, Provider, ProviderProtocol, StringMatch,
};
use ambit_wire::ext_authz::{
    AllowedResponse, CHECK_PATH, CheckRequest, CheckResponse, CheckResponseError, DeniedResponse,
    HeaderAction, HeaderMutation, HttpCheckRequest, Peer,
};
use bytes::{BufMut as _, Bytes, BytesMut};
use http::{
    HeaderMap, HeaderName, HeaderValue, Method, Request, StatusCode, Uri,
    header::{AUTHORIZATION, CONTENT_TYPE, HOST, LOCATION, TE, WWW_AUTHENTICATE},
};
use hyper::body::{Body as _, Incoming};

use crate::{
    calls::{self, CallCharge, CallError, CallIdentity, CallResponseError, Callee},
    headers,
    hops::Hops,
    http::{
        body::prefixed_body::BufferedPrefix, normalized_target::NormalizedTarget,
        report::record::protocol,
    },
    memory::BudgetExhausted,
    message::{self, Version},
    session::Session,
};

/// Maximum size of a provider's response body, in bytes.
const MAX_RESPONSE_BYTES: usize = 256 << 10;

/// Reason why a check at an authorization provider yields no decision.
#[derive(Debug, thiserror::Error)]
pub(crate) enum CheckError {
    #[error(transparent)]
    Call(#[from] CallError),
    #[error("it took longer than it may")]
    Timeout,
    #[error("too many checks of this caller, or at this service, are in flight")]
    TooManyChecks,
    #[error(transparent)]
    Collect(CallResponseError),
    #[error(transparent)]
    BudgetExhausted(#[from] BudgetExhausted),
    #[error("the request would be too large or invalid with the provider's changes")]
    InvalidHeaderChanges,
    #[error("it answers with the status {0}")]
    Status(StatusCode),
    #[error("it answers with the gRPC status {0:?}")]
    Grpc(Option<String>),
    #[error("the answer is no message of gRPC")]
    NoResponseMessage,
    #[error(transparent)]
    InvalidMessage(#[from] CheckResponseError),
    #[error("the check cannot be encoded as a request")]
    InvalidRequest,
}

impl CheckError {
    /// Whether a provider that fails open allows the request after this error. Errors that the caller can cause are
    /// excluded: too many checks in flight, no memory budget, and a request that cannot take the provider's changes.
    pub(in crate::http) fn may_fail_open(&self) -> bool {
        !matches!(
            self,
            Self::InvalidHeaderChanges | Self::TooManyChecks | Self::BudgetExhausted(_)
        )
    }

    /// Returns the value of the outcome label in metrics for a failed check.
    pub(in crate::http) fn outcome(&self) -> &'static str {
        match self {
            Self::Call(_) => "unreachable",
            Self::Timeout => "late",
            Self::TooManyChecks => "too_many",
            Self::Collect(_) => "too_large",
            Self::BudgetExhausted(_) => "no_memory",
            Self::Status(_) | Self::Grpc(_) => "failed",
            Self::NoResponseMessage
            | Self::InvalidMessage(_)
            | Self::InvalidRequest
            | Self::InvalidHeaderChanges => "malformed",
        }
    }
}

impl From<CallResponseError> for CheckError {
    fn from(from: CallResponseError) -> Self {
        match from {
            CallResponseError::BudgetExhausted(exhausted) => Self::BudgetExhausted(exhausted),
            broken @ CallResponseError::TooLargeOrTruncated => Self::Collect(broken),
        }
    }
}

/// Source or destination in a check request: address, and SPIFFE identity as text.
pub(super) type CheckPeer = (SocketAddr, Option<String>);

pub(super) fn source_peer(session: &Session) -> CheckPeer {
    let caller = &session.caller;
    let identity = caller.identity.as_ref().map(ToString::to_string);
    (caller.address, identity)
}

pub(super) fn destination_peer(session: &Session) -> CheckPeer {
    let own = session.shard.waypoint.dialer.identity.to_string();
    (session.target.address(), Some(own))
}

pub(super) fn peer((address, principal): &CheckPeer) -> Peer<'_> {
    Peer {
        address: *address,
        principal: principal.as_deref(),
    }
}

/// Client's request or connection that an authorization provider checks.
#[derive(Clone, Copy, Debug)]
pub(super) struct CheckedRequest<'a> {
    pub(super) request: &'a Request<Incoming>,
    pub(super) normalized: &'a NormalizedTarget,
    /// Prefix of the body, up to the size that the provider's settings require.
    pub(super) prefix: &'a BufferedPrefix,
}

pub(super) async fn send_check(
    session: &Session,
    provider: &Provider,
    checked: CheckedRequest<'_>,
    hops: Hops,
) -> Result<CheckResponse, CheckError> {
    // All attributes are read before the first await.
    match &provider.protocol {
        ProviderProtocol::Grpc => {
            let (source, destination) = (source_peer(session), destination_peer(session));
            let check = CheckRequest {
                source: peer(&source),
                destination: peer(&destination),
                time: SystemTime::now(),
                http: Some(http_check(provider, checked)),
                sni: None,
            };
            check_by_grpc(session, provider, check, hops).await
        }
        ProviderProtocol::Http(http) => {
            let question = build_http_check(provider, http, checked)?;
            check_by_http(session, provider, http, question, hops).await
        }
    }
}

fn provider_service(provider: &Provider) -> Result<(&NamespacedHostname, u16), CheckError> {
    match &provider.target {
        Ok((service, port)) => Ok((service, *port)),
        Err(_) => Err(CheckError::InvalidRequest),
    }
}

fn http_check(provider: &Provider, checked: CheckedRequest<'_>) -> HttpCheckRequest {
    let CheckedRequest {
        request,
        normalized,
        prefix,
    } = checked;
    let mut all = std::collections::HashMap::new();
    let target = normalized.target.as_str();
    for (name, value) in [
        (":authority", normalized.host.as_str()),
        (":method", request.method().as_str()),
        (":path", target),
        (":scheme", "http"),
    ] {
        all.insert(name.to_owned(), value.to_owned());
    }
    for (name, value) in request.headers() {
        if *name == HOST {
            continue;
        }
        let value = String::from_utf8_lossy(value.as_bytes());
        all.entry(name.as_str().to_owned())
            .and_modify(|joined: &mut String| {
                joined.push(',');
                joined.push_str(&value);
            })
            .or_insert_with(|| value.clone().into_owned());
    }
    let mut body = Vec::new();
    if let Some(limit) = provider.body {
        let most = usize::try_from(limit.max_bytes).unwrap_or(usize::MAX);
        body = prefix.first_bytes(most);
        let is_partial = (prefix.len() > most).to_string();
        all.insert("x-envoy-auth-partial-body".to_owned(), is_partial);
    }
    let rest = request.body().size_hint().exact();
    let prefix = u64::try_from(prefix.len()).ok();
    HttpCheckRequest {
        id: all.get("x-request-id").cloned().unwrap_or_default(),
        method: request.method().to_string(),
        headers: all,
        path: target.to_owned(),
        host: normalized.host.clone(),
        body_bytes: rest.zip(prefix).map(|(rest, prefix)| rest + prefix),
        protocol: protocol(request.version()),
        body,
        body_as_bytes: provider.body.is_some_and(|limit| limit.as_bytes),
    }
}

pub(super) async fn check_by_grpc(
    session: &Session,
    provider: &Provider,
    check: CheckRequest<'_>,
    hops: Hops,
) -> Result<CheckResponse, CheckError> {
    let (service, port) = provider_service(provider)?;
    let call = UnaryCall {
        service,
        port,
        path: CHECK_PATH,
        message: check.encode(),
        timeout: provider.timeout,
        caller: CallIdentity::Waypoint,
        hops,
    };
    let message = call_unary(session, call).await?;
    Ok(CheckResponse::decode(&message)?)
}

/// Unary gRPC call to a service of the mesh.
#[derive(Clone, Debug)]
pub(in crate::http) struct UnaryCall<'a> {
    pub(in crate::http) service: &'a NamespacedHostname,
    pub(in crate::http) port: u16,
    /// Path of the gRPC method.
    pub(in crate::http) path: &'a str,
    /// Request message, as encoded protobuf.
    pub(in crate::http) message: Vec<u8>,
    /// Value of `grpc-timeout`: the deadline for the server.
    pub(in crate::http) timeout: Duration,
    pub(in crate::http) caller: CallIdentity<'a>,
    /// Number of waypoints that the client's request has passed.
    pub(in crate::http) hops: Hops,
}

/// Makes a unary gRPC call, and returns the response message. The calling function must enforce a timeout.
pub(in crate::http) async fn call_unary(
    session: &Session,
    call: UnaryCall<'_>,
) -> Result<Bytes, CheckError> {
    let UnaryCall {
        service,
        port,
        path,
        message,
        timeout,
        caller,
        hops,
    } = call;
    let length = u32::try_from(message.len()).map_err(|_| CheckError::InvalidRequest)?;
    let mut framed = BytesMut::with_capacity(message.len() + 5);
    framed.put_u8(0);
    framed.put_u32(length);
    framed.put_slice(&message);
    drop(message);
    let uri = format!("http://{}:{port}{path}", service.hostname);
    let mut request = Request::new(message::text_body(framed.freeze()));
    *request.method_mut() = Method::POST;
    *request.version_mut() = http::Version::HTTP_2;
    *request.uri_mut() = Uri::try_from(uri).map_err(|_| CheckError::InvalidRequest)?;
    let all = request.headers_mut();
    all.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    all.insert(TE, HeaderValue::from_static("trailers"));
    let seconds = timeout.as_secs().clamp(1, 99_999_999);
    if let Ok(value) = HeaderValue::from_str(&format!("{seconds}S")) {
        all.insert("grpc-timeout", value);
    }
    let initiator = session.initiator();
    let callee = Callee {
        service,
        port,
        caller,
        hops,
        initiator: Some(&initiator),
    };
    let mut charge = CallCharge::new(&initiator.memory, Version::Http2, &request)?;
    let response = calls::request(&session.shard, callee, Version::Http2, request).await?;
    let (parts, body) = response.into_parts();
    if parts.status != StatusCode::OK {
        return Err(CheckError::Status(parts.status));
    }
    if let Some(status) = grpc_status(&parts.headers).filter(|status| status != "0") {
        return Err(CheckError::Grpc(Some(status)));
    }
    let collected = charge.read_response(body, MAX_RESPONSE_BYTES).await?;
    let status = collected.trailers().and_then(grpc_status);
    let status = status.or_else(|| grpc_status(&parts.headers));
    if status.as_deref() != Some("0") {
        return Err(CheckError::Grpc(status));
    }
    let bytes = collected.to_bytes();
    let (prefix, message) = bytes
        .split_at_checked(5)
        .ok_or(CheckError::NoResponseMessage)?;
    let length = u32::try_from(message.len()).map_err(|_| CheckError::NoResponseMessage)?;
    let [a, b, c, d] = length.to_be_bytes();
    // Uncompressed, and a single message.
    if prefix != [0, a, b, c, d] {
        return Err(CheckError::NoResponseMessage);
    }
    Ok(bytes.slice_ref(message))
}

fn grpc_status(headers: &HeaderMap) -> Option<String> {
    let status = headers.get("grpc-status")?;
    Some(String::from_utf8_lossy(status.as_bytes()).into_owned())
}

fn matches_any(patterns: &[StringMatch], name: &HeaderName) -> bool {
    patterns
        .iter()
        .any(|pattern| pattern.matches(name.as_str()))
}

/// Builds the HTTP request by which an HTTP provider checks a client's request.
fn build_http_check(
    provider: &Provider,
    http: &HttpProvider,
    checked: CheckedRequest<'_>,
) -> Result<Request<message::Body>, CheckError> {
    let CheckedRequest {
        request,
        normalized,
        prefix,
    } = checked;
    let (service, _) = provider_service(provider)?;
    let mut content = Vec::new();
    let mut is_partial = None;
    if let Some(limit) = provider.body {
        let most = usize::try_from(limit.max_bytes).unwrap_or(usize::MAX);
        content = prefix.first_bytes(most);
        is_partial = Some(prefix.len() > most);
    }
    let mut check_request = Request::new(message::text_body(content));
    check_request.method_mut().clone_from(request.method());
    let target = format!("{}{}", http.path_prefix, normalized.target);
    *check_request.uri_mut() = Uri::try_from(target).map_err(|_| CheckError::InvalidRequest)?;
    let all = check_request.headers_mut();
    for (name, value) in request.headers() {
        let goes = *name == AUTHORIZATION || matches_any(&http.headers, name);
        if goes && headers::is_mutable_header(name) {
            all.append(name.clone(), value.clone());
        }
    }
    let header = |name: &ArcStr, value: &ArcStr| {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        Some((name, HeaderValue::from_str(value).ok()?))
    };
    for (name, value) in &http.added {
        let (name, value) = header(name, value).ok_or(CheckError::InvalidRequest)?;
        all.insert(name, value);
    }
    if let Some(is_partial) = is_partial {
        let text = if is_partial { "true" } else { "false" };
        all.insert("x-envoy-auth-partial-body", HeaderValue::from_static(text));
    }
    let host = if normalized.host.is_empty() {
        service.hostname.as_str()
    } else {
        &normalized.host
    };
    let host = HeaderValue::from_str(host).map_err(|_| CheckError::InvalidRequest)?;
    all.insert(HOST, host);
    Ok(check_request)
}

async fn check_by_http(
    session: &Session,
    provider: &Provider,
    http: &HttpProvider,
    check_request: Request<message::Body>,
    hops: Hops,
) -> Result<CheckResponse, CheckError> {
    let (service, port) = provider_service(provider)?;
    let initiator = session.initiator();
    let callee = Callee {
        service,
        port,
        caller: CallIdentity::Waypoint,
        hops,
        initiator: Some(&initiator),
    };
    let mut charge = CallCharge::new(&initiator.memory, Version::Http1, &check_request)?;
    let response = calls::request(&session.shard, callee, Version::Http1, check_request).await?;
    let (parts, body) = response.into_parts();
    if parts.status.is_server_error() || parts.status.is_informational() {
        return Err(CheckError::Status(parts.status));
    }
    let body = charge
        .read_response(body, MAX_RESPONSE_BYTES)
        .await?
        .to_bytes();
    let taken = |goes: &dyn Fn(&HeaderName) -> bool, first: HeaderAction| {
        let mut taken: Vec<HeaderMutation> = Vec::new();
        for (name, value) in &parts.headers {
            if headers::is_mutable_header(name) && goes(name) {
                let again = taken.iter().any(|one| one.name == name.as_str());
                taken.push(HeaderMutation {
                    name: name.as_str().to_owned(),
                    value: value.as_bytes().to_vec(),
                    action: if again { HeaderAction::Append } else { first },
                });
            }
        }
        taken
    };
    if parts.status == StatusCode::OK {
        return Ok(CheckResponse::Allowed(AllowedResponse {
            headers: taken(
                &|name| matches_any(&http.to_application, name),
                HeaderAction::Set,
            ),
            response_headers: taken(
                &|name| matches_any(&http.to_client_allowed, name),
                HeaderAction::Append,
            ),
            ..AllowedResponse::default()
        }));
    }
    let goes = |name: &HeaderName| {
        http.to_client_denied.is_empty()
            || *name == WWW_AUTHENTICATE
            || *name == LOCATION
            || matches_any(&http.to_client_denied, name)
    };
    Ok(CheckResponse::Denied(DeniedResponse {
        status: Some(parts.status.as_u16()),
        headers: taken(&goes, HeaderAction::Set),
        body: body.to_vec(),
    }))
}
