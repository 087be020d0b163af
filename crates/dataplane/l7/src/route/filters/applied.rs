//! Effective filters of a request that a rule forwards to one of its backends: the rule's filters, then the
//! backend's.

use ambit_model::{HttpFault, HttpMirror, HttpRewrite, RequestFraction};
use http::HeaderMap;
use rand::RngCore;

use super::{
    Cors, Filters, Redirect,
    fault::{InjectedFault, draw_fraction},
};

/// Filters of a rule, combined with those of the chosen backend.
#[derive(Clone, Copy, Debug)]
pub struct EffectiveFilters<'a> {
    pub(in crate::route) rule: &'a Filters,
    pub(in crate::route) backend: Option<&'a Filters>,
}

impl<'a> EffectiveFilters<'a> {
    fn all(self) -> impl Iterator<Item = &'a Filters> {
        std::iter::once(self.rule).chain(self.backend)
    }

    /// Returns the redirect filter, if there is one. A redirect of the backend takes precedence over a rewrite of the
    /// rule.
    pub fn redirect(self) -> Option<&'a Redirect> {
        self.all().find_map(|filters| filters.redirect.as_ref())
    }

    /// Returns the URL rewrite: the backend's, else the rule's. A prefix replacement applies to the request's original
    /// path.
    pub fn rewrite(self) -> Option<HttpRewrite> {
        let all = self.all().filter_map(|filters| filters.rewrite.as_ref());
        all.cloned().reduce(|rule, backend| HttpRewrite {
            hostname: backend.hostname.or(rule.hostname),
            path: backend.path.or(rule.path),
        })
    }

    /// Whether the filters may change the request before it is forwarded.
    pub fn changes_request(self) -> bool {
        self.all()
            .any(|filters| filters.request_header_edits.is_some() || filters.rewrite.is_some())
    }

    /// Applies the request-header filters of the rule, and then those of the backend.
    pub fn change_request(self, headers: &mut HeaderMap) {
        for edits in self
            .all()
            .filter_map(|filters| filters.request_header_edits.as_ref())
        {
            edits.apply(headers);
        }
    }

    /// Applies the response-header filters of the rule and of the backend.
    pub fn change_response(self, headers: &mut HeaderMap) {
        for edits in self
            .all()
            .filter_map(|filters| filters.response_header_edits.as_ref())
        {
            edits.apply(headers);
        }
    }

    /// Returns the CORS filter: the backend's, else the rule's.
    pub fn cors(self) -> Option<&'a Cors> {
        let of_backend = self.backend.and_then(|filters| filters.cors.as_ref());
        of_backend.or(self.rule.cors.as_ref())
    }

    /// Selects the mirrors that receive this request, at random by their configured fractions.
    pub fn select_mirrors(self, rng: &mut dyn RngCore) -> Vec<&'a HttpMirror> {
        let all = self.all().flat_map(|filters| &filters.mirrors);
        let drawn = |mirror: &&HttpMirror| {
            let HttpMirror {
                numerator,
                denominator,
                ..
            } = **mirror;
            let share = RequestFraction {
                numerator,
                denominator,
            };
            draw_fraction(share, rng)
        };
        all.filter(drawn).collect()
    }

    /// Draws the fault to inject into one request, by the fault filter of the backend, else of the rule.
    pub fn draw_fault(self, rng: &mut dyn RngCore) -> Option<InjectedFault> {
        InjectedFault::draw(self.configured_fault()?, rng)
    }

    /// Returns the fault filter: the backend's, else the rule's.
    pub fn configured_fault(self) -> Option<&'a HttpFault> {
        let of_backend = self.backend.and_then(|filters| filters.fault.as_ref());
        of_backend.or(self.rule.fault.as_ref())
    }

    /// Returns the Gateway API's names of the filters, in order of application.
    pub fn filter_names(self) -> Vec<&'static str> {
        let has = |part: fn(&Filters) -> bool| self.all().any(part);
        [
            ("CORS", self.cors().is_some()),
            ("RequestRedirect", self.redirect().is_some()),
            (
                "RequestHeaderModifier",
                has(|all| all.request_header_edits.is_some()),
            ),
            ("URLRewrite", has(|all| all.rewrite.is_some())),
            ("FaultInjection", self.configured_fault().is_some()),
            ("RequestMirror", has(|all| !all.mirrors.is_empty())),
            (
                "ResponseHeaderModifier",
                has(|all| all.response_header_edits.is_some()),
            ),
        ]
        .into_iter()
        .filter_map(|(name, is_there)| is_there.then_some(name))
        .collect()
    }
}

#[cfg(test)]
mod tests;
