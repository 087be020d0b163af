//! Credentials for a registry, as `docker login` stores them: in `$DOCKER_CONFIG/config.json` or
//! `~/.docker/config.json`, and in the credential helpers that this file names.

use anyhow::{Context, Result, bail};
use docker_credential::{CredentialRetrievalError, DockerCredential};
use oci_client::secrets::RegistryAuth;

/// Key of Docker Hub in Docker's configuration.
const DOCKER_HUB: &str = "https://index.docker.io/v1/";

/// Returns the credentials of a registry; anonymous if none are stored.
pub(crate) fn registry_credentials(registry: &str) -> Result<RegistryAuth> {
    let key = match registry {
        "docker.io" | "index.docker.io" => DOCKER_HUB,
        other => other,
    };
    match docker_credential::get_credential(key) {
        Ok(DockerCredential::UsernamePassword(user, password)) => {
            Ok(RegistryAuth::Basic(user, password))
        }
        Ok(DockerCredential::IdentityToken(_)) => bail!(
            "the credentials of {registry} are an identity token, which cannot be used here: `docker login {registry}` \
             with a user and a password or access token"
        ),
        Err(
            CredentialRetrievalError::ConfigNotFound
            | CredentialRetrievalError::NoCredentialConfigured,
        ) => Ok(RegistryAuth::Anonymous),
        Err(error) => Err(error).with_context(|| {
            format!("cannot read the credentials of {registry} that `docker login` has stored")
        }),
    }
}
