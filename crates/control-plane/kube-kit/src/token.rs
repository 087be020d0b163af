//! Bearer token of a client configuration, from any source: inline, a file, an exec plugin, a
//! login.

use futures_util::future::BoxFuture;
use http::{HeaderValue, Request, Response, header::AUTHORIZATION};
use kube::{
    Config,
    client::{Body, ConfigExt as _, middleware::AuthLayer},
};
use tower::{BoxError, Layer as _, ServiceExt as _, service_fn};

/// Error of reading a token.
#[derive(Debug, thiserror::Error)]
pub enum TokenError {
    /// The configuration's user has no token, but a client certificate, a password, or no credentials.
    #[error("the kubeconfig's user has no bearer token")]
    NoToken,
    /// The configuration impersonates this user, and has no token of theirs.
    #[error("the kubeconfig impersonates {0}, who has no token")]
    Impersonated(String),
    /// The program, file or login that provides the token failed.
    #[error("the kubeconfig's token cannot be obtained")]
    ProviderFailed(#[source] BoxError),
}

/// Returns the bearer token that requests to the API server carry at present.
///
/// # Errors
///
/// If requests carry none, or it cannot be obtained.
pub async fn bearer_token(config: &Config) -> Result<String, TokenError> {
    if let Some(user) = &config.auth_info.impersonate {
        return Err(TokenError::Impersonated(user.clone()));
    }
    let layer = config.auth_layer();
    let layer = layer.map_err(|error| TokenError::ProviderFailed(error.into()))?;
    let layer = layer.ok_or(TokenError::NoToken)?;
    let response = echo_headers(&layer)
        .await
        .map_err(TokenError::ProviderFailed)?;
    let token = response
        .headers()
        .get(AUTHORIZATION)
        .and_then(parse_bearer_token);
    token.map(ToOwned::to_owned).ok_or(TokenError::NoToken)
}

/// Sends an empty request through the client's auth layer to a service that returns its headers. Without the box the
/// compiler cannot prove that the future is `Send`.
fn echo_headers(layer: &AuthLayer) -> BoxFuture<'static, Result<Response<()>, BoxError>> {
    let echo = service_fn(|request: Request<Body>| async move {
        let mut response = Response::new(());
        *response.headers_mut() = request.into_parts().0.headers;
        Ok::<_, BoxError>(response)
    });
    Box::pin(layer.layer(echo).oneshot(Request::new(Body::empty())))
}

fn parse_bearer_token(header: &HeaderValue) -> Option<&str> {
    header.to_str().ok()?.strip_prefix("Bearer ")
}

#[cfg(test)]
mod tests {
    use kube::config::{KubeConfigOptions, Kubeconfig};
    use serde_json::{Value, json};

    use super::*;

    async fn token_of(user: Value) -> Result<String, TokenError> {
        let kubeconfig: Kubeconfig = serde_json::from_value(json!({
            "clusters": [{"name": "c", "cluster": {"server": "https://127.0.0.1:1"}}],
            "users": [{"name": "u", "user": user}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
        }))
        .unwrap();
        let options = KubeConfigOptions::default();
        let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
        bearer_token(&config.unwrap()).await
    }

    #[tokio::test]
    async fn token_is_found_wherever_it_comes_from() {
        assert_eq!(token_of(json!({"token": "plain"})).await.unwrap(), "plain");

        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("token");
        std::fs::write(&file, "of-a-file").unwrap();
        let found = token_of(json!({"tokenFile": file})).await;
        assert_eq!(found.unwrap(), "of-a-file");

        let credential = r#"{"kind": "ExecCredential", "apiVersion": "client.authentication.k8s.io/v1",
            "status": {"token": "of-a-program"}}"#;
        let found = token_of(json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "echo", "args": [credential], "interactiveMode": "Never",
        }}));
        assert_eq!(found.await.unwrap(), "of-a-program");
    }

    #[tokio::test]
    async fn users_without_a_token_are_named() {
        assert!(matches!(
            token_of(json!({})).await,
            Err(TokenError::NoToken)
        ));
        let password = json!({"username": "u", "password": "p"});
        assert!(matches!(token_of(password).await, Err(TokenError::NoToken)));
        let other = token_of(json!({"token": "plain", "as": "root"})).await;
        assert!(matches!(other, Err(TokenError::Impersonated(user)) if user == "root"));
        let broken = json!({"exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": "false", "interactiveMode": "Never",
        }});
        assert!(matches!(
            token_of(broken).await,
            Err(TokenError::ProviderFailed(_))
        ));
    }
}
