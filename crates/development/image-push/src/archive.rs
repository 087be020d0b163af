//! Reads OCI archives, as `cargo xtask images` writes them: one image for one architecture or
//! several, or a chart.

use std::{
    collections::{HashMap, HashSet},
    fs::File,
    io::Read as _,
    path::{Path, PathBuf},
};

use ambit_images::hex_digest;
use anyhow::{Context, Result, bail, ensure};
use oci_client::{
    Reference,
    manifest::{OCI_IMAGE_INDEX_MEDIA_TYPE, OciImageIndex, OciImageManifest},
};

/// Annotation of a manifest with the full name of its image, as containerd reads it.
const NAME_ANNOTATION: &str = "io.containerd.image.name";

/// Bytes of a blob of an image, with their digest.
#[derive(Debug)]
pub(crate) struct Blob {
    /// SHA-256 digest of the bytes, as `sha256:…`.
    pub(crate) digest: String,
    pub(crate) bytes: Vec<u8>,
}

/// Image that was read from an OCI archive, to be pushed.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) name: Reference,
    /// Manifest or index to which the image's name refers.
    pub(crate) root_manifest: Manifest,
    /// Manifests to which the index refers; empty without an index.
    pub(crate) variants: Vec<Manifest>,
    /// Blobs of the image: configurations and layers.
    pub(crate) blobs: Vec<Blob>,
}

/// Manifest of one architecture, or index of manifests.
#[derive(Debug)]
pub(crate) struct Manifest {
    pub(crate) blob: Blob,
    pub(crate) media_type: String,
}

/// Reads an OCI archive and checks its digests.
pub(crate) fn read(path: &Path) -> Result<Image> {
    read_image(path).with_context(|| {
        format!(
            "{} is no complete archive of one image; write it with `cargo xtask images`",
            path.display()
        )
    })
}

fn read_image(path: &Path) -> Result<Image> {
    let mut files = read_files(path)?;
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
        .find_map(|(key, name)| (key == NAME_ANNOTATION).then_some(name))
        .with_context(|| format!("index.json has no annotation {NAME_ANNOTATION}"))?;
    let name = name
        .parse()
        .with_context(|| format!("{name:?} is no name of an image"))?;
    let root = read_manifest(&mut files, &described.digest, &described.media_type)?;
    let mut variants = Vec::new();
    if root.media_type == OCI_IMAGE_INDEX_MEDIA_TYPE {
        let index: OciImageIndex =
            serde_json::from_slice(&root.blob.bytes).context("the index of manifests")?;
        for described in index.manifests {
            variants.push(read_manifest(
                &mut files,
                &described.digest,
                &described.media_type,
            )?);
        }
    }
    let mut blobs = Vec::new();
    let manifests = if variants.is_empty() {
        std::slice::from_ref(&root)
    } else {
        variants.as_slice()
    };
    let mut collected = HashSet::new();
    for manifest in manifests {
        let parsed: OciImageManifest =
            serde_json::from_slice(&manifest.blob.bytes).context("the manifest")?;
        for described in std::iter::once(&parsed.config).chain(&parsed.layers) {
            // Variants share blobs.
            if collected.insert(described.digest.clone()) {
                blobs.push(take_blob(&mut files, &described.digest)?);
            }
        }
    }
    Ok(Image {
        name,
        root_manifest: root,
        variants,
        blobs,
    })
}

fn read_manifest(
    files: &mut HashMap<PathBuf, Vec<u8>>,
    digest: &str,
    media_type: &str,
) -> Result<Manifest> {
    Ok(Manifest {
        blob: take_blob(files, digest)?,
        media_type: media_type.to_owned(),
    })
}

fn read_files(path: &Path) -> Result<HashMap<PathBuf, Vec<u8>>> {
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

/// Removes the blob with this digest from the archive's files, and checks its bytes.
fn take_blob(files: &mut HashMap<PathBuf, Vec<u8>>, digest: &str) -> Result<Blob> {
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
