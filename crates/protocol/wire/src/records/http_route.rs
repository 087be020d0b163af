//! Codec of HTTP routes, which are part of service records.

use std::time::Duration;

use ambit_model as model;

use super::{
    decode_fields::{decode_all, decode_hostname, none_if_empty},
    encode_fields,
    http_filter::filter,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, DecodeErrorReason, decode_port, decode_ports},
};

pub(super) fn route(from: wire::HttpRoute) -> Result<model::HttpRoute, DecodeError> {
    Ok(model::HttpRoute {
        name: route_name("http_route.name", from.name)?,
        ports: decode_ports("http_route.ports", from.ports)?,
        rules: decode_all(from.rules, route_rule)?,
        clients: none_if_empty(from.clients),
        first_match: from.first_match,
        of_service: from.of_service,
    })
}

pub(super) fn route_name(
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

fn route_rule(from: wire::HttpRouteRule) -> Result<model::HttpRouteRule, DecodeError> {
    let timeouts = from.timeouts.unwrap_or_default();
    let timeout = |of: u64| (of > 0).then(|| Duration::from_millis(of));
    Ok(model::HttpRouteRule {
        filters: decode_all(from.filters, filter)?,
        timeouts: model::HttpTimeouts {
            request: timeout(timeouts.request),
            backend_request: timeout(timeouts.backend_request),
        },
        name: none_if_empty(from.name),
        retry: from.retry.map(retry).transpose()?,
        session: from.session.map(session).transpose()?,
        matches: decode_all(from.matches, route_match)?,
        backends: decode_all(from.backends, backend)?,
        unsupported: none_if_empty(from.unsupported),
    })
}

fn session(from: wire::HttpSession) -> Result<model::HttpSession, DecodeError> {
    let timeout = |of: u64| (of > 0).then(|| Duration::from_millis(of));
    Ok(model::HttpSession {
        name: none_if_empty(from.name).ok_or_else(|| DecodeError::missing("http_session.name"))?,
        is_header: from.header,
        is_permanent: from.permanent,
        absolute_timeout: timeout(from.absolute_timeout),
        idle_timeout: timeout(from.idle_timeout),
    })
}

fn retry(from: wire::HttpRetry) -> Result<model::HttpRetry, DecodeError> {
    let code = |code: u32| match u16::try_from(code) {
        Ok(code @ 400..=599) => Ok(code),
        _ => Err(DecodeError::new(
            "http_retry.codes",
            DecodeErrorReason::NotErrorStatus(code),
        )),
    };
    Ok(model::HttpRetry {
        codes: decode_all(from.codes, code)?,
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
        Some(Kind::TextPrefix(text)) => Ok(model::HttpPathMatch::TextPrefix(text.into())),
        None => Err(DecodeError::missing("http_path_match.kind")),
    };
    Ok(model::HttpRouteMatch {
        path: from.path.map(path).transpose()?,
        method: none_if_empty(from.method),
        headers: decode_all(from.headers, decode_named_match)?,
        query_params: decode_all(from.query_params, decode_named_match)?,
        without_headers: decode_all(from.without_headers, decode_named_match)?,
    })
}

fn decode_named_match(
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
        Some(Destination::Service(name)) => Ok(decode_hostname(FIELD, Some(name))?),
        Some(Destination::Error(error)) => Err(error.into()),
        None => return Err(DecodeError::missing(FIELD)),
    };
    Ok(model::HttpBackend {
        service,
        port: decode_port("http_backend.port", from.port)?,
        weight: from.weight,
        filters: decode_all(from.filters, filter)?,
        subset: none_if_empty(from.subset),
    })
}

impl From<&model::HttpRoute> for wire::HttpRoute {
    fn from(from: &model::HttpRoute) -> Self {
        Self {
            name: Some((&from.name).into()),
            ports: from.ports.iter().copied().map(u32::from).collect(),
            rules: encode_fields::encode_all(&from.rules),
            clients: encode_fields::encode_optional(from.clients.as_ref()),
            first_match: from.first_match,
            of_service: from.of_service,
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

impl From<&model::HttpRouteRule> for wire::HttpRouteRule {
    fn from(from: &model::HttpRouteRule) -> Self {
        Self {
            matches: encode_fields::encode_all(&from.matches),
            backends: encode_fields::encode_all(&from.backends),
            unsupported: encode_fields::encode_optional(from.unsupported.as_ref()),
            filters: encode_fields::encode_all(&from.filters),
            timeouts: Some(wire::HttpTimeouts {
                request: encode_fields::encode_milliseconds(from.timeouts.request),
                backend_request: encode_fields::encode_milliseconds(from.timeouts.backend_request),
            }),
            retry: from.retry.as_ref().map(|retry| wire::HttpRetry {
                codes: retry.codes.iter().copied().map(u32::from).collect(),
                attempts: retry.attempts,
                backoff: encode_fields::encode_milliseconds(retry.backoff),
            }),
            name: encode_fields::encode_optional(from.name.as_ref()),
            session: from.session.as_ref().map(|session| wire::HttpSession {
                name: session.name.to_string(),
                header: session.is_header,
                permanent: session.is_permanent,
                absolute_timeout: encode_fields::encode_milliseconds(session.absolute_timeout),
                idle_timeout: encode_fields::encode_milliseconds(session.idle_timeout),
            }),
        }
    }
}

impl From<&model::HttpRouteMatch> for wire::HttpRouteMatch {
    fn from(from: &model::HttpRouteMatch) -> Self {
        use wire::http_path_match::Kind;
        let path = |path: &model::HttpPathMatch| match path {
            model::HttpPathMatch::Exact(text) => Kind::Exact(text.to_string()),
            model::HttpPathMatch::Prefix(text) => Kind::Prefix(text.to_string()),
            model::HttpPathMatch::Regex(text) => Kind::Regex(text.to_string()),
            model::HttpPathMatch::TextPrefix(text) => Kind::TextPrefix(text.to_string()),
        };
        Self {
            path: from.path.as_ref().map(|one| wire::HttpPathMatch {
                kind: Some(path(one)),
            }),
            method: encode_fields::encode_optional(from.method.as_ref()),
            headers: from.headers.iter().map(named_match).collect(),
            query_params: from.query_params.iter().map(named_match).collect(),
            without_headers: from.without_headers.iter().map(named_match).collect(),
        }
    }
}

fn named_match((name, value): &(model::ArcStr, model::HttpValueMatch)) -> wire::HttpNamedMatch {
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
            filters: encode_fields::encode_all(&from.filters),
            subset: encode_fields::encode_optional(from.subset.as_ref()),
        }
    }
}
