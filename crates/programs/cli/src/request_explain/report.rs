//! Report on the predicted result of a request.

use ambit_mesh_json::explain::{HttpQuery, Step, StepResult};
use serde::Serialize;

/// Predicted result of a request, with the decisions of all proxies on its path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Report {
    /// Pod of the client, `namespace/name`.
    pub(crate) from: String,
    /// Destination of the request, as the flag `--to` has it.
    pub(crate) to: String,
    /// Method of the request.
    pub(crate) method: String,
    /// `Host` header of the request.
    pub(crate) host: String,
    /// Path of the request, without its query, which may hold a token.
    pub(crate) path: String,
    /// Whether the application receives the request, or a route responds without an error.
    pub(crate) allowed: bool,
    /// Whether a proxy did not evaluate a step, so that the actual result may differ.
    pub(crate) may_differ: bool,
    /// Response that the client would get.
    pub(crate) answer: FinalResponse,
    /// Proxies on the request's path, the client's node proxy first.
    pub(crate) parts: Vec<ProxySteps>,
}

/// Response that the client would get.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct FinalResponse {
    /// Component that would respond, or how the request would end without a response.
    pub(crate) kind: FinalResponseKind,
    /// Status code, if a proxy responds.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<u16>,
    /// Proxy or application that responds, or resets the connection.
    pub(crate) by: String,
    /// Reason of the response in words.
    pub(crate) why: String,
}

/// Component that would respond, or how the request would end without a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum FinalResponseKind {
    /// The application responds, with a status that cannot be predicted.
    Application,
    /// A proxy responds in the application's place.
    Response,
    /// The connection is reset or cannot be opened.
    Reset,
    /// The result is unknown: the request was not followed to its end.
    Open,
}

/// Decisions of one proxy on the request's path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct ProxySteps {
    /// Name of the proxy, such as `node proxy of NODE`.
    pub(crate) by: String,
    /// Whether the proxy is a waypoint.
    pub(crate) is_waypoint: bool,
    /// Decisions in the order in which the proxy makes them.
    pub(crate) steps: Vec<Step>,
}

impl Report {
    pub(super) fn new(
        from: String,
        to: &str,
        request: &HttpQuery,
        answer: FinalResponse,
        parts: Vec<ProxySteps>,
    ) -> Self {
        let mut steps = parts.iter().flat_map(|part| &part.steps);
        let is_open = steps.any(|step| step.result == StepResult::NotEvaluated);
        let path = request.path.split('?').next().unwrap_or_default();
        Self {
            from,
            to: to.to_owned(),
            method: request.method.clone(),
            host: request.host.clone(),
            path: path.to_owned(),
            allowed: answer.is_allowed(),
            may_differ: is_open || answer.kind == FinalResponseKind::Open,
            answer,
            parts,
        }
    }
}

impl FinalResponse {
    pub(super) fn application(address: &str) -> Self {
        Self {
            kind: FinalResponseKind::Application,
            status: None,
            by: format!("the application at {address}"),
            why: "it gets the request".to_owned(),
        }
    }

    pub(super) fn status(status: u16, by: String, why: String) -> Self {
        Self {
            kind: FinalResponseKind::Response,
            status: Some(status),
            by,
            why,
        }
    }

    pub(super) fn reset(by: String, why: String) -> Self {
        Self {
            kind: FinalResponseKind::Reset,
            status: None,
            by,
            why,
        }
    }

    pub(super) fn open(by: String, why: String) -> Self {
        Self {
            kind: FinalResponseKind::Open,
            status: None,
            by,
            why,
        }
    }

    fn is_allowed(&self) -> bool {
        match self.kind {
            FinalResponseKind::Application | FinalResponseKind::Open => true,
            FinalResponseKind::Response => self.status.is_some_and(|status| status < 400),
            FinalResponseKind::Reset => false,
        }
    }
}
