//! Writes container images as OCI archives, reproducibly: the same files give the same bytes.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::BufWriter,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// The SHA-256 of some bytes, in hexadecimal.
pub fn hex_digest(bytes: &[u8]) -> String {
    Sha256::digest(bytes)
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

#[derive(Debug)]
enum Entry {
    Directory,
    File(Vec<u8>),
    Link(PathBuf),
}

/// Files of an image, by their path without the leading slash.
#[derive(Debug, Default)]
pub struct Tree(BTreeMap<PathBuf, (u32, Entry)>);

impl Tree {
    /// A directory, which may be empty.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.add(path, mode, Entry::Directory);
    }

    /// A file with this text.
    pub fn text(&mut self, path: &str, text: &str) {
        self.add(path, 0o644, Entry::File(text.into()));
    }

    /// A copy of a file of this machine.
    pub fn copy(&mut self, path: &str, source: &Path, mode: u32) -> Result<()> {
        let bytes =
            fs::read(source).with_context(|| format!("cannot read {}", source.display()))?;
        self.add(path, mode, Entry::File(bytes));
        Ok(())
    }

    /// A symbolic link.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, 0o777, Entry::Link(target.into()));
    }

    fn add(&mut self, path: &str, mode: u32, entry: Entry) {
        let path = Path::new(path.trim_start_matches('/'));
        for parent in path.ancestors().skip(1) {
            if parent != Path::new("") {
                self.0
                    .entry(parent.to_path_buf())
                    .or_insert((0o755, Entry::Directory));
            }
        }
        self.0.insert(path.to_path_buf(), (mode, entry));
    }

    /// The layer that contains exactly these.
    pub fn layer(&self) -> Result<Blob> {
        self.tar().map(Blob::new)
    }

    /// The archive that contains exactly these.
    pub(crate) fn tar(&self) -> Result<Vec<u8>> {
        let mut archive = tar::Builder::new(Vec::new());
        for (path, (mode, entry)) in &self.0 {
            let mut header = header(*mode);
            match entry {
                Entry::Directory => {
                    header.set_entry_type(tar::EntryType::Directory);
                    archive.append_data(&mut header, path, std::io::empty())?;
                }
                Entry::File(bytes) => {
                    header.set_size(bytes.len() as u64);
                    archive.append_data(&mut header, path, bytes.as_slice())?;
                }
                Entry::Link(target) => {
                    header.set_entry_type(tar::EntryType::Symlink);
                    archive.append_link(&mut header, path, target)?;
                }
            }
        }
        Ok(archive.into_inner()?)
    }
}

fn header(mode: u32) -> tar::Header {
    let mut header = tar::Header::new_gnu();
    header.set_mode(mode);
    header.set_size(0);
    header.set_mtime(0);
    header
}

/// Bytes named by their digest.
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

/// An image: its layers, and its entry point.
#[derive(Debug)]
pub struct Image<'a> {
    /// Image name with registry and tag.
    pub name: &'a str,
    /// Layers of the image; later layers override files of earlier ones.
    pub layers: Vec<Blob>,
    /// The entry point.
    pub entrypoint: &'a [&'a str],
    /// `UID:GID`, or nothing for root.
    pub user: &'a str,
}

impl Image<'_> {
    /// Writes the archive, unless `path` already has the same image.
    pub fn write(&self, path: &Path) -> Result<()> {
        let diffs: Vec<String> = self
            .layers
            .iter()
            .map(|layer| format!("sha256:{}", layer.digest))
            .collect();
        let config = Blob::json(&json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {
                "Entrypoint": self.entrypoint,
                "Env": ["PATH=/usr/bin:/bin"],
                "User": self.user,
                "WorkingDir": "/",
            },
            "rootfs": {"type": "layers", "diff_ids": diffs},
        }));
        let artifact = Artifact {
            name: self.name,
            config: (config, CONFIG),
            layers: &self.layers,
            layer_type: LAYER,
        };
        artifact.write(path)
    }
}

/// Artifact that a registry stores under a name: an image, or a chart.
pub(crate) struct Artifact<'a> {
    /// Full name, with registry and tag.
    pub(crate) name: &'a str,
    /// Configuration with its media type.
    pub(crate) config: (Blob, &'a str),
    pub(crate) layers: &'a [Blob],
    /// Media type of the layers.
    pub(crate) layer_type: &'a str,
}

impl Artifact<'_> {
    /// Writes the archive, unless `path` already has the same artifact.
    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        let (config, config_type) = &self.config;
        let layers = self.layers.iter();
        let layers: Vec<Value> = layers
            .map(|layer| layer.descriptor(self.layer_type))
            .collect();
        let manifest = Blob::json(&json!({
            "schemaVersion": 2,
            "mediaType": MANIFEST,
            "config": config.descriptor(config_type),
            "layers": layers,
        }));
        let mut described = manifest.descriptor(MANIFEST);
        let tag = self.name.rsplit_once(':').map_or("latest", |(_, tag)| tag);
        if let Some(described) = described.as_object_mut() {
            described.insert(
                "annotations".to_owned(),
                json!({
                    "io.containerd.image.name": self.name,
                    "org.opencontainers.image.ref.name": tag,
                }),
            );
        }
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
            let mut header = header(0o644);
            header.set_size(bytes.len() as u64);
            archive.append_data(&mut header, name, bytes)
        };
        put("oci-layout", br#"{"imageLayoutVersion":"1.0.0"}"#)?;
        put("index.json", index.as_bytes())?;
        for blob in [&manifest, config].into_iter().chain(self.layers) {
            put(&format!("blobs/sha256/{}", blob.digest), &blob.bytes)?;
        }
        archive.into_inner()?;
        Ok(fs::write(stamp, expected)?)
    }
}

fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn image(path: &Path) {
        let mut tree = Tree::default();
        tree.text("/etc/passwd", "root:x:0:0::/:/bin/sh\n");
        tree.link("/bin/sh", "busybox");
        tree.directory("/tmp", 0o1777);
        let image = Image {
            name: "kube.local/test:1",
            layers: vec![tree.layer().unwrap()],
            entrypoint: &["/bin/sh"],
            user: "",
        };
        image.write(path).unwrap();
    }

    #[test]
    fn the_same_files_give_the_same_bytes() {
        let directory = tempfile::tempdir().unwrap();
        let (one, other) = (
            directory.path().join("1.tar"),
            directory.path().join("2.tar"),
        );
        image(&one);
        image(&other);
        assert_eq!(fs::read(&one).unwrap(), fs::read(&other).unwrap());
    }

    #[test]
    fn every_blob_is_named_by_its_digest_and_every_parent_is_there() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("image.tar");
        image(&path);
        let mut layers = 0;
        for entry in tar::Archive::new(File::open(path).unwrap())
            .entries()
            .unwrap()
        {
            let mut entry = entry.unwrap();
            let name = entry.path().unwrap().to_string_lossy().into_owned();
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut entry, &mut bytes).unwrap();
            let Some(digest) = name.strip_prefix("blobs/sha256/") else {
                continue;
            };
            assert_eq!(digest, hex_digest(&bytes));
            if bytes.starts_with(b"{") {
                continue;
            }
            layers += 1;
            let names: Vec<String> = tar::Archive::new(bytes.as_slice())
                .entries()
                .unwrap()
                .map(|entry| {
                    entry
                        .unwrap()
                        .path()
                        .unwrap()
                        .to_string_lossy()
                        .into_owned()
                })
                .collect();
            assert_eq!(names, ["bin", "bin/sh", "etc", "etc/passwd", "tmp"]);
        }
        assert_eq!(layers, 1);
    }
}
