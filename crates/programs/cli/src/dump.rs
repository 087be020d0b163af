//! A `/config_dump` as far as commands need it. Read leniently: ours, Istio's of several versions and
//! our control plane's `/debug/ambientz` all have these keys, and each has others.

use std::net::IpAddr;

use ambit_authz::PolicySet;
use ambit_model::{Authorization, Protocol, Workload};
use serde_json::{Map, Value};

use crate::{CliError, ErrorKind};

/// The dump, as it came.
#[derive(Debug)]
pub(crate) struct Dump(Map<String, Value>);

impl Dump {
    pub(crate) fn parse(bytes: &[u8]) -> Result<Self, CliError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|error| {
            CliError::new(ErrorKind::Unreachable, "the answer is no JSON").because(error)
        })?;
        match value {
            Value::Object(map) if map.contains_key("workloads") => Ok(Self(map)),
            _ => Err(
                CliError::new(ErrorKind::Unreachable, "the answer is no config dump")
                    .hint("is this a node proxy's admin address (port 15000)?"),
            ),
        }
    }

    /// A list; a map counts as the list of its values.
    pub(crate) fn list(&self, key: &str) -> Vec<&Value> {
        match self.0.get(key) {
            Some(Value::Array(list)) => list.iter().collect(),
            Some(Value::Object(map)) => map.values().collect(),
            _ => Vec::new(),
        }
    }

    /// A map by name.
    pub(crate) fn map(&self, key: &str) -> Option<&Map<String, Value>> {
        self.0.get(key).and_then(Value::as_object)
    }

    /// The workloads as far as authorization needs them.
    pub(crate) fn workloads(&self) -> Vec<Workload> {
        self.list("workloads").into_iter().map(workload).collect()
    }

    /// The policies; those that cannot be read are errors, since leaving one out would lie.
    pub(crate) fn policies(&self) -> Result<PolicySet, CliError> {
        let mut set = PolicySet::default();
        for value in self.list("policies") {
            set.insert(policy(value).map_err(|error| {
                let name = format!("{}/{}", text(value, "namespace"), text(value, "name"));
                let what = format!("the policy {name} cannot be read");
                CliError::new(ErrorKind::Failed, what).because(error)
            })?);
        }
        Ok(set)
    }
}

/// A text field; empty if there is none.
pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value.get(key).and_then(Value::as_str).unwrap_or_default()
}

/// A list of texts.
pub(crate) fn texts(value: &Value, key: &str) -> Vec<String> {
    let list = value.get(key).and_then(Value::as_array);
    list.into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .map(ToOwned::to_owned)
        .collect()
}

/// A waypoint's destination, `namespace/host` or an address.
pub(crate) fn destination(value: &Value, key: &str) -> String {
    let destination = value
        .get(key)
        .and_then(|waypoint| waypoint.get("destination"));
    match destination {
        Some(Value::String(text)) => text.clone(),
        Some(other) => other.to_string(),
        None => String::new(),
    }
}

fn workload(value: &Value) -> Workload {
    let or = |key: &str, default: &str| match text(value, key) {
        "" => default.into(),
        text => text.into(),
    };
    Workload {
        uid: text(value, "uid").into(),
        name: text(value, "name").into(),
        namespace: text(value, "namespace").into(),
        workload_ips: ips(value),
        trust_domain: or("trustDomain", ambit_model::DEFAULT_TRUST_DOMAIN),
        service_account: or("serviceAccount", "default"),
        protocol: match text(value, "protocol") {
            "HBONE" => Protocol::Hbone,
            _ => Protocol::Tcp,
        },
        authorization_policies: texts(value, "authorizationPolicies")
            .into_iter()
            .map(Into::into)
            .collect(),
        ..Workload::default()
    }
}

/// The addresses of a workload.
pub(crate) fn ips(value: &Value) -> Vec<IpAddr> {
    texts(value, "workloadIps")
        .iter()
        .filter_map(|ip| ip.parse().ok())
        .collect()
}

fn policy(value: &Value) -> Result<Authorization, serde_json::Error> {
    const KNOWN: [&str; 6] = ["name", "namespace", "scope", "action", "rules", "dryRun"];
    let mut known = Map::new();
    for key in KNOWN {
        if let Some(field) = value.get(key).filter(|field| !field.is_null()) {
            known.insert(key.to_owned(), field.clone());
        }
    }
    serde_json::from_value(Value::Object(known))
}
