//! Codec of TCP and TLS routes, which are part of service records.

use ambit_model as model;

use super::{
    decode_fields::{decode_all, decode_hostname, none_if_empty},
    encode_fields,
    http_route::route_name,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, decode_port, decode_ports},
};

pub(super) fn stream_route(from: wire::StreamRoute) -> Result<model::StreamRoute, DecodeError> {
    Ok(model::StreamRoute {
        name: route_name("stream_route.name", from.name)?,
        ports: decode_ports("stream_route.ports", from.ports)?,
        clients: none_if_empty(from.clients),
        hostnames: from.hostnames.into_iter().map(Into::into).collect(),
        backends: decode_all(from.backends, stream_backend)?,
        unsupported: none_if_empty(from.unsupported),
    })
}

fn stream_backend(from: wire::StreamBackend) -> Result<model::StreamBackend, DecodeError> {
    use wire::stream_backend::Destination;
    const FIELD: &str = "stream_backend.destination";
    let service = match from.destination {
        Some(Destination::Service(name)) => Ok(decode_hostname(FIELD, Some(name))?),
        Some(Destination::Error(error)) => Err(error.into()),
        None => return Err(DecodeError::missing(FIELD)),
    };
    Ok(model::StreamBackend {
        service,
        port: decode_port("stream_backend.port", from.port)?,
        weight: from.weight,
    })
}

impl From<&model::StreamRoute> for wire::StreamRoute {
    fn from(from: &model::StreamRoute) -> Self {
        Self {
            name: Some((&from.name).into()),
            ports: from.ports.iter().copied().map(u32::from).collect(),
            clients: encode_fields::encode_optional(from.clients.as_ref()),
            hostnames: from.hostnames.iter().map(ToString::to_string).collect(),
            backends: encode_fields::encode_all(&from.backends),
            unsupported: encode_fields::encode_optional(from.unsupported.as_ref()),
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
