//! Attributes of a request that plugins can read besides its headers, by Envoy's attribute names.

use std::{sync::Arc, time::SystemTime};

use ambit_wasm::{PropertySource, PropertyValue};

use crate::{session::Session, target::Target};

/// Source of the attribute values of one request.
pub(crate) struct RequestProperties {
    session: Arc<Session>,
    version: http::Version,
    began: SystemTime,
}

impl RequestProperties {
    pub(crate) fn new(session: &Arc<Session>, version: http::Version) -> Self {
        Self {
            session: session.clone(),
            version,
            began: SystemTime::now(),
        }
    }
}

impl PropertySource for RequestProperties {
    fn property(&self, path: &[&str]) -> Option<PropertyValue> {
        let session = &self.session;
        let (caller, target) = (&session.caller, session.target.address());
        let config = &session.shard.waypoint.config;
        let text = |text: String| Some(PropertyValue::Text(text));
        match path {
            ["source", "address"] => text(caller.address.to_string()),
            ["source", "port"] => Some(PropertyValue::Number(caller.address.port().into())),
            ["source", "principal"] | ["connection", "uri_san_peer_certificate"] => {
                text(caller.identity.as_ref()?.to_string())
            }
            ["source", "namespace"] => text(caller.identity.as_ref()?.namespace.to_string()),
            ["destination", "address"] => text(target.to_string()),
            ["destination", "port"] => Some(PropertyValue::Number(target.port().into())),
            ["connection", "mtls"] => Some(PropertyValue::Bool(caller.identity.is_some())),
            ["request", "protocol"] => text(
                match self.version {
                    http::Version::HTTP_10 => "HTTP/1.0",
                    http::Version::HTTP_2 => "HTTP/2",
                    _ => "HTTP/1.1",
                }
                .to_owned(),
            ),
            ["request", "time"] => {
                let since = self.began.duration_since(SystemTime::UNIX_EPOCH).ok()?;
                Some(PropertyValue::Number(i64::try_from(since.as_nanos()).ok()?))
            }
            ["request", "duration"] => {
                let since = self.began.elapsed().ok()?;
                Some(PropertyValue::Number(i64::try_from(since.as_nanos()).ok()?))
            }
            // Inbound, since a waypoint acts for the servers.
            ["listener_direction"] => Some(PropertyValue::Number(1)),
            ["cluster_name"] => match &session.target {
                Target::Service {
                    service, address, ..
                } => text(format!(
                    "inbound-vip|{}|http|{}",
                    address.port(),
                    service.hostname
                )),
                Target::Pod { .. } => None,
            },
            ["node", "id"] => text(format!(
                "waypoint~{}.{}",
                config.own.name, config.own.namespace
            )),
            ["node", "metadata", "NAMESPACE"] => text(config.own.namespace.to_string()),
            ["node", "metadata", "NAME"] => text(config.own.name.to_string()),
            ["node", "metadata", "SERVICE_ACCOUNT"] => text(config.own.service_account.to_string()),
            ["node", "metadata", "CLUSTER_ID"] => text(config.cluster_id.to_string()),
            _ => None,
        }
    }
}
