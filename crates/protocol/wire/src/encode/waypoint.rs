//! What waypoints are told besides WDS: see `proto/waypoint.proto`.

use std::time::Duration;

use ambit_model as model;
use ipnet::IpNet;

use crate::{ambit as wire, security, workload};

/// Type URL of waypoints' settings.
pub const WAYPOINT_GATEWAY_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointGateway";
/// Type URL of the services that waypoints serve.
pub const WAYPOINT_SERVICE_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointService";
/// Type URL of waypoints' policies.
pub const WAYPOINT_POLICY_TYPE_URL: &str = "type.googleapis.com/ambit.v1.WaypointPolicy";

impl From<&model::WaypointGateway> for wire::WaypointGateway {
    fn from(from: &model::WaypointGateway) -> Self {
        let path_normalization = match from.path_normalization {
            model::PathNormalization::None => wire::PathNormalization::None,
            model::PathNormalization::Base => wire::PathNormalization::Base,
            model::PathNormalization::MergeSlashes => wire::PathNormalization::MergeSlashes,
            model::PathNormalization::DecodeAndMergeSlashes => {
                wire::PathNormalization::DecodeAndMergeSlashes
            }
        };
        Self {
            gateway: Some(wire::GatewayName {
                namespace: from.gateway.namespace.to_string(),
                name: from.gateway.name.to_string(),
            }),
            path_normalization: path_normalization.into(),
            trusted_proxies: from.trusted_proxies,
            client_identity_header: from.client_identity_header,
            cluster_addresses: from
                .cluster_addresses
                .iter()
                .map(|ip| super::ip_bytes(*ip))
                .collect(),
            allowed_addresses: from
                .allowed_addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            services_alone: from.services_alone,
        }
    }
}

// === services and routes ===

impl From<&model::WaypointService> for wire::WaypointService {
    fn from(from: &model::WaypointService) -> Self {
        Self {
            service: Some((&from.service).into()),
            routes: all(&from.routes),
            tcp_routes: all(&from.tcp_routes),
            tls_routes: all(&from.tls_routes),
            resolves_hosts: from.resolves_hosts,
            grantors: all(&from.grantors),
        }
    }
}

impl From<&model::PodGrant> for wire::PodGrant {
    fn from(from: &model::PodGrant) -> Self {
        Self {
            namespace: from.namespace.to_string(),
            pod: from.pod.to_string(),
        }
    }
}

impl From<&model::HttpRoute> for wire::HttpRoute {
    fn from(from: &model::HttpRoute) -> Self {
        Self {
            name: Some((&from.name).into()),
            ports: from.ports.iter().copied().map(u32::from).collect(),
            rules: all(&from.rules),
            clients: optional(from.clients.as_ref()),
        }
    }
}

impl From<&model::RouteName> for wire::RouteName {
    fn from(from: &model::RouteName) -> Self {
        Self {
            kind: from.kind.to_string(),
            namespace: from.namespace.to_string(),
            name: from.name.to_string(),
        }
    }
}

impl From<&model::StreamRoute> for wire::StreamRoute {
    fn from(from: &model::StreamRoute) -> Self {
        Self {
            name: Some((&from.name).into()),
            ports: from.ports.iter().copied().map(u32::from).collect(),
            clients: optional(from.clients.as_ref()),
            hostnames: from.hostnames.iter().map(ToString::to_string).collect(),
            backends: all(&from.backends),
            unsupported: optional(from.unsupported.as_ref()),
        }
    }
}

impl From<&model::StreamBackend> for wire::StreamBackend {
    fn from(from: &model::StreamBackend) -> Self {
        use wire::stream_backend::Destination;
        let destination = match &from.service {
            Ok(service) => Destination::Service(service.into()),
            Err(error) => Destination::Error(error.to_string()),
        };
        Self {
            destination: Some(destination),
            port: from.port.into(),
            weight: from.weight,
        }
    }
}

impl From<&model::HttpRouteRule> for wire::HttpRouteRule {
    fn from(from: &model::HttpRouteRule) -> Self {
        Self {
            matches: all(&from.matches),
            backends: all(&from.backends),
            unsupported: optional(from.unsupported.as_ref()),
            filters: all(&from.filters),
            timeouts: Some(wire::HttpTimeouts {
                request: milliseconds(from.timeouts.request),
                backend_request: milliseconds(from.timeouts.backend_request),
            }),
            retry: from.retry.as_ref().map(|retry| wire::HttpRetry {
                codes: retry.codes.iter().copied().map(u32::from).collect(),
                attempts: retry.attempts,
                backoff: milliseconds(retry.backoff),
            }),
            name: optional(from.name.as_ref()),
            session: from.session.as_ref().map(|session| wire::HttpSession {
                name: session.name.to_string(),
                header: session.is_header,
                permanent: session.is_permanent,
                absolute_timeout: milliseconds(session.absolute_timeout),
                idle_timeout: milliseconds(session.idle_timeout),
            }),
        }
    }
}

/// Rounded up: what is there is not zero, which is none.
pub(super) fn milliseconds(of: Option<Duration>) -> u64 {
    let whole = |of: Duration| of.as_nanos().div_ceil(1_000_000);
    of.map_or(0, |of| u64::try_from(whole(of)).unwrap_or(u64::MAX))
}

impl From<&model::HttpFilter> for wire::HttpFilter {
    fn from(from: &model::HttpFilter) -> Self {
        use wire::http_filter::Kind;
        let kind = match from {
            model::HttpFilter::RequestHeaders(changes) => Kind::RequestHeaders(changes.into()),
            model::HttpFilter::ResponseHeaders(changes) => Kind::ResponseHeaders(changes.into()),
            model::HttpFilter::Redirect(redirect) => Kind::Redirect(wire::HttpRedirect {
                scheme: optional(redirect.scheme.as_ref()),
                hostname: optional(redirect.hostname.as_ref()),
                port: redirect.port.map(u32::from).unwrap_or_default(),
                path: redirect.path.as_ref().map(Into::into),
                status: redirect.status.into(),
            }),
            model::HttpFilter::Rewrite(rewrite) => Kind::Rewrite(wire::HttpRewrite {
                hostname: optional(rewrite.hostname.as_ref()),
                path: rewrite.path.as_ref().map(Into::into),
            }),
            model::HttpFilter::Mirror(mirror) => Kind::Mirror(wire::HttpMirror {
                service: Some((&mirror.service).into()),
                port: mirror.port.into(),
                numerator: mirror.numerator,
                denominator: mirror.denominator,
            }),
            model::HttpFilter::Cors(cors) => Kind::Cors(wire::HttpCors {
                allow_origins: texts(&cors.allow_origins),
                allow_credentials: cors.allow_credentials,
                allow_methods: texts(&cors.allow_methods),
                allow_headers: texts(&cors.allow_headers),
                expose_headers: texts(&cors.expose_headers),
                max_age: cors.max_age,
            }),
            model::HttpFilter::Fault(fault) => Kind::Fault(fault.into()),
        };
        Self { kind: Some(kind) }
    }
}

impl From<&model::HttpFault> for wire::HttpFault {
    fn from(from: &model::HttpFault) -> Self {
        use wire::http_fault_abort::Status;
        let abort = |(status, share): (model::FaultStatus, model::Share)| wire::HttpFaultAbort {
            status: Some(match status {
                model::FaultStatus::Http(status) => Status::Http(status.into()),
                model::FaultStatus::Grpc(status) => Status::Grpc(status.into()),
            }),
            numerator: share.numerator,
            denominator: share.denominator,
        };
        Self {
            delay: from.delay.map(|(duration, share)| wire::HttpFaultDelay {
                duration: milliseconds(Some(duration)),
                numerator: share.numerator,
                denominator: share.denominator,
            }),
            abort: from.abort.map(abort),
        }
    }
}

impl From<&model::HeaderChanges> for wire::HeaderChanges {
    fn from(from: &model::HeaderChanges) -> Self {
        let headers = |of: &[(model::ArcStr, model::ArcStr)]| {
            let one = |(name, value): &(model::ArcStr, model::ArcStr)| wire::HttpHeader {
                name: name.to_string(),
                value: value.to_string(),
            };
            of.iter().map(one).collect()
        };
        Self {
            set: headers(&from.set),
            add: headers(&from.add),
            remove: from.remove.iter().map(ToString::to_string).collect(),
        }
    }
}

impl From<&model::PathChange> for wire::PathChange {
    fn from(from: &model::PathChange) -> Self {
        use wire::path_change::Kind;
        let kind = match from {
            model::PathChange::Full(path) => Kind::Full(path.to_string()),
            model::PathChange::Prefix(path) => Kind::Prefix(path.to_string()),
        };
        Self { kind: Some(kind) }
    }
}

impl From<&model::HttpRouteMatch> for wire::HttpRouteMatch {
    fn from(from: &model::HttpRouteMatch) -> Self {
        use wire::http_path_match::Kind;
        let path = |path: &model::HttpPathMatch| match path {
            model::HttpPathMatch::Exact(text) => Kind::Exact(text.to_string()),
            model::HttpPathMatch::Prefix(text) => Kind::Prefix(text.to_string()),
            model::HttpPathMatch::Regex(text) => Kind::Regex(text.to_string()),
        };
        Self {
            path: from.path.as_ref().map(|one| wire::HttpPathMatch {
                kind: Some(path(one)),
            }),
            method: optional(from.method.as_ref()),
            headers: from.headers.iter().map(named).collect(),
            query_params: from.query_params.iter().map(named).collect(),
        }
    }
}

fn named((name, value): &(model::ArcStr, model::HttpValueMatch)) -> wire::HttpNamedMatch {
    use wire::http_named_match::Kind;
    let kind = match value {
        model::HttpValueMatch::Exact(text) => Kind::Exact(text.to_string()),
        model::HttpValueMatch::Regex(text) => Kind::Regex(text.to_string()),
    };
    wire::HttpNamedMatch {
        name: name.to_string(),
        kind: Some(kind),
    }
}

impl From<&model::HttpBackend> for wire::HttpBackend {
    fn from(from: &model::HttpBackend) -> Self {
        use wire::http_backend::Destination;
        let destination = match &from.service {
            Ok(service) => Destination::Service(service.into()),
            Err(error) => Destination::Error(error.to_string()),
        };
        Self {
            destination: Some(destination),
            port: from.port.into(),
            weight: from.weight,
            filters: all(&from.filters),
            subset: optional(from.subset.as_ref()),
        }
    }
}

// === policies ===

impl From<&model::HttpPolicy> for wire::WaypointPolicy {
    fn from(from: &model::HttpPolicy) -> Self {
        let action = match from.action {
            model::HttpAction::Allow => wire::HttpAction::Allow,
            model::HttpAction::Deny => wire::HttpAction::Deny,
            model::HttpAction::Audit => wire::HttpAction::Audit,
            model::HttpAction::Custom => wire::HttpAction::Custom,
        };
        Self {
            namespace: from.key.namespace.to_string(),
            name: from.key.name.to_string(),
            for_gateway: from.for_gateway,
            services: all::<_, workload::NamespacedHostname>(&from.services),
            action: action.into(),
            dry_run: from.dry_run,
            rules: all(&from.rules),
            not_understood: optional(from.not_understood.as_ref()),
            provider: from.provider.as_deref().map(Into::into),
        }
    }
}

impl From<&model::HttpRule> for wire::HttpRule {
    fn from(from: &model::HttpRule) -> Self {
        Self {
            sources: all(&from.sources),
            operations: all(&from.operations),
            conditions: all(&from.conditions),
        }
    }
}

impl From<&model::HttpSource> for wire::HttpSource {
    fn from(from: &model::HttpSource) -> Self {
        Self {
            principals: all(&from.principals),
            not_principals: all(&from.not_principals),
            namespaces: all(&from.namespaces),
            not_namespaces: all(&from.not_namespaces),
            service_accounts: all(&from.service_accounts),
            not_service_accounts: all(&from.not_service_accounts),
            trust_domains: all(&from.trust_domains),
            not_trust_domains: all(&from.not_trust_domains),
            ip_blocks: all::<IpNet, security::Address>(&from.ip_blocks),
            not_ip_blocks: all(&from.not_ip_blocks),
            remote_ip_blocks: all(&from.remote_ip_blocks),
            not_remote_ip_blocks: all(&from.not_remote_ip_blocks),
            request_principals: all(&from.request_principals),
            not_request_principals: all(&from.not_request_principals),
        }
    }
}

impl From<&model::HttpOperation> for wire::HttpOperation {
    fn from(from: &model::HttpOperation) -> Self {
        let ports = |ports: &[u16]| ports.iter().copied().map(u32::from).collect();
        Self {
            hosts: all(&from.hosts),
            not_hosts: all(&from.not_hosts),
            ports: ports(&from.ports),
            not_ports: ports(&from.not_ports),
            methods: all(&from.methods),
            not_methods: all(&from.not_methods),
            paths: all(&from.paths),
            not_paths: all(&from.not_paths),
        }
    }
}

impl From<&model::PathPattern> for wire::PathPattern {
    fn from(from: &model::PathPattern) -> Self {
        use wire::path_pattern::Kind;
        let kind = match from {
            model::PathPattern::Text(text) => Kind::Text(text.into()),
            model::PathPattern::Template(template) => Kind::Template(template.to_string()),
        };
        Self { kind: Some(kind) }
    }
}

impl From<&model::HttpCondition> for wire::HttpCondition {
    fn from(from: &model::HttpCondition) -> Self {
        Self {
            attribute: Some((&from.attribute).into()),
            values: all(&from.values),
            not_values: all(&from.not_values),
        }
    }
}

impl From<&model::HttpAttribute> for wire::HttpAttribute {
    fn from(from: &model::HttpAttribute) -> Self {
        use model::HttpAttribute as From;
        use wire::HttpAttributeKind as Kind;
        let kind = match from {
            From::Header(_) => Kind::Header,
            From::SourceIp => Kind::SourceIp,
            From::RemoteIp => Kind::RemoteIp,
            From::SourceNamespace => Kind::SourceNamespace,
            From::SourceServiceAccount => Kind::SourceServiceAccount,
            From::SourceTrustDomain => Kind::SourceTrustDomain,
            From::SourcePrincipal => Kind::SourcePrincipal,
            From::DestinationIp => Kind::DestinationIp,
            From::DestinationPort => Kind::DestinationPort,
            From::ConnectionSni => Kind::ConnectionSni,
            From::RequestPrincipal => Kind::RequestPrincipal,
            From::RequestAudiences => Kind::RequestAudiences,
            From::RequestPresenter => Kind::RequestPresenter,
            From::RequestClaim(_) => Kind::RequestClaim,
        };
        Self {
            kind: kind.into(),
            header: match from {
                From::Header(name) => name.to_string(),
                _ => String::new(),
            },
            claim: match from {
                From::RequestClaim(names) => texts(names),
                _ => Vec::new(),
            },
        }
    }
}

impl From<&model::HttpValue> for wire::HttpValue {
    fn from(from: &model::HttpValue) -> Self {
        use wire::http_value::Kind;
        let kind = match from {
            model::HttpValue::Text(text) => Kind::Text(text.into()),
            model::HttpValue::Net(net) => Kind::Net(net.into()),
            model::HttpValue::Port(port) => Kind::Port((*port).into()),
        };
        Self { kind: Some(kind) }
    }
}

pub(super) fn all<'a, M, W: From<&'a M>>(from: &'a [M]) -> Vec<W> {
    from.iter().map(Into::into).collect()
}

pub(super) fn texts(of: &[model::ArcStr]) -> Vec<String> {
    of.iter().map(ToString::to_string).collect()
}

pub(super) fn optional(text: Option<&model::ArcStr>) -> String {
    text.map(ToString::to_string).unwrap_or_default()
}
