//! Codec of external authorization providers, which are part of policy records.

use std::time::Duration;

use ambit_model as model;

use super::{decode_fields::decode_hostname, encode_fields};
use crate::{
    ambit as wire,
    decode::{DecodeError, DecodeErrorReason, decode_port, decode_string_matches},
};

pub(super) fn provider(from: wire::WaypointProvider) -> Result<model::Provider, DecodeError> {
    let status = from.status_on_error;
    let status_on_error = u16::try_from(status).ok();
    let status_on_error = status_on_error.filter(|status| (400..600).contains(status));
    let destination = if from.unavailable.is_empty() {
        let service = decode_hostname("waypoint_provider.service", from.service)?;
        Ok((service, decode_port("waypoint_provider.port", from.port)?))
    } else {
        Err(from.unavailable.into())
    };
    Ok(model::Provider {
        name: from.name.into(),
        target: destination,
        timeout: Duration::from_millis(from.timeout),
        status_on_error: status_on_error.ok_or_else(|| {
            DecodeError::new(
                "waypoint_provider.status_on_error",
                DecodeErrorReason::NotErrorStatus(status),
            )
        })?,
        fail_open: from.fail_open,
        body: from.body.map(|body| model::ProviderBody {
            max_bytes: body.max_bytes,
            allow_partial: body.allow_partial,
            as_bytes: body.as_bytes,
        }),
        protocol: match from.http {
            None => model::ProviderProtocol::Grpc,
            Some(http) => model::ProviderProtocol::Http(decode_http_provider(http)?),
        },
    })
}

fn decode_http_provider(from: wire::HttpProvider) -> Result<model::HttpProvider, DecodeError> {
    let added = from.added.into_iter();
    Ok(model::HttpProvider {
        path_prefix: from.path_prefix.into(),
        headers: decode_string_matches("http_provider.headers", from.headers)?,
        added: added
            .map(|header| (header.name.into(), header.value.into()))
            .collect(),
        to_application: decode_string_matches("http_provider.to_application", from.to_application)?,
        to_client_allowed: decode_string_matches(
            "http_provider.to_client_allowed",
            from.to_client_allowed,
        )?,
        to_client_denied: decode_string_matches(
            "http_provider.to_client_denied",
            from.to_client_denied,
        )?,
    })
}

impl From<&model::Provider> for wire::WaypointProvider {
    fn from(from: &model::Provider) -> Self {
        let (destination, unavailable) = match &from.target {
            Ok(destination) => (Some(destination), String::new()),
            Err(why) => (None, why.to_string()),
        };
        Self {
            name: from.name.to_string(),
            unavailable,
            service: destination.map(|(service, _)| service.into()),
            port: destination.map_or(0, |(_, port)| (*port).into()),
            timeout: encode_fields::encode_milliseconds(Some(from.timeout)),
            status_on_error: from.status_on_error.into(),
            fail_open: from.fail_open,
            body: from.body.map(|body| wire::ProviderBody {
                max_bytes: body.max_bytes,
                allow_partial: body.allow_partial,
                as_bytes: body.as_bytes,
            }),
            http: match &from.protocol {
                model::ProviderProtocol::Grpc => None,
                model::ProviderProtocol::Http(http) => Some(http.into()),
            },
        }
    }
}

impl From<&model::HttpProvider> for wire::HttpProvider {
    fn from(from: &model::HttpProvider) -> Self {
        let header = |(name, value): &(model::ArcStr, model::ArcStr)| wire::HttpHeader {
            name: name.to_string(),
            value: value.to_string(),
        };
        Self {
            path_prefix: from.path_prefix.to_string(),
            headers: encode_fields::encode_all(&from.headers),
            added: from.added.iter().map(header).collect(),
            to_application: encode_fields::encode_all(&from.to_application),
            to_client_allowed: encode_fields::encode_all(&from.to_client_allowed),
            to_client_denied: encode_fields::encode_all(&from.to_client_denied),
        }
    }
}
