//! Session persistence (`sessionPersistence`): requests of a client go to the endpoint that its first request was sent
//! to.
//!
//! The session value, in a cookie or header, contains hashes of the rule's backend and of its endpoint, which reveal no
//! addresses, and the start time. It is untrusted: a client reaches only endpoints that its backend currently has and
//! that may be chosen, and only backends of the rule that the request matches. An invalid value begins a new session. A
//! client that forges a value can only choose among the endpoints of the matched rule, and prolong its own session.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use ambit_l7::route::{Backend, Rule};
use ambit_model::{HttpBackend, HttpSession};
use ambit_resilience::hash;
use ambit_route::BackendEndpoint;
use http::{HeaderMap, HeaderName, HeaderValue, header::SET_COOKIE};

use super::endpoint::cookie_value;

/// Tolerated clock skew between waypoint replicas: one replica writes the start time of a session, others check it.
const MAX_CLOCK_SKEW: Duration = Duration::from_secs(60);
/// Number of hexadecimal digits of each number in a session value.
const HEX_DIGITS: usize = 16;

/// Parsed session value of a cookie or header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct SessionValue {
    backend: u64,
    endpoint: u64,
    /// Start of the session, in milliseconds since the Unix epoch.
    started_at: u64,
    last_seen: u64,
}

/// Sticky session of one request, with the endpoint that the session selects.
#[derive(Clone, Debug)]
pub(in crate::http) struct SessionAffinity {
    settings: HttpSession,
    client_value: Option<SessionValue>,
    now: u64,
    /// Endpoint that the session selects; `None` for a new session.
    pub(in crate::http) endpoint: Option<BackendEndpoint>,
}

/// Result of looking up the endpoint of a session.
#[derive(Debug)]
pub(in crate::http) enum SessionEndpoint {
    /// Endpoint of the session, which still exists.
    Exists(BackendEndpoint),
    /// Endpoint that no longer exists, so that the session ends.
    Gone,
    /// Endpoint that only the waypoint of the backend's service can look up.
    AtOtherWaypoint,
}

impl SessionValue {
    fn parse(text: &[u8]) -> Option<Self> {
        let is_one = text.len() == 4 * HEX_DIGITS
            && text
                .iter()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        let text = std::str::from_utf8(text).ok().filter(|_| is_one)?;
        let number = |place: usize| {
            let digits = text.get(place * HEX_DIGITS..(place + 1) * HEX_DIGITS)?;
            u64::from_str_radix(digits, 16).ok()
        };
        Some(Self {
            backend: number(0)?,
            endpoint: number(1)?,
            started_at: number(2)?,
            last_seen: number(3)?,
        })
    }

    fn to_text(self) -> String {
        let Self {
            backend,
            endpoint,
            started_at: began,
            last_seen: seen,
        } = self;
        format!("{backend:016x}{endpoint:016x}{began:016x}{seen:016x}")
    }

    /// Whether neither the absolute nor the idle timeout of the session has expired.
    fn is_valid(&self, settings: &HttpSession, now: u64) -> bool {
        let latest = now.saturating_add(to_milliseconds(MAX_CLOCK_SKEW));
        let within = |since: u64, most: Option<Duration>| {
            most.is_none_or(|most| now.saturating_sub(since) < to_milliseconds(most))
        };
        self.started_at <= latest
            && self.last_seen <= latest
            && within(self.started_at, settings.absolute_timeout)
            && within(self.last_seen, settings.idle_timeout)
    }
}

fn to_milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

/// Returns the current time in milliseconds since the Unix epoch.
pub(in crate::http) fn now_milliseconds() -> u64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    to_milliseconds(since.unwrap_or_default())
}

fn hash_backend(backend: &HttpBackend) -> Option<u64> {
    let service = backend.service.as_ref().ok()?;
    let subset = backend.subset.as_deref().unwrap_or_default();
    Some(hash(
        format!("{service}:{}/{subset}", backend.port).as_bytes(),
    ))
}

fn hash_endpoint(uid: &str) -> u64 {
    hash(uid.as_bytes())
}

/// Finds the endpoint whose hashed workload uid is `mark`.
pub(in crate::http) fn find_by_hash(endpoints: Vec<BackendEndpoint>, mark: u64) -> SessionEndpoint {
    let mut all = endpoints.into_iter();
    match all.find(|one| hash_endpoint(one.workload.uid()) == mark) {
        Some(found) => SessionEndpoint::Exists(found),
        None => SessionEndpoint::Gone,
    }
}

impl SessionAffinity {
    /// Parses the session value of a request, in the cookie or header that the rule configures.
    pub(in crate::http) fn from_request(
        settings: &HttpSession,
        headers: &HeaderMap,
        now: u64,
    ) -> Self {
        let value = match settings.is_header {
            true => headers
                .get(settings.name.as_str())
                .map(HeaderValue::as_bytes),
            false => cookie_value(headers, &settings.name),
        };
        let brought = value.and_then(SessionValue::parse);
        Self {
            client_value: brought.filter(|brought| brought.is_valid(settings, now)),
            settings: settings.clone(),
            now,
            endpoint: None,
        }
    }

    /// Returns the backend of a valid session, regardless of weights. `find` looks up an endpoint of a backend by its
    /// hash; without a result the session ends.
    pub(in crate::http) fn backend<'a>(
        &mut self,
        rule: &'a Rule,
        find: impl FnOnce(&HttpBackend, u64) -> SessionEndpoint,
    ) -> Option<(usize, &'a Backend)> {
        let brought = self.client_value?;
        let mut all = rule.backends().iter().enumerate();
        let matched = all.find(|(_, one)| hash_backend(&one.target) == Some(brought.backend));
        let found = matched.map(|(_, one)| find(&one.target, brought.endpoint));
        match found {
            Some(SessionEndpoint::Exists(endpoint)) => self.endpoint = Some(endpoint),
            Some(SessionEndpoint::AtOtherWaypoint) => {}
            Some(SessionEndpoint::Gone) | None => {
                self.client_value = None;
                return None;
            }
        }
        matched
    }

    /// Adds the session's header or cookie to a response, if the client has none for this endpoint or the idle timeout
    /// must be renewed.
    pub(in crate::http) fn change_response(
        &self,
        backend: &HttpBackend,
        uid: &str,
        headers: &mut HeaderMap,
    ) {
        let Some(backend) = hash_backend(backend) else {
            return;
        };
        let endpoint = hash_endpoint(uid);
        let same = self
            .client_value
            .filter(|one| (one.backend, one.endpoint) == (backend, endpoint));
        if same.is_some() && self.settings.idle_timeout.is_none() {
            return;
        }
        let value = SessionValue {
            backend,
            endpoint,
            started_at: same.map_or(self.now, |same| same.started_at.min(self.now)),
            last_seen: self.now,
        };
        let name = &self.settings.name;
        if self.settings.is_header {
            let name = HeaderName::from_bytes(name.as_bytes());
            if let (Ok(name), Ok(value)) = (name, HeaderValue::from_str(&value.to_text())) {
                headers.insert(name, value);
            }
            return;
        }
        let mut text = format!("{name}={}; Path=/; HttpOnly", value.to_text());
        if let Some(most) = self
            .settings
            .absolute_timeout
            .filter(|_| self.settings.is_permanent)
        {
            let left = to_milliseconds(most).saturating_sub(self.now - value.started_at);
            text.push_str(&format!("; Max-Age={}", left.div_ceil(1000)));
        }
        if let Ok(value) = HeaderValue::from_str(&text) {
            headers.append(SET_COOKIE, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use ambit_l7::route::{RouteDecision, RouteRequest, RouteTable};
    use ambit_model::{HttpRoute, HttpRouteRule, NamespacedHostname};
    use http::header::COOKIE;

    use super::*;

    const NOW: u64 = 1_000_000_000;

    fn session() -> HttpSession {
        HttpSession {
            name: "s".into(),
            ..HttpSession::default()
        }
    }

    fn backend(name: &str, weight: u32) -> HttpBackend {
        HttpBackend {
            service: Ok(NamespacedHostname::new("shop", name)),
            port: 80,
            subset: None,
            weight,
            filters: Vec::new(),
        }
    }

    fn rule(backends: Vec<HttpBackend>) -> std::sync::Arc<Rule> {
        let rule = HttpRouteRule {
            backends,
            ..HttpRouteRule::default()
        };
        let route = HttpRoute {
            rules: vec![rule],
            ..HttpRoute::default()
        };
        let table = RouteTable::new(&[route], 80, None);
        let headers = HeaderMap::new();
        let choice = table.select_rule(&RouteRequest {
            method: "GET",
            path: "/",
            query: None,
            host: "",
            headers: &headers,
        });
        match choice {
            RouteDecision::Rule(rule, _) => rule.clone(),
            other => panic!("{other:?}"),
        }
    }

    /// Returns request headers with the cookies that a response sets, as a client's next request has.
    fn next_request_headers(answer: &HeaderMap) -> HeaderMap {
        let set = answer[SET_COOKIE].to_str().unwrap();
        let (pair, _) = set.split_once(';').unwrap();
        let mut headers = HeaderMap::new();
        headers.insert(COOKIE, HeaderValue::from_str(pair).unwrap());
        headers
    }

    fn new_session_headers(of: &HttpSession, now: u64) -> HeaderMap {
        let mut answer = HeaderMap::new();
        let affinity = SessionAffinity::from_request(of, &HeaderMap::new(), now);
        affinity.change_response(&backend("a", 1), "pod-1", &mut answer);
        answer
    }

    #[test]
    fn session_keeps_backend_and_endpoint_regardless_of_weights() {
        let client = next_request_headers(&new_session_headers(&session(), NOW));
        let rule = rule(vec![backend("b", 1), backend("a", 0)]);
        let mut affinity = SessionAffinity::from_request(&session(), &client, NOW + 1);
        let mut looked_up = None;
        let matched = affinity.backend(&rule, |to, mark| {
            looked_up = Some((to.clone(), mark));
            SessionEndpoint::AtOtherWaypoint
        });
        assert_eq!(matched.map(|(index, _)| index), Some(1));
        assert_eq!(looked_up, Some((backend("a", 0), hash_endpoint("pod-1"))));
        // The cookie of a known session is not set again.
        let mut answer = HeaderMap::new();
        affinity.change_response(&backend("a", 0), "pod-1", &mut answer);
        assert!(answer.is_empty());
    }

    #[test]
    fn session_ends_with_its_endpoint_or_backend() {
        let client = next_request_headers(&new_session_headers(&session(), NOW));
        let both = rule(vec![backend("b", 1), backend("a", 1)]);
        let mut affinity = SessionAffinity::from_request(&session(), &client, NOW);
        assert!(
            affinity
                .backend(&both, |_, _| SessionEndpoint::Gone)
                .is_none()
        );
        let mut answer = HeaderMap::new();
        affinity.change_response(&backend("a", 1), "pod-1", &mut answer);
        assert!(answer.contains_key(SET_COOKIE));
        let other = rule(vec![backend("b", 1)]);
        let mut affinity = SessionAffinity::from_request(&session(), &client, NOW);
        let matched = affinity.backend(&other, |_, _| panic!("no backend of the rule"));
        assert!(matched.is_none());
        // An endpoint other than the session's responds.
        let affinity = SessionAffinity::from_request(&session(), &client, NOW);
        let mut answer = HeaderMap::new();
        affinity.change_response(&backend("a", 1), "pod-2", &mut answer);
        assert_ne!(next_request_headers(&answer), client);
    }

    #[test]
    fn invalid_session_value_begins_a_new_session() {
        let good = next_request_headers(&new_session_headers(&session(), NOW));
        let good = good[COOKIE].to_str().unwrap();
        assert!(SessionValue::parse(&good.as_bytes()[2..]).is_some());
        let future = SessionValue {
            backend: 1,
            endpoint: 2,
            started_at: NOW + to_milliseconds(MAX_CLOCK_SKEW) + 1,
            last_seen: NOW,
        };
        for value in [
            "",
            "10.0.0.1:80",
            "MTAuMC4wLjE6ODA=",
            &good[2..good.len() - 1],
            &format!("{}0", &good[2..]),
            &good[2..].replace('0', "G"),
            &good[2..].replacen('0', "+", 1),
            &"f".repeat(64),
            &future.to_text(),
        ] {
            let mut headers = HeaderMap::new();
            let line = HeaderValue::from_str(&format!("s={value}")).unwrap();
            headers.insert(COOKIE, line);
            let affinity = SessionAffinity::from_request(&session(), &headers, NOW);
            assert_eq!(affinity.client_value, None, "{value}");
        }
    }

    #[test]
    fn sessions_expire() {
        let of = HttpSession {
            absolute_timeout: Some(Duration::from_secs(100)),
            idle_timeout: Some(Duration::from_secs(10)),
            is_permanent: true,
            ..session()
        };
        let mut answer = new_session_headers(&of, NOW);
        let (mut at, mut lasted) = (NOW, 0);
        loop {
            at += 9_000;
            let affinity = SessionAffinity::from_request(&of, &next_request_headers(&answer), at);
            if affinity.client_value.is_none() {
                break;
            }
            lasted += 1;
            answer.clear();
            affinity.change_response(&backend("a", 1), "pod-1", &mut answer);
            let set = answer[SET_COOKIE].to_str().unwrap();
            let left = 100 - 9 * lasted;
            assert!(set.ends_with(&format!("; Max-Age={left}")), "{set}");
        }
        assert_eq!(lasted, 11);
        let affinity = SessionAffinity::from_request(
            &of,
            &next_request_headers(&new_session_headers(&of, NOW)),
            NOW + 10_000,
        );
        assert_eq!(affinity.client_value, None);
    }

    #[test]
    fn session_in_a_header_is_kept() {
        let of = HttpSession {
            name: "x-session".into(),
            is_header: true,
            ..HttpSession::default()
        };
        let answer = new_session_headers(&of, NOW);
        assert!(!answer.contains_key(SET_COOKIE));
        let affinity = SessionAffinity::from_request(&of, &answer, NOW);
        assert_eq!(
            affinity.client_value.map(|one| one.endpoint),
            Some(hash_endpoint("pod-1"))
        );
    }
}
