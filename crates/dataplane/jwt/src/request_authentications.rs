//! All RequestAuthentications of a waypoint, with the authentication of requests by them.

mod redact;

use std::{
    borrow::Cow,
    collections::{BTreeMap, HashMap},
    sync::Arc,
    time::SystemTime,
};

use ambit_model::{ArcStr, Authentication, NamespacedHostname, PolicyKey};
use http::{HeaderMap, HeaderName, Method, header};

use crate::{
    cache::TokenHasher,
    claims::Claims,
    rule::JwtVerifier,
    token::{TokenError, UnverifiedToken, VerifiedToken, split_sections},
    token_source::TokenSource,
};

/// Header that marks an OPTIONS request as a CORS preflight (WHATWG Fetch standard).
const CORS_REQUEST_METHOD: HeaderName = header::ACCESS_CONTROL_REQUEST_METHOD;

/// JWT rules of all RequestAuthentications at a waypoint. Clones share the rules.
#[derive(Clone, Debug, Default)]
pub struct RequestAuthentications {
    by_key: BTreeMap<PolicyKey, Arc<CompiledAuthentication>>,
    gateway_policies: Vec<Arc<CompiledAuthentication>>,
    service_policies: HashMap<NamespacedHostname, Vec<Arc<CompiledAuthentication>>>,
    token_hasher: Arc<TokenHasher>,
}

#[derive(Debug)]
struct CompiledAuthentication {
    config: Authentication,
    rules: Vec<JwtVerifier>,
    invalid_reason: Option<ArcStr>,
}

/// Parts of a request that contain tokens, or receive their claims.
#[derive(Debug)]
pub struct RequestParts<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Headers of the request. Authentication removes tokens and reserved headers from them, and adds headers with
    /// claims.
    pub headers: &'a mut HeaderMap,
    /// Query string of the request.
    pub query: Option<&'a str>,
}

/// Verified claims of a request's tokens.
#[derive(Clone, Debug, Default)]
pub struct AuthenticatedRequest {
    tokens: Vec<Arc<VerifiedToken>>,
    /// Query string to forward, without tokens: `None` leaves the query unchanged, `Some(None)` removes it.
    pub query: Option<Option<String>>,
}

/// Rejection of a request, with its reason.
#[derive(Clone, Debug, PartialEq)]
pub struct RejectedRequest {
    /// Reason of the rejection.
    pub reason: RejectionReason,
    /// Query string for access logs, without tokens: `None` leaves the query unchanged, `Some(None)` removes it.
    pub query: Option<Option<String>>,
}

/// Reason why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RejectionReason {
    /// The request contains an invalid token.
    #[error(transparent)]
    InvalidToken(#[from] TokenError),
    /// A RequestAuthentication for the request cannot be decoded in full or compiled, so that its requests are
    /// rejected.
    #[error(
        "RequestAuthentication {0} is not understood ({1}), so everything that it is attached to is refused"
    )]
    InvalidPolicy(PolicyKey, ArcStr),
}

impl RejectionReason {
    /// Returns the response-code details (Envoy's `%RESPONSE_CODE_DETAILS%`).
    pub fn response_code_details(&self) -> String {
        let text = match self {
            Self::InvalidToken(error) => error.to_string(),
            Self::InvalidPolicy(key, _) => format!("RequestAuthentication {key} is not understood"),
        };
        format!("jwt_authn_access_denied{{{}}}", text.replace(' ', "_"))
    }
}

impl CompiledAuthentication {
    fn new(from: Authentication, before: Option<&Self>) -> Self {
        let rules = from.rules.iter().map(|rule| {
            let mut same = before.into_iter().flat_map(|before| &before.rules);
            JwtVerifier::new(
                rule.clone(),
                same.find(|before| before.has_same_key_source(rule)),
            )
        });
        let (rules, error) = match rules.collect() {
            Ok(rules) => (rules, None),
            Err(why) => (Vec::new(), Some(ArcStr::from(why))),
        };
        Self {
            invalid_reason: from.not_understood.clone().or(error),
            rules,
            config: from,
        }
    }
}

/// Valid token, with each rule that verified it and the verified claims.
type TokenVerifiers<'a> = (String, Vec<(&'a JwtVerifier, Arc<VerifiedToken>)>);

impl RequestAuthentications {
    /// Iterates over the RequestAuthentications by name.
    pub fn iter(&self) -> impl Iterator<Item = &Authentication> {
        self.by_key.values().map(|compiled| &compiled.config)
    }

    /// Returns the RequestAuthentications that are attached to the waypoint or to these services, each once.
    pub fn attached_policies(
        &self,
        services: &[NamespacedHostname],
    ) -> impl Iterator<Item = &Authentication> {
        self.policies_for(services).map(|one| &one.config)
    }

    /// Inserts a RequestAuthentication, or replaces the one with its name. Returns false if nothing changed.
    pub fn insert(&mut self, from: Authentication) -> bool {
        let before = self.by_key.get(&from.key).cloned();
        if before.as_ref().is_some_and(|before| before.config == from) {
            return false;
        }
        let key = from.key.clone();
        self.remove(&key);
        let compiled = Arc::new(CompiledAuthentication::new(from, before.as_deref()));
        if compiled.config.for_gateway {
            insert_sorted(&mut self.gateway_policies, &compiled);
        } else {
            for service in &compiled.config.services {
                insert_sorted(
                    self.service_policies.entry(service.clone()).or_default(),
                    &compiled,
                );
            }
        }
        self.by_key.insert(key, compiled);
        true
    }

    /// Removes a RequestAuthentication. Returns false if none has this name.
    pub fn remove(&mut self, key: &PolicyKey) -> bool {
        let Some(known) = self.by_key.remove(key) else {
            return false;
        };
        self.gateway_policies.retain(|one| one.config.key != *key);
        for service in &known.config.services {
            if let Some(list) = self.service_policies.get_mut(service) {
                list.retain(|one| one.config.key != *key);
                if list.is_empty() {
                    self.service_policies.remove(service);
                }
            }
        }
        true
    }

    /// Whether there is no RequestAuthentication.
    pub fn is_empty(&self) -> bool {
        self.by_key.is_empty()
    }

    /// Whether requests for these services, or for pods without a service, must be parsed as HTTP, so that tokens can
    /// be verified and reserved headers be removed.
    pub fn needs_http(&self, services: &[NamespacedHostname]) -> bool {
        self.first_policy_needing_http(services).is_some()
    }

    /// Returns the first RequestAuthentication that requires HTTP parsing ([`Self::needs_http`]).
    pub fn first_policy_needing_http(&self, services: &[NamespacedHostname]) -> Option<&PolicyKey> {
        self.policies_for(services)
            .next()
            .map(|one| &one.config.key)
    }

    /// Whether a header carries tokens or claims of requests for these services, or for a pod without a service.
    /// Compares the name in any spelling that applications may treat as the same header (`_` and `-`).
    pub fn is_reserved_header(&self, services: &[NamespacedHostname], name: &HeaderName) -> bool {
        let is_same =
            |own: &HeaderName| normalized_header_name(own) == normalized_header_name(name);
        let mut rules = self.policies_for(services).flat_map(|one| &one.rules);
        rules.any(|rule| {
            let mut sources = rule.token_sources.iter();
            rule.output_headers().any(is_same)
                || sources.any(|source| match source {
                    TokenSource::Header(own, _) => is_same(own),
                    TokenSource::Cookie(_) => is_same(&header::COOKIE),
                    TokenSource::QueryParameter(_) => false,
                })
        })
    }

    /// Whether a request that was authenticated for the services `applied` needs no further authentication for
    /// `services`: every RequestAuthentication for them has been applied.
    pub fn were_policies_applied(
        &self,
        services: &[NamespacedHostname],
        applied: &[NamespacedHostname],
    ) -> bool {
        self.policies_for(services).all(|one| {
            one.config.for_gateway
                || applied
                    .iter()
                    .any(|known| one.config.services.contains(known))
        })
    }

    /// Authenticates a request by the RequestAuthentications for these services, or for a pod without a service.
    ///
    /// # Errors
    ///
    /// When the request contains an invalid token.
    pub fn authenticate(
        &self,
        services: &[NamespacedHostname],
        request: RequestParts<'_>,
        now: SystemTime,
    ) -> Result<AuthenticatedRequest, RejectedRequest> {
        let RequestParts {
            method,
            headers,
            query,
        } = request;
        let rules: Vec<&JwtVerifier> = self
            .policies_for(services)
            .flat_map(|one| &one.rules)
            .collect();
        let preflight = is_preflight(method, headers);
        let mut judged = self
            .reject_invalid_policies(services)
            .and_then(|()| match preflight {
                // Browsers send no tokens with a preflight, and none is accepted.
                true => Ok(Vec::new()),
                false => self
                    .verify_tokens(&rules, headers, query, now)
                    .map_err(RejectionReason::from),
            });
        let mut headers_of_claims = BTreeMap::new();
        if let Ok(tokens) = &judged {
            let mut tell = tokens.iter().flat_map(|(token, by)| {
                let payload = split_sections(token)
                    .map_or("", |[_, payload, _]| payload)
                    .to_owned();
                by.iter()
                    .map(move |(rule, verified)| (rule, payload.clone(), verified))
            });
            let failed = tell.find_map(|(rule, payload, verified)| {
                rule.set_claim_headers(&payload, &verified.claims, &mut headers_of_claims)
                    .err()
            });
            if let Some(error) = failed {
                judged = Err(error.into());
            }
        }
        // Removed from the forwarded request: tokens in the sources of matching rules, and every
        // token that is not accepted.
        let tokens = judged.as_ref().map(Vec::as_slice).unwrap_or_default();
        let forwarded = |rule: &JwtVerifier| {
            let mut by = tokens.iter().flat_map(|(_, by)| by);
            rule.forwards_token() && by.any(|(one, _)| std::ptr::eq(*one, rule))
        };
        let forwarded: Vec<&TokenSource> = rules
            .iter()
            .filter(|rule| forwarded(rule))
            .flat_map(|rule| &rule.token_sources)
            .collect();
        let sources = rules.iter().flat_map(|rule| &rule.token_sources);
        let cleared: Vec<&TokenSource> = sources
            .filter(|source| !forwarded.contains(source))
            .collect();
        let verified = tokens.iter().filter_map(|(_, by)| by.first());
        let verified: Vec<_> = verified.map(|(_, verified)| verified.clone()).collect();
        let why = judged.err();
        for source in &cleared {
            source.remove_from_headers(headers);
        }
        remove_output_headers(&rules, headers);
        for (name, value) in headers_of_claims {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                headers.insert(name, value);
            }
        }
        let query = query.and_then(|query| remove_query_tokens(query, &cleared));
        match why {
            Some(why) => Err(RejectedRequest { reason: why, query }),
            None => Ok(AuthenticatedRequest {
                tokens: verified,
                query,
            }),
        }
    }

    /// Returns the claims of those of a request's tokens that the rules still accept. Rules or keys may have changed
    /// since the request was authenticated.
    pub fn still_valid_claims<'a>(
        &self,
        services: &[NamespacedHostname],
        proved: &'a AuthenticatedRequest,
    ) -> impl Iterator<Item = &'a Claims> {
        let rules: Vec<&JwtVerifier> = self
            .policies_for(services)
            .flat_map(|one| &one.rules)
            .collect();
        let tokens = proved.tokens.iter().filter(move |token| {
            let mut rules = rules.iter();
            rules.any(|rule| rule.still_accepts(&token.claims, &token.key_fingerprint))
        });
        tokens
            .map(|token| &token.claims)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn reject_invalid_policies(
        &self,
        services: &[NamespacedHostname],
    ) -> Result<(), RejectionReason> {
        for one in self.policies_for(services) {
            if let Some(why) = &one.invalid_reason {
                return Err(RejectionReason::InvalidPolicy(
                    one.config.key.clone(),
                    why.clone(),
                ));
            }
        }
        Ok(())
    }

    /// Returns the compiled RequestAuthentications that are attached to the waypoint or to these services, each once.
    fn policies_for(
        &self,
        services: &[NamespacedHostname],
    ) -> impl Iterator<Item = &CompiledAuthentication> {
        let of_services = services.iter().enumerate().flat_map(|(nth, service)| {
            let earlier = services.get(..nth).unwrap_or_default();
            let all = self.service_policies.get(service).into_iter().flatten();
            all.filter(|one| {
                !earlier
                    .iter()
                    .any(|known| one.config.services.contains(known))
            })
        });
        self.gateway_policies
            .iter()
            .chain(of_services)
            .map(|one| &**one)
    }

    /// Verifies all tokens in a request, and returns each with the rules that verified it.
    fn verify_tokens<'a>(
        &self,
        rules: &[&'a JwtVerifier],
        headers: &HeaderMap,
        query: Option<&str>,
        now: SystemTime,
    ) -> Result<Vec<TokenVerifiers<'a>>, TokenError> {
        let mut found: Vec<(Cow<'_, str>, Vec<&'a JwtVerifier>)> = Vec::new();
        for rule in rules {
            for source in &rule.token_sources {
                let Some(token) = source.find_token(headers, query)? else {
                    continue;
                };
                match found.iter_mut().find(|(other, _)| *other == token) {
                    None => found.push((token, vec![rule])),
                    Some((_, by)) if by.iter().any(|one| std::ptr::eq(*one, *rule)) => {}
                    Some((_, by)) => by.push(rule),
                }
            }
        }
        let mut valid = Vec::new();
        for (token, by) in found {
            let by = self.verify_token(&token, &by, now)?;
            valid.push((token.into_owned(), by));
        }
        let issuers =
            |(_, by): &TokenVerifiers<'a>| by.first().map(|(rule, _)| rule.issuer().clone());
        let mut of: Vec<_> = valid.iter().filter_map(issuers).collect();
        of.sort_unstable();
        if of
            .windows(2)
            .any(|two| matches!(two, [one, other] if one == other))
        {
            return Err(TokenError::MultipleTokens);
        }
        Ok(valid)
    }

    /// Verifies a token by each rule that accepts tokens at its location and has its issuer.
    fn verify_token<'a>(
        &self,
        token: &str,
        rules: &[&'a JwtVerifier],
        now: SystemTime,
    ) -> Result<Vec<(&'a JwtVerifier, Arc<VerifiedToken>)>, TokenError> {
        let digest = self.token_hasher.digest(token);
        let known = rules
            .iter()
            .find(|rule| rule.cached_token(&digest, now).is_some());
        if let Some(issuer) = known.map(|rule| rule.issuer()) {
            let same = rules.iter().filter(|rule| rule.issuer() == issuer);
            let all = same.map(|rule| Some((*rule, rule.cached_token(&digest, now)?)));
            if let Some(all) = all.collect::<Option<Vec<_>>>() {
                return Ok(all);
            }
        }
        let unverified = UnverifiedToken::parse(token)?;
        let issuer = unverified.issuer().ok_or(TokenError::WrongIssuer)?;
        let mut by = Vec::new();
        for rule in rules.iter().filter(|rule| rule.issuer() == issuer) {
            by.push((*rule, rule.verify(digest, &unverified, now)?));
        }
        if by.is_empty() {
            return Err(TokenError::WrongIssuer);
        }
        Ok(by)
    }
}

impl AuthenticatedRequest {
    /// Iterates over the claims of each valid token.
    pub fn claims(&self) -> impl Iterator<Item = &Claims> {
        self.tokens.iter().map(|token| &token.claims)
    }

    /// Whether no token was verified.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

fn insert_sorted(list: &mut Vec<Arc<CompiledAuthentication>>, one: &Arc<CompiledAuthentication>) {
    let at = list.partition_point(|other| other.config.key < one.config.key);
    // An object may name a service twice.
    if list
        .get(at)
        .is_none_or(|other| other.config.key != one.config.key)
    {
        list.insert(at, one.clone());
    }
}

/// Whether the request is a CORS preflight, which never carries a token.
fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(CORS_REQUEST_METHOD)
}

/// Removes the headers that only the waypoint may set, in every spelling that applications may treat as the same header
/// (`_` and `-`). Headers with verified tokens remain.
fn remove_output_headers(rules: &[&JwtVerifier], headers: &mut HeaderMap) {
    let outputs = rules.iter().flat_map(|rule| rule.output_headers());
    let outputs: Vec<_> = outputs.map(normalized_header_name).collect();
    let sources = rules.iter().flat_map(|rule| &rule.token_sources);
    let tokens: Vec<_> = sources
        .filter_map(|source| match source {
            TokenSource::Header(name, _) => Some(name),
            TokenSource::QueryParameter(_) | TokenSource::Cookie(_) => None,
        })
        .collect();
    let is_removed = |name: &&HeaderName| {
        let text = normalized_header_name(name);
        outputs.contains(&text)
            || !tokens.contains(name)
                && tokens.iter().any(|own| normalized_header_name(own) == text)
    };
    let removed = headers.keys().filter(is_removed);
    for name in removed.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

fn normalized_header_name(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Returns the query string without the tokens of these sources: `None` if it contains no token, `Some(None)` if no
/// parameter is left.
fn remove_query_tokens(query: &str, sources: &[&TokenSource]) -> Option<Option<String>> {
    let mut left = Some(query.to_owned());
    for source in sources {
        left = left.and_then(|query| source.remove_from_query(&query));
    }
    (left.as_deref() != Some(query)).then_some(left)
}
