//! Decodes what waypoints are told besides WDS: see `proto/waypoint.proto`.
//!
//! As in other policies nothing may be ignored: a field that this build does not know refuses the record, and a
//! policy has a substitute that denies everything it is attached to.

use std::{sync::Arc, time::Duration};

use ambit_model::{self as model, GatewayName, PolicyKey};
use prost::Message;

use super::{
    DecodeError, Refusal, ip, known,
    parts::{all, hostname, optional, places, policy_part, under_own_name, whole},
    policy::{accounts, nets, ports, texts},
    port, prefix,
    provider::provider,
};
use crate::{
    ambit as wire, security,
    unknown::{AMBIT_V1_WAYPOINTGATEWAY, AMBIT_V1_WAYPOINTPOLICY, AMBIT_V1_WAYPOINTSERVICE},
    workload,
};

/// A policy that is not understood in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct HttpNotUnderstood {
    /// The field that is not understood.
    pub error: DecodeError,
    /// Denies everything that the policy is attached to, as far as that can be read, else everything.
    pub substitute: Box<model::HttpPolicy>,
}

/// Decodes a waypoint's settings.
///
/// # Errors
/// When they are not understood in full.
pub fn waypoint_gateway(bytes: &[u8]) -> Result<model::WaypointGateway, DecodeError> {
    let from: wire::WaypointGateway = whole("waypoint_gateway", &AMBIT_V1_WAYPOINTGATEWAY, bytes)?;
    let name = from
        .gateway
        .ok_or_else(|| DecodeError::missing("waypoint_gateway.gateway"))?;
    let mode = known(
        "waypoint_gateway.path_normalization",
        from.path_normalization,
    )?;
    Ok(model::WaypointGateway {
        gateway: GatewayName::new(name.namespace, name.name),
        path_normalization: match mode {
            wire::PathNormalization::Base => model::PathNormalization::Base,
            wire::PathNormalization::None => model::PathNormalization::None,
            wire::PathNormalization::MergeSlashes => model::PathNormalization::MergeSlashes,
            wire::PathNormalization::DecodeAndMergeSlashes => {
                model::PathNormalization::DecodeAndMergeSlashes
            }
        },
        trusted_proxies: from.trusted_proxies,
        client_identity_header: from.client_identity_header,
        cluster_addresses: from
            .cluster_addresses
            .iter()
            .map(|bytes| ip("waypoint_gateway.cluster_addresses", bytes))
            .collect::<Result<_, _>>()?,
        allowed_addresses: all(from.allowed_addresses, |text| {
            let refused = |_| {
                DecodeError::new(
                    "waypoint_gateway.allowed_addresses",
                    Refusal::Prefix(text.clone()),
                )
            };
            text.parse().map_err(refused)
        })?,
        services_alone: from.services_alone,
    })
}

/// Decodes a service that the waypoint serves.
///
/// # Errors
/// When it is not understood in full.
pub fn waypoint_service(bytes: &[u8]) -> Result<model::WaypointService, DecodeError> {
    let from: wire::WaypointService = whole("waypoint_service", &AMBIT_V1_WAYPOINTSERVICE, bytes)?;
    Ok(model::WaypointService {
        service: hostname("waypoint_service.service", from.service)?,
        routes: all(from.routes, route)?,
        tcp_routes: all(from.tcp_routes, stream_route)?,
        tls_routes: all(from.tls_routes, stream_route)?,
        resolves_hosts: from.resolves_hosts,
        grantors: from.grantors.into_iter().map(pod_grant).collect(),
    })
}

fn pod_grant(from: wire::PodGrant) -> model::PodGrant {
    model::PodGrant {
        namespace: from.namespace.into(),
        pod: from.pod.into(),
    }
}

/// Decodes the policy that was sent under a name (`<gateway>/namespace/name`).
///
/// # Errors
/// When it is not understood in full.
pub fn waypoint_policy(name: &str, bytes: &[u8]) -> Result<model::HttpPolicy, HttpNotUnderstood> {
    let named = PolicyKey::of_record(policy_part(name));
    let read = whole("waypoint_policy", &AMBIT_V1_WAYPOINTPOLICY, bytes).and_then(policy);
    let read = read.and_then(|policy| {
        let own = policy.key.clone();
        under_own_name(policy, own, &named, "waypoint_policy.name")
    });
    read.map_err(|error| HttpNotUnderstood {
        substitute: Box::new(substitute(named, bytes, error.to_string().into())),
        error,
    })
}

/// Where a policy applies, and whether it is a dry run.
#[derive(Message)]
struct Outline {
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
    #[prost(bool, tag = "6")]
    dry_run: bool,
}

fn substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::HttpPolicy {
    let outline = Outline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = places(outline.for_gateway, outline.services);
    model::HttpPolicy {
        key,
        for_gateway,
        services,
        action: model::HttpAction::Deny,
        dry_run: outline.dry_run,
        rules: vec![model::HttpRule::default()],
        not_understood: Some(why),
        provider: None,
    }
}

// === routes ===

fn route(from: wire::HttpRoute) -> Result<model::HttpRoute, DecodeError> {
    Ok(model::HttpRoute {
        name: route_name("http_route.name", from.name)?,
        ports: ports("http_route.ports", from.ports)?,
        rules: all(from.rules, route_rule)?,
        clients: optional(from.clients),
    })
}

fn route_name(
    field: &'static str,
    from: Option<wire::RouteName>,
) -> Result<model::RouteName, DecodeError> {
    let from = from.ok_or_else(|| DecodeError::missing(field))?;
    Ok(model::RouteName {
        kind: from.kind.into(),
        namespace: from.namespace.into(),
        name: from.name.into(),
    })
}

fn stream_route(from: wire::StreamRoute) -> Result<model::StreamRoute, DecodeError> {
    Ok(model::StreamRoute {
        name: route_name("stream_route.name", from.name)?,
        ports: ports("stream_route.ports", from.ports)?,
        clients: optional(from.clients),
        hostnames: from.hostnames.into_iter().map(Into::into).collect(),
        backends: all(from.backends, stream_backend)?,
        unsupported: optional(from.unsupported),
    })
}

fn stream_backend(from: wire::StreamBackend) -> Result<model::StreamBackend, DecodeError> {
    use wire::stream_backend::Destination;
    const FIELD: &str = "stream_backend.destination";
    let service = match from.destination {
        Some(Destination::Service(name)) => Ok(hostname(FIELD, Some(name))?),
        Some(Destination::Error(error)) => Err(error.into()),
        None => return Err(DecodeError::missing(FIELD)),
    };
    Ok(model::StreamBackend {
        service,
        port: port("stream_backend.port", from.port)?,
        weight: from.weight,
    })
}

fn route_rule(from: wire::HttpRouteRule) -> Result<model::HttpRouteRule, DecodeError> {
    let timeouts = from.timeouts.unwrap_or_default();
    let timeout = |of: u64| (of > 0).then(|| Duration::from_millis(of));
    Ok(model::HttpRouteRule {
        filters: all(from.filters, filter)?,
        timeouts: model::HttpTimeouts {
            request: timeout(timeouts.request),
            backend_request: timeout(timeouts.backend_request),
        },
        name: optional(from.name),
        retry: from.retry.map(retry).transpose()?,
        session: from.session.map(session).transpose()?,
        matches: all(from.matches, route_match)?,
        backends: all(from.backends, backend)?,
        unsupported: optional(from.unsupported),
    })
}

fn session(from: wire::HttpSession) -> Result<model::HttpSession, DecodeError> {
    let timeout = |of: u64| (of > 0).then(|| Duration::from_millis(of));
    Ok(model::HttpSession {
        name: optional(from.name).ok_or_else(|| DecodeError::missing("http_session.name"))?,
        is_header: from.header,
        is_permanent: from.permanent,
        absolute_timeout: timeout(from.absolute_timeout),
        idle_timeout: timeout(from.idle_timeout),
    })
}

fn retry(from: wire::HttpRetry) -> Result<model::HttpRetry, DecodeError> {
    let code = |code: u32| match u16::try_from(code) {
        Ok(code @ 400..=599) => Ok(code),
        _ => Err(DecodeError::new("http_retry.codes", Refusal::Status(code))),
    };
    Ok(model::HttpRetry {
        codes: all(from.codes, code)?,
        attempts: from.attempts,
        backoff: (from.backoff > 0).then(|| Duration::from_millis(from.backoff)),
    })
}

pub(super) fn route_match(
    from: wire::HttpRouteMatch,
) -> Result<model::HttpRouteMatch, DecodeError> {
    use wire::http_path_match::Kind;
    let path = |path: wire::HttpPathMatch| match path.kind {
        Some(Kind::Exact(text)) => Ok(model::HttpPathMatch::Exact(text.into())),
        Some(Kind::Prefix(text)) => Ok(model::HttpPathMatch::Prefix(text.into())),
        Some(Kind::Regex(text)) => Ok(model::HttpPathMatch::Regex(text.into())),
        None => Err(DecodeError::missing("http_path_match.kind")),
    };
    Ok(model::HttpRouteMatch {
        path: from.path.map(path).transpose()?,
        method: optional(from.method),
        headers: all(from.headers, named)?,
        query_params: all(from.query_params, named)?,
    })
}

fn named(
    from: wire::HttpNamedMatch,
) -> Result<(model::ArcStr, model::HttpValueMatch), DecodeError> {
    use wire::http_named_match::Kind;
    let value = match from.kind {
        Some(Kind::Exact(text)) => model::HttpValueMatch::Exact(text.into()),
        Some(Kind::Regex(text)) => model::HttpValueMatch::Regex(text.into()),
        None => return Err(DecodeError::missing("http_named_match.kind")),
    };
    if from.name.is_empty() {
        return Err(DecodeError::missing("http_named_match.name"));
    }
    Ok((from.name.into(), value))
}

fn backend(from: wire::HttpBackend) -> Result<model::HttpBackend, DecodeError> {
    use wire::http_backend::Destination;
    const FIELD: &str = "http_backend.destination";
    let service = match from.destination {
        Some(Destination::Service(name)) => Ok(hostname(FIELD, Some(name))?),
        Some(Destination::Error(error)) => Err(error.into()),
        None => return Err(DecodeError::missing(FIELD)),
    };
    Ok(model::HttpBackend {
        service,
        port: port("http_backend.port", from.port)?,
        weight: from.weight,
        filters: all(from.filters, filter)?,
        subset: optional(from.subset),
    })
}

fn filter(from: wire::HttpFilter) -> Result<model::HttpFilter, DecodeError> {
    use wire::http_filter::Kind;
    Ok(match from.kind {
        Some(Kind::RequestHeaders(changes)) => {
            model::HttpFilter::RequestHeaders(header_changes(changes))
        }
        Some(Kind::ResponseHeaders(changes)) => {
            model::HttpFilter::ResponseHeaders(header_changes(changes))
        }
        Some(Kind::Redirect(redirect)) => model::HttpFilter::Redirect(model::HttpRedirect {
            scheme: optional(redirect.scheme),
            hostname: optional(redirect.hostname),
            port: match redirect.port {
                0 => None,
                number => Some(port("http_redirect.port", number)?),
            },
            path: redirect.path.map(path_change).transpose()?,
            status: u16::try_from(redirect.status)
                .map_err(|_| DecodeError::missing("http_redirect.status"))?,
        }),
        Some(Kind::Rewrite(rewrite)) => model::HttpFilter::Rewrite(model::HttpRewrite {
            hostname: optional(rewrite.hostname),
            path: rewrite.path.map(path_change).transpose()?,
        }),
        Some(Kind::Mirror(from)) => model::HttpFilter::Mirror(mirror(from)?),
        Some(Kind::Cors(from)) => model::HttpFilter::Cors(cors(from)),
        Some(Kind::Fault(from)) => model::HttpFilter::Fault(fault(from)?),
        None => return Err(DecodeError::missing("http_filter.kind")),
    })
}

fn mirror(from: wire::HttpMirror) -> Result<model::HttpMirror, DecodeError> {
    if from.denominator == 0 {
        return Err(DecodeError::missing("http_mirror.denominator"));
    }
    Ok(model::HttpMirror {
        service: hostname("http_mirror.service", from.service)?,
        port: port("http_mirror.port", from.port)?,
        numerator: from.numerator,
        denominator: from.denominator,
    })
}

fn fault(from: wire::HttpFault) -> Result<model::HttpFault, DecodeError> {
    use wire::http_fault_abort::Status;
    let share = |numerator, denominator| match denominator {
        0 => Err(DecodeError::missing("http_fault.denominator")),
        _ => Ok(model::Share {
            numerator,
            denominator,
        }),
    };
    let delay = |of: wire::HttpFaultDelay| {
        let share = share(of.numerator, of.denominator)?;
        Ok((Duration::from_millis(of.duration), share))
    };
    let abort = |of: wire::HttpFaultAbort| {
        const FIELD: &str = "http_fault_abort.status";
        let unknown = |status| DecodeError::new(FIELD, Refusal::FaultStatus(status));
        let status = match of.status {
            Some(Status::Http(status)) => match u16::try_from(status) {
                Ok(status @ 200..=599) => model::FaultStatus::Http(status),
                _ => return Err(unknown(status)),
            },
            Some(Status::Grpc(status)) => match u8::try_from(status) {
                Ok(status @ 0..=16) => model::FaultStatus::Grpc(status),
                _ => return Err(unknown(status)),
            },
            None => return Err(DecodeError::missing(FIELD)),
        };
        Ok((status, share(of.numerator, of.denominator)?))
    };
    Ok(model::HttpFault {
        delay: from.delay.map(delay).transpose()?,
        abort: from.abort.map(abort).transpose()?,
    })
}

fn cors(from: wire::HttpCors) -> model::HttpCors {
    let texts = |of: Vec<String>| of.into_iter().map(Into::into).collect();
    model::HttpCors {
        allow_origins: texts(from.allow_origins),
        allow_credentials: from.allow_credentials,
        allow_methods: texts(from.allow_methods),
        allow_headers: texts(from.allow_headers),
        expose_headers: texts(from.expose_headers),
        max_age: from.max_age,
    }
}

fn header_changes(from: wire::HeaderChanges) -> model::HeaderChanges {
    let headers = |of: Vec<wire::HttpHeader>| {
        let all = of.into_iter();
        all.map(|one| (one.name.into(), one.value.into())).collect()
    };
    model::HeaderChanges {
        set: headers(from.set),
        add: headers(from.add),
        remove: from.remove.into_iter().map(Into::into).collect(),
    }
}

fn path_change(from: wire::PathChange) -> Result<model::PathChange, DecodeError> {
    use wire::path_change::Kind;
    match from.kind {
        Some(Kind::Full(path)) => Ok(model::PathChange::Full(path.into())),
        Some(Kind::Prefix(path)) => Ok(model::PathChange::Prefix(path.into())),
        None => Err(DecodeError::missing("path_change.kind")),
    }
}

// === policies ===

fn policy(from: wire::WaypointPolicy) -> Result<model::HttpPolicy, DecodeError> {
    let action = known("waypoint_policy.action", from.action)?;
    Ok(model::HttpPolicy {
        key: PolicyKey {
            namespace: from.namespace.into(),
            name: from.name.into(),
        },
        for_gateway: from.for_gateway,
        services: all(from.services, |name| {
            hostname("waypoint_policy.services", Some(name))
        })?,
        action: match action {
            wire::HttpAction::Allow => model::HttpAction::Allow,
            wire::HttpAction::Deny => model::HttpAction::Deny,
            wire::HttpAction::Audit => model::HttpAction::Audit,
            wire::HttpAction::Custom if from.provider.is_none() => {
                return Err(DecodeError::missing("waypoint_policy.provider"));
            }
            wire::HttpAction::Custom => model::HttpAction::Custom,
        },
        dry_run: from.dry_run,
        rules: all(from.rules, rule)?,
        not_understood: optional(from.not_understood),
        provider: from.provider.map(provider).transpose()?.map(Arc::new),
    })
}

fn rule(from: wire::HttpRule) -> Result<model::HttpRule, DecodeError> {
    Ok(model::HttpRule {
        sources: all(from.sources, source)?,
        operations: all(from.operations, operation)?,
        conditions: all(from.conditions, condition)?,
    })
}

fn source(from: wire::HttpSource) -> Result<model::HttpSource, DecodeError> {
    Ok(model::HttpSource {
        principals: texts("http_source.principals", from.principals)?,
        not_principals: texts("http_source.not_principals", from.not_principals)?,
        namespaces: texts("http_source.namespaces", from.namespaces)?,
        not_namespaces: texts("http_source.not_namespaces", from.not_namespaces)?,
        service_accounts: accounts("http_source.service_accounts", from.service_accounts)?,
        not_service_accounts: accounts(
            "http_source.not_service_accounts",
            from.not_service_accounts,
        )?,
        trust_domains: texts("http_source.trust_domains", from.trust_domains)?,
        not_trust_domains: texts("http_source.not_trust_domains", from.not_trust_domains)?,
        ip_blocks: nets("http_source.ip_blocks", &from.ip_blocks)?,
        not_ip_blocks: nets("http_source.not_ip_blocks", &from.not_ip_blocks)?,
        remote_ip_blocks: nets("http_source.remote_ip_blocks", &from.remote_ip_blocks)?,
        not_remote_ip_blocks: nets(
            "http_source.not_remote_ip_blocks",
            &from.not_remote_ip_blocks,
        )?,
        request_principals: texts("http_source.request_principals", from.request_principals)?,
        not_request_principals: texts(
            "http_source.not_request_principals",
            from.not_request_principals,
        )?,
    })
}

fn operation(from: wire::HttpOperation) -> Result<model::HttpOperation, DecodeError> {
    Ok(model::HttpOperation {
        hosts: texts("http_operation.hosts", from.hosts)?,
        not_hosts: texts("http_operation.not_hosts", from.not_hosts)?,
        ports: ports("http_operation.ports", from.ports)?,
        not_ports: ports("http_operation.not_ports", from.not_ports)?,
        methods: texts("http_operation.methods", from.methods)?,
        not_methods: texts("http_operation.not_methods", from.not_methods)?,
        paths: all(from.paths, pattern)?,
        not_paths: all(from.not_paths, pattern)?,
    })
}

fn pattern(from: wire::PathPattern) -> Result<model::PathPattern, DecodeError> {
    use wire::path_pattern::Kind;
    const FIELD: &str = "path_pattern.kind";
    match from.kind {
        Some(Kind::Text(one)) => text(FIELD, one).map(model::PathPattern::Text),
        Some(Kind::Template(template)) => Ok(model::PathPattern::Template(template.into())),
        None => Err(DecodeError::missing(FIELD)),
    }
}

fn text(
    field: &'static str,
    from: security::StringMatch,
) -> Result<model::StringMatch, DecodeError> {
    let mut read = texts(field, vec![from])?;
    read.pop().ok_or_else(|| DecodeError::missing(field))
}

fn condition(from: wire::HttpCondition) -> Result<model::HttpCondition, DecodeError> {
    let attribute = from
        .attribute
        .ok_or_else(|| DecodeError::missing("http_condition.attribute"))?;
    if from.values.is_empty() && from.not_values.is_empty() {
        return Err(DecodeError::new("http_condition.values", Refusal::Empty));
    }
    Ok(model::HttpCondition {
        attribute: self::attribute(attribute)?,
        values: all(from.values, value)?,
        not_values: all(from.not_values, value)?,
    })
}

fn attribute(from: wire::HttpAttribute) -> Result<model::HttpAttribute, DecodeError> {
    use wire::HttpAttributeKind as Kind;
    const FIELD: &str = "http_attribute.kind";
    Ok(match known(FIELD, from.kind)? {
        Kind::Unspecified => return Err(DecodeError::missing(FIELD)),
        Kind::Header if from.header.is_empty() => {
            return Err(DecodeError::missing("http_attribute.header"));
        }
        Kind::Header => model::HttpAttribute::Header(from.header.into()),
        Kind::SourceIp => model::HttpAttribute::SourceIp,
        Kind::RemoteIp => model::HttpAttribute::RemoteIp,
        Kind::SourceNamespace => model::HttpAttribute::SourceNamespace,
        Kind::SourceServiceAccount => model::HttpAttribute::SourceServiceAccount,
        Kind::SourceTrustDomain => model::HttpAttribute::SourceTrustDomain,
        Kind::SourcePrincipal => model::HttpAttribute::SourcePrincipal,
        Kind::DestinationIp => model::HttpAttribute::DestinationIp,
        Kind::DestinationPort => model::HttpAttribute::DestinationPort,
        Kind::ConnectionSni => model::HttpAttribute::ConnectionSni,
        Kind::RequestPrincipal => model::HttpAttribute::RequestPrincipal,
        Kind::RequestAudiences => model::HttpAttribute::RequestAudiences,
        Kind::RequestPresenter => model::HttpAttribute::RequestPresenter,
        Kind::RequestClaim if from.claim.is_empty() => {
            return Err(DecodeError::missing("http_attribute.claim"));
        }
        Kind::RequestClaim => {
            let names = from.claim.into_iter().map(Into::into);
            model::HttpAttribute::RequestClaim(names.collect())
        }
    })
}

fn value(from: wire::HttpValue) -> Result<model::HttpValue, DecodeError> {
    use wire::http_value::Kind;
    const FIELD: &str = "http_value.kind";
    match from.kind {
        Some(Kind::Text(one)) => text(FIELD, one).map(model::HttpValue::Text),
        Some(Kind::Net(net)) => prefix(FIELD, &net.address, net.length).map(model::HttpValue::Net),
        Some(Kind::Port(number)) => port(FIELD, number).map(model::HttpValue::Port),
        None => Err(DecodeError::missing(FIELD)),
    }
}

#[cfg(test)]
mod tests;
