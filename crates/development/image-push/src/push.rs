//! Pushes one image: first blobs that the registry lacks, then manifests of architectures, then the manifest or index
//! to which the name refers.

use std::time::Duration;

use anyhow::{Context, Result};
use http::HeaderValue;
use oci_client::{
    Client, Reference, RegistryOperation,
    client::{ClientConfig, ClientProtocol},
};

use crate::{archive::Image, credentials};

/// Timeout of connecting to a registry, including TLS.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of reading from a registry.
const READ_TIMEOUT: Duration = Duration::from_secs(60);

/// Pushes an image under its name, and returns the reference with its digest.
#[expect(clippy::print_stderr, reason = "progress of a command")]
pub(crate) async fn push(image: &Image) -> Result<Reference> {
    let name = &image.name;
    let registry = name.resolve_registry();
    let auth = credentials::registry_credentials(name.registry())?;
    let client = client(registry);
    let failed = || {
        format!(
            "cannot push {name}: is {registry} a registry, may you push there, and has `docker login {}` been run?",
            name.registry()
        )
    };
    client
        .auth(name, &auth, RegistryOperation::Push)
        .await
        .with_context(failed)?;
    let mut uploaded = 0;
    for blob in &image.blobs {
        let exists = client.blob_exists(name, &blob.digest).await;
        if exists.with_context(failed)? {
            continue;
        }
        client
            .push_blob(name, blob.bytes.clone(), &blob.digest)
            .await
            .with_context(failed)?;
        uploaded += blob.bytes.len();
    }
    let variants = image.variants.iter().map(|manifest| {
        let digest = manifest.blob.digest.clone();
        (name.clone_with_digest(digest), manifest)
    });
    // The name is pushed last, so that all blobs exist when it can be resolved.
    for (name, manifest) in variants.chain([(name.clone(), &image.root_manifest)]) {
        let media_type =
            HeaderValue::from_str(&manifest.media_type).context("the manifest's media type")?;
        client
            .push_manifest_raw(&name, manifest.blob.bytes.clone(), media_type)
            .await
            .with_context(failed)?;
    }
    eprintln!(
        "    {name} {} ({} MB uploaded)",
        image.root_manifest.blob.digest,
        uploaded / 1_000_000
    );
    Ok(name.clone_with_digest(image.root_manifest.blob.digest.clone()))
}

/// Returns a registry client, which uses TLS unless the registry is on this machine, as Docker does.
fn client(registry: &str) -> Client {
    let protocol = match is_local(registry) {
        true => ClientProtocol::Http,
        false => ClientProtocol::Https,
    };
    Client::new(ClientConfig {
        protocol,
        connect_timeout: Some(CONNECT_TIMEOUT),
        read_timeout: Some(READ_TIMEOUT),
        ..ClientConfig::default()
    })
}

fn is_local(registry: &str) -> bool {
    let host = match registry.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => registry.split(':').next().unwrap_or_default(),
    };
    host == "localhost"
        || host
            .parse()
            .is_ok_and(|ip: std::net::IpAddr| ip.is_loopback())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_local_registries_are_used_without_tls() {
        for local in [
            "localhost:5000",
            "127.0.0.1:5000",
            "[::1]:5000",
            "localhost",
        ] {
            assert!(is_local(local), "{local}");
        }
        for remote in [
            "localhost.example.com",
            "10.0.0.1:5000",
            "ghcr.io",
            "127.0.0.1.nip.io:80",
        ] {
            assert!(!is_local(remote), "{remote}");
        }
    }
}
