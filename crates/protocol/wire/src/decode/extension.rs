//! Plugins of waypoints. A plugin that is not understood in full has a substitute that is not run: what it was attached
//! to is decided as if it had failed.

use ambit_model::{self as model, PolicyKey};
use prost::Message;

use super::{
    DecodeError, known,
    parts::{all, hostname, optional, places, policy_part, under_own_name, whole},
    port,
};
use crate::{ambit as wire, unknown::AMBIT_V1_WAYPOINTEXTENSION, workload};

/// A plugin that is not understood in full.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{error}")]
pub struct ExtensionNotUnderstood {
    /// The field that is not understood.
    pub error: DecodeError,
    /// Is not run, and fails as far as the plugin does.
    pub substitute: Box<model::WaypointExtension>,
}

/// Decodes the plugin that was sent under a name (`<gateway>/namespace/name`).
///
/// # Errors
/// When it is not understood in full.
pub fn waypoint_extension(
    name: &str,
    bytes: &[u8],
) -> Result<model::WaypointExtension, ExtensionNotUnderstood> {
    let named = PolicyKey::of_record(policy_part(name));
    let read = whole("waypoint_extension", &AMBIT_V1_WAYPOINTEXTENSION, bytes).and_then(extension);
    let read = read.and_then(|read| {
        let own = PolicyKey::of_record(&read.key());
        under_own_name(read, own, &named, "waypoint_extension.name")
    });
    read.map_err(|error| ExtensionNotUnderstood {
        substitute: Box::new(substitute(named, bytes, error.to_string().into())),
        error,
    })
}

fn extension(from: wire::WaypointExtension) -> Result<model::WaypointExtension, DecodeError> {
    let phase = match known("waypoint_extension.phase", from.phase)? {
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
        services: all(from.services, |name| {
            hostname("waypoint_extension.services", Some(name))
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
        ports: all(from.ports, |of| port("waypoint_extension.ports", of))?,
        callees: all(from.callees, |name| {
            hostname("waypoint_extension.callees", Some(name))
        })?,
        unsupported: optional(from.unsupported),
    })
}

/// Where a plugin is called, and what becomes of requests without it.
#[derive(Message)]
struct Outline {
    #[prost(message, repeated, tag = "4")]
    services: Vec<workload::NamespacedHostname>,
    #[prost(bool, tag = "3")]
    for_gateway: bool,
    #[prost(bool, tag = "12")]
    fail_open: bool,
}

fn substitute(key: PolicyKey, bytes: &[u8], why: model::ArcStr) -> model::WaypointExtension {
    let outline = Outline::decode(bytes).unwrap_or_default();
    let (for_gateway, services) = places(outline.for_gateway, outline.services);
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
        assert_eq!(waypoint_extension("ns/gw/shop/tag", &sent), Ok(plugin()));
    }

    #[test]
    fn what_is_not_understood_fails_as_far_as_the_plugin_does() {
        let mut sent = wire::WaypointExtension::from(&plugin());
        sent.phase = 77;
        let refused = waypoint_extension("ns/gw/shop/tag", &sent.encode_to_vec()).unwrap_err();
        let substitute = refused.substitute;
        assert!(substitute.unsupported.is_some() && substitute.fail_open && substitute.for_gateway);
        assert_eq!(
            (substitute.key(), &substitute.services),
            ("shop/tag".to_owned(), &plugin().services)
        );
        let other = waypoint_extension(
            "ns/gw/shop/other",
            &wire::WaypointExtension::from(&plugin()).encode_to_vec(),
        );
        assert_eq!(other.unwrap_err().substitute.key(), "shop/other");
        let nonsense = waypoint_extension("ns/gw/shop/tag", &[255, 255])
            .unwrap_err()
            .substitute;
        assert!(nonsense.for_gateway && !nonsense.fail_open);
    }
}
