//! Files from Go modules that a cluster needs: CRDs as manifests, and directories as archives.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use crate::command::ToolCommand;

/// CRDs of the standard channel of the Gateway API.
pub(crate) const GATEWAY_API: CrdSource = CrdSource {
    source: "gateway-api",
    manifest: "gateway-api",
    module: "sigs.k8s.io/gateway-api",
    directories: &["config/crd/standard"],
};

/// CRDs of Calico.
pub(crate) const CALICO: CrdSource = CrdSource {
    source: "calico",
    manifest: "calico-definitions",
    module: "github.com/projectcalico/calico",
    directories: &["libcalico-go/config/crd"],
};

/// CRDs of Cilium.
pub(crate) const CILIUM: CrdSource = CrdSource {
    source: "cilium",
    manifest: "cilium-definitions",
    module: "github.com/cilium/cilium",
    directories: &[
        "pkg/k8s/apis/cilium.io/client/crds/v2",
        "pkg/k8s/apis/cilium.io/client/crds/v2alpha1",
    ],
};

/// C programs that Cilium's agent compiles for eBPF.
pub(crate) const CILIUM_BPF: FileSource = FileSource {
    source: "cilium",
    archive: "cilium-bpf",
    module: "github.com/cilium/cilium",
    directory: "bpf",
};

/// Directories of CRDs in a Go module, and the manifest that is built from them.
#[derive(Debug)]
pub(crate) struct CrdSource {
    /// Directory in `build` of the Go module that requires `module`.
    pub(crate) source: &'static str,
    /// File name of the manifest in the directory of programs.
    pub(crate) manifest: &'static str,
    module: &'static str,
    directories: &'static [&'static str],
}

impl CrdSource {
    /// Writes the CRDs to `output` as one manifest; `source` is the Go module in `build`.
    pub(crate) fn write(&self, source: &Path, output: &Path) -> Result<()> {
        let module = module_directory(self.module, source)?;
        let mut all = String::new();
        for directory in self.directories {
            for file in files(&module.join(directory))? {
                let text = fs::read_to_string(file)?;
                // The Gateway API also has a policy that rejects older CRDs, which tests do
                // install.
                if text
                    .lines()
                    .any(|line| line == "kind: CustomResourceDefinition")
                {
                    all += &format!("---\n{text}");
                }
            }
        }
        ensure!(!all.is_empty(), "no definitions are in {}", self.module);
        Ok(fs::write(output, all)?)
    }
}

/// Directory in a Go module, and the archive that is built from it.
#[derive(Debug)]
pub(crate) struct FileSource {
    /// Directory in `build` of the Go module that requires `module`.
    pub(crate) source: &'static str,
    /// File name of the archive in the directory of programs.
    pub(crate) archive: &'static str,
    module: &'static str,
    directory: &'static str,
}

impl FileSource {
    /// Writes the files to `output` as one archive; `source` is the Go module in `build`.
    pub(crate) fn write(&self, source: &Path, output: &Path) -> Result<()> {
        ToolCommand::new("tar")
            .arg("-C")
            .arg(module_directory(self.module, source)?)
            .arg("-cf")
            .arg(output)
            .arg(self.directory)
            .run()
    }
}

/// Returns the directory with a Go module's files, downloaded if necessary; `source` is the Go module in `build` that
/// requires it.
fn module_directory(module: &str, source: &Path) -> Result<PathBuf> {
    let listed = Command::new("go")
        .args(["mod", "download", "-json", module])
        .current_dir(source)
        .output()
        .with_context(|| format!("cannot download {module}: is Go (1.24 or later) installed?"))?;
    ensure!(
        listed.status.success(),
        "downloading {module} failed: {}",
        String::from_utf8_lossy(&listed.stderr)
    );
    let listed: Value = serde_json::from_slice(&listed.stdout)?;
    let directory = listed.get("Dir").and_then(Value::as_str);
    let directory = directory.with_context(|| format!("go names no directory of {module}"))?;
    Ok(PathBuf::from(directory))
}

/// Returns the files of a directory, sorted.
pub(crate) fn files(directory: &Path) -> Result<Vec<PathBuf>> {
    let mut files: Vec<PathBuf> = fs::read_dir(directory)
        .with_context(|| format!("no files in {}", directory.display()))?
        .map(|entry| Ok(entry?.path()))
        .collect::<Result<_>>()?;
    files.sort();
    Ok(files)
}
