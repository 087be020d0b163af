//! A node proxy's `/config_dump`, read leniently: fields this version does not know are left out, so
//! that newer proxies and Istio's can be asked too.

use std::collections::BTreeMap;

use ambit_model::{Authorization, Service, Workload};
use serde::{Deserialize, de::DeserializeOwned};
use serde_json::{Map, Value};

use crate::{
    admin::Admin,
    error::{CliError, ErrorKind},
};

/// The parts of a dump that the commands show.
#[derive(Debug)]
pub struct ConfigDump {
    /// As it came.
    pub raw: Map<String, Value>,
    /// `workloads`.
    pub workloads: Vec<Workload>,
    /// `services`, each with the number of its endpoints.
    pub services: Vec<(Service, usize)>,
    /// `policies`.
    pub policies: Vec<Authorization>,
    /// `certificates`.
    pub certificates: Vec<Certificates>,
    /// `workloadState`, by pod uid.
    pub pods: BTreeMap<String, PodState>,
}

/// The certificates of an identity.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificates {
    /// SPIFFE id.
    pub identity: String,
    /// `Initializing`, `Available` or `Unavailable: …`.
    pub state: Value,
    /// Leaf first.
    #[serde(default)]
    pub cert_chain: Vec<Certificate>,
    /// Trust anchors.
    #[serde(default)]
    pub root_certs: Vec<Certificate>,
}

/// One certificate.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Certificate {
    /// In decimal or hex, as its proxy prints it.
    pub serial_number: String,
    /// RFC 3339.
    pub valid_from: String,
    /// RFC 3339.
    pub expiration_time: String,
}

/// A pod that the proxy serves.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct PodState {
    /// `Up` or `Pending`.
    pub state: Value,
    /// Which pod.
    pub info: PodInfo,
    /// Its connections.
    pub connections: Connections,
}

/// See [`PodState`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct PodInfo {
    /// Pod name.
    pub name: String,
    /// Namespace.
    pub namespace: String,
    /// Service account.
    pub service_account: String,
}

/// See [`PodState`].
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default)]
pub struct Connections {
    /// To the pod.
    pub inbound: Vec<Connection>,
    /// From the pod.
    pub outbound: Vec<Connection>,
}

/// A connection as the proxy lists it.
#[derive(Clone, Debug, Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Connection {
    /// Where it comes from.
    pub src: String,
    /// What the client dialled.
    pub original_dst: Option<String>,
    /// Where it went.
    pub actual_dst: String,
    /// `HBONE` or `TCP`.
    pub protocol: String,
}

impl ConfigDump {
    /// Asks a node proxy.
    ///
    /// # Errors
    /// When it does not answer, or with something else than a dump.
    pub fn fetch(admin: &Admin) -> Result<Self, CliError> {
        let body = admin.get("/config_dump")?;
        let unreadable = |error: serde_json::Error| {
            CliError::new(
                ErrorKind::Failed,
                format!(
                    "{} answers /config_dump with something unreadable",
                    admin.name()
                ),
            )
            .because(error)
        };
        Self::read(serde_json::from_slice(&body).map_err(unreadable)?).map_err(unreadable)
    }

    /// Reads a dump.
    ///
    /// # Errors
    /// When a record is not what its place says.
    pub fn read(raw: Map<String, Value>) -> Result<Self, serde_json::Error> {
        let services = list(&raw, "services")
            .map(|value| {
                let endpoints = value
                    .get("endpoints")
                    .and_then(Value::as_object)
                    .map_or(0, Map::len);
                Ok((known::<Service>(value)?, endpoints))
            })
            .collect::<Result<_, serde_json::Error>>()?;
        let pods = raw
            .get("workloadState")
            .filter(|value| value.is_object())
            .cloned();
        Ok(Self {
            workloads: list(&raw, "workloads")
                .map(known)
                .collect::<Result<_, _>>()?,
            services,
            policies: list(&raw, "policies")
                .map(known)
                .collect::<Result<_, _>>()?,
            certificates: list(&raw, "certificates")
                .map(Certificates::deserialize)
                .collect::<Result<_, _>>()?,
            pods: pods
                .map(serde_json::from_value)
                .transpose()?
                .unwrap_or_default(),
            raw,
        })
    }

    #[cfg(test)]
    pub(crate) fn from_value(value: Value) -> Result<Self, serde_json::Error> {
        Self::read(serde_json::from_value(value)?)
    }

    /// The workload of a name: `pod`, `namespace/pod`, an address or a uid.
    ///
    /// # Errors
    /// When there is none, or several.
    pub fn workload(&self, name: &str) -> Result<&Workload, CliError> {
        let address = name.parse().ok();
        let (namespace, pod) = name
            .split_once('/')
            .map_or((None, name), |(ns, pod)| (Some(ns), pod));
        let mut found = self.workloads.iter().filter(|workload| {
            workload.uid == name
                || address.is_some_and(|ip| workload.workload_ips.contains(&ip))
                || (workload.name == pod && namespace.is_none_or(|ns| workload.namespace == ns))
        });
        match (found.next(), found.next()) {
            (Some(one), None) => Ok(one),
            (Some(_), Some(_)) => Err(CliError::new(
                ErrorKind::Usage,
                format!("several workloads are called {name:?}"),
            )
            .hint("write <namespace>/<pod>, an address, or a uid")),
            (None, _) => Err(CliError::new(
                ErrorKind::NotFound,
                format!("the proxy knows no workload {name:?}"),
            )
            .hint("`ambit workloads` lists them")),
        }
    }
}

fn list<'a>(raw: &'a Map<String, Value>, key: &str) -> impl Iterator<Item = &'a Value> {
    raw.get(key).and_then(Value::as_array).into_iter().flatten()
}

/// Reads a record of the model, without the fields it does not know: each refusal names one.
fn known<T: DeserializeOwned>(value: &Value) -> Result<T, serde_json::Error> {
    let mut value = value.clone();
    loop {
        let error = match T::deserialize(&value) {
            Ok(record) => return Ok(record),
            Err(error) => error,
        };
        let message = error.to_string();
        let field = message
            .strip_prefix("unknown field `")
            .and_then(|rest| rest.split('`').next());
        let removed = field
            .zip(value.as_object_mut())
            .and_then(|(field, object)| object.remove(field));
        if removed.is_none() {
            return Err(error);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dump(json: Value) -> ConfigDump {
        ConfigDump::from_value(json).unwrap()
    }

    #[test]
    fn unknown_fields_are_left_out() {
        let dump = dump(serde_json::json!({
            "workloads": [{"uid": "c//Pod/a/b", "name": "b", "namespace": "a", "mood": "fine"}],
            "services": [{"name": "s", "namespace": "a", "hostname": "s", "endpoints": {"x": {}}}],
            "policies": [],
            "colour": "red"
        }));
        assert_eq!(dump.workload("a/b").unwrap().uid, "c//Pod/a/b");
        assert_eq!(dump.services[0].1, 1);
    }

    #[test]
    fn an_ambiguous_name_is_refused() {
        let dump = dump(serde_json::json!({"workloads": [
            {"uid": "1", "name": "x", "namespace": "a"},
            {"uid": "2", "name": "x", "namespace": "b"},
        ]}));
        assert!(
            dump.workload("x")
                .unwrap_err()
                .to_string()
                .contains("several")
        );
        assert_eq!(dump.workload("b/x").unwrap().uid, "2");
        assert!(
            dump.workload("y")
                .unwrap_err()
                .to_string()
                .contains("knows no workload")
        );
    }
}
