//! Queries of a lab's or cluster's proxies for their predictions.

use ambit_lab::LabNetns;
use ambit_mesh_json::explain::{EXPLAIN_PATH, Explanation, NodeProxyQuery, WaypointQuery};
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, block_on},
    explain, labs, pod_access,
    source::{self, ADMIN_ADDRESS, Source, require_ok},
};

/// Maximum size of a query that admin servers accept, in bytes.
const MAX_QUERY_BYTES: usize = 64 << 10;

/// Client of the lab or cluster whose proxies are queried for their predictions.
pub(super) struct MeshClient {
    lab: Option<String>,
    target: Target,
}

/// Pod from which the request would be sent.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// Pod of the client, `namespace/name`.
    pub(super) name: String,
    /// Node on which the pod runs.
    pub(super) node: String,
}

impl MeshClient {
    pub(super) fn new(lab: Option<&str>, target: &Target) -> Self {
        Self {
            lab: target.lab_name(lab),
            target: target.clone(),
        }
    }

    fn any_node_proxy(&self) -> Source {
        Source::any_node_proxy(self.lab.as_deref(), &self.target)
    }

    /// Finds the client's pod by the value of `--from`.
    pub(super) fn client(&self, from: &str) -> Result<Client, CliError> {
        let dump = self.any_node_proxy().load_dump()?;
        let workloads = dump.authz_workloads();
        let found = explain::find_workload(&workloads, from)?;
        let found = found.ok_or_else(|| explain::not_found_error("--from", from))?;
        let mut entries = dump.workloads.parsed();
        let entry = entries.find(|entry| entry.uid == found.uid.as_str());
        let node = entry.map(|entry| entry.node.clone()).unwrap_or_default();
        if node.is_empty() {
            let what = format!("--from {from}: it is on no node, and no proxy has its connections");
            return Err(CliError::new(ErrorKind::Usage, what).with_hint("name a pod"));
        }
        Ok(Client {
            name: format!("{}/{}", found.namespace, found.name),
            node,
        })
    }

    /// Queries the proxy of a node for its prediction.
    pub(super) fn query_node_proxy(
        &self,
        node: &str,
        query: &NodeProxyQuery,
    ) -> Result<Explanation, CliError> {
        let whom = format!("the node proxy of {node}");
        let answer = self.any_node_proxy().at_node(node).send(
            Method::POST,
            EXPLAIN_PATH,
            encode_query(query)?,
        )?;
        parse_explanation(
            &whom,
            &require_ok(answer, EXPLAIN_PATH).map_err(version_error(&whom))?,
        )
    }

    /// Queries a pod of a waypoint for its prediction.
    pub(super) fn query_waypoint(
        &self,
        pod: &str,
        query: &WaypointQuery,
    ) -> Result<Explanation, CliError> {
        let whom = format!("the waypoint {pod}");
        let body = encode_query(query)?;
        let answer = match &self.lab {
            Some(lab) => {
                let stream =
                    labs::find_lab(lab)?.dial(LabNetns::Pod(pod.to_owned()), ADMIN_ADDRESS.into());
                let stream = stream.map_err(labs::client_error)?;
                source::send_blocking(stream, &Method::POST, ("localhost", EXPLAIN_PATH), body)?
            }
            None => block_on(async {
                let cluster = self.target.connect().await?;
                let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
                let at = (namespace, name, ADMIN_ADDRESS.1);
                pod_access::send_to_pod(&cluster, at, (Method::POST, EXPLAIN_PATH), body).await
            })?,
        };
        parse_explanation(
            &whom,
            &require_ok(answer, EXPLAIN_PATH).map_err(version_error(&whom))?,
        )
    }
}

/// Returns a conversion of a proxy's error: proxies of other implementations or older versions do not serve `/explain`.
fn version_error(component: &str) -> impl Fn(CliError) -> CliError {
    let what = format!("{component} does not support `ambit explain`");
    move |error| {
        CliError::new(ErrorKind::Failed, what.clone())
            .with_source(error.to_string())
            .with_hint("`ambit policy explain` evaluates connections from dumps of any proxy")
    }
}

fn encode_query(query: &impl Serialize) -> Result<Bytes, CliError> {
    let text = serde_json::to_vec(query).map_err(|error| {
        CliError::new(ErrorKind::Failed, "the query cannot be written").with_source(error)
    })?;
    if text.len() > MAX_QUERY_BYTES {
        let what = format!(
            "the request has {} bytes; admin servers take {MAX_QUERY_BYTES}",
            text.len()
        );
        return Err(CliError::new(ErrorKind::Usage, what));
    }
    Ok(text.into())
}

fn parse_explanation(component: &str, body: &[u8]) -> Result<Explanation, CliError> {
    serde_json::from_slice(body).map_err(|error| {
        let what = format!("the response of {component} is not understood");
        CliError::new(ErrorKind::Unreachable, what)
            .with_source(error)
            .with_hint("`ambit version` shows whether it is of another version")
    })
}
