//! Parsing of ReferenceGrants.

use ambit_k8s_api::{Kind, ReferenceGrant, gateway};
use ambit_model::ArcStr;

use crate::{
    config::MeshConfig,
    objects::readable::{FetchExtent, FetchedKind, Parsed, Readable},
    problem::FieldError,
};

impl FetchedKind for ReferenceGrant {
    const FETCH_EXTENT: FetchExtent = FetchExtent::Whole { labels: None };
}

/// Kinds of objects on whose behalf waypoints call services, or the control plane fetches key sets.
pub(crate) const CALLING_KINDS: [Kind; 3] = [
    Kind::WasmPlugin,
    Kind::RateLimit,
    Kind::RequestAuthentication,
];

/// Parsed ReferenceGrant: the parts that permit routes and calls to reach services, and services to have pods of
/// another namespace as endpoints.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ReferenceGrantInput {
    /// Kinds and namespaces of the objects (Services and ServiceEntries) that may have pods of the grant's namespace as
    /// endpoints.
    pub(crate) pod_grantees: Vec<(Kind, ArcStr)>,
    /// Names of the pods that the grant permits as endpoints; `None` for all pods.
    pub(crate) granted_pods: Vec<Option<ArcStr>>,
    /// Kinds and namespaces of the routes, and of objects on whose behalf waypoints make calls, that may refer to
    /// services of the grant's namespace.
    pub(crate) referrers: Vec<(Kind, ArcStr)>,
    /// Names of the services that the grant permits references to; `None` for all services.
    pub(crate) granted_services: Vec<Option<ArcStr>>,
}

impl ReferenceGrantInput {
    pub(crate) fn permits_reference(&self, from: (Kind, &str), service: &str) -> bool {
        self.permits_referrer(from) && self.permits_service(service)
    }

    pub(crate) fn permits_referrer(&self, from: (Kind, &str)) -> bool {
        let mut all = self.referrers.iter();
        all.any(|(kind, namespace)| (*kind, namespace.as_str()) == from)
    }

    pub(crate) fn permits_service(&self, service: &str) -> bool {
        let is_to = |name: &Option<ArcStr>| name.as_ref().is_none_or(|name| name == service);
        self.granted_services.iter().any(is_to)
    }
}

impl Readable for ReferenceGrant {
    type Input = ReferenceGrantInput;

    fn read(&self, _: &MeshConfig) -> Result<Parsed<ReferenceGrantInput>, FieldError> {
        let attached = self.spec.from.iter().filter_map(|from| {
            let kind = match (from.group.as_str(), from.kind.as_str()) {
                ("", "Service") => Kind::Service,
                ("networking.istio.io", "ServiceEntry") => Kind::ServiceEntry,
                _ => return None,
            };
            Some((kind, from.namespace.as_str().into()))
        });
        let from = self.spec.from.iter().filter_map(|from| {
            let kind = Kind::from_api_version(Some(&format!("{}/v1", from.group)), &from.kind)?;
            let is_route = from.group == gateway::GROUP || kind == Kind::VirtualService;
            let is_read = is_route || CALLING_KINDS.contains(&kind);
            is_read.then(|| (kind, from.namespace.as_str().into()))
        });
        let to = |kind: &str| {
            let to = self.spec.to.iter();
            let to = to.filter(|to| to.group.is_empty() && to.kind == kind);
            // An empty name is one that is left out.
            let names = to.map(|to| to.name.as_deref().filter(|name| !name.is_empty()));
            names.map(|name| name.map(ArcStr::from)).collect::<Vec<_>>()
        };
        let input = ReferenceGrantInput {
            pod_grantees: attached.collect(),
            granted_pods: to("Pod"),
            referrers: from.collect(),
            granted_services: to("Service"),
        };
        let is_of_routes = !input.referrers.is_empty() && !input.granted_services.is_empty();
        let is_of_pods = !input.pod_grantees.is_empty() && !input.granted_pods.is_empty();
        let says_something = is_of_routes || is_of_pods;
        Ok(Parsed::new(says_something.then_some(input), Vec::new()))
    }
}
