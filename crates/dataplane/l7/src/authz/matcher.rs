//! One value of a policy, compared with one attribute.

use ambit_jwt::{Claims, Values};
use ambit_model::{ArcStr, Identity, ServiceAccountMatch, StringMatch};
use http::HeaderName;
use ipnet::IpNet;

use super::facts::{Facts, Http};
use crate::readings::{PathMatcher, Reading, matches_caseless, matches_pieces};

/// An attribute and what it is compared with.
#[derive(Debug)]
pub(super) enum Matcher {
    Principal(StringMatch),
    Namespace(StringMatch),
    /// The account as `namespace/name`.
    AccountText(StringMatch),
    Account(ServiceAccountMatch),
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
    /// Whether it looks at what only HTTP has.
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

    /// Whether it matches. What is missing never does.
    pub(super) fn matches(&self, facts: &Facts<'_>, reading: Reading) -> bool {
        let source = |test: &dyn Fn(&Identity) -> bool| facts.source.is_some_and(test);
        let http = |test: &dyn Fn(&Http<'_>) -> bool| facts.http.as_ref().is_some_and(test);
        let claims = |test: &dyn Fn(&Claims) -> bool| http(&|http| http.claims.is_some_and(test));
        match self {
            Self::Principal(wanted) => source(&|id| {
                let (td, ns, sa) = (&id.trust_domain, &id.namespace, &id.service_account);
                matches_pieces(wanted, [td, "/ns/", ns, "/sa/", sa])
            }),
            Self::Namespace(wanted) => source(&|id| wanted.matches(&id.namespace)),
            Self::AccountText(wanted) => {
                source(&|id| matches_pieces(wanted, [&id.namespace, "/", &id.service_account]))
            }
            Self::Account(wanted) => source(&|id| {
                wanted.namespace == id.namespace && wanted.service_account == id.service_account
            }),
            Self::TrustDomain(wanted) => source(&|id| wanted.matches(&id.trust_domain)),
            Self::SourceIp(net) => net.contains(&facts.source_ip),
            Self::RemoteIp(net) => net.contains(&facts.remote_ip),
            Self::DestinationIp(net) => net.contains(&facts.destination_ip),
            Self::DestinationPort(port) => facts.destination_port == *port,
            Self::Sni(wanted) => facts.sni.is_some_and(|sni| matches_caseless(wanted, [sni])),
            Self::Host(wanted) => http(&|http| http.texts.host(wanted, reading)),
            Self::Method(wanted) => http(&|http| http.texts.method(wanted, reading)),
            Self::Path(wanted) => http(&|http| http.texts.path(wanted, reading)),
            Self::Header(name, wanted) => http(&|http| http.texts.header(name, wanted, reading)),
            Self::RequestPrincipal(wanted) => claims(&|claims| {
                let principal = claims.principal();
                principal.is_some_and(|(issuer, subject)| {
                    matches_pieces(wanted, [issuer, "/", subject])
                        && (reading == Reading::Any || is_separated(wanted, issuer, subject))
                })
            }),
            Self::RequestAudience(wanted) => {
                claims(&|claims| claims.any_audience(|one| wanted.matches(one)))
            }
            Self::RequestPresenter(wanted) => {
                claims(&|claims| claims.presenter().is_some_and(|one| wanted.matches(one)))
            }
            Self::RequestClaim(path, wanted) => claims(&|claims| {
                let values = match reading {
                    Reading::Any => Values::Any,
                    Reading::All | Reading::Exception => Values::Texts,
                };
                claims.any(path, values, |one| wanted.matches(one))
            }),
        }
    }
}

/// Whether the part of a pattern that matches the subject has no slash: else `https://a/b/c`, the subject `c` of one
/// issuer, would also be the subject `b/c` of another, who may say of its subjects what it likes.
fn is_separated(wanted: &StringMatch, issuer: &str, subject: &str) -> bool {
    let of_subject = match wanted {
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
