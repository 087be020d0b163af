//! Parsing of VirtualServices as routes of hosts.

pub(crate) mod read;

use ambit_k8s_api::{ObjectKey, ObjectMeta, VirtualService, virtual_service::HttpRule};
use ambit_model::GatewayName;
use serde_json::Value;

use crate::{
    config::MeshConfig,
    objects::{
        readable::{FetchExtent, FetchedKind, Parsed, Readable, deserialize_field},
        route::{
            input::{RouteInput, RouteRules},
            rules::{MatchScope, RouteRuleInput},
        },
    },
    problem::FieldError,
};

impl FetchedKind for VirtualService {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

impl Readable for VirtualService {
    type Input = RouteInput;

    fn read(&self, config: &MeshConfig) -> Result<Parsed<RouteInput>, FieldError> {
        read::read(self, config)
    }

    /// Builds the fail-closed substitute: requests to the VirtualService's hosts are refused until the VirtualService
    /// is valid.
    fn substitute(&self, config: &MeshConfig) -> Option<RouteInput> {
        let scope = read::parse_scope(self, config, &mut Vec::new());
        let is_of_requests = scope.is_for_mesh && !self.spec.http.is_empty();
        is_of_requests.then(|| read::build_route(self, scope, vec![RouteRuleInput::unusable()]))
    }

    fn readable_part(metadata: ObjectMeta, spec: Option<&Value>) -> Option<Self> {
        let has_http = spec.is_some_and(|spec| spec.get("http").is_some());
        let mut part = Self {
            metadata,
            ..Self::default()
        };
        part.spec.hosts = deserialize_field(spec, "hosts").unwrap_or_default();
        part.spec.gateways = deserialize_field(spec, "gateways").unwrap_or_default();
        part.spec.export_to = deserialize_field(spec, "exportTo").unwrap_or_default();
        part.spec.http = has_http.then(HttpRule::default).into_iter().collect();
        Some(part)
    }
}

/// Whether a VirtualService applies to clients in the mesh.
pub(crate) fn is_for_mesh(route: &RouteInput) -> bool {
    route.scope.as_ref().is_none_or(|scope| scope.is_for_mesh)
}

impl RouteInput {
    /// Whether a waypoint applies the VirtualService to requests to a service.
    pub(crate) fn is_applied_by(&self, target: &ObjectKey, gateway: &GatewayName) -> bool {
        let of = match self.is_producer_route(target, gateway) {
            true => &gateway.namespace,
            false => self.namespace(),
        };
        let scope = self.scope.as_ref();
        scope.is_some_and(|scope| scope.is_exported_to(of)) && !self.http_rules().is_empty()
    }

    pub(crate) fn http_rules(&self) -> &[RouteRuleInput] {
        match &self.rules {
            RouteRules::Http(rules) => rules,
            RouteRules::Stream(_) => &[],
        }
    }

    pub(crate) fn match_scopes(&self) -> impl Iterator<Item = &MatchScope> {
        self.http_rules().iter().flat_map(|rule| &rule.match_scopes)
    }

    /// Whether the rules depend on the port that the client called: by a match condition, or by a destination without a
    /// port.
    pub(crate) fn depends_on_port(&self) -> bool {
        let backends = self.http_rules().iter().flat_map(RouteRuleInput::backends);
        let mut without_port = backends.filter(|backend| backend.service.port.is_none());
        let mut mirrors = self.http_rules().iter().flat_map(RouteRuleInput::mirrors);
        self.match_scopes().any(|scope| scope.port.is_some())
            || without_port.next().is_some()
            || mirrors.any(|mirror| mirror.service.port.is_none())
    }
}
