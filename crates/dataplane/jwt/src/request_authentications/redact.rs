//! Redacts tokens from access logs and traces, whether or not the tokens were verified.

use std::borrow::Cow;

use ambit_model::NamespacedHostname;
use http::{
    HeaderMap, HeaderValue,
    header::{CONTENT_LOCATION, LOCATION, REFERER, SET_COOKIE},
};

use super::{RequestAuthentications, remove_query_tokens};
use crate::token_source::{TokenSource, rewrite_header_lines};

impl RequestAuthentications {
    /// Returns a request target (path and query) without the query parameters that may contain tokens for these
    /// services. Removes all parameters if a RequestAuthentication is invalid, so that its token locations are unknown.
    pub fn redact_target<'a>(
        &self,
        services: &[NamespacedHostname],
        target: &'a str,
    ) -> Cow<'a, str> {
        let Some((path, query)) = target.split_once('?') else {
            return Cow::Borrowed(target);
        };
        let Some(sources) = self.token_sources(services) else {
            return Cow::Borrowed(path);
        };
        match remove_query_tokens(query, &sources) {
            None => Cow::Borrowed(target),
            Some(None) => Cow::Borrowed(path),
            Some(Some(query)) => Cow::Owned(format!("{path}?{query}")),
        }
    }

    /// Removes tokens for these services from the request or response headers of an access log. Removes all headers if
    /// a RequestAuthentication is invalid, so that its token locations are unknown.
    pub fn redact_headers(&self, services: &[NamespacedHostname], headers: &mut HeaderMap) {
        let Some(sources) = self.token_sources(services) else {
            return headers.clear();
        };
        sources
            .iter()
            .for_each(|source| source.remove_from_headers(headers));
        rewrite_header_lines(headers, &SET_COOKIE, |line| {
            let name = line.as_bytes().split(|byte| *byte == b'=').next();
            let name = name.unwrap_or_default().trim_ascii();
            let is_token = sources
                .iter()
                .any(|source| matches!(source, TokenSource::Cookie(of) if of.as_bytes() == name));
            (!is_token).then(|| line.clone())
        });
        // `Referer` was the browser's previous target, and a redirect's location may repeat the
        // query.
        for of_target in [REFERER, LOCATION, CONTENT_LOCATION] {
            rewrite_header_lines(headers, &of_target, |line| {
                let target = String::from_utf8_lossy(line.as_bytes());
                HeaderValue::from_str(&self.redact_target(services, &target)).ok()
            });
        }
    }

    /// Returns the locations in which requests for these services may carry tokens; `None` if a RequestAuthentication
    /// is invalid, so that its token locations are unknown.
    fn token_sources(&self, services: &[NamespacedHostname]) -> Option<Vec<&TokenSource>> {
        self.reject_invalid_policies(services).ok()?;
        let rules = self.policies_for(services).flat_map(|one| &one.rules);
        Some(rules.flat_map(|rule| &rule.token_sources).collect())
    }
}
