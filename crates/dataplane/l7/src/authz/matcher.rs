//! Matchers, each of which compares one attribute with one value of a policy.

use ambit_jwt::{Claims, ComparableValues};
use ambit_model::{ArcStr, ServiceAccountMatch, StringMatch};
use http::HeaderName;
use ipnet::IpNet;

use super::attributes::{HttpAttributes, PolicyAttributes};
use crate::readings::{PathMatcher, ReadingMode};

/// Attribute to compare, with the pattern from the policy.
#[derive(Debug)]
pub(super) enum Matcher {
    Principal(StringMatch),
    Namespace(StringMatch),
    /// Service account, compared as `namespace/name`.
    ServiceAccountPattern(StringMatch),
    ServiceAccount(ServiceAccountMatch),
    TrustDomain(StringMatch),
    SourceIp(IpNet),
    RemoteIp(IpNet),
    DestinationIp(IpNet),
    DestinationPort(u16),
    Sni(StringMatch),
    Host(StringMatch),
    Method(StringMatch),
    Path(Box<PathMatcher>),
    Header(HeaderName, StringMatch),
    RequestPrincipal(StringMatch),
    RequestAudience(StringMatch),
    RequestPresenter(StringMatch),
    RequestClaim(Vec<ArcStr>, StringMatch),
}

impl Matcher {
    /// Whether the matcher reads attributes that only HTTP requests have.
    pub(super) fn is_http(&self) -> bool {
        matches!(
            self,
            Self::Host(_)
                | Self::Method(_)
                | Self::Path(_)
                | Self::Header(..)
                | Self::RequestPrincipal(_)
                | Self::RequestAudience(_)
                | Self::RequestPresenter(_)
                | Self::RequestClaim(..)
        )
    }

    /// Whether the attribute matches in the readings that `reading` selects. A missing attribute never matches.
    pub(super) fn matches(&self, facts: &PolicyAttributes<'_>, reading: ReadingMode) -> bool {
        let connection = &facts.connection;
        let http =
            |test: &dyn Fn(&HttpAttributes<'_>) -> bool| facts.http.as_ref().is_some_and(test);
        let claims = |test: &dyn Fn(&Claims) -> bool| http(&|http| http.claims.is_some_and(test));
        match self {
            Self::Principal(pattern) => connection.has_principal(pattern),
            Self::Namespace(pattern) => connection.has_namespace(pattern),
            Self::ServiceAccountPattern(pattern) => connection.has_account_text(pattern),
            Self::ServiceAccount(account) => connection.has_account(account),
            Self::TrustDomain(pattern) => connection.has_trust_domain(pattern),
            Self::SourceIp(net) => connection.matches_source_range(net),
            Self::RemoteIp(net) => net.contains(&facts.remote_ip),
            Self::DestinationIp(net) => connection.matches_destination_range(net),
            Self::DestinationPort(port) => connection.matches_destination_port(*port),
            Self::Sni(pattern) => facts
                .sni
                .is_some_and(|sni| pattern.matches_ignoring_case([sni])),
            Self::Host(pattern) => http(&|http| http.readings.matches_host(pattern, reading)),
            Self::Method(pattern) => http(&|http| http.readings.matches_method(pattern, reading)),
            Self::Path(pattern) => http(&|http| http.readings.matches_path(pattern, reading)),
            Self::Header(name, pattern) => {
                http(&|http| http.readings.matches_header(name, pattern, reading))
            }
            Self::RequestPrincipal(pattern) => claims(&|claims| {
                let principal = claims.principal();
                principal.is_some_and(|(issuer, subject)| {
                    pattern.matches_concatenated([issuer, "/", subject])
                        && (reading == ReadingMode::AnyReading
                            || matches_issuer_and_subject(pattern, issuer, subject))
                })
            }),
            Self::RequestAudience(pattern) => {
                claims(&|claims| claims.any_audience_matches(|one| pattern.matches(one)))
            }
            Self::RequestPresenter(pattern) => claims(&|claims| {
                claims
                    .authorized_presenter()
                    .is_some_and(|one| pattern.matches(one))
            }),
            Self::RequestClaim(path, pattern) => claims(&|claims| {
                let values = match reading {
                    ReadingMode::AnyReading => ComparableValues::AllScalars,
                    ReadingMode::AllReadings | ReadingMode::DenialException => {
                        ComparableValues::StringsOnly
                    }
                };
                claims.any_value_matches(path, values, |one| pattern.matches(one))
            }),
        }
    }
}

/// Whether the part of a `requestPrincipals` pattern that matches the token's subject has no slash. Otherwise the
/// subject `c` of the issuer `https://a/b` would equal the subject `b/c` of the issuer `https://a`, which chooses its
/// subjects freely.
fn matches_issuer_and_subject(pattern: &StringMatch, issuer: &str, subject: &str) -> bool {
    let of_subject = match pattern {
        StringMatch::Presence => "",
        StringMatch::Exact(_) => subject,
        StringMatch::Prefix(text) => text.get(issuer.len() + 1..).unwrap_or_default(),
        StringMatch::Suffix(text) => {
            let begins = text.len().saturating_sub(subject.len());
            text.get(begins..).unwrap_or_default()
        }
    };
    !of_subject.contains('/')
}
