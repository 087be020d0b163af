//! OCI archives, as `cargo xtask images` writes them: one image, its layers uncompressed.

use std::{
    collections::HashMap,
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, bail, ensure};
use oci_client::{
    Reference,
    manifest::{OciImageIndex, OciImageManifest},
};

/// The annotation that holds the full name of an image, as containerd reads it.
const NAME: &str = "io.containerd.image.name";

/// Bytes of an image, by their digest.
#[derive(Debug)]
pub(crate) struct Blob {
    /// Digest of the bytes, as `sha256:…`.
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

/// An image that can be pushed.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) name: Reference,
    pub(crate) manifest: Blob,
    pub(crate) media_type: String,
    /// Configuration and layers.
    pub(crate) blobs: Vec<Blob>,
}

/// Reads an archive and checks its digests.
pub(crate) fn read(path: &Path) -> Result<Image> {
    read_image(path).with_context(|| {
        format!(
            "{} is no complete archive of one image; write it with `cargo xtask images`",
            path.display()
        )
    })
}

fn read_image(path: &Path) -> Result<Image> {
    let mut files = files(path)?;
    let index = files
        .remove(Path::new("index.json"))
        .context("it has no index.json")?;
    let index: OciImageIndex = serde_json::from_slice(&index).context("index.json")?;
    let [described] = index.manifests.as_slice() else {
        bail!("index.json names {} images", index.manifests.len());
    };
    let annotations = described.annotations.iter().flatten();
    let name = annotations
        .into_iter()
        .find_map(|(key, name)| (key == NAME).then_some(name))
        .with_context(|| format!("index.json has no annotation {NAME}"))?;
    let name = name
        .parse()
        .with_context(|| format!("{name:?} is no name of an image"))?;
    let media_type = described.media_type.clone();
    let manifest = blob(&mut files, &described.digest)?;
    let parsed: OciImageManifest =
        serde_json::from_slice(&manifest.bytes).context("the manifest")?;
    let blobs = std::iter::once(&parsed.config)
        .chain(&parsed.layers)
        .map(|described| blob(&mut files, &described.digest))
        .collect::<Result<_>>()?;
    Ok(Image {
        name,
        manifest,
        media_type,
        blobs,
    })
}

fn files(path: &Path) -> Result<HashMap<PathBuf, Vec<u8>>> {
    let mut files = HashMap::new();
    let mut archive = tar::Archive::new(File::open(path)?);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes)?;
        files.insert(entry.path()?.into_owned(), bytes);
    }
    Ok(files)
}

/// The blob of a digest, which its bytes must have.
fn blob(files: &mut HashMap<PathBuf, Vec<u8>>, digest: &str) -> Result<Blob> {
    let path = Path::new("blobs").join(digest.replace(':', "/"));
    let bytes = files
        .remove(&path)
        .with_context(|| format!("it has no blob {digest}"))?;
    ensure!(
        digest == format!("sha256:{}", hex_digest(&bytes)),
        "the blob {digest} has other bytes"
    );
    Ok(Blob {
        digest: digest.to_owned(),
        bytes,
    })
}
