//! Telemetry objects that apply to a scope at a waypoint, the least specific first.

use ambit_k8s_api::{Kind, ObjectKey, Telemetry};
use ambit_model::{GatewayName, TelemetryScope};

use crate::{
    kinds::telemetry::targets::{is_target_of_gateway, is_target_of_host},
    objects::telemetry::input::TelemetryInput,
    view::MeshView,
};

/// Returns the objects that apply to a scope at a waypoint, one for each level, the least specific first.
pub(crate) fn telemetry_levels<'a>(
    view: &'a MeshView,
    gateway: &GatewayName,
    scope: &TelemetryScope,
) -> Vec<&'a TelemetryInput> {
    let root = &view.config.root_namespace;
    let mut levels = Vec::new();
    let service_namespace = match scope {
        TelemetryScope::Waypoint => None,
        TelemetryScope::Namespace(namespace) => Some(namespace),
        TelemetryScope::Service(service) => Some(&service.namespace),
    };
    let mut namespaces = vec![root];
    for one in std::iter::once(&gateway.namespace).chain(service_namespace) {
        if !namespaces.contains(&one) {
            namespaces.push(one);
        }
    }
    for namespace in namespaces {
        levels.extend(oldest_telemetry(view, namespace, |one| {
            one.targets.is_empty()
        }));
    }
    let attached = |namespace, is: &dyn Fn(&ObjectKey) -> bool| {
        oldest_telemetry(view, namespace, |one| one.targets.iter().any(is))
    };
    levels.extend(attached(root, &|target| {
        target.kind == Kind::GatewayClass && is_target_of_gateway(view, target, gateway)
    }));
    levels.extend(attached(&gateway.namespace, &|target| {
        target.kind == Kind::Gateway && is_target_of_gateway(view, target, gateway)
    }));
    if let TelemetryScope::Service(service) = scope {
        levels.extend(attached(&service.namespace, &|target| {
            is_target_of_host(view, target, &service.hostname)
        }));
    }
    levels
}

fn oldest_telemetry<'a>(
    view: &'a MeshView,
    namespace: &str,
    is: impl Fn(&TelemetryInput) -> bool,
) -> Option<&'a TelemetryInput> {
    let all = view.objects(namespace)?.all_of_kind::<Telemetry>().values();
    let found = all.filter(|one| is(one));
    found.min_by_key(|one| (&one.created, &one.key.name))
}
