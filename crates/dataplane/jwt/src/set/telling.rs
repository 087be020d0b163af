//! What of a request may be told, in logs and traces: no tokens, whether or not anybody has read them yet.

use std::borrow::Cow;

use ambit_model::NamespacedHostname;
use http::{HeaderMap, HeaderValue, header::REFERER};

use super::{Authentications, without_tokens};
use crate::place::Place;

impl Authentications {
    /// A target (path and query) without the parameters in which tokens for a service, or for a pod (`None`), may be.
    /// Without any if nobody can say which these are.
    pub fn tellable_target<'a>(
        &self,
        service: Option<&NamespacedHostname>,
        target: &'a str,
    ) -> Cow<'a, str> {
        let Some((path, query)) = target.split_once('?') else {
            return Cow::Borrowed(target);
        };
        let Some(places) = self.places(service) else {
            return Cow::Borrowed(path);
        };
        match without_tokens(query, &places) {
            None => Cow::Borrowed(target),
            Some(None) => Cow::Borrowed(path),
            Some(Some(query)) => Cow::Owned(format!("{path}?{query}")),
        }
    }

    /// Takes the tokens for a service, or for a pod (`None`), out of headers that are kept to be told. All of them if
    /// nobody can say where tokens are.
    pub fn keep_tellable(&self, service: Option<&NamespacedHostname>, headers: &mut HeaderMap) {
        let Some(places) = self.places(service) else {
            return headers.clear();
        };
        places.iter().for_each(|place| place.clear(headers));
        // Where a browser comes from was its target before.
        let before: Vec<_> = headers.get_all(REFERER).iter().cloned().collect();
        headers.remove(REFERER);
        for value in before {
            let target = String::from_utf8_lossy(value.as_bytes());
            let told = self.tellable_target(service, &target);
            if let Ok(told) = HeaderValue::from_str(&told) {
                headers.append(REFERER, told);
            }
        }
    }

    /// Where tokens may be; `None` if nobody can say.
    fn places(&self, service: Option<&NamespacedHostname>) -> Option<Vec<&Place>> {
        self.understood(service).ok()?;
        let rules = self.compiled(service).flat_map(|one| &one.rules);
        Some(rules.flat_map(|rule| &rule.places).collect())
    }
}
