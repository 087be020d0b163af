//! Rendering of HTTP route rules for the records of waypoints.

use ambit_model::{GatewayName, HttpBackend, HttpFilter, HttpRouteRule};

use crate::{
    kinds::route::{attached::AttachedRoute, filters, references::UnresolvedReference},
    objects::route::{backends::BackendInput, input::RouteRules, rules::RouteRuleInput},
    view::MeshView,
};

impl RouteRules {
    /// Returns the reasons why mirrors of the rules cannot be resolved.
    pub(crate) fn mirror_errors(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
    ) -> Vec<UnresolvedReference> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.mirror_errors(view, route));
        errors.flatten().collect()
    }

    /// Returns the reasons why `ExtensionRef` filters of the rules cannot be resolved.
    pub(crate) fn filter_errors(&self, view: &MeshView) -> Vec<UnresolvedReference> {
        let Self::Http(rules) = self else {
            return Vec::new();
        };
        let errors = rules.iter().map(|rule| rule.filter_errors(view));
        errors.flatten().collect()
    }
}

impl RouteRuleInput {
    /// Returns the reasons why `ExtensionRef` filters of the rule cannot be resolved.
    pub(crate) fn filter_errors(&self, view: &MeshView) -> Vec<UnresolvedReference> {
        let found = self.extensions().map(|one| one.resolve(view));
        found.filter_map(Result::err).collect()
    }

    /// Returns the reasons why mirrors of the rule cannot be resolved.
    pub(crate) fn mirror_errors(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
    ) -> Vec<UnresolvedReference> {
        let found = self.mirrors().map(|one| one.service.resolve(view, route));
        found.filter_map(Result::err).collect()
    }

    /// Renders the rule with its resolved backends and filters, for one of the waypoints that apply it.
    pub(crate) fn render(
        &self,
        view: &MeshView,
        route: AttachedRoute<'_>,
        gateway: &GatewayName,
    ) -> HttpRouteRule {
        let backend = |from: &BackendInput| {
            let filters = filters::resolve_filters(&from.filters, view, route);
            let (filters, missing) = split_filters_result(filters);
            let (service, port) = from
                .service
                .split_resolved(from.resolve(view, route, gateway));
            HttpBackend {
                service: missing.map_or(service, Err).map_err(|error| error.text),
                port,
                subset: from.subset.clone(),
                weight: from.weight,
                filters,
            }
        };
        let (filters, missing) =
            split_filters_result(filters::resolve_filters(&self.filters, view, route));
        let unsupported = self.unsupported_part.as_ref().map(|one| one.text.clone());
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
fn split_filters_result(
    filters: Result<Vec<HttpFilter>, UnresolvedReference>,
) -> (Vec<HttpFilter>, Option<UnresolvedReference>) {
    match filters {
        Ok(filters) => (filters, None),
        Err(missing) => (Vec::new(), Some(missing)),
    }
}
