//! One value of a policy, compared with one attribute.

use ambit_jwt::{Claims, Values};
use ambit_model::{ArcStr, Identity, PathTemplate, ServiceAccountMatch, StringMatch};
use http::{HeaderMap, HeaderName, HeaderValue, header};
use ipnet::IpNet;

use super::{
    facts::{Facts, Host, Http, Reading},
    text::{matches_bytes, matches_caseless, matches_pieces},
};

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
    /// Without a port in the pattern: with any.
    Host(StringMatch),
    HostAndPort(StringMatch),
    Method(StringMatch),
    Path(Box<PathMatcher>),
    Header(HeaderName, StringMatch),
    RequestPrincipal(StringMatch),
    RequestAudience(StringMatch),
    RequestPresenter(StringMatch),
    RequestClaim(Vec<ArcStr>, StringMatch),
}

/// A pattern of paths, for both readings.
#[derive(Debug)]
pub(super) struct PathMatcher {
    pub(super) plain: PathShape,
    /// With its escapes decoded.
    pub(super) decoded: PathShape,
}

#[derive(Debug)]
pub(super) enum PathShape {
    Text(StringMatch),
    Template(PathTemplate),
}

impl PathShape {
    fn matches(&self, path: &str) -> bool {
        match self {
            Self::Text(text) => text.matches(path),
            Self::Template(template) => template.matches(path),
        }
    }
}

impl Matcher {
    /// Whether it looks at what only HTTP has.
    pub(super) fn is_http(&self) -> bool {
        matches!(
            self,
            Self::Host(_)
                | Self::HostAndPort(_)
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
            Self::Host(wanted) => http(&|http| {
                let Host { name, .. } = http.host;
                matches_caseless(wanted, [name])
            }),
            Self::HostAndPort(wanted) => http(&|http| {
                let Host { whole, name, port } = http.host;
                matches_caseless(wanted, [whole]) || matches_caseless(wanted, [name, port])
            }),
            Self::Method(wanted) => http(&|http| wanted.matches(http.method)),
            Self::Path(wanted) => http(&|http| {
                let decoded = || http.decoded_path();
                wanted.plain.matches(&http.path)
                    || reading == Reading::Any
                        && decoded().is_some_and(|path| wanted.decoded.matches(path))
            }),
            Self::Header(name, wanted) => {
                http(&|http| header_matches(http.headers, name, wanted, reading))
            }
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
                    Reading::Plain => Values::Texts,
                };
                claims.any(path, values, |one| wanted.matches(one))
            }),
        }
    }
}

/// Whether what of a pattern stands for the subject has no slash: else `https://a/b/c`, the subject `c` of one issuer,
/// would also be the subject `b/c` of another, who may say of its subjects what it likes.
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

fn header_matches(
    headers: &HeaderMap,
    name: &HeaderName,
    wanted: &StringMatch,
    reading: Reading,
) -> bool {
    let lines = || headers.get_all(name).iter().map(HeaderValue::as_bytes);
    let mut few = lines();
    match (few.next(), few.next(), wanted) {
        (None, _, _) => false,
        (Some(_), _, StringMatch::Presence) => true,
        (Some(line), None, _) => matches_bytes(wanted, line),
        (Some(_), Some(_), _) => {
            let is_cookie = name == header::COOKIE;
            let separator: &[u8] = if is_cookie { b"; " } else { b"," };
            let joined = matches_bytes(wanted, &lines().collect::<Vec<_>>().join(separator));
            let one = |line| matches_bytes(wanted, line);
            match reading {
                Reading::Any => joined || lines().any(one),
                Reading::Plain => joined && (is_cookie || lines().all(one)),
            }
        }
    }
}
