//! Flow events through a cluster's control plane: for users who may read some namespaces, but not forward ports of the
//! mesh's pods.

use ambit_flow::{CONTROL_FLOWS_PORT_NAME, Filter, USER_TOKEN_HEADER};
use ambit_flow_reader::{BoxError, OpenStream, ReadError, flows_path};
use ambit_install::cluster::ClusterApi;
use ambit_kube_kit::token::{TokenError, bearer_token};
use bytes::Bytes;
use http::{HeaderValue, Request, Uri};
use http_body_util::{BodyExt as _, combinators::UnsyncBoxBody};
use kube::{Config, client::Body, core::Status};

use crate::{CliError, ErrorKind, install::print_progress};

/// Name of the control plane's Service.
const SERVICE_NAME: &str = "istiod";

/// Control plane of a cluster, called through the API server's service proxy.
pub(crate) struct ControlPlane {
    cluster: ClusterApi,
    /// Namespace in which the mesh is installed.
    mesh_namespace: String,
    /// Client configuration with the user's credentials, from which each request takes a current token.
    client_config: Config,
}

impl ControlPlane {
    /// Creates the client for a cluster's control plane in the namespace `mesh`.
    ///
    /// # Errors
    /// The user has no bearer token by which the control plane could authenticate them.
    pub(crate) async fn connect(
        config: Config,
        cluster: ClusterApi,
        mesh: String,
    ) -> Result<Self, CliError> {
        let control_plane = Self {
            cluster,
            mesh_namespace: mesh,
            client_config: config,
        };
        control_plane.fetch_token().await?;
        print_progress(&format!(
            "this user may not forward ports in the namespace {}: reading through the control plane",
            control_plane.mesh_namespace
        ));
        Ok(control_plane)
    }

    async fn fetch_token(&self) -> Result<HeaderValue, CliError> {
        let cannot = |error: BoxError| {
            let what = "the user cannot be authenticated to the control plane";
            CliError::new(ErrorKind::Failed, what).with_source(error)
        };
        let token = bearer_token(&self.client_config).await.map_err(|error| {
            let hint = match &error {
                TokenError::NoToken => {
                    "use a kubeconfig whose user has a token, such as one of `kubectl create token`"
                }
                TokenError::Impersonated(_) => "use a kubeconfig without impersonation",
                TokenError::ProviderFailed(_) => "log in again",
            };
            cannot(error.into()).with_hint(hint)
        })?;
        let mut token = HeaderValue::from_str(&token).map_err(|error| cannot(error.into()))?;
        token.set_sensitive(true);
        Ok(token)
    }

    /// Sends a GET request for a path to the control plane, with the user's token.
    pub(crate) async fn request(&self, path: &str) -> Result<OpenStream, CliError> {
        let unreachable = |error: BoxError| {
            let what = "the control plane cannot be reached through the API server";
            CliError::new(ErrorKind::Unreachable, what).with_source(error)
        };
        let request = Request::get(self.service_proxy_uri(path).map_err(unreachable)?)
            .header(USER_TOKEN_HEADER, self.fetch_token().await?)
            .body(Body::empty());
        let request = request.map_err(|error| unreachable(error.into()))?;
        let response = self.cluster.client().send(request).await;
        let response = response.map_err(|error| unreachable(error.into()))?;
        Ok(OpenStream {
            response: response.map(into_boxed_body),
            connection: None,
        })
    }

    /// Checks that the user may read the events that `filter` matches.
    ///
    /// # Errors
    /// The control plane or the API server refuses the request.
    pub(crate) async fn check(&self, filter: &Filter) -> Result<(), CliError> {
        let opened = self.request(&flows_path(filter)).await?;
        let Err(error) = opened.error_for_status().await else {
            return Ok(());
        };
        let error = CliError::new(ErrorKind::Failed, "flow events cannot be read").with_source(
            match error {
                ReadError::Refused(_, text) => error_reason(text).into(),
                other => BoxError::from(other),
            },
        );
        Err(match filter.namespaces.is_empty() {
            true => error.with_hint("-n NAMESPACE reads one namespace"),
            false => error,
        })
    }

    /// Builds the URI of a path on the control plane's port, through the API server's service proxy.
    fn service_proxy_uri(&self, path: &str) -> Result<Uri, BoxError> {
        let (mesh, port) = (&self.mesh_namespace, CONTROL_FLOWS_PORT_NAME);
        let service = format!("/api/v1/namespaces/{mesh}/services/https:{SERVICE_NAME}:{port}");
        Ok(format!("{service}/proxy{path}").parse()?)
    }
}

fn into_boxed_body(body: Body) -> UnsyncBoxBody<Bytes, BoxError> {
    let error = |error: kube::Error| -> BoxError { error.into() };
    body.map_err(error).boxed_unsync()
}

/// Returns the reason of a refusal: the message of the API server's `Status`, or else the control plane's plain text.
fn error_reason(text: String) -> String {
    let status: Result<Status, _> = serde_json::from_str(&text);
    status.map_or(text, |status| status.message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reasons_of_api_server_and_control_plane_are_sentences() {
        let own = "no right to get flows.ambit.io in shop".to_owned();
        assert_eq!(error_reason(own.clone()), own);
        let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
            "message":"services \"https:istiod:https-flows\" is forbidden","reason":"Forbidden","code":403}"#;
        assert_eq!(
            error_reason(status.to_owned()),
            "services \"https:istiod:https-flows\" is forbidden"
        );
    }
}
