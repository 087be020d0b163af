//! Applies a `DestinationRule` to one request: limits, the hash for the load balancer, and outlier detection.

use std::{fmt::Write as _, sync::Arc};

use ambit_model::{ArcStr, Balancing, HashCookie, HashPolicy, HashSource};
use ambit_resilience::{EndpointOutcome, LimitPermit, PickRequest, hash};
use ambit_telemetry::http::ResponseFlag;
use http::{
    HeaderMap, HeaderName, HeaderValue, StatusCode, Uri,
    header::{COOKIE, SET_COOKIE},
};
use rand::Rng as _;
use tokio::sync::OwnedSemaphorePermit;

use super::upstream_failure::UpstreamFailure;
use crate::{
    destination::{DestinationPort, NoUpstream},
    message::Version,
    session::Session,
};

/// Effect of a `DestinationRule` on one request, with the hash that the load balancer uses. The request counts against
/// the rule's limits until this value is dropped.
#[derive(Debug)]
pub(in crate::http) struct DestinationDecision {
    pub(in crate::http) port: Arc<DestinationPort>,
    hash: Option<u64>,
    /// `Set-Cookie` value for the response, if the load-balancer hash needs a new cookie.
    cookie: Option<HeaderValue>,
    _request_permit: LimitPermit,
    _connection_permit: Option<OwnedSemaphorePermit>,
}

impl DestinationDecision {
    /// Applies the `DestinationRule` of a service port to a request.
    pub(in crate::http) async fn new(
        session: &Session,
        port: Arc<DestinationPort>,
        version: Version,
        headers: &HeaderMap,
        uri: &Uri,
    ) -> Result<Arc<Self>, NoUpstream> {
        let rule_context = session.shard.waypoint.rule_context();
        port.check_supported()?;
        let active = port.take_request_slot(rule_context)?;
        // HTTP/2 connections carry many requests, which are limited instead.
        let connection = match version {
            Version::Http1 => port.wait_for_connection(rule_context).await?,
            Version::Http2 => None,
        };
        let (hash, cookie) = match &port.policy().balancing {
            Balancing::Hash(policy) => hash_request(session, policy, headers, uri),
            _ => (None, None),
        };
        Ok(Arc::new(Self {
            port,
            hash,
            cookie,
            _request_permit: active,
            _connection_permit: connection,
        }))
    }

    pub(in crate::http) fn pick_request<'a>(
        &self,
        failed: &'a [ArcStr],
        preferred: Option<&'a ArcStr>,
    ) -> PickRequest<'a> {
        PickRequest {
            hash: self.hash,
            tried_uids: failed,
            preferred_uid: preferred,
        }
    }

    /// Adds the cookie of the load-balancer hash to the response.
    pub(in crate::http) fn add_cookie(&self, headers: &mut HeaderMap) {
        if let Some(cookie) = &self.cookie {
            headers.append(SET_COOKIE, cookie.clone());
        }
    }
}

/// Classifies an attempt for outlier detection, by its response or failure; `None` if the client may have caused the
/// failure, which is possible only with a request body.
pub(in crate::http) fn outlier_outcome(
    result: Result<StatusCode, &UpstreamFailure>,
    has_body: bool,
) -> Option<EndpointOutcome> {
    match result {
        // A lack of room in the client's budget is not the endpoint's failure.
        Err(broken) if broken.flag == ResponseFlag::OverloadManager => None,
        Ok(status) => Some(EndpointOutcome::Response(status.as_u16())),
        Err(broken) => {
            let is_endpoints = matches!(
                broken.flag,
                ResponseFlag::UpstreamConnectionFailure | ResponseFlag::UpstreamRemoteReset
            );
            (is_endpoints || !has_body).then_some(EndpointOutcome::Failed)
        }
    }
}

fn hash_request(
    session: &Session,
    policy: &HashPolicy,
    headers: &HeaderMap,
    uri: &Uri,
) -> (Option<u64>, Option<HeaderValue>) {
    match &policy.source {
        HashSource::SourceIp => {
            let ip = session.remote_ip(headers);
            (Some(hash(ip.to_string().as_bytes())), None)
        }
        HashSource::Header(name) => (hash_header(headers, name), None),
        HashSource::Query(name) => (hash_query(uri.query(), name), None),
        HashSource::Cookie(cookie) => match cookie_value(headers, &cookie.name) {
            Some(value) => (Some(hash(value)), None),
            None => match new_cookie(cookie) {
                Some((value, set)) => (Some(hash(value.as_bytes())), Some(set)),
                None => (None, None),
            },
        },
    }
}

/// Hashes all values of a request header, for the load balancer's hash policy.
fn hash_header(headers: &HeaderMap, name: &str) -> Option<u64> {
    let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
    let mut values = headers.get_all(name).iter();
    let first = values.next()?;
    let mut mixed = hash(first.as_bytes());
    for value in values {
        mixed = mixed.rotate_left(1) ^ hash(value.as_bytes());
    }
    Some(mixed)
}

fn hash_query(query: Option<&str>, name: &str) -> Option<u64> {
    let mut pairs = query?
        .split('&')
        .map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let (_, value) = pairs.find(|(key, _)| *key == name)?;
    Some(hash(value.as_bytes()))
}

/// Returns the value of the first cookie with this name.
pub(in crate::http) fn cookie_value<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a [u8]> {
    let lines = headers.get_all(COOKIE).iter().map(HeaderValue::as_bytes);
    let mut pairs = lines.flat_map(|line| line.split(|byte| *byte == b';'));
    pairs.find_map(|pair| {
        let value = pair.trim_ascii().strip_prefix(name.as_bytes())?;
        let value = value.strip_prefix(b"=")?;
        let quoted = value
            .strip_prefix(b"\"")
            .and_then(|one| one.strip_suffix(b"\""));
        Some(quoted.unwrap_or(value))
    })
}

/// Generates the load-balancer cookie of a client that has none. Its random value reveals nothing about the endpoints.
fn new_cookie(settings: &HashCookie) -> Option<(String, HeaderValue)> {
    let ttl = settings.ttl?;
    let value = format!("{:016x}", rand::rng().random::<u64>());
    let mut text = format!("{}=\"{value}\"", settings.name);
    let mut add = |part: std::fmt::Arguments<'_>| text.write_fmt(part).is_ok();
    if !ttl.is_zero() {
        add(format_args!("; Max-Age={}", ttl.as_secs().max(1)));
    }
    if let Some(path) = &settings.path {
        add(format_args!("; Path={path}"));
    }
    for (name, value) in &settings.attributes {
        if value.is_empty() {
            add(format_args!("; {name}"));
        } else {
            add(format_args!("; {name}={value}"));
        }
    }
    add(format_args!("; HttpOnly"));
    Some((value, HeaderValue::from_str(&text).ok()?))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn headers(name: &'static str, values: &[&'static [u8]]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(name, HeaderValue::from_bytes(value).unwrap());
        }
        headers
    }

    #[test]
    fn cookies_are_found_among_malformed_ones() {
        for (lines, value) in [
            (&[&b"a=1; id=x; b=2"[..]][..], Some(&b"x"[..])),
            (&[b"id=\"x\""], Some(b"x")),
            (&[b"id="], Some(b"")),
            (&[b"a=1", b"id=x"], Some(b"x")),
            (&[b"id=x; id=y"], Some(b"x")),
            (&[b"xid=1;ID=2;id2=3;id"], None),
            (&[b";;;=;"], None),
            (&[b"id=\xff\xfe"], Some(b"\xff\xfe")),
        ] {
            assert_eq!(
                cookie_value(&headers("cookie", lines), "id"),
                value,
                "{lines:?}"
            );
        }
    }

    #[test]
    fn headers_are_hashed_with_all_their_values() {
        let of = |values: &[&'static [u8]]| hash_header(&headers("x-user", values), "x-user");
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[b"a"]), of(&[b"a"]));
        assert_ne!(of(&[b"a"]), of(&[b"b"]));
        assert_ne!(of(&[b"a", b"b"]), of(&[b"b", b"a"]));
        assert!(of(&[b"", b"\xff"]).is_some());
    }

    #[test]
    fn query_parameters_are_found() {
        assert_eq!(hash_query(Some("a=1&k=v&k=w"), "k"), Some(hash(b"v")));
        assert_eq!(hash_query(Some("k"), "k"), Some(hash(b"")));
        assert_eq!(hash_query(Some("kk=1"), "k"), None);
        assert_eq!(hash_query(None, "k"), None);
    }

    #[test]
    fn cookies_carry_max_age_and_path() {
        let mut cookie = HashCookie {
            name: "id".into(),
            ..HashCookie::default()
        };
        assert!(new_cookie(&cookie).is_none());
        cookie.ttl = Some(Duration::from_secs(60));
        cookie.path = Some("/shop".into());
        cookie.attributes = vec![
            ("SameSite".into(), "Lax".into()),
            ("Secure".into(), "".into()),
        ];
        let (value, set) = new_cookie(&cookie).unwrap();
        let expected =
            format!("id=\"{value}\"; Max-Age=60; Path=/shop; SameSite=Lax; Secure; HttpOnly");
        assert_eq!(set, expected.as_str());
        cookie.ttl = Some(Duration::ZERO);
        assert!(
            !new_cookie(&cookie)
                .unwrap()
                .1
                .to_str()
                .unwrap()
                .contains("Max-Age")
        );
    }

    #[test]
    fn failures_that_clients_can_cause_do_not_count() {
        let refused = UpstreamFailure::connect_failure(&std::fmt::Error, None);
        assert_eq!(
            outlier_outcome(Err(&refused), true),
            Some(EndpointOutcome::Failed)
        );
        let broken = UpstreamFailure {
            flag: ResponseFlag::UpstreamConnectionTermination,
            ..refused
        };
        assert_eq!(outlier_outcome(Err(&broken), true), None);
        assert_eq!(
            outlier_outcome(Err(&broken), false),
            Some(EndpointOutcome::Failed)
        );
        let status = StatusCode::BAD_GATEWAY;
        assert_eq!(
            outlier_outcome(Ok(status), true),
            Some(EndpointOutcome::Response(502))
        );
    }
}
