//! Node message that identifies the client to the control plane.

use std::{collections::BTreeMap, net::IpAddr};

use ambit_rt::Env;
use ambit_wire::discovery::Node;
use prost_types::{ListValue, Struct, Value, value::Kind};

use crate::Role;

/// Fields of the node message that identifies the proxy to the control plane.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeInfo {
    /// Kind of program that the client runs in.
    pub role: Role,
    /// Name of the pod (`POD_NAME`).
    pub name: String,
    /// Namespace of the pod (`POD_NAMESPACE`).
    pub namespace: String,
    /// Address of the pod (`INSTANCE_IP`).
    pub ip: Option<IpAddr>,
    /// Name of the node (`NODE_NAME`).
    pub node_name: String,
    /// Variables of `proxyMetadata` in the mesh configuration, as names and values.
    pub proxy_metadata: Vec<(String, String)>,
}

/// Error of an environment variable whose value cannot be sent as node metadata.
#[derive(Debug, thiserror::Error)]
#[error("{variable} is not JSON")]
pub struct NodeMetadataError {
    variable: String,
    #[source]
    source: serde_json::Error,
}

impl NodeInfo {
    /// Returns the node id, from which the control plane reads namespace and address.
    pub fn id(&self) -> String {
        let Self {
            role,
            name,
            namespace,
            ..
        } = self;
        let (role, ip) = (role.as_str(), self.ip_address());
        // The last label is this literal text, not the cluster's domain.
        format!("{role}~{ip}~{name}.{namespace}~{namespace}.svc.cluster.local")
    }

    fn ip_address(&self) -> String {
        self.ip
            .map_or_else(|| "1.1.1.1".to_owned(), |ip| ip.to_string())
    }

    /// Builds the node message, with the `ISTIO_META_*` and `ISTIO_METAJSON_*` variables as metadata.
    pub fn to_wire(&self, env: &Env) -> Result<Node, NodeMetadataError> {
        let Self {
            name,
            namespace,
            node_name,
            proxy_metadata,
            ..
        } = self;
        let own = [
            ("NAME", name.clone()),
            ("NAMESPACE", namespace.clone()),
            ("INSTANCE_IPS", self.ip_address()),
            ("NODE_NAME", node_name.clone()),
        ];
        let mut fields: BTreeMap<String, Value> = own
            .into_iter()
            .map(|(key, value)| (key.to_owned(), string_value(value)))
            .collect();
        for (key, value) in env.with_prefix("ISTIO_META_") {
            fields.insert(key.to_owned(), string_value(value));
        }
        for (key, value) in proxy_metadata {
            let key = key.strip_prefix("ISTIO_META_").unwrap_or(key);
            fields.insert(key.to_owned(), string_value(value));
        }
        for (key, value) in env.with_prefix("ISTIO_METAJSON_") {
            let value = serde_json::from_str(value).map_err(|source| NodeMetadataError {
                variable: format!("ISTIO_METAJSON_{key}"),
                source,
            })?;
            fields.insert(key.to_owned(), json_value(value));
        }
        Ok(Node {
            id: self.id(),
            metadata: Some(Struct { fields }),
            ..Node::default()
        })
    }
}

fn string_value(value: impl Into<String>) -> Value {
    Value {
        kind: Some(Kind::StringValue(value.into())),
    }
}

fn json_value(value: serde_json::Value) -> Value {
    let kind = match value {
        serde_json::Value::Null => Kind::NullValue(0),
        serde_json::Value::Bool(value) => Kind::BoolValue(value),
        // Protobuf's Struct stores all numbers as floating point.
        serde_json::Value::Number(number) => Kind::NumberValue(number.as_f64().unwrap_or_default()),
        serde_json::Value::String(value) => Kind::StringValue(value),
        serde_json::Value::Array(values) => Kind::ListValue(ListValue {
            values: values.into_iter().map(json_value).collect(),
        }),
        serde_json::Value::Object(fields) => Kind::StructValue(Struct {
            fields: fields
                .into_iter()
                .map(|(key, value)| (key, json_value(value)))
                .collect(),
        }),
    };
    Value { kind: Some(kind) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_id_follows_the_contract() {
        let env = Env::from_pairs([
            ("ISTIO_META_CLUSTER_ID", "c1"),
            ("ISTIO_METAJSON_LABELS", r#"{"app":["a",1,true,null]}"#),
        ]);
        let info = NodeInfo {
            role: Role::NodeProxy,
            name: "proxy-1".into(),
            namespace: "mesh".into(),
            ip: Some("10.0.0.1".parse().unwrap()),
            node_name: "n1".into(),
            proxy_metadata: vec![("ISTIO_META_NETWORK".into(), "net".into())],
        };
        let node = info.to_wire(&env).unwrap();
        assert_eq!(
            node.id,
            "ztunnel~10.0.0.1~proxy-1.mesh~mesh.svc.cluster.local"
        );
        let fields = node.metadata.unwrap().fields;
        for (key, value) in [
            ("NAME", "proxy-1"),
            ("NAMESPACE", "mesh"),
            ("INSTANCE_IPS", "10.0.0.1"),
            ("NODE_NAME", "n1"),
            ("CLUSTER_ID", "c1"),
            ("NETWORK", "net"),
        ] {
            assert_eq!(fields[key], string_value(value), "{key}");
        }
        assert!(matches!(fields["LABELS"].kind, Some(Kind::StructValue(_))));
    }

    #[test]
    fn node_id_without_address_has_a_placeholder() {
        let node = NodeInfo::default()
            .to_wire(&Env::from_pairs([("A", "b")]))
            .unwrap();
        assert!(node.id.starts_with("ztunnel~1.1.1.1~"), "{}", node.id);
    }

    #[test]
    fn a_variable_that_is_not_json_is_named() {
        let env = Env::from_pairs([("ISTIO_METAJSON_X", "{")]);
        let error = NodeInfo::default().to_wire(&env).unwrap_err();
        assert_eq!(error.to_string(), "ISTIO_METAJSON_X is not JSON");
    }
}
