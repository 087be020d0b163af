//! Codec of the services that a waypoint serves, including their routes.

use ambit_model as model;
use prost::Message as _;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname},
    encode_fields,
    http_route::route,
    stream_route::stream_route,
};
use crate::{
    ambit as wire,
    decode::{DecodeError, RecordDecodeError, decode_strictly},
    unknown::AMBIT_V1_WAYPOINTSERVICE,
};

impl RecordCodec for model::WaypointService {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointService";
    const SHORT_NAME: &'static str = "WPSDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointService::from(self).encode_to_vec()
    }

    fn decode(_name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read =
            decode_strictly("waypoint_service", &AMBIT_V1_WAYPOINTSERVICE, bytes).and_then(service);
        read.map_err(RecordDecodeError::without_substitute)
    }
}

fn service(from: wire::WaypointService) -> Result<model::WaypointService, DecodeError> {
    Ok(model::WaypointService {
        service: decode_hostname("waypoint_service.service", from.service)?,
        routes: decode_all(from.routes, route)?,
        tcp_routes: decode_all(from.tcp_routes, stream_route)?,
        tls_routes: decode_all(from.tls_routes, stream_route)?,
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

impl From<&model::WaypointService> for wire::WaypointService {
    fn from(from: &model::WaypointService) -> Self {
        Self {
            service: Some((&from.service).into()),
            routes: encode_fields::encode_all(&from.routes),
            tcp_routes: encode_fields::encode_all(&from.tcp_routes),
            tls_routes: encode_fields::encode_all(&from.tls_routes),
            resolves_hosts: from.resolves_hosts,
            grantors: encode_fields::encode_all(&from.grantors),
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
