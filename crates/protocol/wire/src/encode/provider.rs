//! Providers that decide about requests, as they are sent with the policies that name them.

use ambit_model as model;

use super::waypoint::{all, milliseconds};
use crate::ambit as wire;

impl From<&model::Provider> for wire::WaypointProvider {
    fn from(from: &model::Provider) -> Self {
        let (place, refused) = match &from.place {
            Ok(place) => (Some(place), String::new()),
            Err(why) => (None, why.to_string()),
        };
        Self {
            name: from.name.to_string(),
            refused,
            service: place.map(|(service, _)| service.into()),
            port: place.map_or(0, |(_, port)| (*port).into()),
            timeout: milliseconds(Some(from.timeout)),
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
            headers: all(&from.headers),
            added: from.added.iter().map(header).collect(),
            to_application: all(&from.to_application),
            to_client_allowed: all(&from.to_client_allowed),
            to_client_denied: all(&from.to_client_denied),
        }
    }
}
