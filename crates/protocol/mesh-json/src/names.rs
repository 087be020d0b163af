//! JSON forms of gateway addresses and port maps. Names are serialized as strings, as they display.

use std::collections::BTreeMap;

use ambit_model::{GatewayAddress, GatewayDestination, PortMap};
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_with::{DeserializeAs, DisplayFromStr, SerializeAs, serde_as};

use crate::forms;

/// JSON form of [`GatewayAddress`].
#[serde_as]
#[derive(Serialize, Deserialize)]
#[serde(remote = "GatewayAddress", rename_all = "camelCase")]
pub(crate) struct GatewayJson {
    #[serde_as(as = "DisplayFromStr")]
    destination: GatewayDestination,
    hbone_mtls_port: u16,
}
forms!(GatewayJson of GatewayAddress);

/// JSON form of a map of ports. If a service lists a port twice (TCP and UDP), the last entry applies.
pub(crate) struct PortsJson;

impl SerializeAs<PortMap> for PortsJson {
    fn serialize_as<S: Serializer>(ports: &PortMap, serializer: S) -> Result<S::Ok, S::Error> {
        ports.sorted().serialize(serializer)
    }
}

impl<'de> DeserializeAs<'de, PortMap> for PortsJson {
    fn deserialize_as<D: Deserializer<'de>>(deserializer: D) -> Result<PortMap, D::Error> {
        BTreeMap::<u16, u16>::deserialize(deserializer).map(|ports| ports.into_iter().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_are_printed_once_each_and_by_number() {
        let ports = PortMap::from([(443, 8443), (53, 5353), (53, 53)]);
        let printed = PortsJson::serialize_as(&ports, serde_json::value::Serializer).unwrap();
        assert_eq!(printed.to_string(), r#"{"443":8443,"53":53}"#);
    }
}
