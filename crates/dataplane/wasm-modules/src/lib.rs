//! Fetches modules of Wasm plugins from files, HTTP servers, and images in registries: their size is bounded, they
//! are verified against the digest in the plugin's configuration, and cached on disk.
//!
//! The caller decides from which addresses a plugin's module may be fetched ([`Admission`]). Modules are bytes here:
//! `ambit-wasm` compiles and runs them.
#![forbid(unsafe_code)]

mod bytes;
mod cache;
mod oci;

use std::{path::PathBuf, sync::Arc, time::Duration};

use ambit_fetch::{Admission, Client, Get};
use ambit_model::WaypointExtension;

pub use bytes::FileError;
pub use oci::OciError;

use bytes::{MAX_MODULE_BYTES, read_file, sha256_hex};
use cache::ModuleCache;

/// Fetcher of plugins' modules, with a disk cache.
#[derive(Debug)]
pub struct ModuleFetcher {
    cache: ModuleCache,
    client: Client,
    /// Registries that are called without TLS; `*` matches all.
    insecure_registries: Vec<String>,
    /// Timeout of fetching one module.
    timeout: Duration,
}

/// Error of fetching a module.
#[derive(Debug, thiserror::Error)]
pub enum FetchError {
    /// The URL has an unsupported scheme.
    #[error("{0}: neither oci, http, https nor file")]
    UnsupportedScheme(String),
    /// The file cannot be read, or is too large.
    #[error(transparent)]
    File(#[from] FileError),
    /// The module's digest is not the one that the plugin's configuration requires.
    #[error("the digest is {is}, not {expected} as in spec.sha256")]
    DigestMismatch {
        /// Digest of the module or of its image, in hexadecimal.
        is: String,
        /// Digest in the plugin's configuration.
        expected: String,
    },
    /// The module could not be fetched within this time.
    #[error("it took more than {0:?} (AMBIT_WASM_FETCH_TIMEOUT)")]
    Timeout(Duration),
    /// The HTTP request for the module failed.
    #[error(transparent)]
    Http(#[from] ambit_fetch::FetchError),
    /// The image could not be pulled.
    #[error(transparent)]
    Image(#[from] OciError),
}

impl ModuleFetcher {
    /// Creates a fetcher with a cache directory. Registries in `insecure` are called without TLS (`*` matches all).
    #[must_use]
    pub fn new(cache: PathBuf, client: Client, insecure: Vec<String>, timeout: Duration) -> Self {
        Self {
            cache: ModuleCache::new(cache),
            client,
            insecure_registries: insecure,
            timeout,
        }
    }

    /// Fetches the module of a plugin, from addresses that `admission` permits.
    ///
    /// # Errors
    ///
    /// When the module cannot be fetched in time, is too large, or does not have the configured digest.
    pub async fn fetch(
        &self,
        config: &WaypointExtension,
        admission: &impl Admission,
    ) -> Result<Arc<[u8]>, FetchError> {
        let fetch = self.cached_or_fetched(config, admission);
        let fetched = tokio::time::timeout(self.timeout, fetch).await;
        fetched.map_err(|_| FetchError::Timeout(self.timeout))?
    }

    async fn cached_or_fetched(
        &self,
        config: &WaypointExtension,
        admission: &impl Admission,
    ) -> Result<Arc<[u8]>, FetchError> {
        let (url, expected) = (config.url.as_str(), config.sha256.as_str());
        if let Some(path) = url.strip_prefix("file://") {
            let bytes = read_file(path).await?;
            return Ok(verify_digest(bytes, expected, None)?.into());
        }
        // A digest pins the content.
        let is_cacheable = !config.always_pull || !expected.is_empty();
        // A module that was fetched with credentials is cached for callers with credentials only.
        let whose = match config.pull_secret.is_empty() {
            true => "",
            false => config.namespace.as_str(),
        };
        let cache_key = cache::CacheKey {
            url,
            expected_digest: expected,
            credentials_namespace: whose,
        };
        if is_cacheable && let Some(cached) = self.cache.load(cache_key).await {
            return Ok(cached.into());
        }
        let bytes = if let Some(image) = url.strip_prefix("oci://") {
            let image = oci::ImageReference::parse(image)?;
            let is_insecure = self
                .insecure_registries
                .iter()
                .any(|one| one == "*" || *one == image.registry);
            let server = oci::RegistryAccess {
                client: &self.client,
                admission,
                is_insecure,
            };
            let pulled = oci::pull(server, &image, &config.pull_secret).await?;
            verify_digest(pulled.module, expected, Some(&pulled.digest))?
        } else if url.starts_with("http://") || url.starts_with("https://") {
            let get = Get {
                url,
                headers: &[],
                limit: MAX_MODULE_BYTES,
            };
            let response = self.client.get(get, admission).await?.error_for_status()?;
            verify_digest(response.body, expected, None)?
        } else {
            return Err(FetchError::UnsupportedScheme(url.to_owned()));
        };
        self.cache.store(cache_key, &bytes).await;
        Ok(bytes.into())
    }
}

/// Returns the module if the expected digest is the digest of the module, or of the image that contains it.
fn verify_digest(
    bytes: Vec<u8>,
    expected: &str,
    image: Option<&str>,
) -> Result<Vec<u8>, FetchError> {
    if expected.is_empty() || image == Some(expected) {
        return Ok(bytes);
    }
    let is = sha256_hex(&bytes);
    if is == expected {
        return Ok(bytes);
    }
    Err(FetchError::DigestMismatch {
        is: image.map_or(is, str::to_owned),
        expected: expected.to_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_of_the_module_or_its_image_is_accepted() {
        let module = b"module".to_vec();
        let right = sha256_hex(&module);
        for (expected, image, fits) in [
            ("", None, true),
            (right.as_str(), None, true),
            ("ab", Some("ab"), true),
            ("ab", Some("cd"), false),
            ("ab", None, false),
        ] {
            let verified = verify_digest(module.clone(), expected, image);
            assert_eq!(verified.is_ok(), fits, "{expected:?} {image:?}");
        }
    }
}
