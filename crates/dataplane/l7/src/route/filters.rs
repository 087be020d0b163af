//! Compiled request and response filters of a rule.
//!
//! A rule with contradictory filters, or filters that change protected parts of a request, is invalid: requests that
//! match it receive an error.

mod applied;
mod cors;
mod fault;

use ambit_model::{
    ArcStr, HeaderChanges, HttpFault, HttpFilter, HttpMirror, HttpRedirect, HttpRewrite,
    PathChange, PathNormalization, is_reserved_header,
};
use http::{HeaderMap, HeaderName, HeaderValue, StatusCode, uri::Authority};

use crate::path::{self, PathError};
pub use applied::EffectiveFilters;
pub use cors::{Cors, CorsRequest};
pub use fault::InjectedFault;

/// Compiled filters of a rule, or of one of its backends.
#[derive(Debug, Default)]
pub struct Filters {
    request_header_edits: Option<HeaderEdits>,
    response_header_edits: Option<HeaderEdits>,
    redirect: Option<Redirect>,
    rewrite: Option<HttpRewrite>,
    mirrors: Vec<HttpMirror>,
    cors: Option<Cors>,
    fault: Option<HttpFault>,
}

/// Redirect filter: status, and the parts of the location.
#[derive(Debug)]
pub struct Redirect {
    config: HttpRedirect,
    /// Status of the redirect response.
    pub status: StatusCode,
}

#[derive(Debug, Default)]
struct HeaderEdits {
    set: Vec<(HeaderName, HeaderValue)>,
    add: Vec<(HeaderName, HeaderValue)>,
    remove: Vec<HeaderName>,
}

/// Path of a request, and the length of the prefix that the rule's match consumed.
#[derive(Clone, Copy, Debug)]
pub struct MatchedPath<'a> {
    /// Normalized path, without the query.
    pub path: &'a str,
    /// The query without its question mark.
    pub query: Option<&'a str>,
    /// Length in bytes of the prefix that the match consumed.
    pub prefix_len: usize,
}

/// Reason why a request cannot be redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RedirectError {
    /// The request has no host, and the redirect filter sets none.
    #[error("there is no host that the request could be redirected to")]
    NoHost,
    /// Rewritten path that is invalid.
    #[error(transparent)]
    InvalidPath(#[from] PathError),
}

impl Filters {
    /// Compiles the filters of a rule or backend.
    ///
    /// # Errors
    /// The text describes the invalid filter.
    pub(super) fn new(filters: &[HttpFilter]) -> Result<Self, ArcStr> {
        let mut all = Self::default();
        for filter in filters {
            let is_new = match filter {
                HttpFilter::RequestHeaders(changes) => all
                    .request_header_edits
                    .replace(HeaderEdits::new(changes)?)
                    .is_none(),
                HttpFilter::ResponseHeaders(changes) => all
                    .response_header_edits
                    .replace(HeaderEdits::new(changes)?)
                    .is_none(),
                HttpFilter::Redirect(to) => all.redirect.replace(Redirect::new(to)?).is_none(),
                HttpFilter::Rewrite(to) => {
                    validate_path_change(to.path.as_ref())?;
                    all.rewrite.replace(to.clone()).is_none()
                }
                HttpFilter::Mirror(to) => {
                    all.mirrors.push(to.clone());
                    true
                }
                HttpFilter::Cors(of) => all.cors.replace(Cors::new(of)?).is_none(),
                HttpFilter::Fault(of) => all.fault.replace(of.clone()).is_none(),
            };
            if !is_new {
                return Err(arcstr::literal!("a filter is duplicated"));
            }
        }
        if all.redirect.is_some() && all.rewrite.is_some() {
            return Err(arcstr::literal!(
                "a redirect and a rewrite exclude each other"
            ));
        }
        Ok(all)
    }
}

impl HeaderEdits {
    fn new(changes: &HeaderChanges) -> Result<Self, ArcStr> {
        let name = |text: &ArcStr| match HeaderName::from_bytes(text.as_bytes()) {
            Ok(name) if !is_reserved_header(name.as_str()) => Ok(name),
            _ => Err(arcstr::format!("no route may change the header {text:?}")),
        };
        let lines = |of: &[(ArcStr, ArcStr)]| {
            let line = |(of, value): &(ArcStr, ArcStr)| {
                let text = HeaderValue::from_str(value);
                let text = text.map_err(|_| arcstr::format!("{of}: {value:?} is no value"))?;
                Ok((name(of)?, text))
            };
            of.iter().map(line).collect::<Result<Vec<_>, ArcStr>>()
        };
        Ok(Self {
            set: lines(&changes.set)?,
            add: lines(&changes.add)?,
            remove: changes.remove.iter().map(name).collect::<Result<_, _>>()?,
        })
    }

    fn apply(&self, headers: &mut HeaderMap) {
        for (name, value) in &self.set {
            headers.insert(name, value.clone());
        }
        for (name, value) in &self.add {
            headers.append(name, value.clone());
        }
        for name in &self.remove {
            headers.remove(name);
        }
    }
}

impl Redirect {
    fn new(to: &HttpRedirect) -> Result<Self, ArcStr> {
        validate_path_change(to.path.as_ref())?;
        let status = StatusCode::from_u16(to.status).ok();
        let status = status.filter(|status| matches!(status.as_u16(), 301 | 302 | 303 | 307 | 308));
        let scheme = to.scheme.as_deref();
        if !matches!(scheme, None | Some("http" | "https")) {
            return Err(arcstr::literal!("the scheme is neither http nor https"));
        }
        Ok(Self {
            config: to.clone(),
            status: status.ok_or_else(|| arcstr::literal!("the status is none of redirects"))?,
        })
    }

    /// Returns the host that the redirect filter sets, if any.
    #[cfg(test)]
    fn host(&self) -> Option<&ArcStr> {
        self.config.hostname.as_ref()
    }

    /// Returns the location of a redirect for a request to a host and service port. The location is an absolute URL, so
    /// that no part of the path can be taken for a host.
    ///
    /// # Errors
    /// When the request has no host, or the rewritten path is invalid.
    pub fn location_header(
        &self,
        host: &str,
        port: u16,
        matched: MatchedPath<'_>,
        mode: PathNormalization,
    ) -> Result<String, RedirectError> {
        let authority = host.parse::<Authority>().ok();
        let own = || authority.as_ref().map(Authority::host);
        let host = self.config.hostname.as_deref().or_else(own);
        let host = host.ok_or(RedirectError::NoHost)?;
        let scheme = self.config.scheme.as_deref().unwrap_or("http");
        let well_known = if scheme == "https" { 443 } else { 80 };
        let of_request = if self.config.scheme.is_some() {
            well_known
        } else {
            port
        };
        let port = self.config.port.unwrap_or(of_request);
        let target = rewrite_path(self.config.path.as_ref(), matched, mode)?;
        Ok(if port == well_known {
            format!("{scheme}://{host}{target}")
        } else {
            format!("{scheme}://{host}:{port}{target}")
        })
    }
}

/// Rewrites the path of a request, and returns the new path with the query. The result is normalized
/// again.
///
/// # Errors
/// When the result is not a valid path.
pub fn rewrite_path(
    change: Option<&PathChange>,
    matched: MatchedPath<'_>,
    mode: PathNormalization,
) -> Result<String, PathError> {
    let rest = || matched.path.get(matched.prefix_len..).unwrap_or_default();
    let mut target = match change {
        // The target of `OPTIONS *`.
        _ if matched.path == "*" => return Ok("*".to_owned()),
        None => matched.path.to_owned(),
        Some(PathChange::Full(path)) => path.to_string(),
        Some(PathChange::Prefix(with)) => {
            let joined = format!("{}{}", with.trim_end_matches('/'), rest());
            if joined.is_empty() {
                "/".to_owned()
            } else {
                joined
            }
        }
        // Without a prefix, the match covers the full path.
        Some(PathChange::Matched(with)) if matched.prefix_len == 0 => with.to_string(),
        Some(PathChange::Matched(with)) => format!("{with}{}", rest()),
    };
    if let Some(query) = matched.query {
        target.push('?');
        target.push_str(query);
    }
    path::normalize(&target, mode).map(|normal| normal.as_str().to_owned())
}

/// Checks that a replacement path has no query and begins with a slash.
fn validate_path_change(change: Option<&PathChange>) -> Result<(), ArcStr> {
    let (text, may_be_empty) = match change {
        None => return Ok(()),
        Some(PathChange::Full(text) | PathChange::Matched(text)) => (text, false),
        Some(PathChange::Prefix(text)) => (text, true),
    };
    let is_path = text.starts_with('/') && !text.contains(['?', '#']);
    if is_path && path::normalize(text, PathNormalization::Base).is_ok()
        || may_be_empty && text.is_empty()
    {
        return Ok(());
    }
    Err(arcstr::format!("{text:?} is no path"))
}

#[cfg(test)]
mod tests;
