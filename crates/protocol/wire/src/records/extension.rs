//! Codec of Wasm plugins. One that cannot be decoded in full is replaced by a substitute that does not run: requests
//! are handled as if the plugin had failed.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{
    RecordCodec,
    decode_fields::{decode_all, decode_hostname, none_if_empty, object_name, substitute_targets},
    encode_fields,
};
use crate::{
    ambit as wire,
    decode::{
        DecodeError, RecordDecodeError, Substitute, check_resource_name, decode_enum, decode_port,
        decode_strictly,
    },
    unknown::AMBIT_V1_WAYPOINTEXTENSION,
    workload,
};

impl RecordCodec for model::WaypointExtension {
    const TYPE_URL: &'static str = "type.googleapis.com/ambit.v1.WaypointExtension";
    const SHORT_NAME: &'static str = "WPXDS";

    fn encode(&self) -> Vec<u8> {
        wire::WaypointExtension::from(self).encode_to_vec()
    }

    fn decode(name: &str, bytes: &[u8]) -> Result<Self, RecordDecodeError<Self>> {
        let read = decode_strictly("waypoint_extension", &AMBIT_V1_WAYPOINTEXTENSION, bytes)
            .and_then(extension);
        check_resource_name(
            object_name(name),
            "waypoint_extension.name",
            read,
            |read| PolicyKey::from_resource_name(&read.key()),
            |key, why| Substitute {
                record: Box::new(inactive_substitute(key, bytes, why)),
                effect: "requests are decided as if it had failed",
                is_policy: false,
            },
        )
    }
}

fn extension(from: wire::WaypointExtension) -> Result<model::WaypointExtension, DecodeError> {
    let phase = match decode_enum("waypoint_extension.phase", from.phase)? {
        wire::ExtensionPhase::Authn => model::ExtensionPhase::Authn,
        wire::ExtensionPhase::Authz => model::ExtensionPhase::Authz,
        wire::ExtensionPhase::Stats => model::ExtensionPhase::Stats,
        wire::ExtensionPhase::UnspecifiedPhase => model::ExtensionPhase::Unspecified,
    };
    let environment = from.environment.into_iter();
    Ok(model::WaypointExtension {
        namespace: from.namespace.into(),
        name: from.name.into(),
        for_gateway: from.for_gateway,
        services: decode_all(from.services, |name| {
            decode_hostname("waypoint_extension.services", Some(name))
        })?,
        phase,
        priority: from.priority,
        created: from.created.into(),
        url: from.url.into(),
        sha256: from.sha256.into(),
        always_pull: from.always_pull,
        pull_secret: from.pull_secret.into(),
        fail_open: from.fail_open,
        plugin_name: from.plugin_name.into(),
        configuration: from.configuration.into(),
        environment: environment
            .map(|one| (one.name.into(), one.value.into()))
            .collect(),
        ports: decode_all(from.ports, |of| decode_port("waypoint_extension.ports", of))?,
        callees: decode_all(from.callees, |name| {
            decode_hostname("waypoint_extension.callees", Some(name))
        })?,
        unsupported: none_if_empty(from.unsupported),
    })
}

/// Targets and failure mode of a Wasm plugin, decoded without its other fields to build the substitute of an invalid
/// one.
#[derive(Message)]
struct ExtensionOutline {
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(bool, tag = "12")]
    fail_open: bool,
}

fn inactive_substitute(
    key: PolicyKey,
    bytes: &[u8],
    why: model::ArcStr,
) -> model::WaypointExtension {
    let outline = ExtensionOutline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = substitute_targets(outline.for_gateway, outline.services);
    model::WaypointExtension {
        namespace: key.namespace,
        name: key.name,
        for_gateway,
        services,
        fail_open: outline.fail_open,
        // Before anything else.
        phase: model::ExtensionPhase::Authn,
        unsupported: Some(why),
        ..model::WaypointExtension::default()
    }
}

impl From<&model::WaypointExtension> for wire::WaypointExtension {
    fn from(from: &model::WaypointExtension) -> Self {
        let phase = match from.phase {
            model::ExtensionPhase::Authn => wire::ExtensionPhase::Authn,
            model::ExtensionPhase::Authz => wire::ExtensionPhase::Authz,
            model::ExtensionPhase::Stats => wire::ExtensionPhase::Stats,
            model::ExtensionPhase::Unspecified => wire::ExtensionPhase::UnspecifiedPhase,
        };
        let environment = from.environment.iter();
        Self {
            namespace: from.namespace.to_string(),
            name: from.name.to_string(),
            for_gateway: from.for_gateway,
            services: from.services.iter().map(Into::into).collect(),
            phase: phase.into(),
            priority: from.priority,
            created: from.created.to_string(),
            url: from.url.to_string(),
            sha256: from.sha256.to_string(),
            always_pull: from.always_pull,
            pull_secret: from.pull_secret.clone().into(),
            fail_open: from.fail_open,
            plugin_name: from.plugin_name.to_string(),
            configuration: from.configuration.to_string(),
            environment: environment
                .map(|(name, value)| wire::ExtensionVariable {
                    name: name.to_string(),
                    value: value.to_string(),
                })
                .collect(),
            ports: from.ports.iter().map(|port| (*port).into()).collect(),
            callees: from.callees.iter().map(Into::into).collect(),
            unsupported: encode_fields::encode_optional(from.unsupported.as_ref()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plugin() -> model::WaypointExtension {
        model::WaypointExtension {
            namespace: "shop".into(),
            name: "tag".into(),
            for_gateway: true,
            services: vec![model::NamespacedHostname::new("shop", "cart.example")],
            phase: model::ExtensionPhase::Stats,
            priority: -7,
            created: "2026-01-01T00:00:00Z".into(),
            url: "oci://registry.example/tag:1".into(),
            sha256: "ab".into(),
            always_pull: true,
            pull_secret: b"{}".to_vec(),
            fail_open: true,
            plugin_name: "root".into(),
            configuration: "{\"a\":1}".into(),
            environment: [("A".into(), "b".into())].into(),
            ports: vec![80],
            callees: vec![model::NamespacedHostname::new("bank", "*.bank.example")],
            unsupported: Some("why".into()),
        }
    }

    #[test]
    fn a_plugin_is_read_as_it_was_sent() {
        let sent = wire::WaypointExtension::from(&plugin()).encode_to_vec();
        assert_eq!(
            model::WaypointExtension::decode("ns/gw/shop/tag", &sent),
            Ok(plugin())
        );
    }

    #[test]
    fn what_is_not_understood_fails_as_far_as_the_plugin_does() {
        let mut sent = wire::WaypointExtension::from(&plugin());
        sent.phase = 77;
        let refused =
            model::WaypointExtension::decode("ns/gw/shop/tag", &sent.encode_to_vec()).unwrap_err();
        let substitute = refused.substitute_record();
        assert!(substitute.unsupported.is_some() && substitute.fail_open && substitute.for_gateway);
        assert_eq!(
            (substitute.key(), &substitute.services),
            ("shop/tag".to_owned(), &plugin().services)
        );
        let other = model::WaypointExtension::decode(
            "ns/gw/shop/other",
            &wire::WaypointExtension::from(&plugin()).encode_to_vec(),
        );
        assert_eq!(other.unwrap_err().substitute_record().key(), "shop/other");
        let nonsense = model::WaypointExtension::decode("ns/gw/shop/tag", &[255, 255])
            .unwrap_err()
            .substitute_record();
        assert!(nonsense.for_gateway && !nonsense.fail_open);
    }
}
