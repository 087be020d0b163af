//! Rendering of HTTP route rules for the records of waypoints.

use ambit_model::{GatewayName, HttpBackend, HttpFilter, HttpRouteRule};

use crate::{
    kinds::route::{attached::AttachedRoute, filters, references::Unresolved},
    objects::route::{backends::BackendInput, input::RouteRules, rules::RuleInput},
    view::MeshView,
};

impl RouteRules {
    /// Returns the reasons why mirrors of the rules cannot be resolved.
    pub(crate) fn mirror_errors(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
    ) -> Vec<Unresolved> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.mirror_errors(view, route));
        errors.flatten().collect()
    }

    /// Returns the reasons why `ExtensionRef` filters of the rules cannot be resolved.
    pub(crate) fn filter_errors(&self, view: &MeshView) -> Vec<Unresolved> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.filter_errors(view));
        errors.flatten().collect()
    }
}

impl RuleInput {
    /// Returns the reasons why `ExtensionRef` filters of the rule cannot be resolved.
    pub(crate) fn filter_errors(&self, view: &MeshView) -> Vec<Unresolved> {
        let found = self.extensions().map(|one| one.find(view));
        found.filter_map(Result::err).collect()
    }

    /// Returns the reasons why mirrors of the rule cannot be resolved.
    pub(crate) fn mirror_errors(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
    ) -> Vec<Unresolved> {
        let found = self.mirrors().map(|one| one.to.find(view, route));
        found.filter_map(Result::err).collect()
    }

    /// Renders the rule with its resolved backends and filters, for one of the waypoints that apply it.
    pub(crate) fn resolved(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
        gateway: &GatewayName,
    ) -> HttpRouteRule {
        let backend = |from: &BackendInput| {
            let filters = filters::resolved(&from.filters, view, route);
            let (filters, missing) = split(filters);
            let (service, port) = from.to.parts(from.find(view, route, gateway));
            HttpBackend {
                service: missing.map_or(service, Err).map_err(|error| error.text),
                port,
                subset: from.subset.clone(),
                weight: from.weight,
                filters,
            }
        };
        let (filters, missing) = split(filters::resolved(&self.filters, view, route));
        let unsupported = self.unsupported.as_ref().map(|one| one.text.clone());
        HttpRouteRule {
            name: self.name.clone(),
            matches: self.matches.clone(),
            filters,
            backends: self.backends.iter().map(backend).collect(),
            timeouts: self.timeouts,
            retry: self.retry.clone(),
            session: self.session.clone(),
            unsupported: unsupported.or_else(|| missing.map(|error| error.text)),
        }
    }
}

/// Splits the result of resolving filters into the filters and the reason why one cannot be resolved.
fn split(filters: Result<Vec<HttpFilter>, Unresolved>) -> (Vec<HttpFilter>, Option<Unresolved>) {
    match filters {
        Ok(filters) => (filters, None),
        Err(missing) => (Vec::new(), Some(missing)),
    }
}
