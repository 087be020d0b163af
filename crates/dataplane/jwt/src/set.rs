//! All RequestAuthentications of a waypoint, by which it authenticates requests.

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
    cache::Digests,
    claims::Claims,
    rule::Rule,
    token::{TokenError, UnverifiedToken, Verified, sections},
    token_source::TokenSource,
};

/// Header that marks an OPTIONS request as a CORS preflight (WHATWG Fetch standard).
const REQUEST_METHOD: HeaderName = header::ACCESS_CONTROL_REQUEST_METHOD;

/// JWT rules of all RequestAuthentications at a waypoint. Clones share the rules.
#[derive(Clone, Debug, Default)]
pub struct Authentications {
    all: BTreeMap<PolicyKey, Arc<Compiled>>,
    gateway: Vec<Arc<Compiled>>,
    services: HashMap<NamespacedHostname, Vec<Arc<Compiled>>>,
    digests: Arc<Digests>,
}

#[derive(Debug)]
struct Compiled {
    from: Authentication,
    rules: Vec<Rule>,
    not_understood: Option<ArcStr>,
}

/// Parts of a request that contain tokens, or receive their claims.
#[derive(Debug)]
pub struct RequestParts<'a> {
    /// Method of the request.
    pub method: &'a Method,
    /// Headers of the request; tokens and reserved headers of clients are removed from them, and headers with claims
    /// are added.
    pub headers: &'a mut HeaderMap,
    /// Query string of the request.
    pub query: Option<&'a str>,
}

/// Verified claims of a request's tokens.
#[derive(Clone, Debug, Default)]
pub struct Authenticated {
    tokens: Vec<Arc<Verified>>,
    /// Query without the tokens, if the query must be replaced; the inner `None` removes it.
    pub query: Option<Option<String>>,
}

/// Request that is rejected, with the reason.
#[derive(Clone, Debug, PartialEq)]
pub struct Refused {
    /// Reason of the rejection.
    pub why: Denial,
    /// Query without tokens, for logs, which never contain a token; if set, the inner `None` is no query.
    pub query: Option<Option<String>>,
}

/// Reason why a request is rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Denial {
    /// The request contains an invalid token.
    #[error(transparent)]
    Token(#[from] TokenError),
    /// A RequestAuthentication is not understood, so that no request for what it is attached to can be authenticated.
    #[error(
        "RequestAuthentication {0} is not understood ({1}), so everything that it is attached to is refused"
    )]
    NotUnderstood(PolicyKey, ArcStr),
}

impl Denial {
    /// Returns the response-code details (Envoy's `%RESPONSE_CODE_DETAILS%`).
    pub fn details(&self) -> String {
        let text = match self {
            Self::Token(error) => error.to_string(),
            Self::NotUnderstood(key, _) => format!("RequestAuthentication {key} is not understood"),
        };
        format!("jwt_authn_access_denied{{{}}}", text.replace(' ', "_"))
    }
}

impl Compiled {
    fn new(from: Authentication, before: Option<&Self>) -> Self {
        let rules = from.rules.iter().map(|rule| {
            let mut same = before.into_iter().flat_map(|before| &before.rules);
            Rule::new(rule.clone(), same.find(|before| before.shares_source(rule)))
        });
        let (rules, error) = match rules.collect() {
            Ok(rules) => (rules, None),
            Err(why) => (Vec::new(), Some(ArcStr::from(why))),
        };
        Self {
            not_understood: from.not_understood.clone().or(error),
            rules,
            from,
        }
    }
}

/// Valid token, with the rules that verified it and its claims.
type Valid<'a> = (String, Vec<(&'a Rule, Arc<Verified>)>);

impl Authentications {
    /// Iterates over the RequestAuthentications by name.
    pub fn iter(&self) -> impl Iterator<Item = &Authentication> {
        self.all.values().map(|compiled| &compiled.from)
    }

    /// Returns the RequestAuthentications that are attached to the waypoint or to these services, each once.
    pub fn applied(
        &self,
        services: &[NamespacedHostname],
    ) -> impl Iterator<Item = &Authentication> {
        self.compiled(services).map(|one| &one.from)
    }

    /// Inserts a RequestAuthentication, or replaces the one of its name. Returns false if it did not change.
    pub fn insert(&mut self, from: Authentication) -> bool {
        let before = self.all.get(&from.key).cloned();
        if before.as_ref().is_some_and(|before| before.from == from) {
            return false;
        }
        let key = from.key.clone();
        self.remove(&key);
        let compiled = Arc::new(Compiled::new(from, before.as_deref()));
        if compiled.from.for_gateway {
            insert(&mut self.gateway, &compiled);
        } else {
            for service in &compiled.from.services {
                insert(self.services.entry(service.clone()).or_default(), &compiled);
            }
        }
        self.all.insert(key, compiled);
        true
    }

    /// Removes a RequestAuthentication. Returns false if there is none of this name.
    pub fn remove(&mut self, key: &PolicyKey) -> bool {
        let Some(known) = self.all.remove(key) else {
            return false;
        };
        self.gateway.retain(|one| one.from.key != *key);
        for service in &known.from.services {
            if let Some(list) = self.services.get_mut(service) {
                list.retain(|one| one.from.key != *key);
                if list.is_empty() {
                    self.services.remove(service);
                }
            }
        }
        true
    }

    /// Whether there is no RequestAuthentication.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Whether requests for these services, or for pods of no service, must be parsed as HTTP: only then can tokens
    /// be verified, and headers that applications trust be removed.
    pub fn need_http(&self, services: &[NamespacedHostname]) -> bool {
        self.http_object(services).is_some()
    }

    /// Returns the first RequestAuthentication because of which [`Self::need_http`] holds.
    pub fn http_object(&self, services: &[NamespacedHostname]) -> Option<&PolicyKey> {
        self.compiled(services).next().map(|one| &one.from.key)
    }

    /// Whether a header of this name, in any spelling that applications may equate, carries tokens or claims of
    /// requests for these services, or for a pod of no service.
    pub fn own_header(&self, services: &[NamespacedHostname], name: &HeaderName) -> bool {
        let is_same = |own: &HeaderName| spelt(own) == spelt(name);
        let mut rules = self.compiled(services).flat_map(|one| &one.rules);
        rules.any(|rule| {
            let mut sources = rule.sources.iter();
            rule.output_headers().any(is_same)
                || sources.any(|source| match source {
                    TokenSource::Header(own, _) => is_same(own),
                    TokenSource::Cookie(_) => is_same(&header::COOKIE),
                    TokenSource::Param(_) => false,
                })
        })
    }

    /// Whether every RequestAuthentication for `services` was already applied to a request that was authenticated for
    /// the services `applied`.
    pub fn are_applied(
        &self,
        services: &[NamespacedHostname],
        applied: &[NamespacedHostname],
    ) -> bool {
        self.compiled(services).all(|one| {
            one.from.for_gateway
                || applied
                    .iter()
                    .any(|known| one.from.services.contains(known))
        })
    }

    /// Authenticates a request by the RequestAuthentications for these services, or for a pod of no service.
    ///
    /// # Errors
    ///
    /// When the request contains an invalid token.
    pub fn authenticate(
        &self,
        services: &[NamespacedHostname],
        request: RequestParts<'_>,
        now: SystemTime,
    ) -> Result<Authenticated, Refused> {
        let RequestParts {
            method,
            headers,
            query,
        } = request;
        let rules: Vec<&Rule> = self.compiled(services).flat_map(|one| &one.rules).collect();
        let preflight = is_preflight(method, headers);
        let mut judged = self.understood(services).and_then(|()| match preflight {
            // Browsers send no tokens with a preflight, and none is accepted.
            true => Ok(Vec::new()),
            false => self
                .verify_all(&rules, headers, query, now)
                .map_err(Denial::from),
        });
        let mut headers_of_claims = BTreeMap::new();
        if let Ok(tokens) = &judged {
            let mut tell = tokens.iter().flat_map(|(token, by)| {
                let payload = sections(token)
                    .map_or("", |[_, payload, _]| payload)
                    .to_owned();
                by.iter()
                    .map(move |(rule, verified)| (rule, payload.clone(), verified))
            });
            let failed = tell.find_map(|(rule, payload, verified)| {
                rule.tell(&payload, &verified.claims, &mut headers_of_claims)
                    .err()
            });
            if let Some(error) = failed {
                judged = Err(error.into());
            }
        }
        // Removed from the forwarded request: tokens in the sources of matching rules, and every
        // token that is not accepted.
        let tokens = judged.as_ref().map(Vec::as_slice).unwrap_or_default();
        let forwarded = |rule: &Rule| {
            let mut by = tokens.iter().flat_map(|(_, by)| by);
            rule.forwards() && by.any(|(one, _)| std::ptr::eq(*one, rule))
        };
        let forwarded: Vec<&TokenSource> = rules
            .iter()
            .filter(|rule| forwarded(rule))
            .flat_map(|rule| &rule.sources)
            .collect();
        let sources = rules.iter().flat_map(|rule| &rule.sources);
        let cleared: Vec<&TokenSource> = sources
            .filter(|source| !forwarded.contains(source))
            .collect();
        let verified = tokens.iter().filter_map(|(_, by)| by.first());
        let verified: Vec<_> = verified.map(|(_, verified)| verified.clone()).collect();
        let why = judged.err();
        for source in &cleared {
            source.clear(headers);
        }
        remove_outputs(&rules, headers);
        for (name, value) in headers_of_claims {
            if let Ok(name) = HeaderName::from_bytes(name.as_bytes()) {
                headers.insert(name, value);
            }
        }
        let query = query.and_then(|query| without_tokens(query, &cleared));
        match why {
            Some(why) => Err(Refused { why, query }),
            None => Ok(Authenticated {
                tokens: verified,
                query,
            }),
        }
    }

    /// Returns the claims of a request's tokens that would still be verified: the rules or the keys may have changed
    /// since the request was authenticated.
    pub fn still_believed<'a>(
        &self,
        services: &[NamespacedHostname],
        proved: &'a Authenticated,
    ) -> impl Iterator<Item = &'a Claims> {
        let rules: Vec<&Rule> = self.compiled(services).flat_map(|one| &one.rules).collect();
        let tokens = proved.tokens.iter().filter(move |token| {
            let mut rules = rules.iter();
            rules.any(|rule| rule.takes(&token.claims, &token.key))
        });
        tokens
            .map(|token| &token.claims)
            .collect::<Vec<_>>()
            .into_iter()
    }

    fn understood(&self, services: &[NamespacedHostname]) -> Result<(), Denial> {
        for one in self.compiled(services) {
            if let Some(why) = &one.not_understood {
                return Err(Denial::NotUnderstood(one.from.key.clone(), why.clone()));
            }
        }
        Ok(())
    }

    /// Returns the compiled RequestAuthentications that are attached to the waypoint or to these services, each once.
    fn compiled(&self, services: &[NamespacedHostname]) -> impl Iterator<Item = &Compiled> {
        let of_services = services.iter().enumerate().flat_map(|(nth, service)| {
            let earlier = services.get(..nth).unwrap_or_default();
            let all = self.services.get(service).into_iter().flatten();
            all.filter(|one| {
                !earlier
                    .iter()
                    .any(|known| one.from.services.contains(known))
            })
        });
        self.gateway.iter().chain(of_services).map(|one| &**one)
    }

    /// Returns the valid tokens of a request, each with its rules.
    fn verify_all<'a>(
        &self,
        rules: &[&'a Rule],
        headers: &HeaderMap,
        query: Option<&str>,
        now: SystemTime,
    ) -> Result<Vec<Valid<'a>>, TokenError> {
        let mut found: Vec<(Cow<'_, str>, Vec<&'a Rule>)> = Vec::new();
        for rule in rules {
            for source in &rule.sources {
                let Some(token) = source.find(headers, query)? else {
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
            let by = self.verify(&token, &by, now)?;
            valid.push((token.into_owned(), by));
        }
        let issuers = |(_, by): &Valid<'a>| by.first().map(|(rule, _)| rule.issuer().clone());
        let mut of: Vec<_> = valid.iter().filter_map(issuers).collect();
        of.sort_unstable();
        if of
            .windows(2)
            .any(|two| matches!(two, [one, other] if one == other))
        {
            return Err(TokenError::Several);
        }
        Ok(valid)
    }

    /// Verifies a token from the location of these rules by those that have its issuer.
    fn verify<'a>(
        &self,
        token: &str,
        rules: &[&'a Rule],
        now: SystemTime,
    ) -> Result<Vec<(&'a Rule, Arc<Verified>)>, TokenError> {
        let digest = self.digests.of(token);
        let known = rules.iter().find(|rule| rule.known(&digest, now).is_some());
        if let Some(issuer) = known.map(|rule| rule.issuer()) {
            let same = rules.iter().filter(|rule| rule.issuer() == issuer);
            let all = same.map(|rule| Some((*rule, rule.known(&digest, now)?)));
            if let Some(all) = all.collect::<Option<Vec<_>>>() {
                return Ok(all);
            }
        }
        let unverified = UnverifiedToken::read(token)?;
        let issuer = unverified.issuer().ok_or(TokenError::Issuer)?;
        let mut by = Vec::new();
        for rule in rules.iter().filter(|rule| rule.issuer() == issuer) {
            by.push((*rule, rule.verify(digest, &unverified, now)?));
        }
        if by.is_empty() {
            return Err(TokenError::Issuer);
        }
        Ok(by)
    }
}

impl Authenticated {
    /// Iterates over the claims of each valid token.
    pub fn claims(&self) -> impl Iterator<Item = &Claims> {
        self.tokens.iter().map(|token| &token.claims)
    }

    /// Whether no token was verified.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty()
    }
}

fn insert(list: &mut Vec<Arc<Compiled>>, one: &Arc<Compiled>) {
    let at = list.partition_point(|other| other.from.key < one.from.key);
    // An object may name a service twice.
    if list
        .get(at)
        .is_none_or(|other| other.from.key != one.from.key)
    {
        list.insert(at, one.clone());
    }
}

/// Whether the request is a CORS preflight, which never carries a token.
fn is_preflight(method: &Method, headers: &HeaderMap) -> bool {
    *method == Method::OPTIONS
        && headers.contains_key(header::ORIGIN)
        && headers.contains_key(REQUEST_METHOD)
}

/// Removes the headers that only the waypoint may set, in every spelling that applications may equate (hyphens and
/// underscores). Of token headers, the verified spelling stays.
fn remove_outputs(rules: &[&Rule], headers: &mut HeaderMap) {
    let outputs = rules.iter().flat_map(|rule| rule.output_headers());
    let outputs: Vec<_> = outputs.map(spelt).collect();
    let sources = rules.iter().flat_map(|rule| &rule.sources);
    let tokens: Vec<_> = sources
        .filter_map(|source| match source {
            TokenSource::Header(name, _) => Some(name),
            TokenSource::Param(_) | TokenSource::Cookie(_) => None,
        })
        .collect();
    let is_removed = |name: &&HeaderName| {
        let text = spelt(name);
        outputs.contains(&text)
            || !tokens.contains(name) && tokens.iter().any(|own| spelt(own) == text)
    };
    let removed = headers.keys().filter(is_removed);
    for name in removed.cloned().collect::<Vec<_>>() {
        headers.remove(name);
    }
}

fn spelt(name: &HeaderName) -> String {
    name.as_str().replace('_', "-")
}

/// Returns the query without the tokens from these sources; `None` if it contains none, `Some(None)` if nothing is
/// left.
fn without_tokens(query: &str, sources: &[&TokenSource]) -> Option<Option<String>> {
    let mut left = Some(query.to_owned());
    for source in sources {
        left = left.and_then(|query| source.clear_query(&query));
    }
    (left.as_deref() != Some(query)).then_some(left)
}
