//! Pulls images from registries by the OCI distribution API: the module is a layer by itself, or `plugin.wasm` in the
//! last layer of an ordinary container image.

mod challenge;
mod credentials;
mod error;

use std::io::Read as _;

use ambit_fetch::{Admission, Client, FetchError, Get, Response};
use flate2::read::GzDecoder;
use http::{
    HeaderName, HeaderValue, StatusCode,
    header::{ACCEPT, AUTHORIZATION, WWW_AUTHENTICATE},
};
use serde::Deserialize;
use serde_json::Value;

use crate::bytes::{MAX_MODULE_BYTES, sha256_hex};
use challenge::Challenge;
use credentials::find_credentials;
pub use error::OciError;

/// Maximum size of a manifest, an image index or a token response, in bytes.
const MAX_MANIFEST_BYTES: usize = 4 << 20;
/// Media types of layers that are a module.
const MODULE_MEDIA_TYPES: [&str; 4] = [
    "application/vnd.wasm.content.layer.v1+wasm",
    "application/vnd.module.wasm.content.layer.v1+wasm",
    "application/wasm",
    "application/vnd.wasm.content.layer.v1",
];
const MANIFEST_MEDIA_TYPES: &str = "application/vnd.oci.image.manifest.v1+json, application/vnd.docker.distribution.manifest.v2+json, application/vnd.oci.image.index.v1+json, application/vnd.docker.distribution.manifest.list.v2+json";

/// Reference of an image: registry, repository, and tag or digest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ImageReference {
    pub(super) registry: String,
    repository: String,
    /// Tag, or manifest digest with the prefix `sha256:`.
    reference: String,
}

/// Module from an image.
pub(super) struct PulledModule {
    pub(super) module: Vec<u8>,
    /// Digest of the image's manifest, in hexadecimal.
    pub(super) digest: String,
}

impl ImageReference {
    pub(super) fn parse(text: &str) -> Result<Self, OciError> {
        let wrong = || OciError::InvalidImageName(text.to_owned());
        let (name, digest) = match text.split_once('@') {
            Some((name, digest)) => (name, Some(digest)),
            None => (text, None),
        };
        let (registry, rest) = match name.split_once('/') {
            Some((first, rest)) if first.contains(['.', ':']) || first == "localhost" => {
                (first.to_owned(), rest.to_owned())
            }
            Some(_) => ("registry-1.docker.io".to_owned(), name.to_owned()),
            None => ("registry-1.docker.io".to_owned(), format!("library/{name}")),
        };
        let registry = match registry.as_str() {
            "docker.io" | "index.docker.io" => "registry-1.docker.io".to_owned(),
            _ => registry,
        };
        let (repository, tag) = match rest.rsplit_once(':') {
            Some((repository, tag)) => (repository.to_owned(), tag),
            None => (rest, "latest"),
        };
        let is_word = |text: &str, more: &[u8]| {
            let mut all = text.bytes();
            !text.is_empty() && all.all(|byte| byte.is_ascii_alphanumeric() || more.contains(&byte))
        };
        let mut parts = repository.split('/');
        let is_path = parts.all(|part| is_word(part, b"._-") && !part.contains(".."));
        if !is_path || !is_word(tag, b"._-") {
            return Err(wrong());
        }
        if let Some(digest) = digest
            && !digest
                .strip_prefix("sha256:")
                .is_some_and(|hex| hex.len() == 64 && is_word(hex, b""))
        {
            return Err(wrong());
        }
        Ok(Self {
            registry,
            repository,
            reference: digest.unwrap_or(tag).to_owned(),
        })
    }

    fn url(&self, is_insecure: bool, kind: &str, reference: &str) -> String {
        let scheme = if is_insecure { "http" } else { "https" };
        let Self {
            registry,
            repository,
            ..
        } = self;
        format!("{scheme}://{registry}/v2/{repository}/{kind}/{reference}")
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Manifest {
    #[serde(default)]
    layers: Vec<Descriptor>,
    /// Manifests in an image index, one for each platform.
    #[serde(default)]
    manifests: Vec<Descriptor>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Descriptor {
    #[serde(default)]
    media_type: String,
    digest: String,
}

/// Access to the registry of one image: HTTP client, permitted addresses, and TLS mode.
#[derive(Clone, Copy, Debug)]
pub(super) struct RegistryAccess<'a, A> {
    pub(super) client: &'a Client,
    pub(super) admission: &'a A,
    /// Whether the registry is called without TLS.
    pub(super) is_insecure: bool,
}

/// Pulls an image, and returns the module in it.
pub(super) async fn pull<A: Admission>(
    server: RegistryAccess<'_, A>,
    image: &ImageReference,
    secret: &[u8],
) -> Result<PulledModule, OciError> {
    let mut registry = Registry {
        server,
        image,
        basic_authorization: find_credentials(secret, &image.registry, &image.repository)?,
        authorization: None,
    };
    let (manifest, digest) = registry.fetch_manifest(&image.reference).await?;
    let manifest = match manifest.manifests.first() {
        Some(first) if manifest.layers.is_empty() => {
            let reference = first.digest.clone();
            registry.fetch_manifest(&reference).await?.0
        }
        _ => manifest,
    };
    let is_module = |layer: &&Descriptor| MODULE_MEDIA_TYPES.contains(&layer.media_type.as_str());
    if let Some(layer) = manifest.layers.iter().find(is_module) {
        let module = registry.fetch_blob(&layer.digest).await?;
        return Ok(PulledModule { module, digest });
    }
    let layer = manifest.layers.last().ok_or(OciError::NoModule)?;
    let bytes = registry.fetch_blob(&layer.digest).await?;
    let unpacked = ambit_rt::spawn_blocking("module layer", move || unpack(&bytes)).await;
    let module = unpacked.map_err(|_| OciError::InvalidLayer)??;
    Ok(PulledModule { module, digest })
}

struct Registry<'a, A> {
    server: RegistryAccess<'a, A>,
    image: &'a ImageReference,
    /// `Authorization` header for basic authentication, from the pull secret.
    basic_authorization: Option<HeaderValue>,
    authorization: Option<HeaderValue>,
}

impl<A: Admission> Registry<'_, A> {
    /// Fetches a manifest and returns it with its digest, which is verified if `reference` is a digest.
    async fn fetch_manifest(&mut self, reference: &str) -> Result<(Manifest, String), OciError> {
        let url = self
            .image
            .url(self.server.is_insecure, "manifests", reference);
        let body = self.get(&url, MAX_MANIFEST_BYTES).await?.body;
        let digest = sha256_hex(&body);
        if let Some(expected) = reference.strip_prefix("sha256:")
            && expected != digest
        {
            return Err(OciError::ManifestDigestMismatch(reference.to_owned()));
        }
        let manifest = serde_json::from_slice(&body).map_err(OciError::InvalidManifest)?;
        Ok((manifest, digest))
    }

    async fn fetch_blob(&mut self, of: &str) -> Result<Vec<u8>, OciError> {
        let Some(expected) = of
            .strip_prefix("sha256:")
            .filter(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()))
        else {
            return Err(OciError::NoModule);
        };
        let url = self.image.url(self.server.is_insecure, "blobs", of);
        let body = self.get(&url, MAX_MODULE_BYTES).await?.body;
        if sha256_hex(&body) != expected {
            return Err(OciError::LayerDigestMismatch(of.to_owned()));
        }
        Ok(body)
    }

    async fn get(&mut self, url: &str, limit: usize) -> Result<Response, OciError> {
        let answer = self.send_request(url, limit).await?;
        if answer.status != StatusCode::UNAUTHORIZED || self.authorization.is_some() {
            return Ok(answer.error_for_status()?);
        }
        // A server that the registry redirects to cannot request the registry's credentials.
        if !answer.is_from_first_host {
            return Ok(answer.error_for_status()?);
        }
        let challenges = answer.headers.get_all(WWW_AUTHENTICATE).iter();
        let texts: Vec<&str> = challenges.filter_map(|one| one.to_str().ok()).collect();
        let challenge = Challenge::select(&texts).ok_or_else(|| {
            let text = texts.join(", ");
            OciError::UnsupportedChallenge(text.chars().take(200).collect())
        })?;
        self.authorization = Some(self.authorize(&challenge).await?);
        Ok(self.send_request(url, limit).await?.error_for_status()?)
    }

    async fn send_request(&self, url: &str, limit: usize) -> Result<Response, FetchError> {
        let mut headers = vec![(ACCEPT, HeaderValue::from_static(MANIFEST_MEDIA_TYPES))];
        headers.extend(
            self.authorization
                .clone()
                .map(|value| (AUTHORIZATION, value)),
        );
        self.call(url, &headers, limit).await
    }

    async fn call(
        &self,
        url: &str,
        headers: &[(HeaderName, HeaderValue)],
        limit: usize,
    ) -> Result<Response, FetchError> {
        let RegistryAccess {
            client, admission, ..
        } = self.server;
        let get = Get {
            url,
            headers,
            limit,
        };
        client.get(get, admission).await
    }

    /// Returns the `Authorization` header for a challenge: basic authentication, or a token that the token server
    /// issues.
    async fn authorize(&self, challenge: &Challenge) -> Result<HeaderValue, OciError> {
        let (realm, service) = match challenge {
            Challenge::Basic => {
                return self
                    .basic_authorization
                    .clone()
                    .ok_or(OciError::NoCredentials);
            }
            Challenge::Bearer { realm, service } => (realm, service),
        };
        self.allow_realm(realm)?;
        let scope = format!("repository:{}:pull", self.image.repository);
        let joint = if realm.contains('?') { '&' } else { '?' };
        let url = format!(
            "{realm}{joint}service={}&scope={}",
            percent_encode(service),
            percent_encode(&scope)
        );
        let basic = self
            .basic_authorization
            .clone()
            .map(|value| (AUTHORIZATION, value));
        let headers: Vec<(HeaderName, HeaderValue)> = basic.into_iter().collect();
        let answer = self.call(&url, &headers, MAX_MANIFEST_BYTES).await?;
        if answer.status == StatusCode::UNAUTHORIZED && self.basic_authorization.is_none() {
            return Err(OciError::NoCredentials);
        }
        let answer = answer.error_for_status()?;
        let answer: Value = serde_json::from_slice(&answer.body).map_err(|_| OciError::NoToken)?;
        let token = ["token", "access_token"].into_iter();
        let token = token.filter_map(|name| answer.get(name)?.as_str()).next();
        let mut value = token
            .and_then(|token| HeaderValue::from_str(&format!("Bearer {token}")).ok())
            .ok_or(OciError::NoToken)?;
        value.set_sensitive(true);
        Ok(value)
    }

    /// Checks that the password may be sent to the token server (realm) that the registry names. Any `https` realm is
    /// allowed, since the registry could receive the password itself. An `http` realm is allowed only if it is the
    /// registry, and the registry itself is called without TLS.
    fn allow_realm(&self, realm: &str) -> Result<(), OciError> {
        let uri: Option<http::Uri> = realm.parse().ok();
        let authority = uri.as_ref().and_then(http::Uri::authority);
        let (scheme, authority) = match (uri.as_ref().and_then(http::Uri::scheme_str), authority) {
            (Some(scheme), Some(authority)) => (scheme, authority.as_str()),
            _ => {
                return Err(OciError::UnsupportedChallenge(
                    realm.chars().take(200).collect(),
                ));
            }
        };
        let is_own = self.server.is_insecure && authority == self.image.registry;
        if scheme == "https" || scheme == "http" && is_own {
            return Ok(());
        }
        Err(OciError::ForbiddenRealm(
            authority.chars().take(200).collect(),
        ))
    }
}

/// Percent-encodes a value for a query string.
fn percent_encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~:/".contains(&byte) {
            out.push(char::from(byte));
        } else {
            out.push_str(&format!("%{byte:02X}"));
        }
    }
    out
}

/// Extracts `plugin.wasm` from the top directory of a layer.
fn unpack(layer: &[u8]) -> Result<Vec<u8>, OciError> {
    let most = u64::try_from(MAX_MODULE_BYTES).unwrap_or(u64::MAX);
    let is_packed = layer.starts_with(&[0x1f, 0x8b]);
    let reader: Box<dyn std::io::Read> = if is_packed {
        Box::new(GzDecoder::new(layer))
    } else {
        Box::new(layer)
    };
    // Includes the headers around the module.
    let mut archive = tar::Archive::new(reader.take(2 * most));
    for entry in archive.entries().map_err(|_| OciError::InvalidLayer)? {
        let entry = entry.map_err(|_| OciError::InvalidLayer)?;
        let path = entry.path_bytes();
        let name = path.strip_prefix(b"./").unwrap_or(&path);
        if name != b"plugin.wasm" || !entry.header().entry_type().is_file() {
            continue;
        }
        let mut module = Vec::new();
        let size = entry.size();
        let mut bounded = entry.take(most + 1);
        bounded
            .read_to_end(&mut module)
            .map_err(|_| OciError::InvalidLayer)?;
        // The reader does not report a truncated archive as an error.
        let is_whole = u64::try_from(module.len()).is_ok_and(|length| length == size);
        if module.len() > MAX_MODULE_BYTES || !is_whole {
            return Err(OciError::InvalidLayer);
        }
        return Ok(module);
    }
    Err(OciError::NoModule)
}

#[cfg(test)]
mod tests;
