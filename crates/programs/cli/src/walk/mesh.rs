//! Queries of a lab's or cluster's proxies for their predictions.

use ambit_lab::LabNetns;
use ambit_mesh_json::explain::{EXPLAIN_PATH, Explanation, NodeProxyQuery, WaypointQuery};
use bytes::Bytes;
use hyper::Method;
use serde::Serialize;

use crate::{
    CliError, ErrorKind,
    cluster::{Target, wait},
    explain, labs, reach,
    source::{self, ADMIN, Source, checked},
};

/// Maximum size of a query that admin servers accept, in bytes.
const MAX_QUERY: usize = 64 << 10;

/// Lab or cluster whose proxies are queried.
pub(super) struct Mesh {
    lab: Option<String>,
    target: Target,
}

/// Pod that would send the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Client {
    /// Pod of the client, `namespace/name`.
    pub(super) name: String,
    /// Node on which the pod runs.
    pub(super) node: String,
}

impl Mesh {
    pub(super) fn new(lab: Option<&str>, target: &Target) -> Self {
        Self {
            lab: target.lab(lab),
            target: target.clone(),
        }
    }

    fn any(&self) -> Source {
        Source::any(self.lab.as_deref(), &self.target)
    }

    /// Finds the client's pod by the value of `--from`.
    pub(super) fn client(&self, from: &str) -> Result<Client, CliError> {
        let dump = self.any().dump()?;
        let workloads = dump.authz_workloads();
        let found = explain::find(&workloads, from)?;
        let found = found.ok_or_else(|| explain::not_found("--from", from))?;
        let mut entries = dump.workloads.known();
        let entry = entries.find(|entry| entry.uid == found.uid.as_str());
        let node = entry.map(|entry| entry.node.clone()).unwrap_or_default();
        if node.is_empty() {
            let what = format!("--from {from}: it is on no node, and no proxy has its connections");
            return Err(CliError::new(ErrorKind::Usage, what).hint("name a pod"));
        }
        Ok(Client {
            name: format!("{}/{}", found.namespace, found.name),
            node,
        })
    }

    /// Queries a node's proxy for its prediction.
    pub(super) fn ask_node(
        &self,
        node: &str,
        query: &NodeProxyQuery,
    ) -> Result<Explanation, CliError> {
        let whom = format!("the node proxy of {node}");
        let answer = self
            .any()
            .at(node)
            .send(Method::POST, EXPLAIN_PATH, body(query)?)?;
        read(&whom, &checked(answer, EXPLAIN_PATH).map_err(old(&whom))?)
    }

    /// Queries a waypoint's pod for its prediction.
    pub(super) fn ask_waypoint(
        &self,
        pod: &str,
        query: &WaypointQuery,
    ) -> Result<Explanation, CliError> {
        let whom = format!("the waypoint {pod}");
        let body = body(query)?;
        let answer = match &self.lab {
            Some(lab) => {
                let stream = labs::find(lab)?.dial(LabNetns::Pod(pod.to_owned()), ADMIN.into());
                let stream = stream.map_err(labs::client_error)?;
                source::send(stream, &Method::POST, ("localhost", EXPLAIN_PATH), body)?
            }
            None => wait(async {
                let cluster = self.target.cluster().await?;
                let (namespace, name) = pod.split_once('/').unwrap_or(("default", pod));
                let at = (namespace, name, ADMIN.1);
                reach::send_to_pod(&cluster, at, (Method::POST, EXPLAIN_PATH), body).await
            })?,
        };
        read(&whom, &checked(answer, EXPLAIN_PATH).map_err(old(&whom))?)
    }
}

/// Returns a conversion of a proxy's error: proxies of other implementations or older versions do not serve `/explain`.
fn old(whom: &str) -> impl Fn(CliError) -> CliError {
    let what = format!("{whom} does not support `ambit explain`");
    move |error| {
        CliError::new(ErrorKind::Failed, what.clone())
            .because(error.to_string())
            .hint("`ambit policy explain` evaluates connections from dumps of any proxy")
    }
}

fn body(query: &impl Serialize) -> Result<Bytes, CliError> {
    let text = serde_json::to_vec(query).map_err(|error| {
        CliError::new(ErrorKind::Failed, "the query cannot be written").because(error)
    })?;
    if text.len() > MAX_QUERY {
        let what = format!(
            "the request has {} bytes; admin servers take {MAX_QUERY}",
            text.len()
        );
        return Err(CliError::new(ErrorKind::Usage, what));
    }
    Ok(text.into())
}

fn read(whom: &str, answer: &[u8]) -> Result<Explanation, CliError> {
    serde_json::from_slice(answer).map_err(|error| {
        let what = format!("the response of {whom} is not understood");
        CliError::new(ErrorKind::Unreachable, what)
            .because(error)
            .hint("`ambit version` shows whether it is of another version")
    })
}
