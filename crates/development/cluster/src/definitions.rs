//! Definitions of custom resources, which are files of Go modules, as manifests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

/// Definitions of the standard channel of the Gateway API.
pub(crate) const GATEWAY_API: Definitions = Definitions {
    source: "gateway-api",
    manifest: "gateway-api",
    module: "sigs.k8s.io/gateway-api",
    directory: "config/crd/standard",
};

/// Definitions of Calico.
pub(crate) const CALICO: Definitions = Definitions {
    source: "calico",
    manifest: "calico-definitions",
    module: "github.com/projectcalico/calico",
    directory: "libcalico-go/config/crd",
};

/// A directory of definitions in a Go module, and the manifest made of them.
#[derive(Debug)]
pub(crate) struct Definitions {
    /// The directory of our Go module in `build`, which requires `module`.
    pub(crate) source: &'static str,
    /// The name of the manifest beside the programs.
    pub(crate) manifest: &'static str,
    module: &'static str,
    directory: &'static str,
}

impl Definitions {
    /// Writes them as one manifest; `source` is our Go module.
    pub(crate) fn write(&self, source: &Path, output: &Path) -> Result<()> {
        let module = self.module;
        let listed = Command::new("go")
            .args(["mod", "download", "-json", module])
            .current_dir(source)
            .output()
            .with_context(|| {
                format!("cannot download {module}: is Go (1.24 or later) installed?")
            })?;
        ensure!(
            listed.status.success(),
            "downloading {module} failed: {}",
            String::from_utf8_lossy(&listed.stderr)
        );
        let listed: Value = serde_json::from_slice(&listed.stdout)?;
        let directory = listed.get("Dir").and_then(Value::as_str);
        let directory = directory.with_context(|| format!("go names no directory of {module}"))?;
        let mut all = String::new();
        for file in files(&Path::new(directory).join(self.directory))? {
            let text = fs::read_to_string(file)?;
            // Beside those of the Gateway API is a policy that forbids older ones, which tests do install.
            if text
                .lines()
                .any(|line| line == "kind: CustomResourceDefinition")
            {
                all += &format!("---\n{text}");
            }
        }
        ensure!(!all.is_empty(), "no definitions are in {directory}");
        Ok(fs::write(output, all)?)
    }
}

/// The files of a directory, sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("no files in {}", directory.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}
