//! `/metrics`, `/ready` and `/debug/…`.

use std::sync::Arc;

use ambit_rt::{
    Readiness,
    http::{Request, Response, json_pretty, method_not_allowed, not_found, text},
};
use ambit_wire::decode::{self, AddressRecord};
use serde_json::{Value, json};

use crate::{
    mesh::Mesh,
    metrics::Metrics,
    xds::{Sessions, store::Collection},
};

/// What the server answers from.
#[derive(Clone, Debug)]
pub struct Monitoring {
    /// The records and problems.
    pub mesh: Mesh,
    /// Counters.
    pub metrics: Arc<Metrics>,
    /// Open streams.
    pub sessions: Sessions,
    /// Readiness.
    pub readiness: Readiness,
}

impl Monitoring {
    /// Answers one request.
    pub fn respond(&self, request: &Request) -> Response {
        let path = request.uri().path();
        if request.method() != http::Method::GET {
            return method_not_allowed("GET");
        }
        match path {
            "/metrics" | "/stats/prometheus" => self.metrics.respond(request),
            "/ready" | "/healthz/ready" => {
                let waiting = self.readiness.pending_names();
                if waiting.is_empty() {
                    text(200, "ready\n")
                } else {
                    text(503, format!("not ready: {}\n", waiting.join(", ")))
                }
            }
            "/version" => text(200, concat!(env!("CARGO_PKG_VERSION"), "\n")),
            "/debug/syncz" | "/debug/connections" => json_pretty(200, &self.clients()),
            "/debug/problems" => json_pretty(200, &*self.mesh.problems.read()),
            "/debug/ambientz" | "/debug/config_dump" => json_pretty(200, &self.records()),
            "/" | "/debug" | "/debug/" => text(
                200,
                "/metrics\n/ready\n/version\n/debug/syncz\n/debug/problems\n/debug/ambientz\n",
            ),
            _ => not_found(),
        }
    }

    /// Who is connected and what they acknowledged.
    fn clients(&self) -> Vec<Value> {
        let sessions = self.sessions.lock();
        let client = |status: &crate::xds::SessionStatus| {
            let subscriptions: serde_json::Map<_, _> = status
                .subscriptions
                .iter()
                .map(|one| {
                    let state = match &one.error {
                        Some(_) => "ERROR",
                        None if one.sent == one.acknowledged => "SYNCED",
                        None => "STALE",
                    };
                    let value = json!({
                        "state": state,
                        "sent": one.sent,
                        "acknowledged": one.acknowledged,
                        "wildcard": one.wildcard,
                        "names": one.names,
                        "error": one.error,
                    });
                    (one.resource_type.type_url().to_owned(), value)
                })
                .collect();
            let node = status.node.as_ref();
            json!({
                "proxy": node.map(|node| node.id.as_str()),
                "node": node.map(|node| node.node_name.as_str()),
                "version": node.map(|node| node.version.as_str()),
                "caller": status.caller.to_string(),
                "peer": status.peer,
                "connectedSeconds": status.since.elapsed().unwrap_or_default().as_secs(),
                "subscriptions": subscriptions,
            })
        };
        sessions.values().map(client).collect()
    }

    /// Every record as node proxies read it, in the form of their `/config_dump`.
    fn records(&self) -> Value {
        let store = self.mesh.store.read();
        let (mut workloads, mut services, mut policies) = (Vec::new(), Vec::new(), Vec::new());
        for entry in store.entries(Collection::Addresses) {
            match AddressRecord::decode(&entry.value) {
                Ok(AddressRecord::Workload(workload)) => workloads.push(workload),
                Ok(AddressRecord::Service(service)) => services.push(service),
                Err(error) => {
                    tracing::error!(name = %entry.name, %error, "a record of ours cannot be read");
                }
            }
        }
        for entry in store.entries(Collection::Policies) {
            match decode::authorization(&entry.value) {
                Ok(policy) => policies.push(policy),
                Err(error) => {
                    tracing::error!(name = %entry.name, %error, "a policy of ours cannot be read");
                }
            }
        }
        let revision = store.revision();
        drop(store);
        workloads.sort_by(|a, b| a.uid.cmp(&b.uid));
        services.sort_by_key(|service| service.namespaced_hostname());
        policies.sort_by_key(|policy| policy.key());
        json!({
            "revision": revision,
            "workloads": workloads,
            "services": services,
            "policies": policies,
        })
    }
}
