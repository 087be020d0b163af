//! Codec of filters in HTTP routes.

use std::time::Duration;

use ambit_model as model;

use super::{
    decode_fields::{decode_hostname, none_if_empty},
    encode_fields,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, DecodeErrorReason, decode_port},
};

pub(super) fn filter(from: wire::HttpFilter) -> Result<model::HttpFilter, DecodeError> {
    use wire::http_filter::Kind;
    Ok(match from.kind {
        Some(Kind::RequestHeaders(changes)) => {
            model::HttpFilter::RequestHeaders(header_changes(changes))
        }
        Some(Kind::ResponseHeaders(changes)) => {
            model::HttpFilter::ResponseHeaders(header_changes(changes))
        }
        Some(Kind::Redirect(redirect)) => model::HttpFilter::Redirect(model::HttpRedirect {
            scheme: none_if_empty(redirect.scheme),
            hostname: none_if_empty(redirect.hostname),
            port: match redirect.port {
                0 => None,
                number => Some(decode_port("http_redirect.port", number)?),
            },
            path: redirect.path.map(path_change).transpose()?,
            status: u16::try_from(redirect.status)
                .map_err(|_| DecodeError::missing("http_redirect.status"))?,
        }),
        Some(Kind::Rewrite(rewrite)) => model::HttpFilter::Rewrite(model::HttpRewrite {
            hostname: none_if_empty(rewrite.hostname),
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
        service: decode_hostname("http_mirror.service", from.service)?,
        port: decode_port("http_mirror.port", from.port)?,
        numerator: from.numerator,
        denominator: from.denominator,
    })
}

fn fault(from: wire::HttpFault) -> Result<model::HttpFault, DecodeError> {
    use wire::http_fault_abort::Status;
    let share = |numerator, denominator| match denominator {
        0 => Err(DecodeError::missing("http_fault.denominator")),
        _ => Ok(model::RequestFraction {
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
        let unknown =
            |status| DecodeError::new(FIELD, DecodeErrorReason::InvalidFaultStatus(status));
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
        Some(Kind::Matched(path)) => Ok(model::PathChange::Matched(path.into())),
        None => Err(DecodeError::missing("path_change.kind")),
    }
}

impl From<&model::HttpFilter> for wire::HttpFilter {
    fn from(from: &model::HttpFilter) -> Self {
        use wire::http_filter::Kind;
        let kind = match from {
            model::HttpFilter::RequestHeaders(changes) => Kind::RequestHeaders(changes.into()),
            model::HttpFilter::ResponseHeaders(changes) => Kind::ResponseHeaders(changes.into()),
            model::HttpFilter::Redirect(redirect) => Kind::Redirect(wire::HttpRedirect {
                scheme: encode_fields::encode_optional(redirect.scheme.as_ref()),
                hostname: encode_fields::encode_optional(redirect.hostname.as_ref()),
                port: redirect.port.map(u32::from).unwrap_or_default(),
                path: redirect.path.as_ref().map(Into::into),
                status: redirect.status.into(),
            }),
            model::HttpFilter::Rewrite(rewrite) => Kind::Rewrite(wire::HttpRewrite {
                hostname: encode_fields::encode_optional(rewrite.hostname.as_ref()),
                path: rewrite.path.as_ref().map(Into::into),
            }),
            model::HttpFilter::Mirror(mirror) => Kind::Mirror(wire::HttpMirror {
                service: Some((&mirror.service).into()),
                port: mirror.port.into(),
                numerator: mirror.numerator,
                denominator: mirror.denominator,
            }),
            model::HttpFilter::Cors(cors) => Kind::Cors(wire::HttpCors {
                allow_origins: encode_fields::encode_texts(&cors.allow_origins),
                allow_credentials: cors.allow_credentials,
                allow_methods: encode_fields::encode_texts(&cors.allow_methods),
                allow_headers: encode_fields::encode_texts(&cors.allow_headers),
                expose_headers: encode_fields::encode_texts(&cors.expose_headers),
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
        let abort =
            |(status, share): (model::FaultStatus, model::RequestFraction)| wire::HttpFaultAbort {
                status: Some(match status {
                    model::FaultStatus::Http(status) => Status::Http(status.into()),
                    model::FaultStatus::Grpc(status) => Status::Grpc(status.into()),
                }),
                numerator: share.numerator,
                denominator: share.denominator,
            };
        Self {
            delay: from.delay.map(|(duration, share)| wire::HttpFaultDelay {
                duration: encode_fields::encode_milliseconds(Some(duration)),
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
            model::PathChange::Matched(path) => Kind::Matched(path.to_string()),
        };
        Self { kind: Some(kind) }
    }
}
