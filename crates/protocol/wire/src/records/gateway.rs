//! Codec of a waypoint's settings.

use ambit_model::{self as model, GatewayName};
use prost::Message as _;

use super::{RecordCodec, decode_fields::decode_all};
use crate::{
    ambit as wire,
    decode::{
        DecodeError, DecodeErrorReason, RecordDecodeError, decode_enum, decode_ip, decode_strictly,
    },
    encode::ip_bytes,
    unknown::AMBIT_V1_WAYPOINTGATEWAY,
};

impl RecordCodec for model::WaypointGateway {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointGateway";
    const SHORT_NAME: &'static str = "WPGDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointGateway::from(self).encode_to_vec()
    }

    fn decode(_name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read =
            decode_strictly("waypoint_gateway", &AMBIT_V1_WAYPOINTGATEWAY, bytes).and_then(gateway);
        read.map_err(RecordDecodeError::without_substitute)
    }
}

fn gateway(from: wire::WaypointGateway) -> Result<model::WaypointGateway, DecodeError> {
    let name = from
        .gateway
        .ok_or_else(|| DecodeError::missing("waypoint_gateway.gateway"))?;
    let mode = decode_enum(
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
            .map(|bytes| decode_ip("waypoint_gateway.cluster_addresses", bytes))
            .collect::<Result<_, _>>()?,
        allowed_addresses: decode_all(from.allowed_addresses, |text| {
            let refused = |_| {
                DecodeError::new(
                    "waypoint_gateway.allowed_addresses",
                    DecodeErrorReason::InvalidPrefix(text.clone()),
                )
            };
            text.parse().map_err(refused)
        })?,
        policies_only_for_services: from.services_only,
    })
}

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
                .map(|ip| ip_bytes(*ip))
                .collect(),
            allowed_addresses: from
                .allowed_addresses
                .iter()
                .map(ToString::to_string)
                .collect(),
            services_only: from.policies_only_for_services,
        }
    }
}
