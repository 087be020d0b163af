//! Writes container images as OCI archives, reproducibly: equal files produce equal bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{BufWriter, Write as _},
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use crate::Architecture;

const INDEX_MEDIA_TYPE: &str = "application/vnd.oci.image.index.v1+json";
const MANIFEST_MEDIA_TYPE: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG_MEDIA_TYPE: &str = "application/vnd.oci.image.config.v1+json";
const LAYER_MEDIA_TYPE: &str = "application/vnd.oci.image.layer.v1.tar";

/// Returns the SHA-256 of bytes, in hexadecimal.
pub fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[derive(Debug)]
enum TreeEntry {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

/// Files of an image layer, by their paths without the leading slash, with their modes.
#[derive(Debug, Default)]
pub struct LayerTree(BTreeMap<PathBuf, (u32, TreeEntry)>);

impl LayerTree {
    /// Adds a directory, which may be empty.
    pub fn add_directory(&mut self, path: &str, mode: u32) {
        self.add(path, mode, TreeEntry::Directory);
    }

    /// Adds a file with this text.
    pub fn add_text_file(&mut self, path: &str, text: &str) {
        self.add(path, 0o644, TreeEntry::File(text.into()));
    }

    /// Adds a copy of the file `source` of this machine.
    pub fn add_copy(&mut self, path: &str, source: &Path, mode: u32) -> Result<()> {
        let bytes =
            fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.add(path, mode, TreeEntry::File(bytes));
        Ok(())
    }

    /// Adds a symbolic link.
    pub fn add_symlink(&mut self, path: &str, target: &str) {
        self.add(path, 0o777, TreeEntry::Link(target.into()));
    }

    fn add(&mut self, path: &str, mode: u32, entry: TreeEntry) {
        let path = Path::new(path.trim_start_matches('/'));
        for parent in path.ancestors().skip(1) {
            if parent != Path::new("") {
                self.0
                    .entry(parent.to_path_buf())
                    .or_insert((0o755, TreeEntry::Directory));
            }
        }
        self.0.insert(path.to_path_buf(), (mode, entry));
    }

    /// Returns the layer blob that contains exactly these files.
    pub fn to_layer(&self) -> Result<Blob> {
        self.to_tar().map(Blob::new)
    }

    /// Returns the tar archive of these files, compressed with gzip. The archive contains no timestamps, so that equal
    /// files produce equal bytes.
    ///
    /// # Errors
    ///
    /// For paths that an archive cannot have.
    pub fn to_tar_gz(&self) -> Result<Vec<u8>> {
        let mut compressed = GzBuilder::new().write(Vec::new(), Compression::best());
        compressed.write_all(&self.to_tar()?)?;
        Ok(compressed.finish()?)
    }

    /// Returns the tar archive that contains exactly these files.
    fn to_tar(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, (mode, entry)) in &self.0 {
            let mut header = tar_header(*mode);
            match entry {
                TreeEntry::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, path, std::io::empty())?;
                }
                TreeEntry::File(bytes) => {
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, path, bytes.as_slice())?;
                }
                TreeEntry::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(archive.into_inner()?)
    }
}

fn tar_header(mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(0);
    header
}

/// Content of an OCI blob, with its digest.
#[derive(Clone, Debug)]
pub struct Blob {
    digest: String,
    bytes: Vec<u8>,
}

impl Blob {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        let digest = hex_digest(&bytes);
        Self { digest, bytes }
    }

    pub(crate) fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({
            "mediaType": media_type,
            "digest": format!("sha256:{}", self.digest),
            "size": self.bytes.len(),
        })
    }
}

/// Image with its variants by architecture, and its entry point.
#[derive(Debug)]
pub struct Image<'a> {
    /// Full name of the image, with registry and tag.
    pub name: &'a str,
    /// Variants of the image by architecture, at least one.
    pub variants: Vec<Variant>,
    /// Entry point of the container.
    pub entrypoint: &'a [&'a str],
    /// User of the container as `UID:GID`; empty for root.
    pub user: &'a str,
}

/// Layers of an image for one architecture.
#[derive(Debug)]
pub struct Variant {
    /// Architecture of the programs in the layers.
    pub architecture: Architecture,
    /// Layers; files of later ones override those of earlier ones.
    pub layers: Vec<Blob>,
}

impl Variant {
    /// Returns the variant for this machine.
    ///
    /// # Errors
    /// Fails on a machine of an architecture that images are not built for.
    pub fn native(layers: Vec<Blob>) -> Result<Self> {
        let architecture = Architecture::native()?;
        Ok(Self {
            architecture,
            layers,
        })
    }
}

impl Image<'_> {
    /// Writes the image as an OCI archive, unless `path` already has the same image. An image of one architecture is
    /// written as a manifest; an image of several architectures, as an index of manifests.
    pub fn write(&self, path: &Path) -> Result<()> {
        let mut blobs = Vec::new();
        let mut manifests = Vec::new();
        for variant in &self.variants {
            let manifest = Manifest {
                config: (self.config(variant), CONFIG_MEDIA_TYPE),
                layers: &variant.layers,
                layer_media_type: LAYER_MEDIA_TYPE,
            };
            let (written, own) = manifest.blobs();
            let mut descriptor = written.descriptor(MANIFEST_MEDIA_TYPE);
            let platform = json!({"architecture": variant.architecture.name(), "os": "linux"});
            insert(&mut descriptor, "platform", platform);
            manifests.push(descriptor);
            blobs.push(written);
            blobs.extend(own);
        }
        if let [_] = manifests.as_slice() {
            let manifest = blobs.remove(0);
            return write(self.name, (&manifest, MANIFEST_MEDIA_TYPE), &blobs, path);
        }
        let index = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": INDEX_MEDIA_TYPE,
            "manifests": manifests,
        }));
        write(self.name, (&index, INDEX_MEDIA_TYPE), &blobs, path)
    }

    fn config(&self, variant: &Variant) -> Blob {
        let diffs: Vec<String> = variant
            .layers
            .iter()
            .map(|layer| format!("sha256:{}", layer.digest))
            .collect();
        Blob::json(&json!({
            "architecture": variant.architecture.name(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/bin:/bin"],
                "User": self.user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }))
    }
}

/// Manifest of an image for one architecture, or of a chart.
pub(crate) struct Manifest<'a> {
    /// Configuration blob with its media type.
    pub(crate) config: (Blob, &'a str),
    pub(crate) layers: &'a [Blob],
    /// Media type of the layers.
    pub(crate) layer_media_type: &'a str,
}

impl Manifest<'_> {
    /// Writes an OCI archive with only this manifest, unless `path` already has the same one.
    pub(crate) fn write(&self, name: &str, path: &Path) -> Result<()> {
        let (manifest, blobs) = self.blobs();
        write(name, (&manifest, MANIFEST_MEDIA_TYPE), &blobs, path)
    }

    /// Returns the manifest's blob, and the blobs that it refers to.
    fn blobs(&self) -> (Blob, Vec<Blob>) {
        let (config, config_type) = &self.config;
        let layers = self.layers.iter();
        let layers: Vec<Value> = layers
            .map(|layer| layer.descriptor(self.layer_media_type))
            .collect();
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST_MEDIA_TYPE,
            "config": config.descriptor(config_type),
            "layers": layers,
        }));
        let blobs = std::iter::once(config).chain(self.layers);
        (manifest, blobs.cloned().collect())
    }
}

/// Writes an OCI archive in which the image name `name` refers to the blob `root`, unless `path` already has the same
/// archive.
fn write(name: &str, (root, media_type): (&Blob, &str), blobs: &[Blob], path: &Path) -> Result<()> {
    let mut described = root.descriptor(media_type);
    let tag = name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
    let annotations = json!({
        "io.containerd.image.name": name,
        "org.opencontainers.image.ref.name": tag,
    });
    insert(&mut described, "annotations", annotations);
    let index = json!({"schemaVersion": 2, "manifests": [described]}).to_string();
    let stamp = path.with_extension("digest");
    let expected = hex_digest(index.as_bytes());
    if path.exists() && fs::read_to_string(&stamp).is_ok_and(|found| found == expected) {
        return Ok(());
    }
    let mut archive = tar::Builder::new(BufWriter::new(
        File::create(path).with_context(|| format!("cannot write {}", path.display()))?,
    ));
    let mut put = |name: &str, bytes: &[u8]| {
        let mut header = tar_header(0o644);
        header.set_size(bytes.len() as u64);
        archive.append_data(&mut header, name, bytes)
    };
    put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
    put("index.json", index.as_bytes())?;
    // Variants share blobs, for instance an empty layer.
    let blobs: BTreeMap<&str, &[u8]> = std::iter::once(root)
        .chain(blobs)
        .map(|blob| (blob.digest.as_str(), blob.bytes.as_slice()))
        .collect();
    for (digest, bytes) in blobs {
        put(&format!("blobs/sha256/{digest}"), bytes)?;
    }
    archive.into_inner()?;
    Ok(fs::write(stamp, expected)?)
}

fn insert(object: &mut Value, key: &str, value: Value) {
    if let Some(object) = object.as_object_mut() {
        object.insert(key.to_owned(), value);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(path: &Path, architectures: &[Architecture]) {
        let mut tree = LayerTree::default();
        tree.add_text_file("/etc/passwd", "root:x:0:0::/:/bin/sh\n");
        tree.add_symlink("/bin/sh", "busybox");
        tree.add_directory("/tmp", 0o1777);
        let image = Image {
            name: "kube.local/test:1",
            variants: architectures
                .iter()
                .map(|architecture| Variant {
                    architecture: *architecture,
                    layers: vec![tree.to_layer().unwrap()],
                })
                .collect(),
            entrypoint: &["/bin/sh"],
            user: "",
        };
        image.write(path).unwrap();
    }

    #[test]
    fn equal_files_produce_equal_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (
            directory.path().join("1.tar"),
            directory.path().join("2.tar"),
        );
        image(&one, &Architecture::ALL);
        image(&other, &Architecture::ALL);
        assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
    }

    /// Returns the files of an archive by their paths.
    fn files(archive: impl std::io::Read) -> BTreeMap<String, Vec<u8>> {
        let mut files = BTreeMap::new();
        for entry in tar::Archive::new(archive).entries().unwrap() {
            let mut entry = entry.unwrap();
            let path = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            assert!(files.insert(path, bytes).is_none(), "each file once");
        }
        files
    }

    #[test]
    fn blobs_are_named_by_digest_and_directories_complete() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        image(&path, &[Architecture::Arm64]);
        let mut layers = 0;
        for (name, bytes) in files(File::open(path).unwrap()) {
            let Some(digest) = name.strip_prefix("blobs/sha256/") else {
                continue;
            };
            assert_eq!(digest, hex_digest(&bytes));
            if bytes.starts_with(b"{") {
                continue;
            }
            layers += 1;
            let names: Vec<_> = files(bytes.as_slice()).into_keys().collect();
            assert_eq!(names, ["bin", "bin/sh", "etc", "etc/passwd", "tmp"]);
        }
        assert_eq!(layers, 1);
    }

    #[test]
    fn image_of_several_architectures_is_an_index() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        image(&path, &Architecture::ALL);
        let files = files(File::open(path).unwrap());
        let parse = |name: &str| serde_json::from_slice::<Value>(&files[name]).unwrap();
        let blob = |descriptor: &Value| {
            let digest = descriptor["digest"].as_str().unwrap();
            parse(&format!("blobs/{}", digest.replace(':', "/")))
        };
        let root = parse("index.json");
        assert_eq!(root["manifests"].as_array().unwrap().len(), 1);
        let described = &root["manifests"][0];
        assert_eq!(described["mediaType"], INDEX_MEDIA_TYPE);
        let index = blob(described);
        for (at, name) in ["amd64", "arm64"].into_iter().enumerate() {
            let variant = &index["manifests"][at];
            assert_eq!(variant["platform"]["architecture"], name);
            assert_eq!(blob(&blob(variant)["config"])["architecture"], name);
        }
    }
}
